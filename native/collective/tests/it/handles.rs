//! Asynchronous operations, threads, interrupts.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flambeau_collective::{CollectiveError, DType, GroupOptions, RawBuffer, ReduceOp};

use crate::harness::{self, Placement};

fn raw(values: &mut [f64]) -> RawBuffer {
    RawBuffer::cpu(values.as_mut_ptr().cast(), values.len(), DType::Float64)
}

#[test]
fn asynchronous_and_blocking_calls_share_one_order() {
    for placement in [
        Placement::OneHost,
        Placement::Tcp,
        Placement::Hosts(vec![0, 1, 0]),
    ] {
        harness::ranks(
            3,
            |rank| placement.options(rank),
            |group| {
                let mut buckets = vec![vec![group.rank() as f64; 50_000]; 8];
                let mut last = vec![1.0; 10];
                // SAFETY: the vectors outlive the handles, and nobody touches them meanwhile.
                unsafe {
                    let works: Vec<_> = buckets
                        .iter_mut()
                        .map(|bucket| group.all_reduce_async(raw(bucket), ReduceOp::Sum).unwrap())
                        .collect();
                    // Queued behind them: whoever overtook would meet another call on some rank.
                    group.all_reduce(raw(&mut last), ReduceOp::Sum).unwrap();
                    works.into_iter().for_each(|work| work.wait().unwrap());
                }
                assert!(buckets.iter().flatten().all(|value| *value == 3.0));
                assert_eq!(last, [3.0; 10]);

                let (mut one, mut two) = (vec![1.0; 9], vec![2.0; 9]);
                // SAFETY: as above.
                unsafe {
                    let works = [
                        group.all_reduce_async(raw(&mut one), ReduceOp::Sum),
                        group.all_reduce_async(raw(&mut two), ReduceOp::Max),
                        group.reduce_scatter_async(raw(&mut one), ReduceOp::Sum),
                        group.all_gather_async(raw(&mut one)),
                    ];
                    works
                        .into_iter()
                        .for_each(|work| work.unwrap().wait().unwrap());
                }
                assert_eq!((one, two), (vec![9.0; 9], vec![2.0; 9]));
            },
        );
    }
}

#[test]
fn a_dropped_handle_waits_for_its_buffer() {
    harness::ranks(
        2,
        |rank| Placement::OneHost.options(rank),
        |group| {
            let mut values = vec![1.0; 1000];
            // SAFETY: the vector outlives the handle, whose drop waits.
            drop(unsafe {
                group
                    .all_reduce_async(raw(&mut values), ReduceOp::Sum)
                    .unwrap()
            });
            assert_eq!(values, vec![2.0; 1000]);
        },
    );
}

/// Fires for rank 0 once `armed`; counts how often it is asked.
fn interruptible(
    placement: &Placement,
    armed: &Arc<AtomicBool>,
    asked: &Arc<AtomicUsize>,
    rank: usize,
) -> GroupOptions {
    let (armed, asked) = (armed.clone(), asked.clone());
    let interrupt = move || {
        asked.fetch_add(1, Ordering::Relaxed);
        armed.load(Ordering::Relaxed)
    };
    let mut options = placement.options(rank);
    if rank == 0 {
        options.interrupt = Some(Arc::new(interrupt));
    }
    options
}

#[test]
fn an_interrupt_ends_every_wait_and_frees_the_others() {
    for placement in [
        Placement::OneHost,
        Placement::Tcp,
        Placement::Hosts(vec![0, 1, 0]),
    ] {
        for asynchronous in [false, true] {
            let (armed, asked) = (
                Arc::new(AtomicBool::new(false)),
                Arc::new(AtomicUsize::new(0)),
            );
            harness::ranks(
                3,
                |rank| interruptible(&placement, &armed, &asked, rank),
                |group| {
                    if group.rank() != 0 {
                        // Waits in no collective, and yet hears of it.
                        let started = Instant::now();
                        while group.failure().is_none() && started.elapsed() < harness::PATIENCE {
                            thread::sleep(Duration::from_millis(5));
                        }
                        let error = group.barrier().unwrap_err();
                        assert!(
                            matches!(&error, CollectiveError::Aborted { rank: 0, reason, .. } if reason == "interrupted"),
                            "{error:?}"
                        );
                        return;
                    }
                    let before = asked.load(Ordering::Relaxed);
                    // Fires once the wait has asked five times, which takes it half a second.
                    let started = Instant::now();
                    let (trigger, asked) = (armed.clone(), asked.clone());
                    let alarm = thread::spawn(move || {
                        while asked.load(Ordering::Relaxed) < before + 5 {
                            thread::sleep(Duration::from_millis(5));
                        }
                        trigger.store(true, Ordering::Relaxed);
                    });
                    let mut values = vec![1.0; 10];
                    // SAFETY: the vector outlives the handle.
                    let error = unsafe {
                        match asynchronous {
                            true => group
                                .all_reduce_async(raw(&mut values), ReduceOp::Sum)
                                .unwrap()
                                .wait(),
                            false => group.all_reduce(raw(&mut values), ReduceOp::Sum),
                        }
                    }
                    .unwrap_err();
                    assert!(matches!(error, CollectiveError::Interrupted), "{error:?}");
                    assert!(
                        started.elapsed() < Duration::from_secs(20),
                        "{:?}",
                        started.elapsed()
                    );
                    alarm.join().unwrap();
                },
            );
        }
    }
}

