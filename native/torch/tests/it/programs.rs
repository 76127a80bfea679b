//! Each operation that compression asks of a device against its definition in float64.

use std::ops::Range;

use flambeau_collective::DType;
use flambeau_data::DType as DataType;
use flambeau_train::{
    BucketSizes, DeviceOperation, DevicePlan, DevicePrograms, Matrices, Model, TensorPart,
};
use serde_json::json;

use crate::support::{Place, Trainer, job, paired, path, places};

/// The elements of the second and of the last parameter of the oracle's linear program.
const FEW: usize = 12;
const MANY: usize = 17;

/// Numbers between -1 and 1, all of them different.
fn numbers(len: usize) -> Vec<f64> {
    (0..len)
        .map(|i| f64::from(((i as f64 + 1.0) * 1.7).sin() as f32))
        .collect()
}

/// A bucket with gradients in it, and programs of one operation each.
struct Case {
    trainer: Trainer,
    programs: Box<dyn DevicePrograms>,
}

impl Case {
    /// On each place that has buckets of its own.
    fn on_devices(plan: impl Fn(&Trainer) -> DevicePlan, check: impl Fn(Case)) {
        let has_own = |place: &Place| matches!(place, Place::Staged | Place::Gpu);
        for place in places().into_iter().filter(has_own) {
            let fields = json!({"loss": {"name": "mse"}, "optimizer": {"name": "sgd"}});
            let program = path("linear-float32.pt");
            let job = job(&program, DataType::Float32, 34, 0, fields);
            let mut trainer = Trainer::at(place, &job, BucketSizes::default());
            trainer.set_view(1, &numbers(FEW));
            trainer.set_view(2, &numbers(MANY));
            let plan = plan(&trainer);
            let programs = trainer.model.prepare_programs(&plan).unwrap();
            check(Case { trainer, programs });
        }
    }

    fn write(&self, tensor: usize, values: &[f64]) {
        let values: Vec<f32> = values.iter().map(|&value| value as f32).collect();
        self.programs.write(tensor, &values).unwrap();
    }

    fn read(&self, tensor: usize) -> Vec<f64> {
        let values = self.programs.read(tensor).unwrap();
        values.iter().map(|&value| f64::from(value)).collect()
    }
}

/// Elements of the plan's tensors, which begin with number 1.
fn part(tensor: usize, range: Range<usize>) -> TensorPart {
    TensorPart { tensor, range }
}

fn matrices(tensor: usize, num: usize, num_rows: usize, num_columns: usize) -> Matrices {
    Matrices {
        part: part(tensor, 0..num * num_rows * num_columns),
        num_rows,
        num_columns,
    }
}

fn plan(tensors: &[(DType, usize)], operations: Vec<DeviceOperation>) -> DevicePlan {
    DevicePlan {
        tensors: tensors.to_vec(),
        programs: operations
            .into_iter()
            .map(|operation| vec![operation])
            .collect(),
    }
}

fn assert_close(found: &[f64], wanted: &[f64]) {
    for (found, wanted) in paired(found, wanted) {
        assert!((found - wanted).abs() < 1e-5, "{found} instead of {wanted}");
    }
}

#[test]
fn gradients_become_16_bit_floats_and_come_back() {
    // The rounding errors of numbers below 1.
    for (dtype, largest) in [
        (DType::Float16, 2f64.powi(-12)),
        (DType::BFloat16, 2f64.powi(-9)),
    ] {
        let there_and_back = |trainer: &Trainer| {
            let gradients = vec![trainer.part(1), trainer.part(2)];
            let halves = vec![part(1, 0..FEW), part(1, FEW..FEW + MANY)];
            let copy = |sources: &[TensorPart], targets: &[TensorPart]| DeviceOperation::Copy {
                sources: sources.to_vec(),
                targets: targets.to_vec(),
            };
            let operations = vec![copy(&gradients, &halves), copy(&halves, &gradients)];
            plan(&[(dtype, FEW + MANY)], operations)
        };
        Case::on_devices(there_and_back, |case| {
            case.programs.run(0).unwrap();
            case.trainer.set_view(1, &[9.0; FEW]);
            case.programs.run(1).unwrap();
            for (index, len) in [(1, FEW), (2, MANY)] {
                let errors: Vec<f64> = paired(&case.trainer.view(index), &numbers(len))
                    .map(|(a, b)| (a - b).abs())
                    .collect();
                assert!(errors.iter().all(|&error| error <= largest), "{errors:?}");
                assert!(errors.iter().any(|&error| error > largest / 100.0));
            }
        });
    }
}

