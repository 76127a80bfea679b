//! Columns that stay as they are, against what the files were written with.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, BinaryArray, FixedSizeListArray, Float64Array, Int64Array, LargeListArray,
    ListArray, RecordBatch, StringArray,
};
use flambeau_data::{
    BatchReader, DType, DataError, DataFile, DatasetSpec, Manifest, OrderConfig, ReaderOptions,
    SampleOrder,
};
use tempfile::TempDir;

use crate::fixtures::{order_config, store, tensor, write};

/// As long as a row's number says, so that no two rows follow each other alike.
fn bytes_of(id: u64) -> Vec<u8> {
    vec![(id % 251) as u8; (id % 7) as usize * 40]
}

fn text_of(id: u64) -> String {
    format!("row {id}")
}

fn list_of(id: u64) -> Vec<i32> {
    (0..(id % 5) as i32)
        .map(|place| id as i32 * 10 + place)
        .collect()
}

fn columns(ids: std::ops::Range<u64>) -> Vec<(&'static str, ArrayRef)> {
    let bytes: Vec<Vec<u8>> = ids.clone().map(bytes_of).collect();
    let lists = ids
        .clone()
        .map(|id| Some(list_of(id).into_iter().map(Some)));
    vec![
        (
            "bytes",
            Arc::new(BinaryArray::from_iter_values(bytes.iter())),
        ),
        (
            "text",
            Arc::new(StringArray::from_iter_values(ids.clone().map(text_of))),
        ),
        (
            "list",
            Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists)),
        ),
        (
            "id",
            Arc::new(Int64Array::from_iter_values(
                ids.clone().map(|id| id as i64),
            )),
        ),
        (
            "y",
            Arc::new(Float64Array::from_iter_values(ids.map(|id| id as f64))),
        ),
    ]
}

fn spec() -> DatasetSpec {
    DatasetSpec {
        inputs: vec![],
        labels: vec![tensor("y", &["y"], DType::Float64)],
        weight: None,
        raw_columns: ["text", "bytes", "list", "id"].map(String::from).into(),
    }
}

fn shards(directory: &TempDir, rows: &[u64], rows_per_group: usize) -> Vec<String> {
    let mut first = 0;
    let write_one = |(index, rows): (usize, &u64)| {
        let columns = columns(first..first + rows);
        first += rows;
        write(
            directory.path(),
            &format!("part-{index}.parquet"),
            &columns,
            rows_per_group,
        )
    };
    rows.iter().enumerate().map(write_one).collect()
}

fn check(batch: &RecordBatch, ids: &[u64]) {
    let (text, bytes) = (
        batch.column(0).as_string::<i32>(),
        batch.column(1).as_binary::<i32>(),
    );
    let (lists, numbers) = (
        batch.column(2).as_list::<i32>(),
        batch
            .column(3)
            .as_primitive::<arrow_array::types::Int64Type>(),
    );
    assert_eq!(batch.num_rows(), ids.len());
    for (row, &id) in ids.iter().enumerate() {
        assert_eq!(text.value(row), text_of(id));
        assert_eq!(bytes.value(row), bytes_of(id));
        let list = lists.value(row);
        assert_eq!(
            list.as_primitive::<Int32Type>().values().to_vec(),
            list_of(id)
        );
        assert_eq!(numbers.value(row), id as i64);
    }
}

#[test]
fn rows_come_in_the_order_of_their_ids_whatever_the_memory() {
    let directory = tempfile::tempdir().unwrap();
    let uris = shards(&directory, &[330, 0, 500], 90);
    let manifest = Arc::new(Manifest::read(&store(), &DataFile::whole(&uris), &spec()).unwrap());
    assert!(manifest.bytes_per_row() > 8 + 100, "{manifest:?}");
    for (memory_budget, num_threads, world, window_rows, dealt_rows) in [
        (1 << 30, 2, 1, 64, 0),
        (0, 2, 2, 64, 0),
        (0, 0, 1, 64, 830),
        (0, 1, 3, 300, 830),
        (1 << 30, 1, 4, 1000, 830),
    ] {
        let config = OrderConfig {
            window_rows,
            dealt_rows,
            ..order_config(4, 6)
        };
        let order = Arc::new(SampleOrder::new(&manifest, config).unwrap());
        let options = ReaderOptions {
            memory_budget,
            num_threads,
            ..ReaderOptions::default()
        };
        let mut seen = 0;
        for rank in 0..world {
            let mut reader = BatchReader::new(
                store(),
                manifest.clone(),
                order.clone(),
                rank,
                world,
                options.clone(),
            )
            .unwrap();
            assert_eq!(reader.is_resident(), memory_budget > 0);
            for (epoch, first) in [(0, 0), (3, 2)] {
                reader.start(epoch, first).unwrap();
                while let Some(batch) = reader.next().unwrap() {
                    assert_eq!(batch.epoch, epoch);
                    let lanes = (rank..4).step_by(world);
                    let ids: Vec<u64> = lanes
                        .flat_map(|lane| order.row_ids(epoch, lane, batch.index))
                        .collect();
                    assert_eq!(batch.row_ids, ids);
                    match &batch.raw {
                        Some(raw) => check(raw, &ids),
                        None => assert!(ids.is_empty()),
                    }
                    let labels: Vec<f64> = ids.iter().map(|&id| id as f64).collect();
                    assert_eq!(batch.labels[0].as_slice::<f64>(), labels);
                    seen += if epoch == 0 { ids.len() } else { 0 };
                }
            }
            assert!(reader.peak_memory() > 0);
        }
        assert_eq!(seen, 830);
    }
}