/// The interrupt is the caller's code, and so are panics in it. Whoever catches one still holds the group.
#[test]
fn a_panic_inside_a_call_frees_the_others() {
    for asynchronous in [false, true] {
        let armed = Arc::new(AtomicBool::new(false));
        let options = |rank: usize| {
            let armed = armed.clone();
            let interrupt = move || {
                assert!(!armed.load(Ordering::Relaxed), "as a callback may");
                false
            };
            let mut options = Placement::OneHost.options(rank);
            options.interrupt = (rank == 0).then(|| Arc::new(interrupt) as _);
            options
        };
        harness::ranks(2, options, |group| {
            group.barrier().unwrap();
            if group.rank() == 1 {
                let started = Instant::now();
                while group.failure().is_none() && started.elapsed() < harness::PATIENCE {
                    thread::sleep(Duration::from_millis(5));
                }
                let failure = group.failure();
                assert!(
                    matches!(&failure, Some(CollectiveError::Aborted { rank: 0, reason, .. }) if reason.contains("panicked")),
                    "{failure:?}"
                );
                return;
            }
            armed.store(true, Ordering::Relaxed);
            let mut values = vec![1.0; 10];
            let caught = catch_unwind(AssertUnwindSafe(|| {
                // SAFETY: the vector outlives the handle, whose end is waited for.
                let queued = asynchronous
                    .then(|| unsafe { group.all_reduce_async(raw(&mut values), ReduceOp::Sum) });
                // Waits in the call, or for its turn behind the other.
                let _ = group.barrier();
                queued
            }));
            assert!(caught.is_err());
            // Nor do calls of this rank wait for a turn that never comes.
            assert!(matches!(
                group.barrier().unwrap_err(),
                CollectiveError::Aborted { rank: 0, .. }
            ));
        });
    }
}

#[test]
fn a_world_of_one_needs_nobody() {
    harness::ranks(
        1,
        |rank| Placement::OneHost.options(rank),
        |group| {
            let buffer = group.allocate(80).unwrap();
            let raw_buffer = buffer.raw(0, 10, DType::Float64).unwrap();
            let mut own = [3.0, 4.0];
            // SAFETY: the memory is alive and nobody else's.
            unsafe {
                group.all_reduce(raw_buffer, ReduceOp::Average).unwrap();
                group
                    .all_reduce_async(raw(&mut own), ReduceOp::Average)
                    .unwrap()
                    .wait()
                    .unwrap();
                group.broadcast(raw(&mut own), 0).unwrap();
            }
            group.barrier().unwrap();
            assert_eq!(own, [3.0, 4.0]);
            assert_eq!(group.all_gather_bytes(b"x").unwrap(), [b"x"]);
            group.abort("enough");
            assert!(matches!(
                group.barrier().unwrap_err(),
                CollectiveError::Aborted { rank: 0, .. }
            ));
        },
    );
}

#[test]
fn threads_of_a_rank_take_turns() {
    harness::ranks(
        2,
        |rank| Placement::OneHost.options(rank),
        |group| {
            thread::scope(|scope| {
                for _ in 0..4 {
                    let group = group.clone();
                    scope.spawn(move || {
                        for _ in 0..200 {
                            let mut values = [1.0; 20];
                            // SAFETY: the array is alive and nobody else's.
                            unsafe { group.all_reduce(raw(&mut values), ReduceOp::Sum).unwrap() };
                            assert_eq!(values, [2.0; 20]);
                        }
                    });
                }
            });
        },
    );
}
