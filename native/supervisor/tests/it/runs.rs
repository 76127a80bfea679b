//! What is kept of a run, and who goes on with it.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{ask, directory, is_there, write};

fn what(epochs: u64, optimizer: &str, rows: &str) -> Value {
    json!({
        "job": {"epochs": epochs, "verbose": epochs, "optimizer": optimizer, "seed": null},
        "rows": [rows],
        "readsAll": true,
    })
}

fn read(work: &TempDir) -> Result<Value, String> {
    ask(work, "readRun", json!({"id": "nightly"}))
}

fn compare(work: &TempDir, found: &Value, what: &Value) -> Result<Value, String> {
    ask(
        work,
        "compareRun",
        json!({"id": "nightly", "run": found["run"], "what": what}),
    )
}

#[test]
fn only_the_same_job_on_the_same_rows_goes_on() {
    let work = directory();
    assert_eq!(read(&work), Ok(Value::Null));
    let run = json!({"id": "nightly", "attempts": ["a", "b"], "what": what(3, "adam", "x")});
    ask(&work, "writeRun", run).unwrap();
    // Its attempts have no checkpoint.
    assert_eq!(read(&work), Ok(Value::Null));
    write(&work, "attempts/b/checkpoints/0000000010/COMMITTED", "");
    let told = read(&work).unwrap();
    assert_eq!(told["readsAll"], true);

    // What a run may change counts for nothing.
    let mut same = what(3, "adam", "x");
    same["job"]["verbose"] = 0.into();
    same["job"]["tensorBoardDir"] = "/tmp/board".into();
    assert_eq!(compare(&work, &told, &same), Ok(json!(["a", "b"])));
    let refused = |now: Value| compare(&work, &told, &now).unwrap_err();
    assert!(refused(what(4, "sgd", "y")).contains("another job: epochs was 3 and is 4; take"));
    assert!(refused(what(3, "sgd", "y")).contains("its optimizer was another"));
    assert!(refused(what(3, "adam", "y")).contains("its rows were others"));
    let mut seeded = what(3, "adam", "x");
    seeded["job"]["seed"] = 7.into();
    assert!(refused(seeded).contains("seed was not set and is 7"));

    ask(&work, "remove", json!({})).unwrap_err();
    ask(&work, "remove", json!({"path": "runs/nightly.json"})).unwrap();
    assert!(!is_there(&work, "runs/nightly.json"));
}

#[test]
fn a_damaged_file_of_a_run_is_refused() {
    let work = directory();
    write(&work, "attempts/a/checkpoints/0000000010/COMMITTED", "");
    for text in [
        "",
        "{",
        "[]",
        r#"{"format": 2, "attempts": ["a"], "what": {}}"#,
    ] {
        write(&work, "runs/nightly.json", text);
        let told = read(&work).unwrap();
        let error = compare(&work, &told, &what(3, "adam", "x")).unwrap_err();
        assert!(
            error.contains("nightly.json is damaged") && error.contains("remove it to train anew"),
            "{error}"
        );
    }
}

/// Who can write a work directory can not have a driver remove what lies elsewhere.
#[test]
fn a_run_names_attempts_and_no_paths() {
    let work = directory();
    write(&work, "attempts/a/checkpoints/0000000010/COMMITTED", "");
    write(&work, "precious/file", "");
    let run = json!({"id": "nightly", "attempts": ["a"], "what": what(3, "adam", "x")});
    ask(&work, "writeRun", run).unwrap();
    let file = work.path().join("runs/nightly.json");
    let text = std::fs::read_to_string(&file).unwrap();
    for name in ["../precious", "", ".", "/tmp"] {
        std::fs::write(
            &file,
            text.replace(r#"["a"]"#, &format!(r#"["a","{name}"]"#)),
        )
        .unwrap();
        let told = read(&work).unwrap();
        let error = compare(&work, &told, &what(3, "adam", "x")).unwrap_err();
        assert!(error.contains("is damaged"), "{error}");
        for num in [0, 1] {
            let fields = json!({"attempts": ["a", name], "num": num});
            let error = ask(&work, "keepCheckpoints", fields).unwrap_err();
            assert!(error.contains("is no attempt"), "{error}");
        }
    }
    assert!(is_there(&work, "precious/file") && is_there(&work, "attempts/a"));
}

/// One that another version of Flambeau wrote counts for nothing once there is nothing to go on from.
#[test]
fn a_run_of_another_format_is_new_where_its_attempts_are_gone() {
    let work = directory();
    write(
        &work,
        "runs/nightly.json",
        r#"{"format": 2, "attempts": ["a"]}"#,
    );
    assert_eq!(read(&work), Ok(Value::Null));
}
