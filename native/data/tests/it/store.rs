//! The store on this machine's disk.

use std::collections::HashMap;

use bytes::Bytes;
use flambeau_data::{DataError, Store};

use crate::fixtures::store;

#[test]
fn files_are_written_read_listed_and_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_str().unwrap();
    let store = store();
    let uri = |name: &str| format!("file://{root}/work%20dir/{name}");
    assert_eq!(store.size(&uri("a/one")).unwrap(), None);
    assert!(store.list(&uri("")).unwrap().is_empty());

    store
        .put(&uri("a/one"), Bytes::from_static(b"0123456789"))
        .unwrap();
    store
        .put(&uri("b%3D1/t%25wo"), Bytes::from_static(b"xy"))
        .unwrap();
    store
        .put(&uri("a/one"), Bytes::from_static(b"9876543210"))
        .unwrap();
    assert!(directory.path().join("work dir/b=1/t%wo").is_file());
    assert_eq!(store.get(&uri("a/one")).unwrap(), "9876543210");
    assert_eq!(store.get_range(&uri("a/one"), 2..5).unwrap(), "765");
    assert_eq!(
        store
            .get_ranges(&uri("a/one"), &[8..10, 0..3, 0..0])
            .unwrap(),
        ["10", "987", ""]
    );
    assert_eq!(store.size(&uri("a/one")).unwrap(), Some(10));
    assert_eq!(
        store.size(&uri("a")).unwrap(),
        None,
        "a directory is no file"
    );

    let listed = store.list(&uri("")).unwrap();
    assert_eq!(
        listed,
        [uri("a/one"), uri("b=1/t%25wo")],
        "no unfinished file is left"
    );
    assert_eq!(store.get(&listed[1]).unwrap(), "xy");
    assert_eq!(store.names(&uri("")).unwrap(), ["a", "b=1"]);
    assert!(store.names(&uri("none")).unwrap().is_empty());

    store.delete(&uri("a/one")).unwrap();
    store.delete(&uri("a/one")).unwrap();
    assert!(matches!(
        store.get(&uri("a/one")),
        Err(DataError::NotFound { .. })
    ));
    // What is empty goes, and nothing else; a file is no directory.
    for name in ["a", "b=1", "b=1/t%25wo", "none"] {
        store.delete_empty(&uri(name)).unwrap();
    }
    assert_eq!(store.names(&uri("")).unwrap(), ["b=1"]);
    assert_eq!(store.names(&uri("b=1")).unwrap(), ["t%wo"]);
    store.delete_prefix(&uri("")).unwrap();
    store.delete_prefix(&uri("")).unwrap();
    assert!(!directory.path().join("work dir").exists());
}

#[test]
fn files_are_copied_both_ways() {
    let directory = tempfile::tempdir().unwrap();
    let local = directory.path().join("local");
    std::fs::write(&local, b"weights").unwrap();
    let uri = format!("{}/copies/w", directory.path().display());
    store().put_file(&uri, &local).unwrap();
    let back = directory.path().join("new/back");
    store().get_to_file(&uri, &back).unwrap();
    assert_eq!(std::fs::read(back).unwrap(), b"weights");
    let missing = store().get_to_file(&format!("{uri}x"), &local).unwrap_err();
    assert!(matches!(missing, DataError::NotFound { .. }), "{missing}");
    assert_eq!(
        std::fs::read(&local).unwrap(),
        b"weights",
        "a failed copy leaves what was there"
    );
}

#[test]
fn a_range_past_the_end_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let uri = format!("{}/f", directory.path().display());
    store().put(&uri, Bytes::from_static(b"abc")).unwrap();
    let error = store().get_range(&uri, 1..9).unwrap_err();
    assert!(
        matches!(error, DataError::Io { .. }) && error.to_string().contains("1..9"),
        "{error}"
    );
}

#[test]
fn other_schemes_are_refused_by_name() {
    for scheme in ["hdfs", "http", "wasbs", "ftp"] {
        let error = store().get(&format!("{scheme}://host/x")).unwrap_err();
        assert!(
            matches!(&error, DataError::UnknownScheme { scheme: found, .. } if found == scheme)
        );
        assert!(error.to_string().contains(scheme), "{error}");
    }
}

#[test]
fn options_are_known_or_refused() {
    let options = |key: &str| HashMap::from([(key.to_owned(), "x".to_owned())]);
    for known in [
        "aws_endpoint",
        "AWS_ACCESS_KEY_ID",
        "azure_storage_account_key",
        "google_service_account",
        "timeout",
    ] {
        Store::new(&options(known)).unwrap();
    }
    let error = Store::new(&options("aws_acess_key"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("aws_acess_key"), "{error}");
}

#[test]
fn much_is_not_deleted_at_once() {
    for uri in [
        "/",
        "/tmp",
        "file:///usr",
        "dbfs:/",
        "s3://bucket",
        "s3://bucket/",
    ] {
        let error = store().delete_prefix(uri).unwrap_err();
        assert!(
            matches!(error, DataError::InvalidUri { .. }),
            "{uri}: {error}"
        );
    }
}
