//! The store and the reader against a small S3.

use std::sync::Arc;

use arrow_array::Float64Array;
use bytes::Bytes;
use flambeau_data::{
    BatchReader, DType, DataError, DataFile, Manifest, ReaderOptions, SampleOrder, Store,
};
use parquet::file::properties::EnabledStatistics;

use crate::bucket::{self, Bucket};
use crate::fixtures::{check_numbered, numbered, order_config, single, small_pages, write_with};

fn serve(bucket: &Arc<Bucket>) -> Store {
    Store::new(&bucket::serve(bucket)).unwrap()
}

#[test]
fn objects_are_written_read_listed_and_deleted() {
    let bucket = Arc::new(Bucket::default());
    let store = serve(&bucket);
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(store.size("s3://bucket/a/x").unwrap(), None);
    assert!(
        matches!(store.get("s3://bucket/a/x"), Err(DataError::NotFound { uri }) if uri == "s3://bucket/a/x")
    );
    store
        .put("s3://bucket/a/x%20y", Bytes::from_static(b"0123456789"))
        .unwrap();
    store.put("s3a://bucket/a/z", Bytes::new()).unwrap();
    store
        .put("s3://bucket/b", Bytes::from_static(b"b"))
        .unwrap();
    assert!(bucket.objects.lock().unwrap().contains_key("a/x y"));
    assert_eq!(store.get("s3://bucket/a/x%20y").unwrap(), "0123456789");
    assert_eq!(store.get("s3://bucket/a/z").unwrap(), "");
    assert_eq!(store.size("s3://bucket/a/z").unwrap(), Some(0));
    assert_eq!(
        store
            .get_ranges("s3://bucket/a/x%20y", &[7..9, 0..2])
            .unwrap(),
        ["78", "01"]
    );
    assert_eq!(
        store.list("s3://bucket/a/").unwrap(),
        ["s3://bucket/a/x%20y", "s3://bucket/a/z"]
    );
    assert_eq!(store.names("s3://bucket").unwrap(), ["a", "b"]);
    assert_eq!(store.names("s3://bucket/a").unwrap(), ["x y", "z"]);
    assert!(store.names("s3://bucket/none").unwrap().is_empty());
    store
        .get_to_file("s3://bucket/a/x%20y", &directory.path().join("x"))
        .unwrap();
    assert_eq!(
        std::fs::read(directory.path().join("x")).unwrap(),
        b"0123456789"
    );
    store.delete("s3://bucket/b").unwrap();
    store.delete_prefix("s3://bucket/a").unwrap();
    // What may be a directory or a file, as on local disks.
    store.put("s3://bucket/run.json", "{}".into()).unwrap();
    // Which is no empty directory either.
    store.delete_empty("s3://bucket/run.json").unwrap();
    assert_eq!(store.names("s3://bucket").unwrap(), ["run.json"]);
    store.delete_prefix("s3://bucket/run.json").unwrap();
    assert!(bucket.objects.lock().unwrap().is_empty());
}

#[test]
fn large_objects_go_in_parts() {
    let bucket = Arc::new(Bucket::default());
    let store = serve(&bucket);
    let directory = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..40_000_000u32)
        .map(|index| (index % 251) as u8)
        .collect();
    let local = directory.path().join("weights");
    std::fs::write(&local, &bytes).unwrap();
    store.put_file("s3://bucket/w", &local).unwrap();
    assert!(bucket.objects.lock().unwrap()["w"] == bytes);
    assert!(store.get("s3://bucket/w").unwrap() == bytes);
    store
        .get_to_file("s3://bucket/w", &directory.path().join("back"))
        .unwrap();
    assert!(std::fs::read(directory.path().join("back")).unwrap() == bytes);
    store
        .put("s3://bucket/again", bytes.clone().into())
        .unwrap();
    assert!(bucket.objects.lock().unwrap()["again"] == bytes);
    let requests = bucket.requests.lock().unwrap();
    assert_eq!(
        requests
            .iter()
            .filter(|request| request.contains("partNumber"))
            .count(),
        6
    );
}

#[test]
fn refusals_name_the_object() {
    let store = serve(&Arc::default());
    let error = store
        .put("s3://bucket/forbidden/x", Bytes::from_static(b"x"))
        .unwrap_err();
    assert!(
        matches!(
            &error,
            DataError::Store {
                operation: "write",
                ..
            }
        ),
        "{error}"
    );
    assert!(
        error.to_string().contains("s3://bucket/forbidden/x"),
        "{error}"
    );
}

#[test]
fn shards_are_read_from_objects() {
    let data = numbered(&[300, 200], 100);
    let bucket = Arc::new(Bucket::default());
    let store = serve(&bucket);
    let uris: Vec<String> = (0..2)
        .map(|index| format!("s3://bucket/train/part%20{index}.parquet"))
        .collect();
    for (uri, local) in uris.iter().zip(&data.uris) {
        store.put_file(uri, local.as_ref()).unwrap();
    }
    let manifest =
        Arc::new(Manifest::read(&store, &DataFile::whole(&uris), data.manifest.spec()).unwrap());
    let order = Arc::new(SampleOrder::new(&manifest, order_config(2, 30)).unwrap());
    for memory_budget in [0, 1 << 20] {
        let options = ReaderOptions {
            memory_budget,
            ..ReaderOptions::default()
        };
        let mut reader = BatchReader::new(
            store.clone(),
            manifest.clone(),
            order.clone(),
            0,
            1,
            options,
        )
        .unwrap();
        reader.start(0, 0).unwrap();
        let mut rows = 0;
        while let Some(batch) = reader.next().unwrap() {
            check_numbered(&batch);
            rows += batch.num_rows;
        }
        assert_eq!(rows, 500);
    }
}

/// A lane has several pieces of a row group that is larger than a part; where the file has no index of its pages, each lies in the same
/// bytes.
#[test]
fn a_row_group_without_an_index_is_fetched_once() {
    let directory = tempfile::tempdir().unwrap();
    let values = Float64Array::from_iter_values((0..2000).map(f64::from));
    let properties = small_pages(2000)
        .set_dictionary_enabled(false)
        .set_offset_index_disabled(true)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .build();
    let local = write_with(
        directory.path(),
        "x.parquet",
        &[("x", Arc::new(values))],
        properties,
    );
    let bucket = Arc::new(Bucket::default());
    let store = serve(&bucket);
    let uri = "s3://bucket/x.parquet".to_owned();
    store.put_file(&uri, local.as_ref()).unwrap();
    let spec = single("x", DType::Float64);
    let manifest = Arc::new(Manifest::read(&store, &[DataFile::Whole(uri)], &spec).unwrap());
    let order = Arc::new(SampleOrder::new(&manifest, order_config(2, 50)).unwrap());
    let options = ReaderOptions::default();
    let mut reader = BatchReader::new(store, manifest, order, 0, 2, options).unwrap();
    bucket.requests.lock().unwrap().clear();
    reader.start(0, 0).unwrap();
    let mut rows = 0;
    while let Some(batch) = reader.next().unwrap() {
        let expected: Vec<f64> = batch.row_ids.iter().map(|&id| id as f64).collect();
        assert_eq!(batch.inputs[0].as_slice::<f64>(), expected);
        rows += batch.num_rows;
    }
    assert_eq!(rows, 1000);
    // Its footer, and its column.
    let requests = bucket.requests.lock().unwrap();
    assert_eq!(requests.len(), 2, "{requests:?}");
}