#[test]
fn a_null_is_refused_with_its_row() {
    let directory = tempfile::tempdir().unwrap();
    let with_null: Vec<(&str, ArrayRef)> = vec![
        (
            "text",
            Arc::new(StringArray::from(vec![Some("a"), Some("b"), None])),
        ),
        ("y", Arc::new(Float64Array::from(vec![1.0, 2.0, 3.0]))),
    ];
    let uri = write(directory.path(), "nulls.parquet", &with_null, 2);
    let spec = DatasetSpec {
        raw_columns: vec!["text".into()],
        ..spec()
    };
    let manifest = Manifest::read(&store(), &[DataFile::Whole(uri)], &spec).unwrap();
    let error = crate::fixtures::read_manifest(manifest).unwrap_err();
    assert!(
        matches!(&error, DataError::NullValue { column, row: 2, .. } if column == "text"),
        "{error}"
    );
}

#[test]
fn a_null_in_a_list_of_any_kind_is_refused_with_its_row() {
    type Rows = [Option<Vec<Option<i32>>>; 3];
    let rows: [Rows; 2] = [
        [
            Some(vec![Some(1), Some(2)]),
            Some(vec![Some(3), None]),
            None,
        ],
        [
            Some(vec![Some(1), Some(2)]),
            None,
            Some(vec![Some(3), Some(4)]),
        ],
    ];
    for rows in rows {
        let arrays: [ArrayRef; 3] = [
            Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(
                rows.clone(),
            )),
            Arc::new(LargeListArray::from_iter_primitive::<Int32Type, _, _>(
                rows.clone(),
            )),
            Arc::new(FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(
                rows.clone(),
                2,
            )),
        ];
        for array in arrays {
            let directory = tempfile::tempdir().unwrap();
            let kind = array.data_type().to_string();
            let columns: Vec<(&str, ArrayRef)> = vec![
                ("list", array),
                ("y", Arc::new(Float64Array::from(vec![1.0, 2.0, 3.0]))),
            ];
            let uri = write(directory.path(), "nulls.parquet", &columns, 3);
            let spec = DatasetSpec {
                raw_columns: vec!["list".into()],
                ..spec()
            };
            let manifest = Manifest::read(&store(), &[DataFile::Whole(uri)], &spec).unwrap();
            let error = crate::fixtures::read_manifest(manifest).unwrap_err();
            assert!(
                matches!(&error, DataError::NullValue { column, row: 1, .. } if column == "list"),
                "{kind}: {error}"
            );
        }
    }
}

#[test]
fn columns_are_in_all_shards_with_one_type() {
    let directory = tempfile::tempdir().unwrap();
    let good = shards(&directory, &[5], 5);
    let other: Vec<(&str, ArrayRef)> = vec![
        ("text", Arc::new(Int64Array::from(vec![1]))),
        ("y", Arc::new(Float64Array::from(vec![1.0]))),
    ];
    let other = write(directory.path(), "other.parquet", &other, 5);
    let spec = |name: &str| DatasetSpec {
        raw_columns: vec![name.into()],
        ..spec()
    };
    let read = |uris: &[String], name| {
        Manifest::read(&store(), &DataFile::whole(uris), &spec(name)).unwrap_err()
    };
    let mixed = read(&[good[0].clone(), other], "text");
    assert!(
        matches!(&mixed, DataError::MixedTypes { column, .. } if column == "text"),
        "{mixed}"
    );
    let missing = read(&good, "no such");
    assert!(
        matches!(&missing, DataError::MissingColumn { column, .. } if column == "no such"),
        "{missing}"
    );
    let twice = DatasetSpec {
        raw_columns: vec!["text".into(), "text".into()],
        ..spec("text")
    };
    let twice = Manifest::read(&store(), &DataFile::whole(&good), &twice).unwrap_err();
    assert!(matches!(twice, DataError::InvalidSpec { .. }), "{twice}");
}

#[test]
fn memory_is_let_go_window_after_window() {
    let directory = tempfile::tempdir().unwrap();
    let uris = shards(&directory, &[2000], 100);
    let manifest = Arc::new(Manifest::read(&store(), &DataFile::whole(&uris), &spec()).unwrap());
    let config = OrderConfig {
        window_rows: 100,
        ..order_config(1, 50)
    };
    let order = Arc::new(SampleOrder::new(&manifest, config).unwrap());
    let peak = |memory_budget| {
        let options = ReaderOptions {
            memory_budget,
            num_threads: 1,
            ..ReaderOptions::default()
        };
        let mut reader =
            BatchReader::new(store(), manifest.clone(), order.clone(), 0, 1, options).unwrap();
        reader.start(0, 0).unwrap();
        while reader.next().unwrap().is_some() {}
        reader.peak_memory()
    };
    let (whole, windows) = (peak(1 << 30), peak(0));
    assert!(windows * 4 < whole, "{windows} of {whole}");
}
