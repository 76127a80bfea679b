//! What a sweep takes and what it leaves.

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
    for name in [&eight, &six, "nightly"] {
        write(&work, &format!("runs/{name}.json"), "");
    }
    let swept = ask(&work, "sweep", json!({})).unwrap();
    assert_eq!(swept.as_array().unwrap().len(), 4, "{swept}");
    assert_eq!(swept[0]["days"], 8);
    for kind in ["shards", "attempts", "probes", "models"] {
        let there = |name: &str| is_there(&work, &format!("{kind}/{name}/deep/file"));
        assert_eq!(there(&eight), kind == "models", "{kind}");
        assert!(there(&six) && there("mine"), "{kind}");
    }
    assert!(is_there(&work, &format!("attempts/{kept}/KEPT")));
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
