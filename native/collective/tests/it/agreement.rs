//! Ranks that do not make the same call are all told how they differ.

use std::time::{Duration, Instant};

use flambeau_collective::{CollectiveError, DType, ProcessGroup, RawBuffer, ReduceOp, Result};

use crate::harness::{self, Placement};

fn placements() -> [Placement; 4] {
    [
        Placement::OneHost,
        Placement::Tcp,
        Placement::Hosts(vec![0, 1, 0]),
        Placement::Hosts(vec![0, 0, 1]),
    ]
}

/// Rank 2 calls `odd`, the others `even`; every rank's error has to mention both.
fn disagree(
    even: impl Fn(&ProcessGroup) -> Result<()> + Sync,
    odd: impl Fn(&ProcessGroup) -> Result<()> + Sync,
    mention: [&str; 2],
) {
    for placement in placements() {
        let started = Instant::now();
        let errors = harness::ranks(
            3,
            |rank| placement.options(rank),
            |group| {
                group.barrier().unwrap();
                let error = if group.rank() == 2 {
                    odd(&group)
                } else {
                    even(&group)
                }
                .unwrap_err();
                (error, group)
            },
        );
        assert!(started.elapsed() < Duration::from_secs(30));
        for (error, _) in errors {
            let CollectiveError::Mismatch { sequence: 2, calls } = &error else {
                panic!("{error:?} over {placement:?}")
            };
            assert_eq!(calls.len(), 2);
            assert!(calls.iter().any(|(peer, _)| peer.rank == 2), "{error}");
            for text in mention {
                assert!(
                    error.to_string().contains(text),
                    "{error} does not mention {text}"
                );
            }
        }
    }
}

fn all_reduce(
    len: usize,
    dtype: DType,
    op: ReduceOp,
) -> impl Fn(&ProcessGroup) -> Result<()> + Sync {
    move |group| {
        let mut memory = vec![0u64; len];
        // SAFETY: the vector is alive, nobody else's, and long enough for any type.
        unsafe { group.all_reduce(RawBuffer::cpu(memory.as_mut_ptr().cast(), len, dtype), op) }
    }
}

/// The lengths of messages come from the peers: those that cannot be true end the group, before there is room for them.
#[test]
fn about_how_long_a_message_can_be() {
    for (len, allowed) in [
        (-1i64, 1 << 29),
        (1 << 40, 1 << 29),
        ((1 << 29) + 1, 1 << 29),
    ] {
        let errors = harness::ranks(
            2,
            |rank| Placement::OneHost.options(rank),
            |group| {
                if group.rank() == 0 {
                    return group.all_gather_bytes(b"a message").unwrap_err();
                }
                // As a rank of another version, or with a defect, may.
                let mut lens = [0, len];
                // SAFETY: the array is alive and nobody else's.
                unsafe {
                    let raw = RawBuffer::cpu(lens.as_mut_ptr().cast(), 2, DType::Int64);
                    group.all_gather(raw).unwrap();
                }
                group.barrier().unwrap_err()
            },
        );
        let expected = format!("message 1 is of {len} bytes, where {allowed} are allowed");
        assert!(errors[0].to_string().contains(&expected), "{}", errors[0]);
        assert!(errors[1].to_string().contains(&expected), "{}", errors[1]);
    }
}

#[test]
fn about_the_operation() {
    disagree(
        all_reduce(10, DType::Float32, ReduceOp::Sum),
        |group| group.barrier(),
        ["all_reduce of 10 float32 (sum)", "barrier"],
    );
}

#[test]
fn about_the_length() {
    for len in [10, 100_000, 3_000_000] {
        disagree(
            all_reduce(len, DType::Float32, ReduceOp::Sum),
            all_reduce(len + 1, DType::Float32, ReduceOp::Sum),
            [&format!("{len} float32"), &format!("{} float32", len + 1)],
        );
    }
}

