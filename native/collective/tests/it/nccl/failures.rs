//! NCCL that hangs or fails, and ranks that die, freeze, abort or do not come: one error on every rank, within the group's
//! heartbeat time, and nobody left inside NCCL.

use std::collections::HashMap;
use std::env;
use std::thread;
use std::time::{Duration, Instant};

use flambeau_collective::{DType, NcclGroup, ProcessGroup, ReduceOp};
use libloading::os::unix::{Library, Symbol};
use nccl_stand_in::{HostEvent, buffer, framework_stream};

use super::{Ranks, connect, describe};
use crate::harness::{PATIENCE, Process, argument, hear_all, say};

/// The time in which every survivor has to know: the heartbeat's timeout, the time in which NCCL's error waits for a better one, and
/// what a busy machine adds.
const LIMIT: Duration = Duration::from_secs(20);

/// Reduces until that fails, and says the error; then whether the group keeps it, and how many threads are inside NCCL.
pub fn work(group: &ProcessGroup) {
    let error = match connect(group) {
        Err(error) => error,
        Ok((nccl, _)) => {
            say("connected");
            if argument("ABORT") == group.rank().to_string() {
                let group = group.clone();
                thread::spawn(move || {
                    thread::sleep(Duration::from_millis(300));
                    group.abort("the loss is NaN");
                });
            }
            let die_at = match argument("DIE") == group.rank().to_string() {
                true => 2,
                false => usize::MAX,
            };
            reduce_until(&nccl, die_at).unwrap_err()
        }
    };
    say(describe(&error));
    let again = group.barrier().unwrap_err();
    assert_eq!(again.to_string(), error.to_string());
    say(format_args!("inside: {}", inside()));
}

/// Reduces, and dies before the operation of this number, from 1.
fn reduce_until(nccl: &NcclGroup, death: usize) -> flambeau_collective::Result<()> {
    let (_stream, name) = framework_stream();
    let mut values = vec![1f32; 100];
    for number in 1.. {
        if number == death {
            std::process::abort();
        }
        let raw = buffer(
            values.as_mut_ptr().cast(),
            values.len(),
            DType::Float32,
            name,
        );
        // SAFETY: the vector is alive and nobody else's until the work is done.
        unsafe { nccl.all_reduce(raw, ReduceOp::Average)?.wait()? };
    }
    Ok(())
}

/// Waits, as a framework does, for a stream that waits for NCCL, and asks NCCL nothing.
pub fn leave_the_host_free(group: &ProcessGroup) {
    let (nccl, _runtime) = connect(group).unwrap();
    let (stream, name) = framework_stream();
    let mut values = vec![1f32; 100];
    let raw = buffer(
        values.as_mut_ptr().cast(),
        values.len(),
        DType::Float32,
        name,
    );
    // SAFETY: the vector and the stream are alive, and nobody else uses the vector.
    unsafe {
        let work = nccl.all_reduce(raw, ReduceOp::Sum).unwrap();
        work.order_before(name).unwrap();
    }
    say("connected");
    let reached = HostEvent::default();
    reached.record(&stream);
    while !reached.is_done() {
        thread::sleep(Duration::from_millis(1));
    }
    say("free");
    // SAFETY: as above.
    let error = unsafe { nccl.all_reduce(raw, ReduceOp::Sum).unwrap_err() };
    say(describe(&error));
    say(format_args!("inside: {}", inside()));
}

/// Orders a stream after an operation that NCCL does not issue.
pub fn order_in_vain(group: &ProcessGroup) {
    let (nccl, _runtime) = connect(group).unwrap();
    let (_stream, name) = framework_stream();
    let mut values = vec![1f32; 100];
    let raw = buffer(
        values.as_mut_ptr().cast(),
        values.len(),
        DType::Float32,
        name,
    );
    // SAFETY: the vector and the stream are alive, and nobody else uses the vector.
    let error = unsafe {
        let work = nccl.all_reduce(raw, ReduceOp::Sum).unwrap();
        say("connected");
        work.order_before(name).unwrap_err()
    };
    say(describe(&error));
    say(format_args!("inside: {}", inside()));
}

/// How many threads and jobs are inside the stand-in.
fn inside() -> u64 {
    // SAFETY: the library is open already, and its function has this signature.
    unsafe {
        let library = Library::new(env::var_os("FLAMBEAU_NCCL").unwrap()).unwrap();
        let count: Symbol<unsafe extern "C" fn() -> u64> =
            library.get(b"nccl_stand_in_inside\0").unwrap();
        count()
    }
}

/// What every rank but the `victim` says, which is the same and comes within `limit`; nobody is inside NCCL then.
fn one_error(processes: &[Process], victim: Option<usize>, limit: Duration) -> String {
    let survivors: HashMap<_, _> = processes
        .iter()
        .enumerate()
        .filter(|(rank, _)| Some(*rank) != victim)
        .collect();
    let said = hear_all(&survivors, Instant::now(), limit);
    for process in survivors.values() {
        assert_eq!(process.hear(PATIENCE), "inside: 0");
    }
    let mut errors = said.into_values();
    let first = errors.next().unwrap();
    assert!(errors.all(|error| error == first), "{first:?} and others");
    first
}

fn connected(ranks: &Ranks, scenario: &str) -> Vec<Process> {
    let processes = ranks.run(scenario);
    for process in &processes {
        assert_eq!(process.hear(PATIENCE), "connected");
    }
    processes
}

