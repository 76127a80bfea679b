//! What a sweep takes and what it leaves.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use chrono::{TimeDelta, Utc};
use serde_json::json;

use super::{ask, directory, is_there, write};

/// A name that was made so many days ago.
fn id_of(days: i64) -> String {
    let made = Utc::now() - TimeDelta::days(days);
    format!("{}-0123456789ab", made.format("%Y%m%dT%H%M%SZ"))
}

#[test]
fn what_is_old_goes_but_for_models_and_what_is_kept() {
    // Its own path has the name of a kind in it.
    let all = directory();
    let work = tempfile::tempdir_in({
        let inner = all.path().join("shards");
        std::fs::create_dir(&inner).unwrap();
        inner
    })
    .unwrap();
    let (eight, six) = (id_of(8), id_of(6));
    for kind in ["shards", "attempts", "probes", "models"] {
        for name in [&eight, &six, "mine"] {
            write(&work, &format!("{kind}/{name}/deep/file"), "");
        }
    }
    let kept = id_of(9);
    write(&work, &format!("attempts/{kept}/KEPT"), "");
    write(&work, &format!("prepared/{eight}/data/file"), "");
    write(&work, &format!("prepared/{kept}/manifest.json"), "");
    for name in [&eight, &six] {
        write(&work, &format!("timelines/{name}.json"), "");
    }
    for name in [&eight, &six, "nightly"] {
        write(&work, &format!("runs/{name}.json"), "");
    }
    let swept = ask(&work, "sweep", json!({})).unwrap();
    assert_eq!(swept.as_array().unwrap().len(), 6, "{swept}");
    assert_eq!(swept[0]["days"], 8);
    for kind in ["shards", "attempts", "probes", "models"] {
        let there = |name: &str| is_there(&work, &format!("{kind}/{name}/deep/file"));
        assert_eq!(there(&eight), kind == "models", "{kind}");
        assert!(there(&six) && there("mine"), "{kind}");
    }
    assert!(is_there(&work, &format!("attempts/{kept}/KEPT")));
    assert!(is_there(&work, &format!("prepared/{kept}/manifest.json")));
    assert!(!is_there(&work, &format!("prepared/{eight}/data/file")));
    assert!(!is_there(&work, &format!("timelines/{eight}.json")));
    assert!(is_there(&work, &format!("timelines/{six}.json")));
    assert!(!is_there(&work, &format!("runs/{eight}.json")));
    assert!(is_there(&work, &format!("runs/{six}.json")));
    assert!(is_there(&work, "runs/nightly.json"));
}

#[test]
fn a_lease_keeps_what_was_made_since_its_fit_began() {
    let work = directory();
    let (eight, nine, ten) = (id_of(8), id_of(9), id_of(10));
    for name in [&eight, &nine, &ten] {
        write(&work, &format!("shards/{name}/file"), "");
    }
    let there = |name: &str| is_there(&work, &format!("shards/{name}/file"));
    ask(&work, "holdLease", json!({"lease": nine})).unwrap();
    ask(&work, "sweep", json!({})).unwrap();
    assert!(there(&eight) && there(&nine) && !there(&ten));
    // One that was last written eight days ago.
    write(&work, &format!("leases/{nine}"), &eight);
    ask(&work, "sweep", json!({})).unwrap();
    assert!(!there(&eight) && !there(&nine));
    assert!(!is_there(&work, &format!("leases/{nine}")));
    ask(&work, "holdLease", json!({"lease": nine})).unwrap();
    ask(&work, "dropLease", json!({"lease": nine})).unwrap();
    assert!(!is_there(&work, &format!("leases/{nine}")));
}

/// A fit that went on from a run that is eight days old may fail too.
#[test]
fn a_run_is_as_old_as_its_newest_attempt() {
    let work = directory();
    let (eight, nine, ten, six) = (id_of(8), id_of(9), id_of(10), id_of(6));
    for (run, attempts) in [
        (&nine, [&nine, &six]),
        (&eight, [&eight, &eight]),
        (&"nightly".to_string(), [&ten, &six]),
    ] {
        for attempt in attempts {
            write(
                &work,
                &format!("attempts/{attempt}/checkpoints/1/COMMITTED"),
                "",
            );
        }
        let what = json!({"job": {}, "rows": [], "readsAll": false});
        let fields = json!({"id": run, "attempts": attempts, "what": what});
        ask(&work, "writeRun", fields).unwrap();
    }
    ask(&work, "sweep", json!({})).unwrap();
    let attempt = |name: &str| is_there(&work, &format!("attempts/{name}"));
    assert!(attempt(&nine) && attempt(&six) && attempt(&ten) && !attempt(&eight));
    let run = |name: &str| is_there(&work, &format!("runs/{name}.json"));
    assert!(run(&nine) && run("nightly") && !run(&eight));
}

/// A file that is being written in place is empty for a moment.
#[test]
fn a_lease_that_cannot_be_read_is_looked_at_again() {
    let is_kept = |_| {
        let work = directory();
        let nine = id_of(9);
        write(&work, &format!("shards/{nine}/file"), "");
        write(&work, &format!("leases/{nine}"), "");
        let swept = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(300));
                ask(&work, "holdLease", json!({"lease": nine})).unwrap();
            });
            ask(&work, "sweep", json!({})).unwrap()
        });
        swept == json!([])
            && is_there(&work, &format!("shards/{nine}/file"))
            && is_there(&work, &format!("leases/{nine}"))
    };
    // On a busy machine it may be rewritten too late.
    assert!((0..3).any(is_kept));
}

/// Such as another user's.
#[test]
fn what_cannot_be_removed_holds_nothing_up() {
    let work = directory();
    let eight = id_of(8);
    for kind in ["attempts", "probes", "shards"] {
        write(&work, &format!("{kind}/{eight}/file"), "");
    }
    let allow = |path: &str, mode: u32| {
        let path = work.path().join(path);
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    for kind in ["attempts", "probes"] {
        allow(kind, 0o777);
        allow(&format!("{kind}/{eight}"), 0o777);
    }
    // It may be of a run that a fit will go on from.
    write(&work, "runs/nightly.json", "{}");
    allow("runs/nightly.json", 0o000);
    allow("", 0o755);
    allow("shards", 0o555);
    // SAFETY: no memory is involved. Root, who may remove everything, is another user for this thread.
    let user = unsafe { libc::setfsuid(65534) };
    let swept = ask(&work, "sweep", json!({})).unwrap();
    // SAFETY: as above.
    unsafe { libc::setfsuid(user as u32) };
    allow("shards", 0o755);
    let told: Vec<(bool, bool)> = swept
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            (
                one["uri"].as_str().unwrap().contains("shards"),
                one["error"].is_null(),
            )
        })
        .collect();
    assert_eq!(told, [(true, false), (false, true)], "{swept}");
    assert!(is_there(&work, &format!("shards/{eight}")));
    assert!(!is_there(&work, &format!("probes/{eight}")));
    assert!(is_there(&work, &format!("attempts/{eight}/file")));
}
