//! Gradients as 16-bit floats on a device.

use flambeau_collective::DType;
use flambeau_data::DType as DataType;
use flambeau_train::BucketSizes;
use serde_json::json;
use tch::{Kind, Tensor};

use crate::support::{Place, Trainer, job, path, places};

/// The elements of the second and of the last parameter of the oracle's linear program.
const FEW: usize = 12;
const MANY: usize = 17;

/// Numbers of many magnitudes, in float16's range and below it.
fn numbers(len: usize) -> Vec<f64> {
    let number = |i: usize| ((i as f64 + 1.0) * 1.7).sin() * 10f64.powi(4 - i as i32);
    (0..len).map(|i| f64::from(number(i) as f32)).collect()
}

#[test]
fn what_is_narrowed_and_widened_is_rounded_as_torch_rounds() {
    for (halves, kind) in [
        (DType::Float16, Kind::Half),
        (DType::BFloat16, Kind::BFloat16),
    ] {
        let has_own = |place: &Place| matches!(place, Place::Staged | Place::Gpu);
        for place in places().into_iter().filter(has_own) {
            let fields = json!({"loss": {"name": "mse"}, "optimizer": {"name": "sgd"}});
            let job = job(&path("linear-float32.pt"), DataType::Float32, 34, 0, fields);
            let trainer = Trainer::with_halves(place, &job, BucketSizes::default(), Some(halves));
            let gradients = trainer.gradients.as_ref().unwrap();
            let values = [(1, numbers(FEW)), (2, numbers(MANY))];
            for (index, values) in &values {
                trainer.set_view(*index, values);
            }
            gradients.narrow(0).unwrap();
            for (index, values) in &values {
                trainer.set_view(*index, &vec![0.0; values.len()]);
            }
            gradients.widen(0).unwrap();
            for (index, values) in &values {
                let rounded = Tensor::from_slice(values)
                    .to_kind(Kind::Float)
                    .to_kind(kind);
                let rounded = Vec::<f64>::try_from(rounded.to_kind(Kind::Double)).unwrap();
                assert_eq!(trainer.view(*index), rounded, "{halves:?}");
                assert_ne!(&rounded, values);
            }
        }
    }
}
