//! Every operation and element type against the process group, whose results are held against a reference elsewhere.

use flambeau_collective::{
    CollectiveError, DType, NcclGroup, ProcessGroup, RawBuffer, ReduceOp, Stream, part_of,
};
use nccl_stand_in::{buffer, framework_stream};

use super::{Ranks, connect};
use crate::harness::{all_say, say};
use crate::reference::{Elements, same};

const TYPES: [DType; 5] = [
    DType::Float32,
    DType::Float64,
    DType::Float16,
    DType::BFloat16,
    DType::Int64,
];

/// None, fewer than ranks, divisible by two and three, not so, and more than the stand-in carries at a time.
const LENS: [usize; 5] = [0, 1, 12, 1001, 40_000];

/// One rank's elements, twice: for the host's group and for the devices'.
fn twins(group: &ProcessGroup, dtype: DType, len: usize) -> [Elements; 2] {
    let elements = Elements::random(dtype, len, group.rank() as u64 + 1, false);
    [elements.clone(), elements]
}

/// Does every operation on both groups.
pub fn every_operation(group: &ProcessGroup) {
    let (nccl, _runtime) = connect(group).unwrap();
    let (_stream, name) = framework_stream();
    for len in LENS {
        for dtype in TYPES {
            for op in [ReduceOp::Sum, ReduceOp::Average] {
                reduces(group, &nccl, name, dtype, len, op);
            }
            moves(group, &nccl, name, dtype, len);
        }
        moves(group, &nccl, name, DType::UInt8, len);
    }
    grouped(group, &nccl, name);
    say("equal");
}

fn reduces(
    group: &ProcessGroup,
    nccl: &NcclGroup,
    stream: Stream,
    dtype: DType,
    len: usize,
    op: ReduceOp,
) {
    let [mut host, mut device] = twins(group, dtype, len);
    let (on_host, on_device) = buffers(&mut host, &mut device, dtype, len, stream);
    // SAFETY: the elements are alive and nobody else's until the work is done.
    unsafe {
        group.all_reduce(on_host, op).unwrap();
        nccl.all_reduce(on_device, op).unwrap().wait().unwrap();
    }
    assert!(same(&host, &device), "all_reduce {op} of {len} {dtype}");

    let [mut host, mut device] = twins(group, dtype, len);
    let (on_host, on_device) = buffers(&mut host, &mut device, dtype, len, stream);
    // SAFETY: as above.
    unsafe {
        group.reduce_scatter(on_host, op).unwrap();
        nccl.reduce_scatter(on_device, op).unwrap().wait().unwrap();
    }
    // The other parts are unspecified.
    let own = part_of(len, group.rank(), group.world_size());
    let bytes = own.start * dtype.size()..own.end * dtype.size();
    assert_eq!(
        host.bytes()[bytes.clone()],
        device.bytes()[bytes],
        "reduce_scatter {op} of {len} {dtype}"
    );
}

fn moves(group: &ProcessGroup, nccl: &NcclGroup, stream: Stream, dtype: DType, len: usize) {
    for root in 0..group.world_size() {
        let [mut host, mut device] = twins(group, dtype, len);
        let (on_host, on_device) = buffers(&mut host, &mut device, dtype, len, stream);
        // SAFETY: the elements are alive and nobody else's until the work is done.
        unsafe {
            group.broadcast(on_host, root).unwrap();
            nccl.broadcast(on_device, root).unwrap().wait().unwrap();
        }
        assert_eq!(host.bytes(), device.bytes(), "broadcast of {len} {dtype}");
    }
    let [mut host, mut device] = twins(group, dtype, len);
    let (on_host, on_device) = buffers(&mut host, &mut device, dtype, len, stream);
    // SAFETY: as above.
    unsafe {
        group.all_gather(on_host).unwrap();
        nccl.all_gather(on_device).unwrap().wait().unwrap();
    }
    assert_eq!(host.bytes(), device.bytes(), "all_gather of {len} {dtype}");
}

