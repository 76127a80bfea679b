//! The reducer by itself, with several buckets and types.

use std::slice;

use flambeau_collective::{DType, Device};
use flambeau_train::{
    BucketLayout, BucketSizes, GradientReducer, GradientSink, ParameterInfo, ReducerOptions,
};
use half::bf16;
use proptest::prelude::*;

use crate::support::ranks;

fn parameter(index: usize, numel: usize, dtype: DType) -> ParameterInfo {
    ParameterInfo {
        name: format!("p{index}"),
        numel,
        num_rows: 1,
        dtype,
        device: Device::Cpu,
    }
}

/// What rank `rank` has as gradient of element `element` of parameter `index`. Small integers: every type holds them.
fn gradient(rank: usize, index: usize, element: usize) -> f64 {
    ((rank * 7 + index * 3 + element) % 11) as f64 - 5.0
}

fn write(reducer: &GradientReducer, index: usize, value: impl Fn(usize) -> f64) {
    let info = &reducer.parameters()[index];
    let ptr = reducer.view_ptr(index);
    assert!((ptr as usize).is_multiple_of(64));
    // SAFETY: the view has that many elements of that type and is not marked yet.
    unsafe {
        match info.dtype {
            DType::Float32 => {
                let view = slice::from_raw_parts_mut(ptr.cast::<f32>(), info.numel);
                view.iter_mut()
                    .enumerate()
                    .for_each(|(i, v)| *v = value(i) as f32);
            }
            DType::Float64 => {
                let view = slice::from_raw_parts_mut(ptr.cast::<f64>(), info.numel);
                view.iter_mut().enumerate().for_each(|(i, v)| *v = value(i));
            }
            DType::BFloat16 => {
                let view = slice::from_raw_parts_mut(ptr.cast::<bf16>(), info.numel);
                view.iter_mut()
                    .enumerate()
                    .for_each(|(i, v)| *v = bf16::from_f64(value(i)));
            }
            other => panic!("{other}"),
        }
    }
}

fn read(reducer: &GradientReducer, index: usize) -> Vec<f64> {
    let info = &reducer.parameters()[index];
    let ptr = reducer.view_ptr(index);
    // SAFETY: the step is over, and nobody writes.
    unsafe {
        match info.dtype {
            DType::Float32 => slice::from_raw_parts(ptr.cast::<f32>(), info.numel)
                .iter()
                .map(|&v| f64::from(v))
                .collect(),
            DType::Float64 => slice::from_raw_parts(ptr.cast::<f64>(), info.numel).to_vec(),
            DType::BFloat16 => slice::from_raw_parts(ptr.cast::<bf16>(), info.numel)
                .iter()
                .map(|v| v.to_f64())
                .collect(),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn buckets_of_several_types_are_averaged_whatever_order_they_become_ready_in() {
    let types = [DType::Float32, DType::Float64, DType::BFloat16];
    for (overlaps, groups) in [
        (false, vec![]),
        (true, vec![]),
        (true, vec![vec![8, 0, 4, 2], vec![3]]),
    ] {
        ranks(4, |group| {
            let rank = group.rank();
            let parameters: Vec<_> = (0..9)
                .map(|i| parameter(i, 10 + 37 * i, types[i % 3]))
                .collect();
            let options = ReducerOptions {
                sizes: BucketSizes {
                    first: 256,
                    others: 1024,
                },
                overlaps,
                groups: groups.clone(),
                ..ReducerOptions::default()
            };
            let reducer = GradientReducer::new(group, parameters, None, options).unwrap();
            assert!(reducer.layout().buckets.len() > 4);
            for step in 0..20 {
                reducer.begin(true, true);
                // Another order on each rank and in each step; rank 2 lacks a parameter, and nobody has number 4.
                for place in 0..9 {
                    let index = (place * 4 + rank * 2 + step) % 9;
                    if index == 4 || (index == 7 && rank == 2) {
                        continue;
                    }
                    assert!(!reducer.is_filled(index));
                    write(&reducer, index, |i| gradient(rank, index + step, i));
                    reducer.mark_ready(index).unwrap();
                    assert!(reducer.is_filled(index));
                }
                let mut sums = [rank as f64 + 0.5, 1.0];
                reducer.finish(&mut sums).unwrap();
                assert_eq!(sums, [8.0, 4.0]);
                reducer.with_used(|used| {
                    assert_eq!(
                        used,
                        [true, true, true, true, false, true, true, true, true]
                    );
                });
                for index in 0..9 {
                    let has = |rank: usize| index != 4 && !(index == 7 && rank == 2);
                    for (i, value) in read(&reducer, index).into_iter().enumerate() {
                        let sum: f64 = (0..4)
                            .filter(|&r| has(r))
                            .map(|r| gradient(r, index + step, i))
                            .sum();
                        assert_eq!(value, sum / 4.0, "parameter {index}, element {i}");
                    }
                }
            }
        });
    }
}

#[test]
fn gradients_that_only_an_earlier_micro_batch_gave_are_kept() {
    ranks(2, |group| {
        let rank = group.rank();
        let parameters = (0..3).map(|i| parameter(i, 5, DType::Float64)).collect();
        let reducer =
            GradientReducer::new(group, parameters, None, ReducerOptions::default()).unwrap();
        reducer.begin(true, false);
        write(&reducer, 0, |_| 3.0 + rank as f64);
        reducer.mark_ready(0).unwrap();
        reducer.begin(false, true);
        assert!(reducer.is_filled(0) && !reducer.is_filled(1));
        write(&reducer, 1, |_| 2.0);
        reducer.mark_ready(1).unwrap();
        reducer.finish(&mut []).unwrap();
        assert_eq!(read(&reducer, 0), [3.5; 5]);
        assert_eq!(read(&reducer, 1), [2.0; 5]);
        assert_eq!(read(&reducer, 2), [0.0; 5]);
        reducer.with_used(|used| assert_eq!(used, [true, true, false]));
    });
}

#[test]
fn hooks_may_come_from_several_threads() {
    ranks(2, |group| {
        let rank = group.rank();
        let parameters = (0..32).map(|i| parameter(i, 64, DType::Float32)).collect();
        let options = ReducerOptions {
            sizes: BucketSizes {
                first: 256,
                others: 1024,
            },
            overlaps: false,
            ..ReducerOptions::default()
        };
        let reducer = GradientReducer::new(group, parameters, None, options).unwrap();
        for step in 0..50 {
            reducer.begin(true, true);
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let reducer = &reducer;
                    scope.spawn(move || {
                        for index in (0..32).filter(|index| index % 4 == thread) {
                            write(reducer, index, |i| gradient(rank, index + step, i));
                            reducer.mark_ready(index).unwrap();
                        }
                    });
                }
            });
            reducer.finish(&mut []).unwrap();
            for index in 0..32 {
                for (i, value) in read(&reducer, index).into_iter().enumerate() {
                    assert_eq!(
                        value,
                        (gradient(0, index + step, i) + gradient(1, index + step, i)) / 2.0
                    );
                }
            }
        }
    });
}

