//! The manifest of prepared data: what it says, what it refuses, and that changed files are seen.

use std::fs;
use std::path::Path;

use flambeau_data::{Numbers, TableWriter};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{ask, directory, is_there, write};

/// Writes a file of rows: `x` a float, `image` four floats, `y` a double.
fn rows(directory: &TempDir, name: &str, num: usize) {
    let path = directory.path().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let names = ["x", "image", "y"].map(str::to_owned).to_vec();
    let mut writer = TableWriter::create(&path, names).unwrap();
    let columns = vec![
        Numbers::Float32(vec![1.0; num]),
        Numbers::Float32(vec![2.0; 4 * num]),
        Numbers::Float64(vec![3.0; num]),
    ];
    writer.write(num, columns).unwrap();
    writer.finish().unwrap();
}

fn name(fold: u32, validation: bool) -> String {
    format!("data/flambeau_fold={fold}/flambeau_validation={validation}/part-0.parquet")
}

fn draft(files: &[String]) -> Value {
    json!({"draft": {
        "schema": {"fields": []},
        "columns": [
            {"name": "x", "source": "x", "role": "input", "dtype": "float32", "depth": 0, "shape": null},
            {"name": "image", "source": "image", "role": "input", "dtype": "float32", "depth": 2, "shape": [2, 2]},
            {"name": "y", "source": "y", "role": "label", "dtype": "float64", "depth": 0, "shape": null},
        ],
        "split": {"fraction": {"fraction": 0.5, "seed": 3}},
        "handleInvalid": "keep",
        "seconds": 1.5,
        "files": files,
    }})
}

/// A directory with three folds of 2, 4 and 6 training rows, and one row for validation in each.
fn prepared() -> (TempDir, Value) {
    let work = directory();
    let mut files = vec![];
    for fold in 0..3u32 {
        for (is_validation, num) in [(false, 2 * (fold as usize + 1)), (true, 1)] {
            rows(&work, &name(fold, is_validation), num);
            files.push(name(fold, is_validation));
        }
    }
    let sealed = ask(&work, "sealPrepared", draft(&files)).unwrap();
    (work, sealed)
}

/// What a fit gets that reads those inputs, and `y` as its label.
fn data(work: &TempDir, prepared: &Value, inputs: Value, more: Value) -> Result<Value, String> {
    let mut asked = json!({
        "spec": {
            "inputs": inputs,
            "labels": [{"name": "y", "columns": ["y"], "dtype": "float64", "shape": []}],
            "weight": null,
        },
        "split": {"fraction": {"fraction": 0.5, "seed": 3}},
        "handleInvalid": "keep",
        "withoutFold": null,
    });
    for (key, value) in more.as_object().unwrap() {
        asked[key] = value.clone();
    }
    ask(
        work,
        "preparedData",
        json!({"prepared": prepared, "asked": asked}),
    )
}

fn input(column: &str, dtype: &str, shape: Value) -> Value {
    json!([{"name": column, "columns": [column], "dtype": dtype, "shape": shape}])
}

#[test]
fn a_manifest_says_what_the_files_hold() {
    let (work, sealed) = prepared();
    assert_eq!(sealed["numRows"], 12);
    assert_eq!(sealed["numValidationRows"], 3);
    let size = |name: &str| fs::metadata(work.path().join(name)).unwrap().len();
    let sizes = (0..3).flat_map(|fold| [size(&name(fold, false)), size(&name(fold, true))]);
    assert_eq!(sealed["numBytes"], sizes.sum::<u64>());
    let read = ask(&work, "readPrepared", json!({})).unwrap();
    assert_eq!(read["prepared"], sealed);

    let moved = directory();
    fs::rename(work.path(), moved.path().join("there")).unwrap();
    let there = Path::join(moved.path(), "there").display().to_string();
    fs::create_dir(work.path()).unwrap();
    let question = json!({"ask": "preparedChanges", "prepared": sealed}).to_string();
    let changes = flambeau_supervisor::answer(&there, &question, &Default::default()).unwrap();
    assert_eq!(changes, "[]", "it may be moved");
}

#[test]
fn a_fit_gets_the_files_of_the_other_folds() {
    let (work, sealed) = prepared();
    let x = || input("x", "float32", json!([]));
    let all = data(&work, &sealed, x(), json!({})).unwrap();
    assert_eq!(
        (&all["numRows"], &all["numValidationRows"]),
        (&json!(12), &json!(3))
    );
    let some = data(&work, &sealed, x(), json!({"withoutFold": 1})).unwrap();
    assert_eq!(
        (&some["numRows"], &some["numValidationRows"]),
        (&json!(8), &json!(2))
    );
    let uri = |fold| format!("{}/{}", work.path().display(), name(fold, false));
    assert_eq!(some["train"], json!([uri(0), uri(2)]));
    let image = data(
        &work,
        &sealed,
        input("image", "float32", Value::Null),
        json!({}),
    )
    .unwrap();
    assert_eq!(image["spec"]["inputs"][0]["shape"], json!([2, 2]));
    let flat = data(
        &work,
        &sealed,
        input("image", "float32", json!([4])),
        json!({}),
    )
    .unwrap();
    assert_eq!(flat["spec"]["inputs"][0]["shape"], json!([4]));
    let other_seed = json!({"split": {"fraction": {"fraction": 0.5, "seed": 4}}});
    assert_eq!(data(&work, &sealed, x(), other_seed).unwrap(), all);
}

