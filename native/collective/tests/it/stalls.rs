//! Ranks that keep the others waiting are named with what they are in, and calls are recorded.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use flambeau_collective::{
    CallRecord, CollectiveError, DType, GroupOptions, ProcessGroup, RawBuffer, ReduceOp, Result,
};

use crate::harness::{self, Placement};

const AFTER: Duration = Duration::from_millis(600);

fn placements() -> [Placement; 3] {
    [
        Placement::OneHost,
        Placement::Tcp,
        Placement::Hosts(vec![0, 0, 1]),
    ]
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
    for (placement, late) in placements().into_iter().zip([1, 2, 0]) {
        let told = harness::ranks(
            3,
            |rank| placement.options(rank),
            |group| {
                let (sender, receiver) = mpsc::channel();
                if group.rank() == 0 {
                    group.watch_stalls(AFTER, move |stall| sender.send(stall).unwrap());
                }
                reduce(&group, 10).unwrap();
                group.enter_phase("forward and backward");
                if group.rank() == late {
                    thread::sleep(3 * AFTER);
                }
                group.enter_phase("gradient reduction");
                // More than one, so that a second telling would be seen.
                for _ in 0..3 {
                    reduce(&group, 10).unwrap();
                }
                receiver.try_iter().collect::<Vec<_>>()
            },
        );
        let [stall] = &told[0][..] else {
            panic!("{placement:?}: {:?}", told[0]);
        };
        assert_eq!((stall.sequence, stall.late.len()), (2, 1), "{placement:?}");
        assert!(stall.waited >= AFTER, "{stall:?}");
        let phase = stall.late[0].phase.clone().unwrap();
        assert_eq!(stall.late[0].peer.rank, late);
        assert_eq!(phase.name, "forward and backward");
        assert!(
            phase.lasted >= AFTER && phase.lasted < 4 * AFTER,
            "{phase:?}"
        );
        assert!(told[1].is_empty() && told[2].is_empty());
    }
}

#[test]
fn a_time_out_says_what_the_missing_rank_is_in() {
    let options = |rank| GroupOptions {
        timeout: 2 * AFTER,
        ..Placement::Tcp.options(rank)
    };
    let errors = harness::ranks(3, options, |group| {
        reduce(&group, 10).unwrap();
        group.enter_phase("evaluation");
        if group.rank() == 1 {
            thread::sleep(4 * AFTER);
        }
        reduce(&group, 10).unwrap_err()
    });
    for rank in [0, 2] {
        let CollectiveError::Timeout { missing, .. } = &errors[rank] else {
            panic!("{}", errors[rank]);
        };
        let phase = missing[0].phase.clone().unwrap();
        assert_eq!((missing.len(), missing[0].peer.rank), (1, 1));
        assert_eq!(phase.name, "evaluation");
        let text = errors[rank].to_string();
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