#[test]
fn what_was_not_sent_is_added_to() {
    let sum = |trainer: &Trainer| {
        let add = DeviceOperation::Add {
            sources: vec![trainer.part(2), trainer.part(1)],
            targets: vec![part(1, 3..3 + MANY), part(1, 20..20 + FEW)],
        };
        plan(&[(DType::Float32, 32)], vec![add])
    };
    Case::on_devices(sum, |case| {
        case.write(1, &[0.5; 32]);
        case.programs.run(0).unwrap();
        case.programs.run(0).unwrap();
        let twice = |len| numbers(len).into_iter().map(|x| 0.5 + 2.0 * x);
        let wanted: Vec<f64> = [0.5; 3]
            .into_iter()
            .chain(twice(MANY))
            .chain(twice(FEW))
            .collect();
        assert_close(&case.read(1), &wanted);
    });
}

fn inner(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(x, y)| x * y).sum()
}

#[test]
fn rows_become_orthonormal() {
    let whole = |_: &Trainer| {
        let of = matrices(1, 3, 2, 7);
        plan(
            &[(DType::Float32, 42)],
            vec![DeviceOperation::Orthonormalize(of)],
        )
    };
    Case::on_devices(whole, |case| {
        // Two rows, then two that are one, then none.
        let mut given = numbers(42);
        let row: Vec<f64> = given[14..21].to_vec();
        given[21..28].copy_from_slice(&row);
        given[28..].fill(0.0);
        case.write(1, &given);
        case.programs.run(0).unwrap();
        let found = case.read(1);
        for matrix in found.chunks(14) {
            let (first, second) = matrix.split_at(7);
            let products = [
                inner(first, first),
                inner(second, second),
                inner(first, second),
            ];
            assert_close(&products, &[1.0, 1.0, 0.0]);
        }
        // Gram and Schmidt's.
        for (own, given) in found.chunks(14).zip(given.chunks(14)).take(2) {
            let length = inner(&given[..7], &given[..7]).sqrt();
            let wanted: Vec<f64> = given[..7].iter().map(|x| x / length).collect();
            assert_close(&own[..7], &wanted);
        }
        let (first, second) = (&found[..7], &given[7..14]);
        let shadow = inner(first, second);
        let rest: Vec<f64> = second
            .iter()
            .zip(first)
            .map(|(x, y)| x - shadow * y)
            .collect();
        let length = inner(&rest, &rest).sqrt();
        let wanted: Vec<f64> = rest.iter().map(|x| x / length).collect();
        assert_close(&found[7..14], &wanted);
        given[0] = f64::NAN;
        case.write(1, &given);
        case.programs.run(0).unwrap();
        assert!(case.read(1)[..14].iter().all(|value| value.is_nan()));
    });
}

#[test]
fn products_are_those_of_their_definitions() {
    const NUM: usize = 2;
    const RANK: usize = 2;
    const ROWS: usize = 3;
    const COLUMNS: usize = 4;
    let sizes = [
        NUM * RANK * ROWS,
        NUM * RANK * COLUMNS,
        NUM * ROWS * COLUMNS,
    ];
    let three = |trainer: &Trainer| {
        let (left, right) = (
            matrices(1, NUM, RANK, ROWS),
            matrices(2, NUM, RANK, COLUMNS),
        );
        let unsent = matrices(3, NUM, ROWS, COLUMNS);
        let (own_left, own_right) = (
            matrices(4, NUM, RANK, ROWS),
            matrices(5, NUM, RANK, COLUMNS),
        );
        let in_last = trainer.part(2).range.start;
        let gradients = vec![trainer.part(1), part(0, in_last..in_last + FEW)];
        plan(
            &[sizes[0], sizes[1], sizes[2], sizes[0], sizes[1]].map(|len| (DType::Float32, len)),
            vec![
                DeviceOperation::Multiply {
                    vectors: right.clone(),
                    matrices: unsent.clone(),
                    is_transposed: true,
                    products: own_left,
                },
                DeviceOperation::Multiply {
                    vectors: left.clone(),
                    matrices: unsent.clone(),
                    is_transposed: false,
                    products: own_right,
                },
                DeviceOperation::Expand {
                    left,
                    right,
                    unsent,
                    gradients,
                },
            ],
        )
    };
    Case::on_devices(three, |case| {
        let all = numbers(sizes.iter().sum());
        let (left, rest) = all.split_at(sizes[0]);
        let (right, unsent) = rest.split_at(sizes[1]);
        for (tensor, values) in [(1, left), (2, right), (3, unsent)] {
            case.write(tensor, values);
        }
        let l = |b: usize, c: usize, i: usize| left[(b * RANK + c) * ROWS + i];
        let r = |b: usize, c: usize, j: usize| right[(b * RANK + c) * COLUMNS + j];
        let m = |b: usize, i: usize, j: usize| unsent[(b * ROWS + i) * COLUMNS + j];
        for program in 0..3 {
            case.programs.run(program).unwrap();
        }
        let (mut lefts, mut rights, mut products, mut rests) = (vec![], vec![], vec![], vec![]);
        for b in 0..NUM {
            for c in 0..RANK {
                lefts.extend(
                    (0..ROWS).map(|i| (0..COLUMNS).map(|j| r(b, c, j) * m(b, i, j)).sum::<f64>()),
                );
                rights.extend(
                    (0..COLUMNS).map(|j| (0..ROWS).map(|i| l(b, c, i) * m(b, i, j)).sum::<f64>()),
                );
            }
            for i in 0..ROWS {
                for j in 0..COLUMNS {
                    let product: f64 = (0..RANK).map(|c| l(b, c, i) * r(b, c, j)).sum();
                    products.push(product);
                    rests.push(m(b, i, j) - product);
                }
            }
        }
        assert_close(&case.read(4), &lefts);
        assert_close(&case.read(5), &rights);
        assert_close(&case.read(3), &rests);
        assert_close(&case.trainer.view(1), &products[..FEW]);
        assert_close(&case.trainer.view(2)[..FEW], &products[FEW..]);
    });
}

