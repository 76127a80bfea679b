//! Everything that is refused: each names the column, the place and the mend.

use std::sync::Arc;

use arrow_array::builder::{Float32Builder, Int64Builder, ListBuilder};
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array,
    Int32Array, Int64Array, StringArray, StructArray, TimestampMicrosecondArray, UInt64Array,
};
use arrow_schema::{DataType, Field};
use flambeau_data::{DType, DataError, DataFile, DatasetSpec, Manifest};
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use crate::fixtures::{read_all, read_manifest, single, store, tensor, write, write_with};
use crate::types::{Vector, vectors};

fn error_of(array: ArrayRef, dtype: DType) -> DataError {
    error_with(array, &single("c", dtype))
}

fn error_with(array: ArrayRef, spec: &DatasetSpec) -> DataError {
    let directory = tempfile::tempdir().unwrap();
    let uri = write(directory.path(), "a.parquet", &[("c", array)], 4);
    let error = read_all(&[uri], spec).unwrap_err();
    assert!(
        error.to_string().contains("`c`"),
        "the column is named: {error}"
    );
    error
}

fn label(dtype: DType) -> DatasetSpec {
    DatasetSpec {
        labels: vec![tensor("y", &["c"], dtype)],
        ..single("c", DType::Float32)
    }
}

fn weight() -> DatasetSpec {
    DatasetSpec {
        weight: Some(tensor("w", &["c"], DType::Float32)),
        ..single("c", DType::Float32)
    }
}

fn doubles(values: &[f64]) -> ArrayRef {
    Arc::new(Float64Array::from(values.to_vec()))
}

fn lists(rows: &[Option<&[Option<f32>]>]) -> ArrayRef {
    let mut builder = ListBuilder::new(Float32Builder::new());
    for row in rows {
        match row {
            Some(values) => builder.append_value(values.iter().copied()),
            None => builder.append_null(),
        }
    }
    Arc::new(builder.finish())
}

#[test]
fn nulls_are_found_in_statistics() {
    let directory = tempfile::tempdir().unwrap();
    let values = (0..10)
        .map(|row| (row != 6).then_some(row as f32))
        .collect::<Float32Array>();
    let uri = write(directory.path(), "a.parquet", &[("c", Arc::new(values))], 4);
    let error = Manifest::read(
        &store(),
        &DataFile::whole(std::slice::from_ref(&uri)),
        &single("c", DType::Float32),
    )
    .unwrap_err();
    assert!(
        matches!(&error, DataError::NullValue { column, uri: found, row: 6 } if column == "c" && *found == uri),
        "{error}"
    );
    assert!(error.to_string().contains("fill"), "{error}");
}

#[test]
fn nulls_are_found_without_statistics() {
    let directory = tempfile::tempdir().unwrap();
    let values = (0..10)
        .map(|row| (row != 6).then_some(row as f32))
        .collect::<Float32Array>();
    let properties = WriterProperties::builder()
        .set_statistics_enabled(EnabledStatistics::None)
        .set_max_row_group_row_count(Some(4))
        .build();
    let uri = write_with(
        directory.path(),
        "a.parquet",
        &[("c", Arc::new(values))],
        properties,
    );
    let manifest = Manifest::read(
        &store(),
        &[DataFile::Whole(uri)],
        &single("c", DType::Float32),
    )
    .unwrap();
    let error = read_manifest(manifest).unwrap_err();
    assert!(
        matches!(error, DataError::NullValue { row: 6, .. }),
        "{error}"
    );
}

#[test]
fn null_arrays_and_null_elements() {
    let one: &[Option<f32>] = &[Some(1.)];
    let null: &[Option<f32>] = &[None];
    for rows in [
        vec![Some(one), Some(one), None],
        vec![Some(one), Some(one), Some(null)],
    ] {
        let error = error_of(lists(&rows), DType::Float32);
        assert!(
            matches!(error, DataError::NullValue { row: 2, .. }),
            "{error}"
        );
    }
}

