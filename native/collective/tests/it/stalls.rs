//! Ranks that keep the others waiting are named with what they are in, and calls are recorded.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use flambeau_collective::{
    CallRecord, CollectiveError, DType, GroupOptions, LateRank, ProcessGroup, RawBuffer, ReduceOp,
    Result, Stall,
};

use crate::harness::{self, PATIENCE, Placement};

/// Eight beats, by which what a rank is in is known to the others.
const AFTER: Duration = Duration::from_secs(2);

fn placements() -> [Placement; 3] {
    [
        Placement::OneHost,
        Placement::Tcp,
        Placement::Hosts(vec![0, 0, 1]),
    ]
}

/// Waits until so many ranks have been counted.
fn wait_for(count: &AtomicUsize, num_ranks: usize) {
    let deadline = Instant::now() + PATIENCE;
    while count.load(Ordering::Relaxed) < num_ranks {
        assert!(Instant::now() < deadline, "{count:?} of {num_ranks} ranks");
        thread::sleep(Duration::from_millis(10));
    }
}

fn reduce(group: &ProcessGroup, len: usize) -> Result<()> {
    let mut values = vec![1f32; len];
    let buffer = RawBuffer::cpu(values.as_mut_ptr().cast(), len, DType::Float32);
    // SAFETY: the vector is alive and nobody else's.
    unsafe { group.all_reduce(buffer, ReduceOp::Sum) }
}

#[test]
fn a_late_rank_is_told_of_once_with_what_it_is_in() {
    // Rank 0 listens, and tells of itself too.
    thread::scope(|scope| {
        for (placement, late) in placements().into_iter().zip([1, 2, 0]) {
            scope.spawn(move || tells_of(&placement, late));
        }
    });
}

fn tells_of(placement: &Placement, late: usize) {
    let (sender, told) = mpsc::channel();
    let told = Mutex::new(told);
    let num_in_phase = AtomicUsize::new(0);
    let found = harness::ranks(
        3,
        |rank| placement.options(rank),
        |group| {
            if group.rank() == 0 {
                let sender = sender.clone();
                group.watch_stalls(AFTER, move |stall| sender.send(stall).unwrap());
            }
            reduce(&group, 10).unwrap();
            let began = Instant::now();
            group.enter_phase("forward and backward");
            num_in_phase.fetch_add(1, Ordering::Relaxed);
            wait_for(&num_in_phase, 3);
            let mut stall = None;
            if group.rank() == late {
                // Another one may be told of where the machine is busy.
                let told = told.lock().unwrap();
                let of_second = || loop {
                    let stall: Stall = told.recv_timeout(PATIENCE).unwrap();
                    if stall.sequence == 2 {
                        return stall;
                    }
                };
                stall = Some((of_second(), began.elapsed()));
            }
            group.enter_phase("gradient reduction");
            // More than one, so that a second telling would be seen.
            for _ in 0..3 {
                reduce(&group, 10).unwrap();
            }
            stall
        },
    );
    let (stall, most) = found.into_iter().flatten().next().unwrap();
    assert!(stall.waited >= AFTER, "{stall:?}");
    let of_late = |rank: &&LateRank| rank.peer.rank == late;
    let phase = stall.late.iter().find(of_late).unwrap().phase.clone();
    let phase = phase.unwrap();
    assert_eq!(phase.name, "forward and backward", "{placement:?}");
    // What a beat takes is no part of it.
    assert!(
        phase.lasted >= AFTER / 2 && phase.lasted <= most,
        "{phase:?}"
    );
    let again: Vec<Stall> = told.into_inner().unwrap().try_iter().collect();
    assert!(again.iter().all(|stall| stall.sequence != 2), "{again:?}");
}

#[test]
fn a_time_out_says_what_the_missing_rank_is_in() {
    let options = |rank| GroupOptions {
        timeout: 2 * AFTER,
        ..Placement::Tcp.options(rank)
    };
    let num_errors = AtomicUsize::new(0);
    let errors = harness::ranks(3, options, |group| {
        reduce(&group, 10).unwrap();
        group.enter_phase("evaluation");
        let waited = (group.rank() != 1).then(|| reduce(&group, 10).unwrap_err());
        num_errors.fetch_add(usize::from(waited.is_some()), Ordering::Relaxed);
        wait_for(&num_errors, 2);
        waited
    });
    for error in [&errors[0], &errors[2]] {
        let error = error.as_ref().unwrap();
        let CollectiveError::Timeout { missing, .. } = error else {
            panic!("{error}");
        };
        let phase = missing[0].phase.clone().unwrap();
        assert_eq!((missing.len(), missing[0].peer.rank), (1, 1));
        assert_eq!(phase.name, "evaluation");
        let text = error.to_string();
        assert!(text.contains("(in evaluation for "), "{text}");
    }
}

#[test]
fn calls_are_recorded_between_start_and_take() {
    let records: Vec<Vec<CallRecord>> = harness::ranks(
        3,
        |rank| Placement::OneHost.options(rank),
        |group| {
            reduce(&group, 5).unwrap();
            group.label_next_call(|| unreachable!("nothing is recorded"));
            group.start_call_log(4);
            group.label_next_call(|| "bucket 7".into());
            let mut values = [1f64; 6];
            let buffer = RawBuffer::cpu(values.as_mut_ptr().cast(), 6, DType::Float64);
            // SAFETY: the array outlives the wait, and is nobody else's until then.
            unsafe { group.all_reduce_async(buffer, ReduceOp::Sum).unwrap() }
                .wait()
                .unwrap();
            group.barrier().unwrap();
            group.broadcast_bytes(b"12345", 1).unwrap();
            group.barrier().unwrap();
            let (calls, num_dropped) = group.take_call_log();
            assert_eq!(num_dropped, 1);
            reduce(&group, 5).unwrap();
            assert!(group.take_call_log().0.is_empty());
            calls
        },
    );
    for calls in records {
        let told: Vec<_> = calls
            .iter()
            .map(|call| (&*call.operation, call.num_bytes, call.label.as_deref()))
            .collect();
        let expected = [
            ("all_reduce", 48, Some("bucket 7")),
            ("barrier", 0, None),
            ("broadcast", 8, None),
            ("broadcast", 5, None),
        ];
        assert_eq!(told, expected);
        assert_eq!(
            calls.iter().map(|call| call.sequence).collect::<Vec<_>>(),
            [2, 3, 4, 5]
        );
        assert!(calls.windows(2).all(|pair| pair[0].ended <= pair[1].began));
    }
}
