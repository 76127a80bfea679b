//! Metrics against plain loops over rows, added up over batches.

use flambeau_data::DType;
use flambeau_train::{BucketSizes, Model, Split};
use serde_json::{Value, json};

use crate::support::{Place, Trainer, batch, expected, job, numbers, path, places, tensor};

#[test]
fn metrics_add_up_over_batches() {
    for place in places() {
        for case in expected("metrics").as_array().unwrap() {
            check_metric(place, case);
        }
    }
}

fn check_metric(place: Place, case: &Value) {
    let x = numbers(&case["x"]);
    let labels = numbers(&case["label"]);
    let (rows, width) = (labels.len(), x.len() / labels.len());
    let loss = match width {
        1 => json!({"name": "mse"}),
        _ => json!({"name": "cross_entropy"}),
    };
    let fields = json!({"loss": loss, "optimizer": {"name": "sgd"}, "metrics": [case["metric"]]});
    // Outputs of the program of width 1 are half the inputs, so those are doubled.
    let program = path(&format!("scale-{width}-float64.pt"));
    let job = job(&program, DType::Float64, width, 0, fields);
    let mut trainer = Trainer::at(place, &job, BucketSizes::default());
    let num_sums = trainer.model.num_metric_sums().unwrap();
    let mut sums = vec![0.0; num_sums];
    for start in (0..rows).step_by(15) {
        let stop = rows.min(start + 15);
        let count = stop - start;
        let factor = if width == 1 { 2.0 } else { 1.0 };
        let values: Vec<f64> = x[start * width..stop * width]
            .iter()
            .map(|x| x * factor)
            .collect();
        let weight = match &case["weight"] {
            Value::Null => None,
            weight => Some(tensor(
                DType::Float64,
                &[count],
                &numbers(weight)[start..stop],
            )),
        };
        let rows = batch(
            count,
            tensor(DType::Float64, &[count, width], &values),
            tensor(DType::Float64, &[count], &labels[start..stop]),
            weight,
        );
        let found = trainer.evaluate(rows);
        assert_eq!(sums.len(), found.metrics.len());
        sums.iter_mut()
            .zip(&found.metrics)
            .for_each(|(sum, part)| *sum += part);
    }
    let finished = trainer
        .model
        .finish_metrics(Split::Validation, &sums)
        .unwrap();
    let wanted = case["value"].as_f64().unwrap();
    assert_eq!(finished[0].0, case["metric"].as_str().unwrap());
    assert!(
        (finished[0].1 - wanted).abs() < 1e-12,
        "{} ({place:?}): {finished:?}, wanted {wanted}",
        case["metric"]
    );
}
