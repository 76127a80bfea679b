//! Memory that the group owns.

use flambeau_collective::{CollectiveError, DType, ReduceOp};

use crate::harness::{self, Placement};

#[test]
fn it_is_zeroed_aligned_and_reached_by_all_of_the_host() {
    for (placement, is_shared) in [(Placement::OneHost, true), (Placement::Tcp, false)] {
        harness::ranks(
            2,
            |rank| placement.options(rank),
            |group| {
                for bytes in [0, 1, 63, 4096, 1 << 22] {
                    let buffer = group.allocate(bytes).unwrap();
                    assert_eq!(
                        (buffer.len(), buffer.is_empty(), buffer.is_shared()),
                        (bytes, bytes == 0, is_shared)
                    );
                    assert_eq!(buffer.as_ptr() as usize % 64, 0);
                    // SAFETY: the buffer is alive and nobody writes it.
                    let held = unsafe { std::slice::from_raw_parts(buffer.as_ptr(), bytes) };
                    assert!(held.iter().all(|byte| *byte == 0));
                }
            },
        );
    }
}

#[test]
fn it_outlives_the_group_and_may_be_dropped_before_it() {
    harness::ranks(
        2,
        |rank| Placement::OneHost.options(rank),
        |group| {
            let kept = group.allocate(800).unwrap();
            drop(group.allocate(1 << 20).unwrap());
            let raw = kept.raw(0, 100, DType::Float64).unwrap();
            // SAFETY: the buffer is alive and nobody else's.
            unsafe {
                (0..100).for_each(|index| raw.ptr.cast::<f64>().add(index).write(1.0));
                group.all_reduce(raw, ReduceOp::Sum).unwrap();
                drop(group);
                assert_eq!(raw.ptr.cast::<f64>().add(99).read(), 2.0);
            }
        },
    );
}

/// Ranks that pass memory of different allocations are staged, and get the same result.
#[test]
fn different_allocations_are_no_mismatch() {
    harness::ranks(
        3,
        |rank| Placement::OneHost.options(rank),
        |group| {
            let buffers = [group.allocate(800).unwrap(), group.allocate(800).unwrap()];
            let raw = buffers[group.rank() % 2]
                .raw(8 * group.rank(), 50, DType::Int64)
                .unwrap();
            // SAFETY: the buffer is alive and nobody else's.
            unsafe {
                (0..50)
                    .for_each(|index| raw.ptr.cast::<i64>().add(index).write(group.rank() as i64));
                group.all_reduce(raw, ReduceOp::Sum).unwrap();
                assert!((0..50).all(|index| raw.ptr.cast::<i64>().add(index).read() == 3));
            }
        },
    );
}

#[test]
fn a_description_outside_it_is_refused() {
    harness::ranks(
        1,
        |rank| Placement::OneHost.options(rank),
        |group| {
            let buffer = group.allocate(100).unwrap();
            for (offset, len, dtype) in [
                (0, 26, DType::Float32),
                (2, 1, DType::Float32),
                (104, 0, DType::UInt8),
                (8, usize::MAX, DType::Int64),
            ] {
                let error = buffer.raw(offset, len, dtype).unwrap_err();
                assert!(
                    matches!(error, CollectiveError::InvalidArgument { .. }),
                    "{error:?}"
                );
            }
            assert_eq!(buffer.raw(96, 1, DType::Float32).unwrap().bytes(), 4);
            assert!(group.allocate(usize::MAX).is_err());
        },
    );
}
