//! Ranks that die, freeze, dawdle, leave or give up, each in a process of its own.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use flambeau_collective::{
    CollectiveError, DType, GroupOptions, LossCause, ProcessGroup, RawBuffer, ReduceOp,
    TransportChoice,
};

use crate::harness::{self, Placement, Process, all_say, hear_all, processes, say};

/// The time in which every survivor has to know.
const LIMIT: Duration = Duration::from_secs(20);

const PLACEMENTS: [&str; 3] = ["one host", "tcp", "two hosts"];

fn placed(name: &str, rank: usize) -> GroupOptions {
    if let Ok(bind_address) = harness::argument("BIND").parse() {
        // The namespaces decide who shares memory.
        let host_id = Some(harness::argument("HOST")).filter(|host| !host.is_empty());
        return GroupOptions {
            bind_address,
            host_id,
            transport: TransportChoice::Auto,
            ..Placement::OneHost.options(rank)
        };
    }
    let placement = match name {
        "one host" => Placement::OneHost,
        "tcp" => Placement::Tcp,
        _ => Placement::Hosts(vec![0, 1, 0, 1]),
    };
    placement.options(rank)
}

/// The test whose program each rank of the tests below runs, in a scenario of theirs.
#[test]
fn ranks_in_their_own_processes_work_and_part() {
    match harness::scenario() {
        Some(scenario) => play(&scenario),
        None => all_say(&start(2, "one host", "finish and go", &[]), "done"),
    }
}

fn play(scenario: &str) {
    let placement = harness::argument("PLACEMENT");
    let group = harness::join(|rank| {
        let options = placed(&placement, rank);
        GroupOptions {
            timeout: seconds("TIMEOUT").unwrap_or(harness::PATIENCE),
            heartbeat_timeout: seconds("HEARTBEAT").unwrap_or(options.heartbeat_timeout),
            ..options
        }
    });
    group.barrier().unwrap();
    say("ready");
    match scenario {
        // Until someone else is killed or stopped.
        "reduce forever" => say(describe(&reduce_forever(&group))),
        // The victim computes while the others wait for it in a collective.
        "wait for the last" => {
            if group.rank() + 1 == group.world_size() {
                thread::sleep(Duration::from_secs(60));
            }
            say(describe(&group.barrier().unwrap_err()));
        }
        "dawdle" => {
            if group.rank() == 1 {
                thread::sleep(seconds("SECONDS").unwrap());
            }
            let sum = reduce(&group, 1000).unwrap();
            say(sum);
        }
        "abort" => {
            if group.rank() == 1 {
                thread::sleep(Duration::from_millis(300));
                group.abort("the loss is NaN");
                say("aborted");
                // Dies at once, so that the end of its connections follows on the abort's heels.
                std::process::abort();
            }
            say(describe(&reduce_forever(&group)));
        }
        "leave early" => {
            if group.rank() == 1 {
                drop(group);
                say("left");
                thread::sleep(Duration::from_secs(60));
                return;
            }
            say(describe(&group.barrier().unwrap_err()));
        }
        "across namespaces" => {
            let len = 500_000;
            let mut values = vec![group.rank() as f32 + 1.0; len];
            let raw = RawBuffer::cpu(values.as_mut_ptr().cast(), len, DType::Float32);
            // SAFETY: the vector is alive and nobody else's.
            unsafe { group.all_reduce(raw, ReduceOp::Sum).unwrap() };
            say(values[len / 2]);
            say(if group.allocate(4096).unwrap().is_shared() {
                "shared"
            } else {
                "not shared"
            });
            say(describe(&reduce_forever(&group)));
        }
        "finish and go" => {
            for round in 0..100 {
                reduce(&group, if round == 99 { 300_000 } else { 100 }).unwrap();
            }
            drop(group);
            say("done");
        }
        "panic" => {
            if group.rank() == 0 {
                // While others of this process hold the group too.
                let moved = group.clone();
                let _ = thread::spawn(move || {
                    let _held = moved;
                    panic!("as a user's callback may");
                })
                .join();
                say("panicked");
                thread::sleep(Duration::from_secs(60));
                return;
            }
            say(describe(&group.barrier().unwrap_err()));
        }
        other => panic!("no scenario {other:?}"),
    }
}

fn seconds(name: &str) -> Option<Duration> {
    let seconds = harness::argument(name).parse().ok()?;
    Some(Duration::from_secs_f64(seconds))
}

fn reduce(group: &ProcessGroup, len: usize) -> Result<f32, CollectiveError> {
    let mut values = vec![1f32; len];
    // SAFETY: the vector is alive and nobody else's.
    unsafe {
        group.all_reduce(
            RawBuffer::cpu(values.as_mut_ptr().cast(), len, DType::Float32),
            ReduceOp::Sum,
        )?
    };
    Ok(values[len - 1])
}

fn reduce_forever(group: &ProcessGroup) -> CollectiveError {
    loop {
        if let Err(error) = reduce(group, 100_000) {
            // A group that has failed stays so, with the same cause.
            assert_eq!(group.barrier().unwrap_err().to_string(), error.to_string());
            return error;
        }
    }
}

fn describe(error: &CollectiveError) -> String {
    match error {
        CollectiveError::PeerLost { rank, cause, .. } => match cause {
            LossCause::Closed => format!("lost {rank}: closed"),
            LossCause::Silent => format!("lost {rank}: silent"),
            LossCause::Left => format!("lost {rank}: left"),
        },
        CollectiveError::Timeout { missing, .. } => {
            format!(
                "timeout: {:?}",
                missing
                    .iter()
                    .map(|late| late.peer.rank)
                    .collect::<Vec<_>>()
            )
        }
        CollectiveError::Aborted { rank, reason, .. } => format!("aborted by {rank}: {reason}"),
        other => format!("{other:?}"),
    }
}