#[test]
fn scale_and_clip_follow_their_formulas_in_every_type() {
    ranks(1, |group| {
        let types = [DType::Float32, DType::Float64, DType::BFloat16];
        let parameters = (0..3).map(|i| parameter(i, 13, types[i])).collect();
        let reducer =
            GradientReducer::new(group, parameters, None, ReducerOptions::default()).unwrap();
        reducer.begin(true, true);
        for index in 0..3 {
            write(&reducer, index, |i| gradient(0, index, i));
            reducer.mark_ready(index).unwrap();
        }
        reducer.finish(&mut []).unwrap();
        reducer.scale(0.5).unwrap();
        let all = |index: usize| (0..13).map(move |i| gradient(0, index, i) * 0.5);
        let norm = (0..3).flat_map(all).map(|g| g * g).sum::<f64>().sqrt();
        assert!((reducer.clip(1e9).unwrap().unwrap() - norm).abs() < 1e-12);
        for index in 0..3 {
            assert_eq!(
                read(&reducer, index),
                all(index).collect::<Vec<f64>>(),
                "a small norm is left alone"
            );
        }
        assert!((reducer.clip(2.0).unwrap().unwrap() - norm).abs() < 1e-12);
        let factor = 2.0 / (norm + 1e-6);
        for (index, tolerance) in [(0, 1e-6), (1, 1e-15), (2, 1e-2)] {
            for (value, g) in read(&reducer, index).into_iter().zip(all(index)) {
                assert!(
                    (value - g * factor).abs() <= tolerance * g.abs(),
                    "{value} instead of {}",
                    g * factor
                );
            }
        }
    });
}