#[test]
fn about_the_type_or_the_operator() {
    disagree(
        all_reduce(10, DType::Float32, ReduceOp::Sum),
        all_reduce(10, DType::BFloat16, ReduceOp::Sum),
        ["10 float32 (sum)", "10 bfloat16 (sum)"],
    );
    disagree(
        all_reduce(10, DType::Int64, ReduceOp::Min),
        all_reduce(10, DType::Int64, ReduceOp::Average),
        ["10 int64 (min)", "10 int64 (average)"],
    );
}

#[test]
fn about_the_root() {
    let broadcast = |root| {
        move |group: &ProcessGroup| {
            let mut memory = [0u8; 4];
            // SAFETY: the array is alive and nobody else's.
            unsafe {
                group.broadcast(
                    RawBuffer::cpu(memory.as_mut_ptr().cast(), 4, DType::UInt8),
                    root,
                )
            }
        }
    };
    disagree(broadcast(0), broadcast(1), ["from rank 0", "from rank 1"]);
}

#[test]
fn about_one_buffer_of_a_group() {
    let grouped = |last: usize| {
        move |group: &ProcessGroup| {
            let mut memory = [[0f64; 64]; 3];
            let [first, second, third] = &mut memory;
            let raw = |memory: &mut [f64; 64], len| {
                RawBuffer::cpu(memory.as_mut_ptr().cast(), len, DType::Float64)
            };
            let buffers = [
                (raw(first, 8), ReduceOp::Sum),
                (raw(second, 9), ReduceOp::Max),
                (raw(third, last), ReduceOp::Sum),
            ];
            // SAFETY: the arrays are alive, nobody else's, and apart.
            unsafe { group.grouped_all_reduce(&buffers) }
        }
    };
    disagree(
        grouped(10),
        grouped(11),
        [
            "number 2 (from 0) of 10 float64 (sum)",
            "number 2 (from 0) of 11 float64 (sum)",
        ],
    );
}

#[test]
fn about_the_size_of_an_allocation() {
    let allocate = |bytes| move |group: &ProcessGroup| group.allocate(bytes).map(drop);
    disagree(
        allocate(64),
        allocate(128),
        ["allocate of 64 bytes", "allocate of 128 bytes"],
    );
}

/// What no rank can have meant is refused before anything is sent, and the group goes on.
#[test]
fn an_impossible_argument_fails_nobody() {
    harness::ranks(
        2,
        |rank| Placement::OneHost.options(rank),
        |group| {
            let mut memory = [0u64; 4];
            let pointer = memory.as_mut_ptr();
            let raw = |dtype| RawBuffer::cpu(pointer.cast(), 4, dtype);
            let mut on_gpu = raw(DType::Float32);
            on_gpu.device = flambeau_collective::Device::Cuda(1);
            let misaligned = RawBuffer::cpu(pointer.wrapping_byte_add(2).cast(), 1, DType::Float64);
            // SAFETY: the array is alive and nobody else's; what does not describe it is refused.
            unsafe {
                for (result, text) in [
                    (group.all_reduce(raw(DType::UInt8), ReduceOp::Sum), "uint8"),
                    (group.broadcast(raw(DType::Int64), 2), "root 2"),
                    (group.all_reduce(on_gpu, ReduceOp::Sum), "cuda:1"),
                    (group.all_reduce(misaligned, ReduceOp::Sum), "aligned"),
                    (
                        group.all_reduce(
                            RawBuffer::cpu(std::ptr::null_mut(), 1, DType::Int64),
                            ReduceOp::Sum,
                        ),
                        "aligned",
                    ),
                ] {
                    let error = result.unwrap_err();
                    assert!(
                        matches!(error, CollectiveError::InvalidArgument { .. }),
                        "{error:?}"
                    );
                    assert!(error.to_string().contains(text), "{error}");
                }
                group.all_reduce(raw(DType::Int64), ReduceOp::Sum).unwrap();
            }
            assert!(group.failure().is_none());
        },
    );
}
