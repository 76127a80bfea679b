//! Named and scripted losses against torch: values, denominators and gradients.

use flambeau_data::DType;
use serde_json::{Value, json};

use flambeau_train::BucketSizes;

use crate::support::{
    Place, Trainer, batch, distance, dtype, expected, job, numbers, path, places, tensor,
};

const ROWS: usize = 7;
const WIDTH: usize = 3;

#[test]
fn values_denominators_and_gradients_are_those_of_torch() {
    for place in places() {
        for case in expected("losses").as_array().unwrap() {
            check_loss(place, case);
        }
    }
}

fn check_loss(place: Place, case: &Value) {
    let what = format!(
        "{} {} {} {} ({place:?})",
        case["name"], case["options"], case["dtype"], case["weight"]
    );
    let dtype = dtype(&case["dtype"]);
    let fields = json!({
        "loss": {"name": case["name"], "options": case["options"]},
        "optimizer": {"name": "sgd"},
    });
    let program = path(&format!("scale-{WIDTH}-{dtype}.pt"));
    let job = job(&program, dtype, WIDTH, WIDTH, fields);
    let mut trainer = Trainer::at(place, &job, BucketSizes::default());
    let label = numbers(&case["label"]);
    let label = match case["is_class"].as_bool().unwrap() {
        true => tensor(DType::Int64, &[ROWS], &label),
        false => tensor(dtype, &[ROWS, WIDTH], &label),
    };
    let weight = match &case["weight"] {
        Value::Null => None,
        weight => Some(tensor(dtype, &[ROWS], &numbers(weight))),
    };
    let input = tensor(dtype, &[ROWS, WIDTH], &numbers(&case["x"]));
    let (sums, mut gradient) = trainer.gradient(batch(ROWS, input, label, weight));
    let tolerance = if dtype == DType::Float64 { 1e-14 } else { 1e-6 };
    let (value, denominator) = (
        case["value"].as_f64().unwrap(),
        case["denominator"].as_f64().unwrap(),
    );
    assert!(
        distance(&[sums.numerator / sums.denominator], &[value]) < tolerance,
        "{what}: {sums:?}"
    );
    assert!(
        distance(&[sums.denominator], &[denominator]) < tolerance,
        "{what}: {sums:?}"
    );
    // Backward runs on the mean times denominator / rows.
    gradient
        .iter_mut()
        .for_each(|x| *x *= ROWS as f64 / denominator);
    assert!(
        distance(&gradient, &numbers(&case["gradient"])) < tolerance,
        "{what}: {gradient:?}"
    );
}

fn scale_trainer(loss: Value) -> Trainer {
    let fields = json!({"loss": loss, "optimizer": {"name": "sgd"}});
    Trainer::new(&job(
        &path("scale-3-float64.pt"),
        DType::Float64,
        WIDTH,
        WIDTH,
        fields,
    ))
}

#[test]
fn a_batch_whose_targets_are_all_ignored_has_no_gradient() {
    let mut trainer =
        scale_trainer(json!({"name": "cross_entropy", "options": {"ignore_index": 1}}));
    let before = trainer.tensors();
    let input = tensor(DType::Float64, &[2, 3], &[1.0; 6]);
    let sums = trainer.step(batch(
        2,
        input,
        tensor(DType::Int64, &[2], &[1.0, 1.0]),
        None,
    ));
    assert_eq!((sums.numerator, sums.denominator), (0.0, 0.0));
    assert_eq!(trainer.tensors(), before);
}

#[test]
fn a_scripted_loss_is_a_mean_or_one_value_a_row() {
    let input = [1.0, 2.0, 3.0, -4.0, 5.0, 6.5];
    let scaled: Vec<f64> = input
        .iter()
        .zip([0.5, 1.0, 1.5].iter().cycle())
        .map(|(x, s)| x * s)
        .collect();
    let rows = || {
        batch(
            2,
            tensor(DType::Float64, &[2, 3], &input),
            tensor(DType::Float64, &[2, 3], &[0.0; 6]),
            None,
        )
    };
    let sums = scale_trainer(json!({"script": path("mean-loss.pt")}))
        .gradient(rows())
        .0;
    let mean = scaled.iter().map(|x| x.abs()).sum::<f64>() / 6.0;
    assert!((sums.numerator / 2.0 - mean).abs() < 1e-14, "{sums:?}");
    assert_eq!(sums.denominator, 2.0);

    let weight = tensor(DType::Float64, &[2], &[3.0, 0.5]);
    let weighted = flambeau_data::Batch {
        weight: Some(weight),
        ..rows()
    };
    let (sums, gradient) =
        scale_trainer(json!({"script": path("output-loss.pt")})).gradient(weighted);
    let means: Vec<f64> = scaled
        .chunks(3)
        .map(|row| row.iter().sum::<f64>() / 3.0)
        .collect();
    assert!(
        (sums.numerator - (3.0 * means[0] + 0.5 * means[1])).abs() < 1e-14,
        "{sums:?}"
    );
    assert_eq!(sums.denominator, 3.5);
    let wanted: Vec<f64> = (0..3)
        .map(|i| (3.0 * input[i] + 0.5 * input[3 + i]) / 3.0 / 2.0)
        .collect();
    assert!(distance(&gradient, &wanted) < 1e-14, "{gradient:?}");
}