#[test]
fn the_observed_order_is_that_of_readiness_and_makes_the_same_buckets_on_all_ranks() {
    ranks(2, |group| {
        let parameters: Vec<_> = (0..6).map(|i| parameter(i, 8, DType::Float64)).collect();
        let sizes = BucketSizes {
            first: 64,
            others: 128,
        };
        let options = ReducerOptions {
            sizes,
            ..ReducerOptions::default()
        };
        let reducer =
            GradientReducer::new(group.clone(), parameters.clone(), None, options.clone()).unwrap();
        reducer.begin(true, true);
        for index in [2, 0, 5, 1] {
            reducer.mark_ready(index).unwrap();
        }
        reducer.finish(&mut []).unwrap();
        let order = reducer.observed_order();
        assert_eq!(order, [2, 0, 5, 1, 4, 3]);
        let again = GradientReducer::new(group, parameters.clone(), Some(&order), options).unwrap();
        assert_eq!(
            again.layout(),
            &BucketLayout::new(&parameters, &order, sizes, &[])
        );
        let of_buckets: Vec<_> = again
            .layout()
            .buckets
            .iter()
            .map(|bucket| bucket.parameters.clone())
            .collect();
        assert_eq!(of_buckets, [vec![2], vec![0, 5], vec![1, 4], vec![3]]);
    });
}

#[test]
fn what_cannot_be_reduced_is_refused_by_name() {
    ranks(1, |group| {
        let refusal = |parameters| {
            let made =
                GradientReducer::new(group.clone(), parameters, None, ReducerOptions::default());
            made.err().expect("must be refused").to_string()
        };
        assert!(refusal(vec![]).contains("parameters is []"));
        assert!(
            refusal(vec![parameter(3, 4, DType::Int64)]).starts_with("p3 is 4 elements of int64")
        );
        assert!(
            refusal(vec![parameter(3, 0, DType::Float32)])
                .starts_with("p3 is 0 elements of float32")
        );
        let on_gpu = ParameterInfo {
            device: Device::Cuda(1),
            ..parameter(2, 4, DType::Float32)
        };
        assert!(refusal(vec![on_gpu]).starts_with("p2 is on cuda:1, but must be on the CPU"));
    });
}

proptest! {
    #[test]
    fn a_layout_holds_every_parameter_once_aligned_and_apart(
        sizes in prop::collection::vec((1usize..3000, 0usize..3), 1..60),
        first in 1usize..4000,
        others in 1usize..9000,
        seed in any::<u64>(),
        num_groups in 0usize..5,
    ) {
        let types = [DType::Float32, DType::Float64, DType::BFloat16];
        let parameters: Vec<_> =
            sizes.iter().enumerate().map(|(i, &(numel, dtype))| parameter(i, numel, types[dtype])).collect();
        let mut order: Vec<usize> = (0..parameters.len()).collect();
        order.sort_by_key(|&i| (i as u64 + 1).wrapping_mul(seed | 1));
        let mut groups = vec![vec![]; num_groups];
        for &index in order.iter().step_by(2) {
            if let Some(group) = groups.get_mut(index % 5) {
                group.push(index);
            }
        }
        let group_of = |index: usize| groups.iter().position(|group| group.contains(&index));
        let layout = BucketLayout::new(&parameters, &order, BucketSizes { first, others }, &groups);
        let mut seen = vec![0; parameters.len()];
        for (number, bucket) in layout.buckets.iter().enumerate() {
            let mut end = 0;
            for &index in &bucket.parameters {
                seen[index] += 1;
                let view = layout.views[index];
                prop_assert_eq!((view.bucket, view.numel), (number, parameters[index].numel));
                prop_assert_eq!(bucket.dtype, parameters[index].dtype);
                prop_assert!(view.byte_offset.is_multiple_of(64) && view.byte_offset >= end);
                end = view.byte_offset + view.numel * bucket.dtype.size();
            }
            prop_assert_eq!(end, bucket.num_bytes());
        }
        prop_assert!(seen.iter().all(|&count| count == 1));
        // A group has one bucket for each of its types, and nothing else is in it.
        for (number, group) in groups.iter().enumerate() {
            for dtype in types {
                let mut members: Vec<_> =
                    order.iter().copied().filter(|index| group.contains(index)).collect();
                members.retain(|&index| parameters[index].dtype == dtype);
                let buckets = layout.buckets.iter().filter(|bucket| {
                    bucket.dtype == dtype
                        && bucket.parameters.iter().any(|&index| group_of(index) == Some(number))
                });
                let found: Vec<_> = buckets.map(|bucket| bucket.parameters.clone()).collect();
                prop_assert_eq!(found, Vec::from_iter((!members.is_empty()).then_some(members)));
            }
        }
        // The bucket that becomes full first is the first.
        let place = |index: &usize| order.iter().position(|other| other == index).unwrap();
        let last = |group: &Vec<usize>| group.iter().map(place).max();
        let mut whole: Vec<_> = groups.iter().filter(|group| !group.is_empty()).collect();
        whole.sort_by_key(|group| last(group));
        let firsts: Vec<_> = whole.iter().map(|group| layout.views[group[0]].bucket).collect();
        prop_assert!(firsts.is_sorted(), "{:?}", firsts);
    }
}
