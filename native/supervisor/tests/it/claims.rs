//! Of several drivers one has a run.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{ask, directory, is_there, write};

const OWNER: &str = "runs/nightly.owner";

fn step(work: &TempDir, claim: &Value) -> Result<Value, String> {
    ask(
        work,
        "advanceClaim",
        json!({"id": "nightly", "claim": claim}),
    )
}

fn new(own: &str) -> Value {
    json!({"own": own, "beatSeconds": 10.0})
}

fn phase(claim: &Value) -> String {
    match &claim["phase"] {
        Value::String(name) => name.clone(),
        Value::Object(one) => one.keys().next().unwrap().clone(),
        other => panic!("{other}"),
    }
}

#[test]
fn a_run_that_nobody_has_is_taken_and_given_up() {
    let work = directory();
    let settling = step(&work, &new("me")).unwrap();
    assert_eq!(
        (phase(&settling).as_str(), &settling["waitSeconds"]),
        ("settling", &json!(0.5))
    );
    let held = step(&work, &settling).unwrap();
    assert_eq!(
        (phase(&held).as_str(), &held["waitSeconds"]),
        ("held", &json!(10.0))
    );
    let held = step(&work, &held).unwrap();
    assert_eq!(held["phase"]["held"]["beats"], 1);
    let text = std::fs::read_to_string(work.path().join(OWNER)).unwrap();
    assert_eq!(text, "me 1");
    let release = |own: &str| ask(&work, "releaseClaim", json!({"id": "nightly", "own": own}));
    release("other").unwrap();
    assert!(is_there(&work, OWNER));
    release("me").unwrap();
    assert!(!is_there(&work, OWNER));
    release("me").unwrap();
}

#[test]
fn a_driver_that_writes_is_left_its_run_and_one_that_is_silent_is_not() {
    let work = directory();
    write(&work, OWNER, "other 4");
    // Beside which what a look takes is little.
    let claim = json!({"own": "me", "beatSeconds": 1000.0});
    let watching = step(&work, &claim).unwrap();
    assert_eq!(
        (phase(&watching).as_str(), &watching["waitSeconds"]),
        ("watching", &json!(100.0))
    );
    let mut claim = step(&work, &watching).unwrap();
    write(&work, OWNER, "other 5");
    let error = step(&work, &claim).unwrap_err();
    assert!(error.contains("trained by another driver"), "{error}");

    write(&work, OWNER, "other 4");
    let mut looks = 1;
    while phase(&claim) == "watching" {
        claim = step(&work, &claim).unwrap();
        looks += 1;
    }
    // Seven beats of ten looks each; a little less where the looks themselves take time.
    assert_eq!(phase(&claim), "settling");
    assert!((65..=70).contains(&looks), "{looks}");
    // Both saw nobody, and the other one wrote last.
    write(&work, OWNER, "other");
    assert!(step(&work, &claim).unwrap_err().contains("another driver"));
    // Or it went away.
    std::fs::remove_file(work.path().join(OWNER)).unwrap();
    assert_eq!(phase(&step(&work, &watching).unwrap()), "settling");
}

#[test]
fn what_cannot_be_read_at_first_is_watched_from_when_it_can() {
    let work = directory();
    write(&work, OWNER, "");
    let claim = step(&work, &new("me")).unwrap();
    write(&work, OWNER, "other 1");
    let claim = step(&work, &claim).unwrap();
    assert_eq!(
        claim["phase"]["watching"],
        json!({"seen": "other 1", "seconds": 0.0, "unread": 0.0})
    );
    write(&work, OWNER, "other 2");
    assert!(step(&work, &claim).is_err());
}

#[test]
fn a_look_that_failed_is_no_silence() {
    let work = directory();
    write(&work, OWNER, "other 4");
    let mut watching = step(&work, &new("me")).unwrap();
    watching["phase"]["watching"]["seconds"] = 1e6.into();
    // As a file that is being written in place is found.
    write(&work, OWNER, "");
    let claim = step(&work, &watching).unwrap();
    assert_eq!(
        claim["phase"]["watching"],
        json!({"seen": "", "seconds": 0.0, "unread": 0.0})
    );
    // What no one can read as a file.
    let file = work.path().join(OWNER);
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    for claim in [&watching, &new("me")] {
        let error = step(&work, claim).unwrap_err();
        assert!(error.contains("nightly.owner"), "{error}");
    }
}

#[test]
fn a_driver_that_lost_its_run_says_so_and_writes_no_more() {
    let work = directory();
    let held = step(&work, &step(&work, &new("me")).unwrap()).unwrap();
    write(&work, OWNER, "other 1");
    let lost = step(&work, &held).unwrap();
    assert_eq!(lost["phase"], "lost");
    assert_eq!(step(&work, &lost).unwrap()["phase"], "lost");
    let text = std::fs::read_to_string(work.path().join(OWNER)).unwrap();
    assert_eq!(text, "other 1");
}
