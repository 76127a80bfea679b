//! Arithmetic on sizes: what a graph computes from a symbolic number of rows, with Python's semantics.

use std::cmp::Ordering;

/// A number that a graph computes with outside its tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Bool(bool),
    Int(i64),
    Float(f64),
}

/// An operation on numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Operation {
    Add,
    Sub,
    Mul,
    TrueDiv,
    FloorDiv,
    Mod,
    Pow,
    Neg,
    Pos,
    Compare(Comparison),
    And,
    Or,
    Not,
    LeftShift,
    RightShift,
    Int,
    Float,
    Floor,
    Ceil,
    Trunc,
    Sqrt,
    Max,
    Min,
    IfElse,
}

/// A comparison of two numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl Operation {
    /// The operation that a node's target names; `None` for what is none.
    pub(super) fn of(target: &str) -> Option<Operation> {
        use Operation::*;
        Some(match target {
            "_operator.add" => Add,
            "_operator.sub" => Sub,
            "_operator.mul" => Mul,
            "_operator.truediv" => TrueDiv,
            "_operator.floordiv" => FloorDiv,
            "_operator.mod" => Mod,
            "_operator.pow" => Pow,
            "_operator.neg" => Neg,
            "_operator.pos" => Pos,
            "_operator.eq" => Compare(Comparison::Eq),
            "_operator.ne" => Compare(Comparison::Ne),
            "_operator.lt" => Compare(Comparison::Lt),
            "_operator.le" => Compare(Comparison::Le),
            "_operator.gt" => Compare(Comparison::Gt),
            "_operator.ge" => Compare(Comparison::Ge),
            "_operator.and_" => And,
            "_operator.or_" => Or,
            "_operator.not_" | "torch.sym_not" => Not,
            "_operator.lshift" => LeftShift,
            "_operator.rshift" => RightShift,
            "torch.sym_int" => Int,
            "torch.sym_float" => Float,
            "torch.sym_max" => Max,
            "torch.sym_min" => Min,
            "torch.sym_ite" => IfElse,
            "torch.sym_sqrt" | "torch._sym_sqrt" | "math.sqrt" => Sqrt,
            "math.floor" => Floor,
            "math.ceil" => Ceil,
            "math.trunc" => Trunc,
            _ => return None,
        })
    }

    /// How many numbers it takes.
    pub(super) fn arity(self) -> usize {
        use Operation::*;
        match self {
            Neg | Pos | Not | Int | Float | Floor | Ceil | Trunc | Sqrt => 1,
            IfElse => 3,
            _ => 2,
        }
    }

    /// Applies it to as many numbers as [`Operation::arity`] says. `Err` says what has no result: a division by zero,
    /// an integer beyond 64 bits.
    pub(super) fn apply(self, operands: &[Number]) -> Result<Number, String> {
        use Operation::*;
        match *operands {
            [x] => match self {
                Neg => match x {
                    Number::Float(x) => Ok(Number::Float(-x)),
                    _ => within(x.integer()?.checked_neg()),
                },
                Pos => Ok(match x {
                    Number::Bool(x) => Number::Int(x.into()),
                    other => other,
                }),
                Not => Ok(Number::Bool(!x.truth())),
                Float => Ok(Number::Float(x.real())),
                Sqrt => match x.real() {
                    x if x >= 0.0 => Ok(Number::Float(x.sqrt())),
                    x => Err(format!("there is no square root of {x}")),
                },
                Floor => rounded(x, f64::floor),
                Ceil => rounded(x, f64::ceil),
                Int | Trunc => rounded(x, f64::trunc),
                _ => Err(format!("{self:?} takes {} numbers", self.arity())),
            },
            [x, y] => match self {
                Add => arithmetic(x, y, i64::checked_add, |x, y| x + y),
                Sub => arithmetic(x, y, i64::checked_sub, |x, y| x - y),
                Mul => arithmetic(x, y, i64::checked_mul, |x, y| x * y),
                TrueDiv | FloorDiv | Mod if y.real() == 0.0 => Err("division by zero".to_string()),
                TrueDiv => Ok(Number::Float(x.real() / y.real())),
                FloorDiv => arithmetic(x, y, floor_division, |x, y| (x / y).floor()),
                Mod => arithmetic(x, y, floor_remainder, |x, y| x - y * (x / y).floor()),
                Pow => power(x, y),
                Compare(comparison) => Ok(Number::Bool(comparison.holds(x.compare(y)))),
                And | Or => match (x, y) {
                    (Number::Bool(x), Number::Bool(y)) => {
                        Ok(Number::Bool(if self == And { x & y } else { x | y }))
                    }
                    _ => {
                        let (x, y) = (x.integer()?, y.integer()?);
                        Ok(Number::Int(if self == And { x & y } else { x | y }))
                    }
                },
                LeftShift => {
                    within(shift(x, y)?.and_then(|(x, y)| x.checked_mul(1i64.checked_shl(y)?)))
                }
                RightShift => within(shift(x, y)?.map(|(x, y)| x >> y)),
                Max => Ok(if y.compare(x) == Some(Ordering::Greater) {
                    y
                } else {
                    x
                }),
                Min => Ok(if y.compare(x) == Some(Ordering::Less) {
                    y
                } else {
                    x
                }),
                _ => Err(format!("{self:?} takes {} numbers", self.arity())),
            },
            [condition, x, y] if self == IfElse => Ok(if condition.truth() { x } else { y }),
            _ => Err(format!("{self:?} takes {} numbers", self.arity())),
        }
    }
}

