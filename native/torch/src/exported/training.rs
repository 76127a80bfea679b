//! Operators that do one thing in training and another in evaluation, which an exported graph has fixed.

use std::collections::HashMap;

use super::dispatch::Value;

/// An operator that a graph has in one of two modes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ModeFlag {
    /// The node, as errors name it.
    pub label: String,
    /// Whether it is in training mode.
    pub training: bool,
}

/// The arguments that say whether an operator trains.
const FLAGS: [&str; 3] = ["train", "training", "use_input_stats"];

impl ModeFlag {
    /// The mode of an operator with these arguments; `None` where the mode makes no difference: dropout with probability
    /// 0, a normalization without running statistics.
    pub(super) fn of(
        label: &str,
        operator: &str,
        arguments: &HashMap<&str, Value>,
    ) -> Option<ModeFlag> {
        let flag = |training| {
            Some(ModeFlag {
                label: label.to_string(),
                training,
            })
        };
        // Attention has no flag: in evaluation its probability is 0.
        if let Some(probability) = arguments.get("dropout_p") {
            return if is_zero(probability) {
                None
            } else {
                flag(true)
            };
        }
        let training = match FLAGS.iter().find_map(|name| arguments.get(name))? {
            Value::Bool(training) => *training,
            _ => return None,
        };
        let unconditional = ["p", "dropout"]
            .iter()
            .filter_map(|name| arguments.get(name))
            .any(is_zero);
        let normalizes = operator.ends_with("_norm") || operator.contains("_norm_");
        let no_statistics = normalizes
            && arguments
                .get("running_mean")
                .is_none_or(|mean| *mean == Value::None);
        if unconditional || no_statistics {
            None
        } else {
            flag(training)
        }
    }
}

fn is_zero(value: &Value) -> bool {
    matches!(value, Value::Float(0.0) | Value::Int(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn training(operator: &str, arguments: &[(&'static str, Value)]) -> Option<bool> {
        ModeFlag::of("node n", operator, &arguments.iter().cloned().collect())
            .map(|flag| flag.training)
    }

    #[test]
    fn flags_that_matter_are_found() {
        use Value::*;
        let on = ("train", Bool(true));
        assert_eq!(
            training("aten::dropout", &[("p", Float(0.5)), on.clone()]),
            Some(true)
        );
        assert_eq!(
            training(
                "aten::dropout",
                &[("p", Float(0.5)), ("train", Bool(false))]
            ),
            Some(false)
        );
        assert_eq!(
            training("aten::dropout", &[("p", Float(0.0)), on.clone()]),
            Option::None
        );
        assert_eq!(
            training("aten::lstm", &[("dropout", Float(0.1)), on.clone()]),
            Some(true)
        );
        assert_eq!(
            training("aten::lstm", &[("dropout", Float(0.0)), on]),
            Option::None
        );
        let eval = ("training", Bool(false));
        assert_eq!(
            training(
                "aten::batch_norm",
                &[("running_mean", Slot(1)), eval.clone()]
            ),
            Some(false)
        );
        assert_eq!(
            training("aten::batch_norm", &[("running_mean", None), eval.clone()]),
            Option::None
        );
        assert_eq!(
            training(
                "aten::_native_batch_norm_legit",
                std::slice::from_ref(&eval)
            ),
            Option::None
        );
        assert_eq!(
            training(
                "aten::instance_norm",
                &[("use_input_stats", Bool(true)), ("running_mean", None)]
            ),
            Option::None
        );
        assert_eq!(training("aten::rrelu", &[eval]), Some(false));
        assert_eq!(
            training("aten::linear", &[("input", Slot(0))]),
            Option::None
        );
        let attention = "aten::scaled_dot_product_attention";
        assert_eq!(
            training(attention, &[("dropout_p", Float(0.1))]),
            Some(true)
        );
        assert_eq!(
            training(attention, &[("dropout_p", Float(0.0))]),
            Option::None
        );
    }
}
