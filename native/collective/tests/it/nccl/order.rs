//! What is called in which order, and that streams wait for each other.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use flambeau_collective::{DType, ProcessGroup, ReduceOp};
use nccl_stand_in::control::{log, value};
use nccl_stand_in::{HostEvent, buffer, framework_stream};

use super::{Ranks, connect};
use crate::harness::{PATIENCE, all_say, say};

/// Two buffers in one group, one after them, the stream ordered after that, and the end.
pub fn calls(group: &ProcessGroup) {
    let (nccl, _runtime) = connect(group).unwrap();
    let (_stream, name) = framework_stream();
    let mut values = [1f32; 8];
    let (left, right) = values.split_at_mut(4);
    let buffers = [left, right].map(|half| {
        let raw = buffer(half.as_mut_ptr().cast(), half.len(), DType::Float32, name);
        (raw, ReduceOp::Average)
    });
    // SAFETY: the array and the stream are alive, and nobody else uses the array.
    unsafe {
        let both = nccl.grouped_all_reduce(&buffers).unwrap();
        log("goes on");
        let work = nccl.broadcast(buffers[0].0, 0).unwrap();
        log("goes on");
        work.order_before(name).unwrap();
        log("goes on");
        work.wait().unwrap();
        both.wait().unwrap();
    }
    drop(nccl);
    say("done");
}

/// An operation that nobody asks for.
pub fn unasked(group: &ProcessGroup) {
    let (nccl, _runtime) = connect(group).unwrap();
    let (_stream, name) = framework_stream();
    let mut values = [1f32; 8];
    let raw = buffer(values.as_mut_ptr().cast(), 8, DType::Float32, name);
    // SAFETY: the array and the stream are alive until the group's end, and nobody else uses the array.
    let work = unsafe { nccl.all_reduce(raw, ReduceOp::Sum).unwrap() };
    let since = Instant::now();
    let path: String = value("LOG").unwrap();
    while !fs::read_to_string(&path)
        .unwrap()
        .contains("record on nccl")
    {
        assert!(since.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(5));
    }
    drop((work, nccl));
    assert_eq!(values, [group.world_size() as f32; 8]);
    say("done");
}

/// Contents that are made late on a stream, reduced, and used on that stream.
pub fn slow_producer(group: &ProcessGroup) {
    let (nccl, _runtime) = connect(group).unwrap();
    let (stream, name) = framework_stream();
    let mut values = vec![0f32; 1000];
    let address = values.as_mut_ptr() as usize;
    let len = values.len();
    let rank = group.rank() as f32;
    stream.launch(move || {
        thread::sleep(Duration::from_millis(200));
        // SAFETY: the vector outlives the stream's work, which is waited for below, and whose order is what is tested.
        unsafe { std::slice::from_raw_parts_mut(address as *mut f32, len) }.fill(rank + 1.0);
    });
    let raw = buffer(values.as_mut_ptr().cast(), len, DType::Float32, name);
    // SAFETY: as above.
    unsafe {
        let work = nccl.all_reduce(raw, ReduceOp::Sum).unwrap();
        work.order_before(name).unwrap();
    }
    stream.launch(move || {
        // SAFETY: as above.
        let values = unsafe { std::slice::from_raw_parts_mut(address as *mut f32, len) };
        values.iter_mut().for_each(|value| *value *= 10.0);
    });
    let reached = HostEvent::default();
    reached.record(&stream);
    while !reached.is_done() {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(values, vec![30.0; len]);
    say("30");
}

#[test]
fn calls_are_grouped_between_the_events_that_order_them() {
    let ranks = Ranks::new(2).control(None, "POLLS", "200");
    let log = ranks.path("log");
    let ranks = ranks.control(Some(1), "LOG", log.to_str().unwrap());
    let mut processes = ranks.run("order");
    all_say(&processes, "done");
    for process in &mut processes {
        process.child.wait().unwrap();
    }
    let log = fs::read_to_string(log).unwrap();
    // What the stream's thread does goes beside what the host calls, as does the beginning of the watching thread.
    let (work, calls): (Vec<_>, Vec<_>) = log
        .lines()
        .filter(|line| *line != "ignore captures")
        .partition(|line| line.starts_with("begin") || line.starts_with("end"));
    assert_eq!(
        calls,
        [
            "ncclGetVersion",
            "ncclCommInitRankConfig",
            "record on framework",
            "wait on nccl",
            "ncclGroupStart",
            "all_reduce avg",
            "all_reduce avg",
            "ncclGroupEnd",
            // NCCL is still at it: the host goes on, and waits for it with the next call.
            "goes on",
            "record on nccl",
            "record on framework",
            "wait on nccl",
            "ncclGroupStart",
            "broadcast",
            "ncclGroupEnd",
            "goes on",
            "record on nccl",
            "wait on framework",
            "goes on",
            "ncclCommFinalize",
            "ncclCommDestroy",
        ]
    );
    let kinds = ["all_reduce", "all_reduce", "broadcast"];
    let expected = kinds.map(|kind| [format!("begin {kind}"), format!("end {kind}")]);
    assert_eq!(work, expected.concat());
}

/// `ncclLaunchOneRank` in `src/device/onerank.cu`: a single rank's average is a kernel that multiplies by 1, its sum nothing.
#[test]
fn a_single_rank_has_nothing_averaged() {
    let ranks = Ranks::new(1);
    let log = ranks.path("log");
    let ranks = ranks.control(None, "LOG", log.to_str().unwrap());
    all_say(&ranks.run("order"), "done");
    let log = fs::read_to_string(log).unwrap();
    assert!(
        log.contains("all_reduce sum") && !log.contains("avg"),
        "{log}"
    );
}

#[test]
fn an_operation_that_nobody_asks_for_is_looked_after() {
    let ranks = Ranks::new(1).control(None, "POLLS", "2");
    let log = ranks.path("log");
    let ranks = ranks.control(None, "LOG", log.to_str().unwrap());
    all_say(&ranks.run("unasked"), "done");
    // By a thread that ends nobody's capture.
    let log = fs::read_to_string(log).unwrap();
    let place = |line: &str| log.lines().position(|other| other == line).unwrap();
    assert!(place("ignore captures") < place("record on nccl"), "{log}");
}

#[test]
fn a_stream_orders_its_work_before_and_after() {
    for polls in ["0", "5"] {
        all_say(
            &Ranks::new(2)
                .control(None, "POLLS", polls)
                .run("slow producer"),
            "30",
        );
    }
}
