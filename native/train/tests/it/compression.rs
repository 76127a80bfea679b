//! Gradients that are compressed on their way: what comes of them, over every transport.

use std::slice;

use flambeau_collective::{DType, Device, ProcessGroup, TransportChoice};
use flambeau_train::{
    BucketSizes, Compression, GradientReducer, GradientSink, ParameterInfo, ReducerOptions,
};
use half::{bf16, f16};

use crate::support::{ranks, ranks_over};

/// Two matrices, two vectors, and one parameter that is as short as can be; several buckets of 512 bytes.
const SHAPES: [&[usize]; 5] = [&[24, 10], &[7], &[6, 40], &[130], &[1]];

fn options(compression: Compression, overlaps: bool) -> ReducerOptions {
    ReducerOptions {
        sizes: BucketSizes {
            first: 256,
            others: 512,
        },
        overlaps,
        compression,
        ..ReducerOptions::default()
    }
}

fn parameters(dtype: DType) -> Vec<ParameterInfo> {
    let info = |(index, shape): (usize, &&[usize])| ParameterInfo {
        name: format!("p{index}"),
        numel: shape.iter().product(),
        num_rows: shape[0],
        dtype,
        device: Device::Cpu,
    };
    SHAPES.iter().enumerate().map(info).collect()
}

/// What a rank has as gradient of an element: all of float32's digits, and magnitudes over some decades.
fn gradient(rank: usize, step: usize, index: usize, element: usize) -> f32 {
    let mut bits =
        [rank, step, index, element]
            .iter()
            .fold(0x9E37_79B9_7F4A_7C15u64, |bits, &part| {
                (bits ^ part as u64)
                    .wrapping_mul(0xBF58_476D_1CE4_E5B9)
                    .rotate_left(29)
            });
    bits ^= bits >> 31;
    let unit = (bits >> 40) as f32 / (1u64 << 24) as f32 * 2.0 - 1.0;
    unit * 10f32.powi((bits % 4) as i32 - 3)
}

/// The elements of the view of parameter `index`.
#[expect(clippy::mut_from_ref, reason = "the memory is not the reducer's own")]
fn view(reducer: &GradientReducer, index: usize) -> &mut [f32] {
    // SAFETY: the view has that many elements, and one thread at a time works on this rank's.
    unsafe {
        slice::from_raw_parts_mut(
            reducer.view_ptr(index).cast(),
            reducer.parameters()[index].numel,
        )
    }
}

/// Takes one step of float32 gradients; returns them as they came back, parameter by parameter.
fn step(reducer: &GradientReducer, gradient: impl Fn(usize, usize) -> f32) -> Vec<Vec<f32>> {
    let num = reducer.parameters().len();
    reducer.begin(true, true);
    for index in (0..num).rev() {
        for (element, value) in view(reducer, index).iter_mut().enumerate() {
            *value = gradient(index, element);
        }
        reducer.mark_ready(index).unwrap();
    }
    reducer.finish(&mut [1.0]).unwrap();
    (0..num)
        .map(|index| view(reducer, index).to_vec())
        .collect()
}