impl Number {
    fn real(self) -> f64 {
        match self {
            Number::Bool(x) => x.into(),
            Number::Int(x) => x as f64,
            Number::Float(x) => x,
        }
    }

    fn integer(self) -> Result<i64, String> {
        match self {
            Number::Bool(x) => Ok(x.into()),
            Number::Int(x) => Ok(x),
            Number::Float(x) => Err(format!("{x} is no integer")),
        }
    }

    fn truth(self) -> bool {
        self.real() != 0.0
    }

    fn compare(self, other: Number) -> Option<Ordering> {
        match (self.integer(), other.integer()) {
            (Ok(x), Ok(y)) => Some(x.cmp(&y)),
            _ => self.real().partial_cmp(&other.real()),
        }
    }
}

impl Comparison {
    fn holds(self, order: Option<Ordering>) -> bool {
        use Comparison::*;
        match self {
            Eq => order == Some(Ordering::Equal),
            Ne => order != Some(Ordering::Equal),
            Lt => order == Some(Ordering::Less),
            Le => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Gt => order == Some(Ordering::Greater),
            Ge => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        }
    }
}

fn within(number: Option<i64>) -> Result<Number, String> {
    number
        .map(Number::Int)
        .ok_or_else(|| "the result is beyond 64 bits".to_string())
}

fn arithmetic(
    x: Number,
    y: Number,
    integers: impl Fn(i64, i64) -> Option<i64>,
    floats: impl Fn(f64, f64) -> f64,
) -> Result<Number, String> {
    match (x.integer(), y.integer()) {
        (Ok(x), Ok(y)) => within(integers(x, y)),
        _ => Ok(Number::Float(floats(x.real(), y.real()))),
    }
}

fn floor_division(x: i64, y: i64) -> Option<i64> {
    let quotient = x.checked_div(y)?;
    Some(if x % y != 0 && (x < 0) != (y < 0) {
        quotient - 1
    } else {
        quotient
    })
}

fn floor_remainder(x: i64, y: i64) -> Option<i64> {
    let remainder = x.checked_rem(y)?;
    Some(if remainder != 0 && (remainder < 0) != (y < 0) {
        remainder + y
    } else {
        remainder
    })
}

fn power(x: Number, y: Number) -> Result<Number, String> {
    match (x.integer(), y.integer()) {
        (Ok(base), Ok(exponent)) if exponent >= 0 => within(
            u32::try_from(exponent)
                .ok()
                .and_then(|exponent| base.checked_pow(exponent)),
        ),
        _ => Ok(Number::Float(x.real().powf(y.real()))),
    }
}

fn shift(x: Number, y: Number) -> Result<Option<(i64, u32)>, String> {
    let places = y.integer()?;
    Ok(Some((
        x.integer()?,
        u32::try_from(places).map_err(|_| format!("a shift by {places}"))?,
    ))
    .filter(|(_, y)| *y < 63))
}

