//! The attempts of a fit, from the first to the one that goes on after a restart.

use std::collections::HashSet;
use std::fs;
use std::io::{Seek, SeekFrom, Write};

use serde_json::{Value, json};

use super::{ask, directory, is_there, write};

/// A marker of a checkpoint without parts.
const WHOLE: &str = r#"{"format": 4, "parts": []}"#;

#[test]
fn an_attempt_goes_on_from_the_newest_whole_checkpoint() {
    let work = directory();
    let begin = |attempts: &Value| {
        let id = ask(&work, "newId", json!({})).unwrap();
        let fields = json!({"id": id, "attempts": attempts, "run": null});
        ask(&work, "beginAttempt", fields).unwrap()
    };
    let first = begin(&json!([]));
    assert_eq!(
        (&first["resume"], &first["epoch"]),
        (&Value::Null, &Value::Null)
    );
    let id = first["id"].as_str().unwrap();
    let checkpoint = format!("attempts/{id}/checkpoints/0000000003");
    write(&work, &format!("{checkpoint}/COMMITTED"), WHOLE);
    let damaged = format!("attempts/{id}/checkpoints/0000000004/COMMITTED");
    write(&work, &damaged, "{");
    let second = begin(&json!([id]));
    let uri = second["resume"].as_str().unwrap();
    assert!(uri.ends_with(&checkpoint), "{uri}");

    // What another attempt's rank knows opens nothing.
    let both = [&first, &second];
    let secrets: HashSet<&str> = both.map(|one| one["secret"].as_str().unwrap()).into();
    assert_eq!(secrets.len(), 2);
    assert_ne!(first["id"], second["id"]);
}

#[test]
fn an_attempt_of_a_run_is_noted_before_it_begins() {
    let work = directory();
    let what = json!({"job": {"epochs": 3}, "rows": ["x"], "readsAll": true});
    let fields = json!({"id": "b", "attempts": ["a"], "run": {"id": "nightly", "what": what}});
    let attempt = ask(&work, "beginAttempt", fields.clone()).unwrap();
    let again = ask(&work, "beginAttempt", fields).unwrap();
    assert_eq!(
        (&again["id"], &again["resume"]),
        (&json!("b"), &Value::Null)
    );
    assert!(is_there(&work, "runs/nightly.json"));
    let checkpoint = format!(
        "attempts/{}/checkpoints/1/COMMITTED",
        attempt["id"].as_str().unwrap()
    );
    write(&work, &checkpoint, WHOLE);
    let told = ask(&work, "readRun", json!({"id": "nightly"})).unwrap();
    assert_eq!(told["run"]["attempts"], json!(["a", attempt["id"]]));
    assert_eq!(attempt["rows"], told["run"]["rows"]);

    for (id, before) in [("c", "../a"), ("../c", "a")] {
        let fields = json!({"id": id, "attempts": [before], "run": null});
        let error = ask(&work, "beginAttempt", fields).unwrap_err();
        assert!(error.contains("is no attempt"), "{error}");
    }
}

/// A worker that is lost while the others end leaves the model that its attempt came to.
#[test]
fn models_stay_but_for_those_of_attempts_that_failed() {
    let work = directory();
    for attempt in ["a", "b", "c"] {
        write(&work, &format!("models/{attempt}/weights.safetensors"), "");
        write(&work, &format!("attempts/{attempt}/events/0"), "");
    }
    // The first is an earlier fit's of the same run.
    let fields = json!({"attempts": ["a", "b", "c"], "failed": ["b"], "num": 1});
    assert_eq!(ask(&work, "keepCheckpoints", fields).unwrap(), json!([]));
    let models = ["a", "b", "c"].map(|name| is_there(&work, &format!("models/{name}")));
    assert_eq!(models, [true, false, true]);
    assert!(
        !["a", "b", "c"]
            .map(|name| is_there(&work, &format!("attempts/{name}")))
            .contains(&true)
    );
}

#[test]
fn what_ranks_wrote_stays_and_its_ends_are_told() {
    let work = directory();
    let lines: Vec<String> = (0..30).map(|number| format!("line {number}")).collect();
    write(&work, "attempts/a/logs/rank-10.log", &lines.join("\n"));
    write(&work, "attempts/a/logs/rank-2.log", "the only one\n");
    write(&work, "attempts/a/logs/other.txt", "");
    write(&work, "attempts/a/events/0", "");
    write(&work, "attempts/b/events/0", "");
    let ends = ask(&work, "logEnds", json!({"attempt": "a"})).unwrap();
    let uri = |name: &str| work.path().join("attempts/a/logs").join(name);
    let expected = json!([
        {"rank": 2, "uri": uri("rank-2.log"), "lines": ["the only one"]},
        {"rank": 10, "uri": uri("rank-10.log"), "lines": lines[10..]},
    ]);
    assert_eq!(ends, expected);
    assert_eq!(
        ask(&work, "logEnds", json!({"attempt": "b"})).unwrap(),
        json!([])
    );
    let fields = json!({"attempts": ["a", "b"], "num": 0});
    ask(&work, "keepCheckpoints", fields).unwrap();
    assert!(is_there(&work, "attempts/a/logs/rank-2.log"));
    assert!(!is_there(&work, "attempts/a/events") && !is_there(&work, "attempts/b"));
}

/// Of a terabyte, which is a hole but for its end.
#[test]
fn of_a_log_its_end_alone_is_read() {
    let work = directory();
    write(&work, "attempts/a/logs/rank-0.log", "");
    // The last 64 KiB begin within the line before these.
    let (line, long) = ("1".repeat(40_000), "2".repeat(100_000));
    for (rank, text) in [(1, format!("{line}\n{line}\n")), (2, long)] {
        let name = format!("attempts/a/logs/rank-{rank}.log");
        write(&work, &name, "");
        let path = work.path().join(name);
        let mut log = fs::OpenOptions::new().write(true).open(path).unwrap();
        log.seek(SeekFrom::Start(1 << 40)).unwrap();
        log.write_all(text.as_bytes()).unwrap();
    }
    let ends = ask(&work, "logEnds", json!({"attempt": "a"})).unwrap();
    let lines: Vec<&Value> = ends
        .as_array()
        .unwrap()
        .iter()
        .map(|end| &end["lines"])
        .collect();
    assert!(lines == [&json!([line]), &json!(["2".repeat(64 << 10)])]);
}

#[test]
fn a_name_has_the_time_that_is_asked_for() {
    let work = directory();
    let new_id = |since: Value| {
        let id = ask(&work, "newId", json!({"since": since})).unwrap();
        id.as_str().unwrap().to_owned()
    };
    assert!(new_id(json!("20200101T000000Z-0123456789ab")).starts_with("20200101T000000Z-"));
    for since in ["nightly", "../a-b", "20200101T000000Z"] {
        let [before, id, after] = [Value::Null, json!(since), Value::Null].map(new_id);
        assert!(before[..16] <= id[..16] && id[..16] <= after[..16], "{id}");
    }
}
