//! Questions as hosts ask them, on directories of this machine.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use flambeau_supervisor::answer;
use serde_json::{Value, json};
use tempfile::TempDir;

mod attempts;
mod claims;
mod prepared;
mod runs;
mod sweeps;

/// Asks about a directory, and gives the answer or the error's text.
fn ask(directory: &TempDir, name: &str, fields: Value) -> Result<Value, String> {
    let mut question = fields;
    question["ask"] = name.into();
    answer(
        directory.path().to_str().unwrap(),
        &question.to_string(),
        &HashMap::new(),
    )
    .map(|text| serde_json::from_str(&text).unwrap())
    .map_err(|error| error.to_string())
}

fn write(directory: &TempDir, file: &str, text: &str) {
    let path = directory.path().join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn is_there(directory: &TempDir, file: &str) -> bool {
    Path::exists(&directory.path().join(file))
}

fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn what_is_no_question_is_refused() {
    for text in [r#"{"ask":"theTime"}"#, r#"{"ask":"remove"}"#, "[]", ""] {
        let error = answer("/tmp/a", text, &HashMap::new())
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("the question cannot be read: "),
            "{error}"
        );
    }
    let unknown = ask(&directory(), "remove", json!({"path": "a", "force": true})).unwrap_err();
    assert!(unknown.contains("force"), "{unknown}");
}

/// Java's writer names the encodings of a column in the order of a hash set, another one in each JVM. Files whose ends count are not
/// written anew.
#[test]
fn digests_of_whole_parquet_files_pass_over_the_order_within_a_footer() {
    let files = directory();
    let digests = |data_size: usize, first: u8, footer: &[u8]| -> [Value; 2] {
        let mut bytes = vec![7; data_size];
        bytes[0] = first;
        bytes.extend_from_slice(footer);
        bytes.extend_from_slice(&(footer.len() as u32).to_le_bytes());
        bytes.extend_from_slice(b"PAR1");
        fs::write(files.path().join("a"), bytes).unwrap();
        let names = [files.path().join("a").display().to_string()];
        [false, true].map(|ends| {
            let fields = json!({"files": names, "ends": ends});
            ask(&files, "digestFiles", fields).unwrap()[0].clone()
        })
    };
    // Files of which the end has all, the footer and some data, and a part of the footer.
    for (data_size, footer_size) in [(9, 9), (500_000, 9), (9, 500_000)] {
        let mut footer = vec![1; footer_size];
        footer[0] = 2;
        let known = digests(data_size, 7, &footer);
        footer.swap(0, 5);
        let swapped = digests(data_size, 7, &footer);
        assert!(swapped[0] == known[0] && swapped[1] != known[1]);
        assert_ne!(digests(data_size, 8, &footer)[0], known[0]);
        footer[0] = 3;
        let other = digests(data_size, 7, &footer);
        assert!(other[0] != known[0] && other[1] != known[1]);
    }
}

#[test]
fn digests_are_those_of_sha256sum_in_the_order_asked_for() {
    let files = directory();
    let names: Vec<String> = (0..40)
        .map(|index| {
            write(&files, &index.to_string(), &index.to_string());
            files.path().join(index.to_string()).display().to_string()
        })
        .collect();
    let whole = ask(
        &files,
        "digestFiles",
        json!({"files": names, "ends": false}),
    )
    .unwrap();
    // printf 7 | sha256sum
    assert_eq!(
        whole[7],
        "7902699be42c8a8e46fbbb4501726517e86b22c56a189f7625a6da49081b2451"
    );
    let ends = ask(&files, "digestFiles", json!({"files": names, "ends": true})).unwrap();
    assert_eq!(ends[7], format!("1:{}", whole[7].as_str().unwrap()));
    assert_eq!(ends[12], format!("2:{}", whole[12].as_str().unwrap()));
    let missing = ask(
        &files,
        "digestFiles",
        json!({"files": ["/nowhere/a"], "ends": true}),
    );
    assert!(missing.unwrap_err().contains("/nowhere/a"));
}