#[test]
fn a_communicator_that_is_never_ready_ends_at_the_deadline() {
    let ranks = Ranks::new(2)
        .control(Some(1), "INIT", "hang")
        .argument("TIMEOUT", "6");
    let said = one_error(&ranks.run("work"), None, PATIENCE);
    assert!(said.starts_with("timeout of nccl_init"), "{said}");
}

#[test]
fn a_refused_communicator_frees_the_other_ranks() {
    let ranks = Ranks::new(3).control(Some(1), "REFUSE", "1");
    let said = one_error(&ranks.run("work"), None, PATIENCE);
    assert!(
        said.starts_with("nccl on 1 in nccl_init #")
            && said.contains("ncclCommInitRankConfig: unhandled cuda error (code 1)"),
        "{said}"
    );
}

#[test]
fn an_asynchronous_error_names_its_rank_and_operation() {
    let ranks = Ranks::new(3).control(Some(1), "ERROR", "3@2");
    let said = one_error(&connected(&ranks, "work"), None, LIMIT);
    assert!(
        said.starts_with("nccl on 1 in all_reduce #") && said.contains("another error (code 3)"),
        "{said}"
    );
}

#[test]
fn a_network_error_waits_for_the_name_of_a_lost_rank() {
    // Rank 0 hears of the network before the group can know of the death.
    let ranks = Ranks::new(3)
        .control(Some(0), "ERROR", "6@2")
        .argument("DIE", "1");
    let said = one_error(&connected(&ranks, "work"), Some(1), LIMIT);
    assert!(
        said.starts_with("lost 1 in all_reduce #") && said.ends_with("closed"),
        "{said}"
    );
}

#[test]
fn a_network_error_of_no_lost_rank_is_nccls_own() {
    let ranks = Ranks::new(2)
        .control(Some(0), "ERROR", "6@2")
        .argument("HEARTBEAT", "4");
    let said = one_error(&connected(&ranks, "work"), None, LIMIT);
    assert!(
        said.starts_with("nccl on 0 in all_reduce #") && said.contains("network error"),
        "{said}"
    );
}

#[test]
fn a_killed_rank_is_named_by_every_survivor() {
    let ranks = Ranks::new(3);
    let processes = connected(&ranks, "work");
    thread::sleep(Duration::from_millis(200));
    processes[2].signal(libc::SIGKILL);
    let said = one_error(&processes, Some(2), LIMIT);
    assert!(
        said.starts_with("lost 2 in all_reduce #") && said.ends_with("closed"),
        "{said}"
    );
}

#[test]
fn a_frozen_rank_is_named_by_every_survivor() {
    let ranks = Ranks::new(3).argument("HEARTBEAT", "4");
    let processes = connected(&ranks, "work");
    thread::sleep(Duration::from_millis(200));
    processes[0].signal(libc::SIGSTOP);
    let said = one_error(&processes, Some(0), LIMIT);
    assert!(
        said.starts_with("lost 0 in all_reduce #") && said.ends_with("silent"),
        "{said}"
    );
}

#[test]
fn an_abort_frees_everyone() {
    let ranks = Ranks::new(3)
        .control(None, "HANG", "1")
        .argument("ABORT", "1");
    let said = one_error(&connected(&ranks, "work"), None, LIMIT);
    assert_eq!(said, "aborted by 1: the loss is NaN");
}

#[test]
fn an_operation_that_outlasts_the_timeout_ends() {
    let ranks = Ranks::new(2)
        .control(Some(1), "HANG", "3")
        .argument("TIMEOUT", "3");
    let said = one_error(&connected(&ranks, "work"), None, LIMIT);
    assert!(said.starts_with("timeout of all_reduce"), "{said}");
}

/// So often is `ncclInProgress` the answer that no operation is ever issued.
const NEVER: &str = "4000000000";

#[test]
fn an_operation_that_is_never_issued_ends_at_the_deadline() {
    let ranks = Ranks::new(2)
        .control(Some(1), "POLLS", NEVER)
        .argument("TIMEOUT", "3");
    let said = one_error(&connected(&ranks, "work"), None, LIMIT);
    assert!(said.starts_with("timeout of all_reduce"), "{said}");
}

#[test]
fn a_host_that_waits_for_nccl_to_issue_is_freed() {
    let ranks = Ranks::new(2).control(None, "POLLS", NEVER);
    let processes = connected(&ranks, "order in vain");
    processes[1].signal(libc::SIGKILL);
    let said = one_error(&processes, Some(1), LIMIT);
    assert!(
        said.starts_with("lost 1 in all_reduce #") && said.ends_with("closed"),
        "{said}"
    );
}

#[test]
fn a_host_that_waits_for_its_own_stream_is_freed() {
    let ranks = Ranks::new(2).control(None, "HANG", "1");
    let processes = connected(&ranks, "leave the host free");
    processes[1].signal(libc::SIGKILL);
    let killed = Instant::now();
    assert_eq!(processes[0].hear(LIMIT), "free");
    assert!(killed.elapsed() < LIMIT, "{:?}", killed.elapsed());
    let said = processes[0].hear(PATIENCE);
    assert!(
        said.starts_with("lost 1 in all_reduce #") && said.ends_with("closed"),
        "{said}"
    );
    assert_eq!(processes[0].hear(PATIENCE), "inside: 0");
}
