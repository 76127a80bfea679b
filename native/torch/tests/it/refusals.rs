//! What is refused, with what to do.

use flambeau_data::DType;
use flambeau_torch::{TorchError, check_job};
use flambeau_train::BucketSizes;
use serde_json::{Value, json};

use crate::support::{Trainer, batch, expected, job, path, places, store, tensor};

fn refusal(width: usize, label_width: usize, fields: Value) -> TorchError {
    let mut all = json!({"loss": {"name": "mse"}, "optimizer": {"name": "sgd"}});
    all.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    let job = job(
        &path("scale-3-float64.pt"),
        DType::Float64,
        width,
        label_width,
        all,
    );
    check_job(&job, &store()).unwrap_err()
}

#[test]
fn unknown_names_and_options_name_what_is_allowed() {
    expected("metrics");
    let loss = |loss: Value| json!({"loss": loss});
    let optimizer =
        |name: &str, options: Value| json!({"optimizer": {"name": name, "options": options}});
    let cases = [
        (
            loss(json!({"name": "hinge"})),
            "loss: unknown name \"hinge\"; the names are bce,",
        ),
        (
            loss(json!({"name": "huber", "options": {"delat": 1}})),
            "loss huber: unknown option delat; the options are delta",
        ),
        (
            loss(json!({"name": "huber", "options": {"delta": 0}})),
            "delta is 0, but must be a number above 0",
        ),
        (
            loss(json!({"name": "mse", "options": {"reduction": "sum"}})),
            "use reduction='mean'",
        ),
        (
            loss(json!({"script": path("scale-3-float64.pt")})),
            "has trainable parameters of its own (scale)",
        ),
        (
            loss(json!({"script": path("inputs-loss.pt")})),
            "takes 3 arguments (output, label, x), and a scripted loss gets the output and the label alone",
        ),
        (
            optimizer("lbfgs", json!({})),
            "the names are adam, adamw, rmsprop, sgd",
        ),
        (
            optimizer("adam", json!({"momentum": 0.9})),
            "the options are lr, betas, eps, weight_decay, amsgrad, maximize",
        ),
        (
            optimizer("adam", json!({"betas": [0.9, 1.0]})),
            "betas is [0.9,1.0], but must be a list of two numbers",
        ),
        (
            optimizer("sgd", json!({"lr": "fast"})),
            "lr is \"fast\", but must be a number, at least 0",
        ),
        (
            optimizer("sgd", json!({"nesterov": true})),
            "nesterov needs a momentum above 0",
        ),
        (json!({"metrics": ["auc"]}), "metrics: unknown name \"auc\""),
        (
            json!({"metrics": ["mse", "mse"]}),
            "metrics: \"mse\" is given twice",
        ),
        (json!({"eval": path("expected.json")}), "cannot be loaded"),
    ];
    for (fields, reason) in cases {
        let error = refusal(3, 3, fields);
        assert!(matches!(error, TorchError::Param(_)), "{error:?}");
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused_before_the_training() {
    let error = refusal(4, 3, json!({})).to_string();
    assert!(
        error.contains("forward fails on inputs of the columns' shapes (x: [2, 4] float64)"),
        "{error}"
    );
    assert!(!error.contains("frame #"), "{error}");
    let error = refusal(3, 2, json!({})).to_string();
    assert!(
        error.contains("output has shape [2, 3] and the label [2, 2]; they must be equal"),
        "{error}"
    );
}

#[test]
fn a_group_of_gradients_with_an_unknown_parameter_is_refused_by_name() {
    let fields = json!({"loss": {"name": "mse"}, "optimizer": {"name": "adam"}});
    let mut job = job(&path("linear-float32.pt"), DType::Float32, 34, 0, fields);
    job.params.gradient_groups = Some(vec![vec!["wieght".into()]]);
    let error = check_job(&job, &store()).unwrap_err().to_string();
    assert_eq!(
        error,
        "gradientGroups[0][0] is \"wieght\", but must be the name of a parameter that is trained, such as a"
    );
}

#[test]
fn a_job_is_described() {
    let fields =
        json!({"loss": {"name": "mse"}, "optimizer": {"name": "adam"}, "metrics": ["rmse"]});
    let found = check_job(
        &job(&path("net-float32.pt"), DType::Float32, 6, 2, fields),
        &store(),
    )
    .unwrap();
    let wanted = json!({
        "arguments": ["x"],
        "output": [{"name": null, "dtype": "float32", "shape": [2]}],
        "numParameters": 7 * 8 + 16 + 72 + 8 + 72 + 3 + 18,
        "parameterDtype": "float32",
        "torch": "2.13.0",
    });
    assert_eq!(serde_json::to_value(found).unwrap(), wanted);
}

#[test]
fn sparse_gradients_are_refused_by_name() {
    let fields = json!({"loss": {"script": path("output-loss.pt")}, "optimizer": {"name": "sgd"}});
    let mut trainer = Trainer::new(&job(&path("sparse.pt"), DType::Int64, 2, 0, fields));
    let rows = batch(
        1,
        tensor(DType::Int64, &[1, 2], &[0.0, 3.0]),
        tensor(DType::Int64, &[1], &[0.0]),
        None,
    );
    let error = trainer.try_micro(rows, 0, true, 1).unwrap_err().to_string();
    assert!(
        error.contains("model: table.weight got a sparse gradient"),
        "{error}"
    );
}

#[test]
fn a_class_label_outside_of_the_classes_is_named() {
    let fields = json!({"loss": {"name": "cross_entropy"}, "optimizer": {"name": "sgd"}});
    for place in places() {
        let program = path("scale-3-float64.pt");
        let job = job(&program, DType::Float64, 3, 0, fields.clone());
        let mut trainer = Trainer::at(place, &job, BucketSizes::default());
        let mut train = |dtype, label: f64| {
            let rows = batch(
                1,
                tensor(DType::Float64, &[1, 3], &[0.0; 3]),
                tensor(dtype, &[1], &[label]),
                None,
            );
            trainer.try_micro(rows, 0, true, 1).unwrap_err().to_string()
        };
        let error = train(DType::Int64, 7.0);
        let said = "the class label 7 lies outside the 3 classes of the model's output [1, 3]";
        assert!(error.contains(said), "{error} ({place:?})");
        let error = train(DType::Float64, 1.5);
        let said = "class labels must be whole numbers, but one is 1.5";
        assert!(error.contains(said), "{error} ({place:?})");
    }
}