/// Two ranks' largest, of which the other has half of each number.
#[test]
fn the_largest_are_taken_and_the_first_of_equal_ones() {
    const LARGEST: usize = 4;
    let given: [(&[f64], [usize; LARGEST]); 3] = [
        (
            &[
                1.0, -2.0, 2.0, 3.0, 2.0, -2.0, 0.0, 1.5, 0.5, 0.0, -1.0, 2.0,
            ],
            [3, 1, 2, 4],
        ),
        (&[0.0; FEW], [0, 1, 2, 3]),
        (
            &[
                1.0,
                f64::NAN,
                2.0,
                3.0,
                3.0,
                3.0,
                f64::NEG_INFINITY,
                4.0,
                1.0,
                1.0,
                1.0,
                1.0,
            ],
            [1, 6, 7, 3],
        ),
    ];
    let both = |trainer: &Trainer| {
        let (bucket, own) = (trainer.bucket(), trainer.part(1).range);
        let numel = bucket.range.len();
        let take = |rank: usize| DeviceOperation::TakeLargest {
            unsent: part(1 + rank, own.clone()),
            entries: part(3, rank * LARGEST..(rank + 1) * LARGEST),
        };
        let average = DeviceOperation::Average {
            entries: part(3, 0..2 * LARGEST),
            num_ranks: 2,
            gradients: bucket,
        };
        let tensors = [
            (DType::Float32, numel),
            (DType::Float32, numel),
            (DType::Int64, 2 * LARGEST),
        ];
        plan(&tensors, vec![take(0), take(1), average])
    };
    Case::on_devices(both, |case| {
        let (numel, own) = (
            case.trainer.bucket().range.len(),
            case.trainer.part(1).range,
        );
        for (values, chosen) in given {
            for (tensor, factor) in [(1, 1.0), (2, 0.5)] {
                let mut unsent = vec![7.0; numel];
                for (place, value) in unsent[own.clone()].iter_mut().zip(values) {
                    *place = value * factor;
                }
                case.write(tensor, &unsent);
                case.programs.run(tensor - 1).unwrap();
                chosen
                    .iter()
                    .for_each(|&index| unsent[own.start + index] = 0.0);
                let bits = |values: &[f64]| -> Vec<u32> {
                    values
                        .iter()
                        .map(|&value| (value as f32).to_bits())
                        .collect()
                };
                assert_eq!(bits(&case.read(tensor)), bits(&unsent));
            }
            case.programs.run(2).unwrap();
            let mut wanted = [0.0; FEW];
            for index in chosen {
                wanted[index] = values[index] * 0.75;
            }
            let found = case.trainer.view(1);
            for (&found, &wanted) in paired(&found, &wanted) {
                assert!(
                    found == wanted || (found.is_nan() && wanted.is_nan()),
                    "{found} {wanted}"
                );
            }
            assert_eq!(case.trainer.view(2), [0.0; MANY]);
        }
    });
}