/// Several buffers of several types in one group.
fn grouped(group: &ProcessGroup, nccl: &NcclGroup, stream: Stream) {
    let mut pairs: Vec<_> = TYPES
        .iter()
        .zip([1000, 0, 33, 70_000, 8])
        .map(|(dtype, len)| (*dtype, len, twins(group, *dtype, len)))
        .collect();
    let (on_host, on_device): (Vec<_>, Vec<_>) = pairs
        .iter_mut()
        .zip([ReduceOp::Sum, ReduceOp::Average].into_iter().cycle())
        .map(|((dtype, len, [host, device]), op)| {
            let (on_host, on_device) = buffers(host, device, *dtype, *len, stream);
            ((on_host, op), (on_device, op))
        })
        .unzip();
    // SAFETY: the elements are alive and nobody else's until the work is done.
    unsafe {
        group.grouped_all_reduce(&on_host).unwrap();
        nccl.grouped_all_reduce(&on_device).unwrap().wait().unwrap();
    }
    for (dtype, len, [host, device]) in &pairs {
        assert!(same(host, device), "grouped all_reduce of {len} {dtype}");
    }
}

fn buffers(
    host: &mut Elements,
    device: &mut Elements,
    dtype: DType,
    len: usize,
    stream: Stream,
) -> (RawBuffer, RawBuffer) {
    (
        RawBuffer::cpu(host.as_mut_ptr(), len, dtype),
        buffer(device.as_mut_ptr(), len, dtype, stream),
    )
}

/// Calls that no rank can mean are refused by name, and the group works on.
pub fn refused(group: &ProcessGroup) {
    let (nccl, _runtime) = connect(group).unwrap();
    let (_stream, name) = framework_stream();
    let mut values = [1f32; 8];
    let raw = buffer(values.as_mut_ptr().cast(), 8, DType::Float32, name);
    let bytes = RawBuffer {
        dtype: DType::UInt8,
        ..raw
    };
    let nowhere = RawBuffer {
        stream: None,
        ..raw
    };
    let elsewhere = RawBuffer::cuda(raw.ptr, 8, DType::Float32, 1, name);
    let on_host = RawBuffer::cpu(raw.ptr, 8, DType::Float32);
    let odd = RawBuffer {
        ptr: raw.ptr.wrapping_byte_add(1),
        ..raw
    };
    // SAFETY: refused before anything is done; the last is on memory that is alive and nobody else's.
    unsafe {
        for (refused, message) in [
            (
                nccl.all_reduce(raw, ReduceOp::Max),
                "max of a buffer on cuda:0",
            ),
            (
                nccl.all_reduce(bytes, ReduceOp::Sum),
                "uint8 can be broadcast",
            ),
            (
                nccl.all_reduce(nowhere, ReduceOp::Sum),
                "without the stream",
            ),
            (
                nccl.all_reduce(elsewhere, ReduceOp::Sum),
                "this group's device is cuda:0",
            ),
            (nccl.all_gather(on_host), "a buffer on cpu"),
            (nccl.all_gather(odd), "not that of an aligned float32"),
            (nccl.broadcast(raw, 2), "root 2 is outside a world of 2"),
        ] {
            let error = refused.unwrap_err();
            assert!(
                matches!(error, CollectiveError::InvalidArgument { .. }),
                "{error}"
            );
            assert!(error.to_string().contains(message), "{error}");
        }
        nccl.all_reduce(raw, ReduceOp::Sum).unwrap().wait().unwrap();
    }
    assert_eq!(values, [2.0; 8]);
    say("refused");
}

#[test]
fn every_operation_equals_the_process_groups() {
    // Where NCCL issues at once, and where it takes its time.
    for (world_size, polls) in [(1, "0"), (2, "0"), (3, "3")] {
        let ranks = Ranks::new(world_size).control(None, "POLLS", polls);
        all_say(&ranks.run("every operation"), "equal");
    }
}
