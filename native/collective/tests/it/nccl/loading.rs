//! Which library is opened, and whether the ranks have the same.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use flambeau_collective::{CudaRuntime, NcclLibrary, NcclMeeting, ProcessGroup};

use super::{Ranks, connect, describe, directories, stand_in};
use crate::harness::{PATIENCE, say};

/// Says which library is found, or why none.
pub fn open_one() {
    match NcclLibrary::open(&directories()) {
        Ok(library) => say(format_args!(
            "{} {}",
            library.version(),
            library.path().display()
        )),
        Err(error) => say(error),
    }
}

/// Says what the ranks have agreed on, and whether the process group still works.
pub fn meet(group: &ProcessGroup) {
    match NcclMeeting::hold(group, &directories()) {
        Ok(meeting) => say(format_args!(
            "{} {:02x?}",
            meeting.library().version(),
            meeting.unique_id().bytes()
        )),
        Err(error) => say(describe(&error)),
    }
    group.barrier().unwrap();
    say("group works");
}

/// Says why no communicator is made.
pub fn connect_in_vain(group: &ProcessGroup) {
    say(describe(&connect(group).map(drop).unwrap_err()));
}

/// What a single rank says of the library that it finds.
fn opened(ranks: Ranks) -> String {
    ranks.run("open")[0].hear(PATIENCE)
}

fn with_stand_in(directory: &Path) -> PathBuf {
    fs::create_dir(directory).unwrap();
    let path = directory.join("libnccl.so.2");
    symlink(stand_in(), &path).unwrap();
    path
}

#[test]
fn the_variable_goes_before_the_directories_and_these_before_the_system() {
    let ranks = Ranks::without_library(1);
    let [named, first, second, systems] =
        ["named", "first", "second", "system"].map(|name| with_stand_in(&ranks.path(name)));
    let parent = |path: &Path| path.parent().unwrap().to_str().unwrap().to_owned();
    let empty = ranks.path("empty");
    fs::create_dir(&empty).unwrap();
    let of_system = parent(&systems);
    let all = format!("{}:{}:{}", empty.display(), parent(&first), parent(&second));

    let ranks = ranks
        .argument("DIRECTORIES", &all)
        .with(None, "LD_LIBRARY_PATH", &of_system)
        .with(None, "FLAMBEAU_NCCL", named.to_str().unwrap());
    assert_eq!(
        ranks.run("open")[0].hear(PATIENCE),
        format!("2.29.7 {}", named.display())
    );
    // An empty variable is none.
    let ranks = ranks.with(None, "FLAMBEAU_NCCL", "");
    assert_eq!(
        ranks.run("open")[0].hear(PATIENCE),
        format!("2.29.7 {}", first.display())
    );
    let ranks = ranks.argument("DIRECTORIES", empty.to_str().unwrap());
    assert_eq!(ranks.run("open")[0].hear(PATIENCE), "2.29.7 libnccl.so.2");
}

#[test]
fn a_library_that_cannot_be_used_is_named_with_the_reason() {
    let missing =
        opened(Ranks::without_library(1).with(None, "FLAMBEAU_NCCL", "/nowhere/libnccl.so"));
    assert!(
        missing.starts_with("FLAMBEAU_NCCL: /nowhere/libnccl.so cannot be opened")
            && missing.contains("unset the variable"),
        "{missing}"
    );

    let ranks = Ranks::without_library(1);
    let text = ranks.path("libnccl.so.2");
    fs::write(&text, "no library").unwrap();
    let directory = ranks.directory.path().to_str().unwrap().to_owned();
    let wrong = opened(ranks.argument("DIRECTORIES", &directory));
    assert!(
        wrong.starts_with(&format!("{} cannot be opened", text.display())),
        "{wrong}"
    );

    // Another library.
    let other = opened(Ranks::without_library(1).with(None, "FLAMBEAU_NCCL", "libc.so.6"));
    assert!(
        other.contains("libc.so.6 is no NCCL of 2.17.0 or newer: it has no ncclGetVersion"),
        "{other}"
    );

    let old = opened(Ranks::new(1).control(None, "VERSION", "21602"));
    assert!(
        old.contains("is NCCL 2.16.2; 2.17.0 or newer is needed"),
        "{old}"
    );
}

