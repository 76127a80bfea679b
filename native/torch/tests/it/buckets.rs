//! What is done to all gradients at once where they lie in the model's own buckets, against plain loops in float64.

use flambeau_data::DType;
use flambeau_train::{BucketSizes, DeviceModel};
use serde_json::json;

use crate::support::{Place, Trainer, distance, job, path, places};

const SIZES: [usize; 3] = [5, 12, 17];

/// Trainers with their gradients set, in one bucket and in several.
fn with_gradients(check: impl Fn(Trainer, &[Vec<f64>], f64)) {
    let has_own = |place: &Place| matches!(place, Place::Staged | Place::Gpu);
    for place in places().into_iter().filter(has_own) {
        for (dtype, tolerance) in [(DType::Float32, 1e-6), (DType::Float64, 1e-14)] {
            for sizes in [
                BucketSizes::default(),
                BucketSizes {
                    first: 1,
                    others: 1,
                },
            ] {
                let fields = json!({"loss": {"name": "mse"}, "optimizer": {"name": "sgd"}});
                let program = path(&format!("linear-{dtype}.pt"));
                let trainer = Trainer::at(place, &job(&program, dtype, 34, 0, fields), sizes);
                let gradients: Vec<Vec<f64>> = SIZES
                    .iter()
                    .map(|&size| (0..size).map(|i| i as f64 * 0.25 - 1.0).collect())
                    .collect();
                for (index, gradient) in gradients.iter().enumerate() {
                    trainer.set_view(index, gradient);
                }
                check(trainer, &gradients, tolerance);
            }
        }
    }
}

fn assert_scaled(trainer: &Trainer, gradients: &[Vec<f64>], factor: f64, tolerance: f64) {
    for (index, gradient) in gradients.iter().enumerate() {
        let wanted: Vec<f64> = gradient.iter().map(|x| x * factor).collect();
        let found = trainer.view(index);
        assert!(
            distance(&found, &wanted) <= tolerance,
            "{found:?} {wanted:?}"
        );
    }
}

#[test]
fn gradients_are_scaled() {
    with_gradients(|trainer, gradients, tolerance| {
        let own = trainer.gradients.clone().unwrap();
        own.scale(1.0).unwrap();
        assert_scaled(&trainer, gradients, 1.0, 0.0);
        own.scale(0.3).unwrap();
        assert_scaled(&trainer, gradients, 0.3, tolerance);
    });
}

#[test]
fn gradients_are_looked_through_for_overflows() {
    with_gradients(|trainer, gradients, tolerance| {
        let own = trainer.gradients.clone().unwrap();
        own.scale(1.0 / 1024.0).unwrap();
        assert!(own.are_finite().unwrap());
        assert_scaled(&trainer, gradients, 1.0 / 1024.0, tolerance);
        for broken in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
            for index in 0..SIZES.len() {
                let mut values = gradients[index].clone();
                values[index] = broken;
                trainer.set_view(index, &values);
                assert!(!own.are_finite().unwrap(), "{broken}");
                trainer.set_view(index, &gradients[index]);
            }
        }
        assert!(own.are_finite().unwrap());
    });
}

/// `min(1, max_norm / (norm + 1e-6))`, as torch's clip_grad_norm_ has it.
#[test]
fn gradients_are_clipped_to_their_norm() {
    with_gradients(|trainer, gradients, tolerance| {
        let own = trainer.gradients.clone().unwrap();
        let squares = gradients.iter().flatten().map(|x| x * x);
        let norm = squares.sum::<f64>().sqrt();
        own.clip(norm + 1.0).unwrap();
        assert_scaled(&trainer, gradients, 1.0, 0.0);
        own.clip(0.5).unwrap();
        assert_scaled(&trainer, gradients, 0.5 / (norm + 1e-6), tolerance);
    });
}

#[test]
fn a_model_on_the_cpu_has_no_buckets_of_its_own() {
    let fields = json!({"loss": {"name": "mse"}, "optimizer": {"name": "sgd"}});
    let mut trainer = Trainer::new(&job(
        &path("linear-float32.pt"),
        DType::Float32,
        34,
        0,
        fields,
    ));
    let Err(error) = trainer.model.allocate_gradients(&[], None) else {
        panic!("it has");
    };
    assert!(error.to_string().contains("computes on the CPU"), "{error}");
}