#[test]
fn what_was_not_prepared_is_refused_with_what_was() {
    let (work, sealed) = prepared();
    let x = || input("x", "float32", json!([]));
    for (inputs, more, told) in [
        (
            input("z", "float32", json!([])),
            json!({}),
            "column \"z\" was not prepared",
        ),
        (
            input("x", "float64", json!([])),
            json!({}),
            "column \"x\" was prepared as input in float32",
        ),
        (
            input("image", "float32", json!([4, 1])),
            json!({}),
            "was prepared with rows of shape [2, 2]",
        ),
        (
            input("image", "float32", json!([3])),
            json!({}),
            "read in shape [3]",
        ),
        (
            x(),
            json!({"split": {"fraction": {"fraction": 0.25, "seed": 3}}}),
            "were prepared by validationFraction 0.5, and are asked for by validationFraction 0.25",
        ),
        (
            x(),
            json!({"split": null}),
            "are asked for without validation rows",
        ),
        (
            x(),
            json!({"spec": {"inputs": x(), "labels": x(), "weight": null}}),
            "is read as label in float32",
        ),
    ] {
        let error = data(&work, &sealed, inputs, more).unwrap_err();
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn rows_are_those_of_a_fits_own_rule_or_refused() {
    let (work, sealed) = prepared();
    assert_eq!(sealed["handleInvalid"], "keep");
    let fits = |then: &str, now: &str| {
        let mut written = sealed.clone();
        written["handleInvalid"] = json!(then);
        let x = input("x", "float32", json!([]));
        data(&work, &written, x, json!({"handleInvalid": now}))
    };
    for (then, allowed) in [
        ("keep", &["keep"][..]),
        ("skip", &["skip"]),
        ("error", &["keep", "skip", "error"]),
    ] {
        for now in ["keep", "skip", "error"] {
            assert_eq!(
                fits(then, now).is_ok(),
                allowed.contains(&now),
                "{then} {now}"
            );
        }
    }
    let error = fits("skip", "keep").unwrap_err();
    let told = "were prepared by handleInvalid \"skip\", and are asked for by handleInvalid \"keep\": set what they were prepared with, \
                or prepare them anew";
    assert!(error.contains(told), "{error}");
}

#[test]
fn columns_of_preprocess_are_those_that_were_prepared_so() {
    let (work, mut sealed) = prepared();
    let columns = sealed["columns"].as_array_mut().unwrap();
    columns.push(
        json!({"name": "x as string raw", "source": "x", "role": "raw", "dtype": "string", "depth": 0, "shape": null}),
    );
    columns.push(
        json!({"name": "grid", "source": "grid", "role": "raw", "dtype": "int64", "depth": 2, "shape": [2, 2]}),
    );
    let raw = |source: &str, dtype: &str, shape: Value| {
        let raw = json!([{"source": source, "dtype": dtype, "shape": shape}]);
        data(&work, &sealed, json!([]), json!({"raw": raw}))
    };
    let found = raw("x", "string", json!([])).unwrap();
    assert_eq!(found["spec"]["rawColumns"], json!(["x as string raw"]));
    let found = raw("grid", "int64", json!([2, 2])).unwrap();
    assert_eq!(found["spec"]["rawColumns"], json!(["grid"]));
    for (found, told) in [
        (
            raw("z", "string", json!([])),
            "column \"z\" was not prepared",
        ),
        (
            raw("x", "binary", json!([])),
            "column \"x\" was prepared as input in float32 and as input of preprocess in string",
        ),
        (
            raw("x", "float32", json!([])),
            "is read as input of preprocess in float32",
        ),
        (
            raw("grid", "int64", json!([1, 4])),
            "was prepared with rows of shape [2, 2]",
        ),
        (
            data(
                &work,
                &sealed,
                input("grid", "int64", json!([4])),
                json!({}),
            ),
            "column \"grid\" was prepared as input of preprocess in int64",
        ),
    ] {
        let error = found.unwrap_err();
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn a_file_that_is_another_or_gone_is_told() {
    let (work, sealed) = prepared();
    let changes = || ask(&work, "preparedChanges", json!({"prepared": sealed})).unwrap();
    assert_eq!(changes(), json!([]));
    rows(&work, &name(1, false), 5);
    let told = changes();
    assert!(
        told[0].as_str().unwrap().contains("flambeau_fold=1"),
        "{told}"
    );
    fs::remove_file(work.path().join(name(2, true))).unwrap();
    let told = changes();
    assert!(told[0].as_str().unwrap().ends_with("is gone"), "{told}");
}

#[test]
fn an_empty_directory_goes_and_what_another_writes_there_stays() {
    let work = directory();
    let remove = || ask(&work, "removeEmptyPrepared", json!({})).unwrap();
    for empty in ["data", "probes"] {
        fs::create_dir(work.path().join(empty)).unwrap();
    }
    write(&work, "data/other/part-0.parquet", "");
    remove();
    assert!(is_there(&work, "data/other/part-0.parquet"));
    assert!(!is_there(&work, "probes"));
    fs::remove_dir_all(work.path().join("data/other")).unwrap();
    remove();
    assert!(!work.path().exists());
    remove();
}

#[test]
fn what_is_no_manifest_and_what_has_no_rows() {
    let work = directory();
    assert_eq!(ask(&work, "readPrepared", json!({})).unwrap(), Value::Null);
    rows(&work, &name(0, true), 4);
    let none = ask(&work, "sealPrepared", draft(&[name(0, true)])).unwrap();
    assert_eq!(
        (&none["numRows"], &none["numValidationRows"]),
        (&json!(0), &json!(4))
    );
    assert!(!is_there(&work, "manifest.json"));
    for text in ["", "{}", r#"{"format": 9}"#] {
        write(&work, "manifest.json", text);
        let read = ask(&work, "readPrepared", json!({})).unwrap();
        assert_eq!(read, json!({"prepared": null}), "{text}");
    }
}