#[test]
fn no_library_at_all_says_where_it_was_looked_for() {
    let ranks = Ranks::without_library(1).argument("DIRECTORIES", "/nowhere");
    let said = opened(ranks);
    if said.ends_with(" libnccl.so.2") {
        println!("SKIPPED: the system has a libnccl.so.2");
        return;
    }
    for part in ["FLAMBEAU_NCCL is not set", "[/nowhere]", "nvidia-nccl"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn ranks_with_different_versions_hear_what_each_has() {
    let ranks = Ranks::new(3).control(Some(1), "VERSION", "22809").with(
        Some(2),
        "FLAMBEAU_NCCL",
        "/nowhere",
    );
    for process in ranks.run("meet") {
        let said = process.hear(PATIENCE);
        let mut rest = said.as_str();
        for part in [
            "rank 0 on ",
            " has 2.29.7 (",
            "; rank 1 on ",
            " has 2.28.9 (",
            "; rank 2 on ",
            " has none (FLAMBEAU_NCCL: /nowhere cannot be opened",
        ] {
            let found = rest
                .find(part)
                .unwrap_or_else(|| panic!("{part:?} in {said}"));
            rest = &rest[found + part.len()..];
        }
        assert_eq!(process.hear(PATIENCE), "group works");
    }
}

#[test]
fn a_rank_that_would_wait_without_end_is_named() {
    let ranks = Ranks::new(2).with(Some(0), "NCCL_COMM_BLOCKING", "0").with(
        Some(1),
        "NCCL_COMM_BLOCKING",
        "1",
    );
    for process in ranks.run("meet") {
        let said = process.hear(PATIENCE);
        assert!(
            said.contains("rank 0 on ") && said.contains(" has 2.29.7 ("),
            "{said}"
        );
        assert!(
            said.contains(" has none (NCCL_COMM_BLOCKING is 1") && said.contains("unset it"),
            "{said}"
        );
        assert_eq!(process.hear(PATIENCE), "group works");
    }
}

#[test]
fn ranks_with_one_version_hold_one_identity() {
    let ranks = Ranks::new(3);
    let said: Vec<_> = ranks
        .run("meet")
        .iter()
        .map(|process| process.hear(PATIENCE))
        .collect();
    assert!(said[0].starts_with("2.29.7 ["), "{}", said[0]);
    assert!(said.iter().all(|other| *other == said[0]), "{said:?}");
}

/// The directory of the `nvidia-nccl` wheel in the repository's environment.
fn wheel() -> Option<PathBuf> {
    let environment = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/lib");
    fs::read_dir(environment)
        .ok()?
        .flatten()
        .map(|python| python.path().join("site-packages/nvidia/nccl/lib"))
        .find(|directory| directory.join("libnccl.so.2").exists())
}

#[test]
fn the_real_library_meets_without_a_gpu() {
    let Some(directory) = wheel() else {
        println!("SKIPPED: no nvidia-nccl wheel in .venv");
        return;
    };
    let ranks = Ranks::without_library(2).argument("DIRECTORIES", directory.to_str().unwrap());
    let said: Vec<_> = ranks
        .run("meet")
        .iter()
        .map(|process| process.hear(PATIENCE))
        .collect();
    assert!(said[0].starts_with("2."), "{}", said[0]);
    assert_eq!(said[0], said[1]);
    let zeros = format!("{:02x?}", [0u8; 128]);
    assert!(!said[0].ends_with(&zeros), "{}", said[0]);
}

#[test]
fn the_real_library_makes_no_communicator_without_a_gpu() {
    let Some(directory) = wheel() else {
        println!("SKIPPED: no nvidia-nccl wheel in .venv");
        return;
    };
    if CudaRuntime::open(0).is_ok() {
        println!("SKIPPED: there is a GPU");
        return;
    }
    let ranks = Ranks::without_library(2).argument("DIRECTORIES", directory.to_str().unwrap());
    for process in ranks.run("connect in vain") {
        let said = process.hear(PATIENCE);
        assert!(said.starts_with("nccl on "), "{said}");
        assert!(
            said.contains("in nccl_init #")
                && said.contains("ncclCommInitRankConfig: unhandled cuda error"),
            "{said}"
        );
    }
}