fn start(
    world_size: usize,
    placement: &str,
    scenario: &str,
    arguments: &[(&str, &str)],
) -> Vec<Process> {
    let arguments: Vec<_> = arguments
        .iter()
        .copied()
        .chain([("PLACEMENT", placement)])
        .collect();
    let processes = processes(world_size, scenario, &arguments);
    all_say(&processes, "ready");
    processes
}

fn survivors(processes: &[Process], victim: usize) -> HashMap<usize, &Process> {
    processes
        .iter()
        .enumerate()
        .filter(|(rank, _)| *rank != victim)
        .collect()
}

#[test]
fn a_killed_rank_is_named_by_every_survivor() {
    for placement in PLACEMENTS {
        for (scenario, victim) in [
            ("reduce forever", 2),
            ("reduce forever", 0),
            ("wait for the last", 3),
        ] {
            let processes = start(4, placement, scenario, &[]);
            thread::sleep(Duration::from_millis(200));
            processes[victim].signal(libc::SIGKILL);
            for (rank, said) in hear_all(&survivors(&processes, victim), Instant::now(), LIMIT) {
                assert_eq!(
                    said,
                    format!("lost {victim}: closed"),
                    "rank {rank}, {placement}, {scenario}"
                );
            }
        }
    }
}

#[test]
fn a_frozen_rank_is_named_by_every_survivor() {
    for placement in PLACEMENTS {
        let cases = [("wait for the last", 3), ("reduce forever", 1)].map(|(scenario, victim)| {
            let processes = start(4, placement, scenario, &[("HEARTBEAT", "4")]);
            (scenario, victim, processes)
        });
        thread::sleep(Duration::from_millis(200));
        for (_, victim, processes) in &cases {
            processes[*victim].signal(libc::SIGSTOP);
        }
        let frozen = Instant::now();
        for (scenario, victim, processes) in cases {
            for (rank, said) in hear_all(&survivors(&processes, victim), frozen, LIMIT) {
                assert_eq!(
                    said,
                    format!("lost {victim}: silent"),
                    "rank {rank}, {placement}, {scenario}"
                );
            }
            if scenario == "reduce forever" {
                // Thawed, it learns that it was given up, and blames nobody else.
                processes[victim].signal(libc::SIGCONT);
                let said = processes[victim].hear(LIMIT);
                assert!(
                    said.starts_with("aborted by") && said.contains("lost rank 1"),
                    "{said}"
                );
            }
        }
    }
}

/// For longer than a frozen one would be.
#[test]
fn a_slow_rank_is_waited_for() {
    let groups = PLACEMENTS.map(|placement| {
        let arguments = [("SECONDS", "6"), ("HEARTBEAT", "4")];
        start(4, placement, "dawdle", &arguments)
    });
    for processes in groups {
        all_say(&processes, "4");
    }
}

/// As a process does whose virtual machine moves to another host. The heartbeats' timeout is the default.
#[test]
fn a_rank_that_pauses_for_some_seconds_is_waited_for() {
    let groups = PLACEMENTS.map(|placement| start(4, placement, "dawdle", &[("SECONDS", "1")]));
    let signal = |signal| groups.iter().for_each(|ranks| ranks[2].signal(signal));
    signal(libc::SIGSTOP);
    thread::sleep(Duration::from_secs(4));
    signal(libc::SIGCONT);
    for processes in &groups {
        all_say(processes, "4");
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_at_the_deadline() {
    let groups = PLACEMENTS.map(|placement| {
        let processes = start(4, placement, "wait for the last", &[("TIMEOUT", "4")]);
        (placement, processes)
    });
    for (placement, processes) in groups {
        for (rank, said) in hear_all(&survivors(&processes, 3), Instant::now(), LIMIT) {
            assert_eq!(said, "timeout: [3]", "rank {rank}, {placement}");
        }
    }
}

#[test]
fn an_abort_frees_everyone_and_its_reason_wins() {
    for placement in PLACEMENTS {
        for _ in 0..3 {
            let processes = start(4, placement, "abort", &[]);
            assert_eq!(processes[1].hear(LIMIT), "aborted");
            for (rank, said) in hear_all(&survivors(&processes, 1), Instant::now(), LIMIT) {
                assert_eq!(
                    said, "aborted by 1: the loss is NaN",
                    "rank {rank}, {placement}"
                );
            }
        }
    }
}

#[test]
fn a_rank_that_leaves_before_a_collective_is_named() {
    for placement in PLACEMENTS {
        let processes = start(3, placement, "leave early", &[]);
        assert_eq!(processes[1].hear(LIMIT), "left");
        for (rank, said) in hear_all(&survivors(&processes, 1), Instant::now(), LIMIT) {
            assert_eq!(said, "lost 1: left", "rank {rank}, {placement}");
        }
    }
}

#[test]
fn a_rank_that_finishes_first_is_not_a_lost_one() {
    for placement in PLACEMENTS {
        for _ in 0..5 {
            let processes = start(4, placement, "finish and go", &[]);
            all_say(&processes, "done");
        }
    }
}

#[test]
fn a_panic_is_no_farewell() {
    for placement in PLACEMENTS {
        let processes = start(3, placement, "panic", &[]);
        assert_eq!(processes[0].hear(LIMIT), "panicked");
        for (rank, said) in hear_all(&survivors(&processes, 0), Instant::now(), LIMIT) {
            assert_eq!(
                said, "aborted by 0: a thread of this rank panicked",
                "rank {rank}, {placement}"
            );
        }
    }
}
