//! The NCCL group, on machines without a GPU: a stand-in for libnccl, streams and events of the host, and each rank a process of
//! its own, whose environment says how NCCL behaves there.

mod device;
mod failures;
mod loading;
mod operations;
mod order;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use flambeau_collective::{
    CollectiveError, GroupOptions, LossCause, NcclGroup, NcclOptions, ProcessGroup,
};
use nccl_stand_in::HostRuntime;

use crate::harness::{self, Placement, Process, argument, processes_by};

/// The stand-in, which cargo builds beside this program's own file.
fn stand_in() -> PathBuf {
    let program = env::current_exe().unwrap();
    let path = program.with_file_name("libnccl_stand_in.so");
    assert!(path.exists(), "{} is not built", path.display());
    path
}

/// The ranks of a test.
struct Ranks {
    world_size: usize,
    arguments: Vec<(String, String)>,
    variables: Vec<(Option<usize>, String, String)>,
    /// Where the stand-in puts its memory, and the test its files.
    directory: tempfile::TempDir,
}

impl Ranks {
    /// Ranks that find the stand-in as the library that `FLAMBEAU_NCCL` names.
    fn new(world_size: usize) -> Self {
        Self::without_library(world_size).with(None, "FLAMBEAU_NCCL", stand_in().to_str().unwrap())
    }

    /// Ranks that find none.
    fn without_library(world_size: usize) -> Self {
        Ranks {
            world_size,
            arguments: Vec::new(),
            variables: Vec::new(),
            directory: tempfile::tempdir().unwrap(),
        }
    }

    /// An argument of the scenario's.
    fn argument(mut self, name: &str, value: &str) -> Self {
        self.arguments.push((name.into(), value.into()));
        self
    }

    /// A variable in the environment of one rank, or of all.
    fn with(mut self, rank: Option<usize>, name: &str, value: &str) -> Self {
        self.variables.push((rank, name.into(), value.into()));
        self
    }

    /// What the stand-in does on one rank, or on all.
    fn control(self, rank: Option<usize>, name: &str, value: &str) -> Self {
        self.with(rank, &format!("FLAMBEAU_TEST_NCCL_{name}"), value)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts the processes.
    fn run(&self, scenario: &str) -> Vec<Process> {
        let address = harness::held_address();
        let arguments: Vec<_> = self
            .arguments
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .chain([("ADDRESS", address.as_str())])
            .collect();
        let command = |rank, program: &Path| {
            let mut command = Command::new(program);
            command
                .env_remove("FLAMBEAU_NCCL")
                .env("TMPDIR", self.directory.path());
            for (_, name, value) in self
                .variables
                .iter()
                .filter(|(of, ..)| of.is_none_or(|of| of == rank))
            {
                command.env(name, value);
            }
            command
        };
        processes_by(
            "nccl::ranks_in_their_own_processes_refuse_what_cannot_be_meant",
            self.world_size,
            scenario,
            &arguments,
            command,
        )
    }
}

/// The test whose program each rank of the tests runs, in a scenario of theirs.
#[test]
fn ranks_in_their_own_processes_refuse_what_cannot_be_meant() {
    match harness::scenario() {
        Some(scenario) => play(&scenario),
        None => harness::all_say(&Ranks::new(2).run("refused"), "refused"),
    }
}

fn play(scenario: &str) {
    if scenario == "open" {
        return loading::open_one();
    }
    let seconds = |name: &str, default| {
        argument(name)
            .parse()
            .map_or(default, Duration::from_secs_f64)
    };
    let group = harness::join(|rank| {
        let options = Placement::OneHost.options(rank);
        GroupOptions {
            timeout: seconds("TIMEOUT", options.timeout),
            heartbeat_timeout: seconds("HEARTBEAT", options.heartbeat_timeout),
            ..options
        }
    });
    group.barrier().unwrap();
    match scenario {
        "meet" => loading::meet(&group),
        "connect in vain" => loading::connect_in_vain(&group),
        "work" => failures::work(&group),
        "order in vain" => failures::order_in_vain(&group),
        "leave the host free" => failures::leave_the_host_free(&group),
        "every operation" => operations::every_operation(&group),
        "refused" => operations::refused(&group),
        "order" => order::calls(&group),
        "unasked" => order::unasked(&group),
        "slow producer" => order::slow_producer(&group),
        other => panic!("no scenario {other:?}"),
    }
}

/// Where the rank looks for libraries, by its argument.
fn directories() -> Vec<PathBuf> {
    env::split_paths(&argument("DIRECTORIES"))
        .filter(|path| !path.as_os_str().is_empty())
        .collect()
}

/// Connects the rank's device, which is the host, to the others'.
fn connect(group: &ProcessGroup) -> Result<(NcclGroup, HostRuntime), CollectiveError> {
    let runtime = HostRuntime::default();
    let options = NcclOptions {
        directories: directories(),
        runtime: std::sync::Arc::new(runtime.clone()),
    };
    NcclGroup::connect(group, options).map(|nccl| (nccl, runtime))
}

/// An error without what differs from run to run.
fn describe(error: &CollectiveError) -> String {
    match error {
        CollectiveError::PeerLost {
            rank,
            cause,
            operation,
            ..
        } => {
            let cause = match cause {
                LossCause::Closed => "closed",
                LossCause::Silent => "silent",
                LossCause::Left => "left",
            };
            format!("lost {rank} in {operation}: {cause}")
        }
        CollectiveError::Timeout {
            operation, missing, ..
        } => format!(
            "timeout of {operation}: {:?}",
            missing
                .iter()
                .map(|late| late.peer.rank)
                .collect::<Vec<_>>()
        ),
        CollectiveError::Aborted { rank, reason, .. } => format!("aborted by {rank}: {reason}"),
        CollectiveError::Nccl {
            rank,
            operation,
            message,
            ..
        } => format!("nccl on {rank} in {operation}: {message}"),
        other => other.to_string(),
    }
}