/// Takes steps on each rank, and checks that they come to the same bits everywhere, over shared memory and over TCP, with
/// and without a communication thread. Returns what came back in each step.
fn steps(world_size: usize, compression: Compression, num_steps: usize) -> Vec<Vec<Vec<f32>>> {
    let mut all = vec![];
    for (transport, overlaps) in [
        (TransportChoice::SharedMemory, false),
        (TransportChoice::SharedMemory, true),
        (TransportChoice::Tcp, false),
        (TransportChoice::Tcp, true),
    ] {
        all.extend(ranks_over(transport, world_size, |group: ProcessGroup| {
            let rank = group.rank();
            let parameters = parameters(DType::Float32);
            let reducer =
                GradientReducer::new(group, parameters, None, options(compression, overlaps))
                    .unwrap();
            assert!(reducer.layout().buckets.len() > 2);
            (0..num_steps)
                .map(|number| {
                    step(&reducer, |index, element| {
                        gradient(rank, number, index, element)
                    })
                })
                .collect::<Vec<_>>()
        }));
    }
    let first = all.swap_remove(0);
    for other in &all {
        let bits = |steps: &Vec<Vec<Vec<f32>>>| {
            let values = steps.iter().flatten().flatten();
            values.map(|value| value.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(bits(other), bits(&first), "ranks or transports differ");
    }
    first
}

/// Each rank's element rounded, their mean in float64, rounded.
fn check_halves(compression: Compression, rounded: impl Fn(f64) -> f64, epsilon: f64) {
    for world_size in [2, 3] {
        for (number, step) in steps(world_size, compression, 2).iter().enumerate() {
            for (index, values) in step.iter().enumerate() {
                for (element, &value) in values.iter().enumerate() {
                    let sent = (0..world_size)
                        .map(|rank| rounded(f64::from(gradient(rank, number, index, element))));
                    let mean = sent.sum::<f64>() / world_size as f64;
                    let expected = rounded(mean);
                    // Rounding the float32 sum first may part from rounding once by one of the last digit.
                    let allowed = epsilon * expected.abs().max(6.2e-5);
                    let value = f64::from(value);
                    assert_eq!(value, rounded(value), "is no 16-bit float");
                    assert!(
                        (value - expected).abs() <= allowed,
                        "{value} instead of {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn halves_are_averaged_in_float32() {
    check_halves(
        Compression::Fp16,
        |x| f16::from_f64(x).to_f64(),
        1.0 / 1024.0,
    );
    check_halves(
        Compression::Bf16,
        |x| bf16::from_f64(x).to_f64(),
        1.0 / 128.0,
    );
}

#[test]
fn fp16_overflows_only_where_a_gradient_does() {
    ranks_over(TransportChoice::SharedMemory, 4, |group| {
        let options = options(Compression::Fp16, false);
        let reducer =
            GradientReducer::new(group, parameters(DType::Float32), None, options).unwrap();
        // The sum of the four is far beyond float16.
        let values = step(
            &reducer,
            |index, _| if index == 0 { 60_000.0 } else { 70_000.0 },
        );
        assert!(
            values[0].iter().all(|&value| value == 60_000.0),
            "{:?}",
            values[0]
        );
        assert!(values[1].iter().all(|&value| value == f32::INFINITY));
    });
}

#[test]
fn float64_gradients_travel_as_they_are() {
    for compression in [Compression::Fp16, Compression::Bf16] {
        ranks_over(TransportChoice::Tcp, 2, |group| {
            let rank = group.rank();
            let parameters = parameters(DType::Float64);
            let options = options(compression, false);
            let reducer = GradientReducer::new(group, parameters, None, options).unwrap();
            let fine = 1.0 + f64::EPSILON;
            reducer.begin(true, true);
            for index in 0..SHAPES.len() {
                // SAFETY: the view has that many elements and is not marked yet.
                let view = unsafe {
                    let numel = reducer.parameters()[index].numel;
                    slice::from_raw_parts_mut(reducer.view_ptr(index).cast::<f64>(), numel)
                };
                view.fill(fine * (1 + 2 * rank) as f64);
                reducer.mark_ready(index).unwrap();
            }
            reducer.finish(&mut []).unwrap();
            // SAFETY: the step is over, and nobody writes.
            let value = unsafe { reducer.view_ptr(0).cast::<f64>().read() };
            assert_eq!(value, 2.0 * fine);
        });
    }
}

/// The `k` largest entries of each parameter, chosen by sorting; what is left stays.
fn take_largest(unsent: &mut [Vec<f32>], ratio: f64) -> Vec<Vec<f32>> {
    let mut sent = vec![];
    for values in unsent {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|&a, &b| values[b].abs().total_cmp(&values[a].abs()).then(a.cmp(&b)));
        order.truncate((values.len() as f64 * ratio).ceil() as usize);
        let mut taken = vec![0.0; values.len()];
        for index in order {
            taken[index] = std::mem::take(&mut values[index]);
        }
        sent.push(taken);
    }
    sent
}

#[test]
fn top_k_sends_the_largest_entries_of_what_was_not_sent() {
    let (world_size, ratio) = (3, 0.05);
    let results = steps(world_size, Compression::TopK { ratio }, 8);
    let mut unsent: Vec<Vec<Vec<f32>>> = (0..world_size)
        .map(|_| {
            SHAPES
                .iter()
                .map(|shape| vec![0.0; shape.iter().product()])
                .collect()
        })
        .collect();
    for (number, result) in results.iter().enumerate() {
        let sent: Vec<Vec<Vec<f32>>> = (0..world_size)
            .map(|rank| {
                for (index, values) in unsent[rank].iter_mut().enumerate() {
                    for (element, value) in values.iter_mut().enumerate() {
                        *value += gradient(rank, number, index, element);
                    }
                }
                take_largest(&mut unsent[rank], ratio)
            })
            .collect();
        for (index, values) in result.iter().enumerate() {
            for (element, value) in values.iter().enumerate() {
                let sum = sent
                    .iter()
                    .fold(0.0, |sum, rank| sum + rank[index][element]);
                assert_eq!(
                    *value,
                    sum / world_size as f32,
                    "step {number}, parameter {index}"
                );
            }
        }
    }
}

const WITH_STATE: [Compression; 3] = [
    Compression::TopK { ratio: 0.02 },
    Compression::PowerSgd {
        rank: 1,
        start_step: 0,
    },
    Compression::PowerSgd {
        rank: 3,
        start_step: 4,
    },
];

#[test]
fn what_came_through_and_what_was_not_sent_are_the_gradients() {
    let (world_size, num_steps) = (3, 12);
    for compression in WITH_STATE {
        let outcomes = ranks(world_size, |group| {
            let rank = group.rank();
            let parameters = parameters(DType::Float32);
            let reducer =
                GradientReducer::new(group, parameters, None, options(compression, false)).unwrap();
            let mut sums: Vec<Vec<f64>> = SHAPES
                .iter()
                .map(|shape| vec![0.0; shape.iter().product()])
                .collect();
            for number in 0..num_steps {
                let result = step(&reducer, |index, element| {
                    gradient(rank, number, index, element)
                });
                for (sum, value) in sums.iter_mut().flatten().zip(result.iter().flatten()) {
                    *sum += f64::from(*value);
                }
            }
            (sums, reducer.compression_state().unwrap())
        });
        for index in 0..SHAPES.len() {
            for element in 0..outcomes[0].0[index].len() {
                let gradients = (0..world_size).flat_map(|rank| {
                    (0..num_steps)
                        .map(move |number| f64::from(gradient(rank, number, index, element)))
                });
                let unsent = outcomes.iter().filter_map(|(_, state)| {
                    state.parameters[index]
                        .unsent
                        .get(element)
                        .map(|&value| f64::from(value))
                });
                let actual =
                    outcomes[0].0[index][element] * world_size as f64 + unsent.sum::<f64>();
                let expected: f64 = gradients.sum();
                assert!(
                    (actual - expected).abs() < 2e-5,
                    "{compression:?}: {actual} instead of {expected}"
                );
            }
        }
    }
}

#[test]
fn a_reducer_goes_on_where_another_stopped_to_the_bit() {
    for compression in WITH_STATE {
        let whole = steps(2, compression, 9);
        let resumed = ranks(2, |group| {
            let rank = group.rank();
            let of = |number: usize| move |index, element| gradient(rank, number, index, element);
            // Other buckets, one of them a group's: what is carried does not depend on them.
            let first = ReducerOptions {
                compression,
                groups: vec![vec![0, 3]],
                ..ReducerOptions::default()
            };
            let first =
                GradientReducer::new(group.clone(), parameters(DType::Float32), None, first)
                    .unwrap();
            for number in 0..6 {
                step(&first, of(number));
            }
            let second = GradientReducer::new(
                group,
                parameters(DType::Float32),
                None,
                options(compression, true),
            )
            .unwrap();
            let state = first.compression_state();
            assert!(second.restore(6, state.as_ref()));
            (6..9)
                .map(|number| step(&second, of(number)))
                .collect::<Vec<_>>()
        });
        assert_eq!(resumed[0], whole[6..], "{compression:?}");
        assert_eq!(resumed[1], resumed[0]);
    }
}

#[test]
fn state_of_another_model_is_refused() {
    ranks(1, |group| {
        let make = |rank: usize, num: usize| {
            let compression = Compression::PowerSgd {
                rank,
                start_step: 0,
            };
            let parameters = parameters(DType::Float32).split_off(SHAPES.len() - num);
            GradientReducer::new(group.clone(), parameters, None, options(compression, false))
                .unwrap()
        };
        let state = make(2, 5).compression_state();
        assert!(make(2, 5).restore(1, state.as_ref()));
        assert!(!make(1, 5).restore(1, state.as_ref()));
        assert!(!make(2, 4).restore(1, state.as_ref()));
        assert!(!make(2, 5).restore(1, None));
    });
}

/// A matrix of rank one comes through whole, at once; vectors, and matrices that do not become smaller, always do.
#[test]
fn power_sgd_loses_nothing_of_a_matrix_of_its_rank() {
    let compression = Compression::PowerSgd {
        rank: 1,
        start_step: 0,
    };
    let of_rank_one = |rank: usize, index: usize, element: usize| {
        let num_columns = SHAPES[index].get(1).copied().unwrap_or(1);
        let (row, column) = (element / num_columns, element % num_columns);
        (1 + rank) as f32 * (row as f32 - 2.5) * ((column * column % 7) as f32 - 2.0)
    };
    ranks(2, |group| {
        let rank = group.rank();
        let reducer = GradientReducer::new(
            group,
            parameters(DType::Float32),
            None,
            options(compression, false),
        )
        .unwrap();
        for _ in 0..3 {
            for (index, values) in step(&reducer, |i, e| of_rank_one(rank, i, e))
                .iter()
                .enumerate()
            {
                for (element, &value) in values.iter().enumerate() {
                    let expected = 1.5 * of_rank_one(0, index, element);
                    assert!(
                        (value - expected).abs() <= 1e-5 * expected.abs().max(10.0),
                        "{value} {expected}"
                    );
                }
            }
        }
        let state = reducer.compression_state().unwrap();
        let compressed: Vec<bool> = state
            .parameters
            .iter()
            .map(|p| !p.basis.is_empty())
            .collect();
        assert_eq!(compressed, [true, false, true, false, false]);
    });
}

#[test]
fn power_sgd_begins_at_its_start_step() {
    let plain = steps(2, Compression::None, 4);
    let compressed = steps(
        2,
        Compression::PowerSgd {
            rank: 1,
            start_step: 2,
        },
        4,
    );
    assert_eq!(compressed[..2], plain[..2]);
    // The matrices of the third step come through in part, its vectors whole.
    assert_ne!(compressed[2][0], plain[2][0]);
    assert_eq!(compressed[2][1], plain[2][1]);
}
