//! `key=value` directories and escaped names.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array};
use flambeau_data::{ColumnKind, DType, DataError, DataFile, DatasetSpec, Element, Manifest};

use crate::fixtures::{read_all, single, store, tensor, write};

fn floats(values: &[f32]) -> Vec<(&'static str, ArrayRef)> {
    vec![("x", Arc::new(Float32Array::from(values.to_vec())))]
}

#[test]
fn partition_directories_are_columns() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, values: &[f32]| write(directory.path(), name, &floats(values), 10);
    let uris = [
        write("year=2012/rate=0.5/a.parquet", &[1., 2.]),
        write("year=2013/rate=2/b.parquet", &[3.]),
    ];
    let spec = DatasetSpec {
        inputs: vec![
            tensor("x", &["year", "x", "rate"], DType::Float32),
            tensor("year", &["year"], DType::Int64),
        ],
        labels: vec![tensor("rate", &["rate"], DType::Float64)],
        weight: None,
        raw_columns: vec![],
    };
    let manifest = Manifest::read(&store(), &DataFile::whole(&uris), &spec).unwrap();
    assert_eq!(
        manifest.columns()[0].kind,
        ColumnKind::Partition(Element::Int64)
    );
    assert_eq!(
        manifest.columns()[2].kind,
        ColumnKind::Partition(Element::Float64)
    );
    let batch = read_all(&uris, &spec).unwrap();
    assert_eq!(
        batch.inputs[0].as_slice::<f32>(),
        [2012., 1., 0.5, 2012., 2., 0.5, 2013., 3., 2.]
    );
    assert_eq!(batch.inputs[1].as_slice::<i64>(), [2012, 2012, 2013]);
    assert_eq!(batch.labels[0].as_slice::<f64>(), [0.5, 0.5, 2.]);
    let only_partitions = read_all(&uris, &single("year", DType::Int64)).unwrap();
    assert_eq!(
        only_partitions.inputs[0].as_slice::<i64>(),
        [2012, 2012, 2013]
    );
}

#[test]
fn partition_values_that_are_no_numbers_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str| write(directory.path(), name, &floats(&[1.]), 10);
    let text = [write("carrier=UA/a.parquet")];
    let error = read_all(&text, &single("carrier", DType::Int64)).unwrap_err();
    assert!(
        matches!(&error, DataError::UnsupportedType { column, .. } if column == "carrier"),
        "{error}"
    );
    let null = [
        write("n=1/a.parquet"),
        write("n=__HIVE_DEFAULT_PARTITION__/a.parquet"),
    ];
    let error = read_all(&null, &single("n", DType::Int64)).unwrap_err();
    assert!(
        matches!(&error, DataError::NullValue { column, uri, .. } if column == "n" && *uri == null[1]),
        "{error}"
    );
}

/// Spark writes `p=a/b` as the directory `p=a%2Fb`, and `inputFiles()` gives that as `p=a%252Fb`.
#[test]
fn escaped_uris_lead_to_their_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = write(
        directory.path(),
        "wörk dir/p=1%2E5/part#1 100%.parquet",
        &floats(&[4., 5.]),
        10,
    );
    let escaped = path
        .replace('%', "%25")
        .replace(' ', "%20")
        .replace('#', "%23")
        .replace('ö', "%C3%B6");
    for uri in [format!("file:{escaped}"), format!("file://{escaped}"), path] {
        let spec = DatasetSpec {
            inputs: vec![tensor("x", &["x", "p"], DType::Float32)],
            labels: vec![],
            weight: None,
            raw_columns: vec![],
        };
        let batch = read_all(&[uri], &spec).unwrap();
        assert_eq!(batch.inputs[0].as_slice::<f32>(), [4., 1.5, 5., 1.5]);
    }
}