#[test]
fn ragged_arrays() {
    let two: &[Option<f32>] = &[Some(1.), Some(2.)];
    let three: &[Option<f32>] = &[Some(1.), Some(2.), Some(3.)];
    // Row 2 and row 3 make up for each other in a sum of lengths.
    let error = error_of(
        lists(&[Some(two), Some(two), Some(three), Some(&two[..1])]),
        DType::Float32,
    );
    assert!(
        matches!(
            error,
            DataError::RaggedArray {
                expected: 2,
                got: 3,
                row: 2,
                ..
            }
        ),
        "{error}"
    );
    let error = error_of(lists(&[Some(two), Some(&[])]), DType::Float32);
    assert!(
        matches!(
            error,
            DataError::RaggedArray {
                expected: 2,
                got: 0,
                row: 1,
                ..
            }
        ),
        "{error}"
    );
    let error = error_of(lists(&[Some(&[])]), DType::Float32);
    assert!(
        matches!(error, DataError::RaggedArray { got: 0, row: 0, .. }),
        "{error}"
    );
    let binary = BinaryArray::from(vec![&b"ab"[..], b"abc"]);
    let error = error_of(Arc::new(binary), DType::UInt8);
    assert!(
        matches!(
            error,
            DataError::RaggedArray {
                expected: 2,
                got: 3,
                row: 1,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn ragged_matrices() {
    let mut matrix = ListBuilder::new(ListBuilder::new(Int64Builder::new()));
    for lengths in [[2, 2], [2, 2], [2, 1]] {
        for length in lengths {
            matrix.values().values().append_slice(&vec![1; length]);
            matrix.values().append(true);
        }
        matrix.append(true);
    }
    let error = error_of(Arc::new(matrix.finish()), DType::Int64);
    assert!(
        matches!(
            error,
            DataError::RaggedArray {
                expected: 2,
                got: 1,
                row: 2,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn nan_in_labels_but_not_in_features() {
    let array = doubles(&[0., 1., 2., 3., 4., f64::NAN]);
    read_feature(array.clone());
    let error = error_with(array, &label(DType::Float32));
    assert!(
        matches!(error, DataError::NanLabel { row: 5, .. }),
        "{error}"
    );
}

fn read_feature(array: ArrayRef) {
    let directory = tempfile::tempdir().unwrap();
    let uri = write(directory.path(), "a.parquet", &[("c", array)], 4);
    read_all(&[uri], &single("c", DType::Float32)).unwrap();
}

#[test]
fn weights_that_weigh_nothing_sensible() {
    for bad in [f64::NAN, f64::INFINITY, -0.5] {
        let error = error_with(doubles(&[0., 1., bad]), &weight());
        assert!(
            matches!(error, DataError::InvalidWeight { row: 2, .. }),
            "{error}"
        );
    }
    let error = error_with(Arc::new(Int32Array::from(vec![0, 1, -2])), &weight());
    assert!(
        matches!(
            error,
            DataError::InvalidWeight {
                row: 2,
                value: -2.0,
                ..
            }
        ),
        "{error}"
    );
    let error = error_with(lists(&[Some(&[Some(1.), Some(2.)])]), &weight());
    assert!(matches!(error, DataError::InvalidSpec { .. }), "{error}");
}

#[test]
fn fractions_where_whole_numbers_are_asked_for() {
    for (bad, value) in [(2.5, "2.5"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
        let error = error_of(doubles(&[0., 1., bad, 3.5]), DType::Int64);
        assert!(
            matches!(&error, DataError::NonIntegral { row: 2, value: found, .. } if found == value),
            "{error}"
        );
    }
    let decimal = Decimal128Array::from(vec![100, 150])
        .with_precision_and_scale(10, 2)
        .unwrap();
    let error = error_of(Arc::new(decimal), DType::Int64);
    assert!(
        matches!(&error, DataError::NonIntegral { row: 1, value, .. } if value == "1.5"),
        "{error}"
    );
}

#[test]
fn values_that_do_not_fit() {
    let huge = Decimal128Array::from(vec![0, i128::from(i64::MAX) * 2])
        .with_precision_and_scale(38, 0)
        .unwrap();
    let cases: Vec<(ArrayRef, DType)> = vec![
        (doubles(&[0., 1e19]), DType::Int64),
        (doubles(&[0., 9_223_372_036_854_775_808.0]), DType::Int64),
        (Arc::new(UInt64Array::from(vec![0, u64::MAX])), DType::Int64),
        (Arc::new(Int32Array::from(vec![0, 2])), DType::Bool),
        (Arc::new(Int32Array::from(vec![0, -1])), DType::UInt8),
        (Arc::new(Int64Array::from(vec![0, 256])), DType::UInt8),
        (Arc::new(huge), DType::Int64),
    ];
    for (array, dtype) in cases {
        let error = error_of(array, dtype);
        assert!(
            matches!(error, DataError::OutOfRange { row: 1, .. }),
            "{error}"
        );
    }
}

#[test]
fn types_that_hold_no_numbers() {
    let field = Arc::new(Field::new("inner", DataType::Int32, true));
    let inner: ArrayRef = Arc::new(Int32Array::from(vec![1]));
    let mut strings = ListBuilder::new(arrow_array::builder::StringBuilder::new());
    strings.append_value([Some("a")]);
    let cases: Vec<(ArrayRef, &str, &str)> = vec![
        (
            Arc::new(StringArray::from(vec!["a"])),
            "string",
            "StringIndexer",
        ),
        (Arc::new(strings.finish()), "array<string>", "StringIndexer"),
        (Arc::new(Date32Array::from(vec![1])), "date", "dayofyear"),
        (
            Arc::new(TimestampMicrosecondArray::from(vec![1])),
            "timestamp",
            "unix_timestamp",
        ),
        (
            Arc::new(StructArray::from(vec![(field, inner)])),
            "struct<inner: int>",
            "fields",
        ),
    ];
    for (array, name, mend) in cases {
        let error = error_of(array, DType::Float32);
        assert!(
            matches!(&error, DataError::UnsupportedType { found, .. } if found == name),
            "{error}"
        );
        assert!(error.to_string().contains(mend), "{error}");
    }
    let binary = error_of(Arc::new(BinaryArray::from(vec![&b"a"[..]])), DType::Float32);
    assert!(
        matches!(binary, DataError::UnsupportedType { .. }),
        "{binary}"
    );
    let float = error_of(Arc::new(Float32Array::from(vec![1.])), DType::UInt8);
    assert!(
        matches!(float, DataError::UnsupportedType { .. }),
        "{float}"
    );
}

#[test]
fn malformed_vectors() {
    let dense: Vector = (1, None, &[], &[1., 2.]);
    let length = error_of(vectors(&[dense, (1, None, &[], &[1.])]), DType::Float32);
    assert!(
        matches!(
            length,
            DataError::RaggedArray {
                expected: 2,
                got: 1,
                row: 1,
                ..
            }
        ),
        "{length}"
    );
    let size = error_of(vectors(&[dense, (0, Some(3), &[], &[])]), DType::Float32);
    assert!(
        matches!(
            size,
            DataError::RaggedArray {
                expected: 2,
                got: 3,
                row: 1,
                ..
            }
        ),
        "{size}"
    );
    for bad in [
        (0, Some(2), &[2][..], &[1.][..]),
        (0, Some(2), &[-1], &[1.]),
        (0, Some(2), &[0], &[]),
        (7, None, &[], &[1.]),
    ] {
        let error = error_of(vectors(&[dense, bad]), DType::Float32);
        assert!(
            matches!(error, DataError::InvalidVector { row: 1, .. }),
            "{error}"
        );
    }
}

#[test]
fn shards_of_different_types() {
    let directory = tempfile::tempdir().unwrap();
    let first = write(directory.path(), "a.parquet", &[("c", doubles(&[1.]))], 4);
    let second = write(
        directory.path(),
        "b.parquet",
        &[("c", Arc::new(Int32Array::from(vec![1])))],
        4,
    );
    let error = read_all(&[first, second.clone()], &single("c", DType::Float32)).unwrap_err();
    match &error {
        DataError::MixedTypes {
            column,
            uri,
            expected,
            got,
        } => {
            assert_eq!(
                (column.as_str(), uri, expected.as_str(), got.as_str()),
                ("c", &second, "double", "int")
            );
        }
        other => panic!("{other}"),
    }
}

#[test]
fn missing_columns_and_files() {
    let directory = tempfile::tempdir().unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![("a", doubles(&[1.])), ("b", doubles(&[1.]))];
    let uri = write(directory.path(), "k=1/a.parquet", &columns, 4);
    let error = read_all(std::slice::from_ref(&uri), &single("c", DType::Float32)).unwrap_err();
    assert!(
        matches!(&error, DataError::MissingColumn { available, .. } if available == &["a", "b", "k"]),
        "{error}"
    );
    let error = read_all(
        &[uri, "/nowhere/x.parquet".into()],
        &single("a", DType::Float32),
    )
    .unwrap_err();
    assert!(matches!(error, DataError::NotFound { .. }), "{error}");
}

#[test]
fn no_rows() {
    let directory = tempfile::tempdir().unwrap();
    let uri = write(directory.path(), "a.parquet", &[("c", doubles(&[]))], 4);
    let error = read_all(&[uri.clone(), uri.clone()], &single("c", DType::Float32)).unwrap_err();
    assert!(
        matches!(error, DataError::EmptyDataset { num_shards: 2 }),
        "{error}"
    );
    let error = read_all(&[], &single("c", DType::Float32)).unwrap_err();
    assert!(
        matches!(error, DataError::EmptyDataset { num_shards: 0 }),
        "{error}"
    );
    let full = write(
        directory.path(),
        "b.parquet",
        &[("c", doubles(&[1., 2.]))],
        4,
    );
    let batch = read_all(&[uri.clone(), full, uri], &single("c", DType::Float32)).unwrap();
    assert_eq!(batch.num_rows, 2, "empty shards among others are fine");
}

#[test]
fn shapes_that_do_not_fit() {
    let directory = tempfile::tempdir().unwrap();
    let columns = [("c", lists(&[Some(&[Some(1.), Some(2.), Some(3.)])]))];
    let uri = write(directory.path(), "a.parquet", &columns, 4);
    let mut spec = single("c", DType::Float32);
    spec.inputs[0].shape = Some(vec![2, 2]);
    let error = read_all(&[uri], &spec).unwrap_err();
    assert!(
        matches!(error, DataError::ShapeMismatch { elements: 3, .. }),
        "{error}"
    );
}

#[test]
fn specs_that_contradict_themselves() {
    let x = || tensor("x", &["c"], DType::Float32);
    let spec = |inputs, labels, weight| DatasetSpec {
        inputs,
        labels,
        weight,
        raw_columns: vec![],
    };
    let cases = [
        spec(vec![], vec![], None),
        spec(vec![x(), x()], vec![], None),
        spec(vec![tensor("x", &[], DType::Float32)], vec![], None),
        spec(
            vec![x()],
            vec![],
            Some(tensor("w", &["c", "c"], DType::Float32)),
        ),
        spec(vec![x()], vec![], Some(tensor("w", &["c"], DType::Int64))),
    ];
    for case in cases {
        assert!(matches!(
            Manifest::read(&store(), &[], &case),
            Err(DataError::InvalidSpec { .. })
        ));
    }
}

#[test]
fn files_that_are_no_parquet() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.parquet");
    for bytes in [
        &b""[..],
        b"PAR1",
        b"not parquet at all, but long enough PAR1",
    ] {
        std::fs::write(&path, bytes).unwrap();
        let error = read_all(
            &[path.to_str().unwrap().into()],
            &single("c", DType::Float32),
        )
        .unwrap_err();
        assert!(
            matches!(&error, DataError::Parquet { uri, .. } if uri.ends_with("a.parquet")),
            "{error}"
        );
    }
}

/// Any flipped byte ends in the right rows or in an error, never in a panic or a hang.
#[test]
fn flipped_bytes_are_survived() {
    let directory = tempfile::tempdir().unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("c", doubles(&(0..50).map(f64::from).collect::<Vec<_>>())),
        ("l", lists(&vec![Some(&[Some(1.), Some(2.)][..]); 50])),
        ("b", Arc::new(BooleanArray::from(vec![true; 50]))),
    ];
    let uri = write(directory.path(), "a.parquet", &columns, 20);
    let good = std::fs::read(&uri).unwrap();
    let spec = DatasetSpec {
        inputs: vec![tensor("x", &["c", "l", "b"], DType::Float32)],
        labels: vec![],
        weight: None,
        raw_columns: vec![],
    };
    for place in 0..good.len() {
        let mut bad = good.clone();
        bad[place] ^= 0x55;
        std::fs::write(&uri, &bad).unwrap();
        let _ = read_all(std::slice::from_ref(&uri), &spec);
    }
}

#[test]
fn shards_that_change_after_the_manifest() {
    let directory = tempfile::tempdir().unwrap();
    let uri = write(
        directory.path(),
        "a.parquet",
        &[("c", doubles(&[1., 2.]))],
        4,
    );
    let manifest = Manifest::read(
        &store(),
        &DataFile::whole(std::slice::from_ref(&uri)),
        &single("c", DType::Float32),
    )
    .unwrap();
    write(
        directory.path(),
        "a.parquet",
        &[("c", doubles(&[1., 2., 3.]))],
        4,
    );
    let error = read_manifest(manifest.clone()).unwrap_err();
    assert!(
        matches!(
            error,
            DataError::ShardChanged { .. } | DataError::Parquet { .. }
        ),
        "{error}"
    );
    std::fs::remove_file(&uri).unwrap();
    let error = read_manifest(manifest).unwrap_err();
    assert!(matches!(error, DataError::ShardChanged { .. }), "{error}");
}