fn rounded(x: Number, round: impl Fn(f64) -> f64) -> Result<Number, String> {
    match x {
        Number::Float(x) if round(x).abs() < 9.2e18 => Ok(Number::Int(round(x) as i64)),
        Number::Float(x) => Err(format!("{x} has no integer of 64 bits")),
        other => Ok(Number::Int(other.integer()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Number::*;

    fn of(target: &str, operands: &[Number]) -> Result<Number, String> {
        let operation = Operation::of(target).unwrap();
        assert_eq!(operation.arity(), operands.len(), "{target}");
        operation.apply(operands)
    }

    #[test]
    fn integers_divide_as_in_python() {
        for (x, y, quotient, remainder) in [
            (7, 2, 3, 1),
            (-7, 2, -4, 1),
            (7, -2, -4, -1),
            (-7, -2, 3, -1),
            (6, -3, -2, 0),
        ] {
            assert_eq!(
                of("_operator.floordiv", &[Int(x), Int(y)]),
                Ok(Int(quotient))
            );
            assert_eq!(of("_operator.mod", &[Int(x), Int(y)]), Ok(Int(remainder)));
        }
        assert_eq!(of("_operator.truediv", &[Int(7), Int(2)]), Ok(Float(3.5)));
        assert_eq!(
            of("_operator.floordiv", &[Float(-7.0), Int(2)]),
            Ok(Float(-4.0))
        );
        assert_eq!(of("_operator.mod", &[Float(-7.0), Int(2)]), Ok(Float(1.0)));
    }

    #[test]
    fn types_follow_the_operands() {
        assert_eq!(of("_operator.add", &[Int(2), Float(0.5)]), Ok(Float(2.5)));
        assert_eq!(of("_operator.mul", &[Bool(true), Int(3)]), Ok(Int(3)));
        assert_eq!(of("_operator.pow", &[Int(2), Int(10)]), Ok(Int(1024)));
        assert_eq!(of("_operator.pow", &[Int(2), Int(-1)]), Ok(Float(0.5)));
        assert_eq!(
            of("_operator.and_", &[Bool(true), Bool(false)]),
            Ok(Bool(false))
        );
        assert_eq!(of("_operator.or_", &[Int(4), Int(1)]), Ok(Int(5)));
        assert_eq!(of("_operator.lshift", &[Int(3), Int(2)]), Ok(Int(12)));
        assert_eq!(of("torch.sym_max", &[Int(3), Float(4.5)]), Ok(Float(4.5)));
        assert_eq!(
            of("torch.sym_ite", &[Bool(false), Int(1), Int(2)]),
            Ok(Int(2))
        );
        assert_eq!(of("torch.sym_not", &[Bool(false)]), Ok(Bool(true)));
        assert_eq!(of("math.ceil", &[Float(2.1)]), Ok(Int(3)));
        assert_eq!(of("torch.sym_int", &[Float(-2.9)]), Ok(Int(-2)));
        assert_eq!(of("_operator.le", &[Int(2), Float(2.0)]), Ok(Bool(true)));
        assert_eq!(
            of("_operator.ne", &[Float(f64::NAN), Float(f64::NAN)]),
            Ok(Bool(true))
        );
    }

    #[test]
    fn what_has_no_result_is_an_error() {
        for (target, operands) in [
            ("_operator.floordiv", vec![Int(1), Int(0)]),
            ("_operator.truediv", vec![Int(1), Float(0.0)]),
            ("_operator.add", vec![Int(i64::MAX), Int(1)]),
            ("_operator.neg", vec![Int(i64::MIN)]),
            ("_operator.floordiv", vec![Int(i64::MIN), Int(-1)]),
            ("_operator.pow", vec![Int(10), Int(40)]),
            ("_operator.lshift", vec![Int(1), Int(70)]),
            ("_operator.rshift", vec![Int(1), Int(-1)]),
            ("_operator.and_", vec![Float(1.0), Int(1)]),
            ("torch.sym_sqrt", vec![Int(-1)]),
            ("math.floor", vec![Float(f64::INFINITY)]),
        ] {
            assert!(of(target, &operands).is_err(), "{target}");
        }
        assert_eq!(Operation::of("_operator.matmul"), None);
        assert!(Operation::Add.apply(&[Int(1)]).is_err());
    }
}
