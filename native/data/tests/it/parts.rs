//! Files of which some rows are read, against the same rows picked out of what was written.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, BinaryArray, Float32Array, Float64Array, Int64Array, ListArray};
use flambeau_data::{
    BatchReader, BitmapRange, DType, DataError, DataFile, DatasetSpec, FileRows, Manifest,
    OrderConfig, ReaderOptions, SampleOrder, SelectedRows, TensorSpec,
};
use proptest::prelude::*;
use tempfile::TempDir;

use crate::fixtures::{numbered, order_config, read_manifest, single, store, tensor, write};

/// The files, of each of which those rows are read that `is_read` names. All bitmaps lie in one file, after a byte that is nobody's.
fn parts(
    directory: &TempDir,
    files: &[(String, usize)],
    is_read: impl Fn(usize, usize) -> bool,
) -> Vec<DataFile> {
    let at = directory.path().join("rows.bits");
    let mut bits = vec![0xff];
    let mut parts = vec![];
    for (index, (uri, num_rows)) in files.iter().enumerate() {
        let offset = bits.len();
        bits.resize(offset + num_rows.div_ceil(8), 0);
        for row in (0..*num_rows).filter(|&row| is_read(index, row)) {
            bits[offset + row / 8] |= 1 << (row % 8);
        }
        let last = bits[offset..].iter().rposition(|byte| *byte != 0);
        bits.truncate(offset + last.map_or(0, |last| last + 1));
        parts.push(DataFile::Selected(SelectedRows {
            uri: uri.clone(),
            rows: FileRows::Bitmap(BitmapRange {
                uri: at.to_str().unwrap().into(),
                offset: offset as u64,
                length: (bits.len() - offset) as u64,
            }),
            values: Default::default(),
        }));
    }
    std::fs::write(at, bits).unwrap();
    parts
}

/// One epoch's ids over all ranks, as they were read, and whether the batches' row ids number them.
fn ids_of(manifest: &Arc<Manifest>, config: OrderConfig, world: usize, budget: u64) -> Vec<i64> {
    let order = Arc::new(SampleOrder::new(manifest, config).unwrap());
    let mut ids = vec![];
    for rank in 0..world {
        let options = ReaderOptions {
            memory_budget: budget,
            ..ReaderOptions::default()
        };
        let (manifest, order) = (manifest.clone(), order.clone());
        let mut reader = BatchReader::new(store(), manifest, order, rank, world, options).unwrap();
        reader.start(1, 0).unwrap();
        while let Some(batch) = reader.next().unwrap() {
            let of_batch = batch.inputs[1].as_slice::<i64>();
            let features: Vec<f32> = (of_batch.iter())
                .flat_map(|&id| [id as f32, -(id as f32)])
                .collect();
            assert_eq!(batch.inputs[0].as_slice::<f32>(), features);
            let labels: Vec<f64> = of_batch.iter().map(|&id| id as f64).collect();
            assert_eq!(batch.labels[0].as_slice::<f64>(), labels);
            ids.extend(of_batch.iter().copied().zip(batch.row_ids));
        }
    }
    // Rows are numbered through as they lie in the files.
    ids.sort_by_key(|(_, row)| *row);
    assert!(ids.iter().map(|(_, row)| *row).eq(0..ids.len() as u64));
    ids.into_iter().map(|(id, _)| id).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn rows_are_read_and_no_others(
        seed in any::<u64>(),
        density in prop::sample::select(vec![0.01, 0.3, 0.9, 0.999]),
        (lanes, world) in prop::sample::select(vec![(1, 1), (3, 2), (4, 4)]),
        dealt in any::<bool>(),
        shuffle in any::<bool>(),
        resident in any::<bool>(),
        rows_per_group in prop::sample::select(vec![70, 500, 1000]),
    ) {
        let sizes = [1000, 0, 777, 8];
        let data = numbered(&sizes, rows_per_group);
        let files: Vec<_> = data.uris.iter().cloned().zip(sizes).collect();
        let is_read = |file: usize, row: usize| {
            let mixed = (seed ^ (file as u64) << 32 ^ row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            // The last row of all is always read, so that there is one.
            file == 3 && row == 7 || ((mixed >> 40) as f64) < density * f64::from(1 << 24)
        };
        let mut expected = vec![];
        let mut first = 0;
        for (file, size) in sizes.into_iter().enumerate() {
            expected.extend((0..size).filter(|&row| is_read(file, row)).map(|row| (first + row) as i64));
            first += size;
        }
        let parts = parts(&data.directory, &files, is_read);
        let manifest = Arc::new(Manifest::read(&store(), &parts, data.manifest.spec()).unwrap());
        prop_assert_eq!(manifest.num_rows(), expected.len() as u64);
        let sent = Manifest::from_json(&serde_json::to_vec(&*manifest).unwrap()).unwrap();
        prop_assert_eq!(&sent, &*manifest);
        let config = OrderConfig {
            shuffle,
            dealt_rows: if dealt { 1 << 40 } else { 0 },
            ..order_config(lanes, 5)
        };
        let budget = if resident { 1 << 30 } else { 0 };
        prop_assert_eq!(ids_of(&manifest, config, world, budget), expected);
    }
}

#[test]
fn the_first_rows_of_files_are_read() {
    let sizes = [1000, 0, 777, 8];
    let data = numbered(&sizes, 300);
    let first = |counts: [u64; 4]| -> Vec<DataFile> {
        let files = data.uris.iter().zip(counts);
        files
            .map(|(uri, count)| {
                DataFile::Selected(SelectedRows {
                    uri: uri.clone(),
                    rows: FileRows::First(count),
                    values: Default::default(),
                })
            })
            .collect()
    };
    for counts in [
        [1000, 0, 777, 8],
        [600, 0, 1, 8],
        [299, 0, 0, 7],
        [1, 0, 776, 0],
    ] {
        let files = first(counts);
        let manifest = Manifest::read(&store(), &files, data.manifest.spec()).unwrap();
        for ((shard, count), size) in manifest.shards().iter().zip(counts).zip(sizes) {
            assert_eq!(shard.rows.is_none(), count == size as u64);
        }
        let sent = Manifest::from_json(&serde_json::to_vec(&manifest).unwrap()).unwrap();
        assert_eq!(sent, manifest);
        let starts = [0, 1000, 1000, 1777];
        let expected: Vec<i64> = (starts.into_iter().zip(counts))
            .flat_map(|(start, count)| start..start + count as i64)
            .collect();
        let manifest = Arc::new(manifest);
        for budget in [0, 1 << 30] {
            assert_eq!(ids_of(&manifest, order_config(3, 5), 2, budget), expected);
        }
    }
    let more = Manifest::read(&store(), &first([1000, 0, 778, 8]), data.manifest.spec());
    let error = more.unwrap_err().to_string();
    assert!(
        error.contains("it has 777 rows, and the first 778 are to be read"),
        "{error}"
    );
}

/// A column of each kind that the parquet reader decodes, with what a training would refuse in every third row.
fn flawed(directory: &TempDir) -> (String, usize) {
    let rows = 0..600;
    let is_bad = |row: &i32| row % 3 == 0;
    let numbers: Vec<Option<f32>> = rows
        .clone()
        .map(|row| (!is_bad(&row)).then_some(row as f32))
        .collect();
    let labels: Vec<f64> = rows
        .clone()
        .map(|row| {
            if is_bad(&row) {
                f64::NAN
            } else {
                f64::from(row)
            }
        })
        .collect();
    let weights: Vec<f64> = rows
        .clone()
        .map(|row| if is_bad(&row) { -1.0 } else { 1.0 })
        .collect();
    let lists = rows.clone().map(|row| {
        let width = if is_bad(&row) { 1 } else { 3 };
        Some(vec![Some(i64::from(row)); width])
    });
    let bytes: Vec<Option<Vec<u8>>> = rows
        .clone()
        .map(|row| (!is_bad(&row)).then(|| vec![row as u8; 2]))
        .collect();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("number", Arc::new(Float32Array::from(numbers))),
        ("label", Arc::new(Float64Array::from(labels))),
        ("weight", Arc::new(Float64Array::from(weights))),
        (
            "list",
            Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists)),
        ),
        (
            "bytes",
            Arc::new(BinaryArray::from_iter(
                bytes.iter().map(|one| one.as_deref()),
            )),
        ),
        (
            "id",
            Arc::new(Int64Array::from_iter_values(rows.map(i64::from))),
        ),
    ];
    (
        write(directory.path(), "flawed.parquet", &columns, 250),
        600,
    )
}

fn flawed_spec(raw: bool) -> DatasetSpec {
    let bytes = TensorSpec {
        shape: Some(vec![2]),
        ..tensor("bytes", &["bytes"], DType::UInt8)
    };
    DatasetSpec {
        inputs: vec![
            tensor("x", &["number"], DType::Float32),
            tensor("list", &["list"], DType::Int64),
            bytes,
        ],
        labels: vec![tensor("y", &["label"], DType::Float64)],
        weight: Some(tensor("w", &["weight"], DType::Float64)),
        raw_columns: if raw {
            vec!["bytes".into(), "id".into()]
        } else {
            vec![]
        },
    }
}

#[test]
fn what_is_not_read_may_be_anything() {
    for raw in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let files = [flawed(&directory)];
        let read = parts(&directory, &files, |_, row| row % 3 == 1);
        let mut spec = flawed_spec(raw);
        if raw {
            spec.inputs.pop();
        }
        let batch = read_manifest(Manifest::read(&store(), &read, &spec).unwrap()).unwrap();
        let expected: Vec<i64> = (0..600).filter(|row| row % 3 == 1).collect();
        let floats: Vec<f32> = expected.iter().map(|&row| row as f32).collect();
        assert_eq!(batch.inputs[0].as_slice::<f32>(), floats);
        let lists: Vec<i64> = expected.iter().flat_map(|&row| [row; 3]).collect();
        assert_eq!(batch.inputs[1].as_slice::<i64>(), lists);
        let bytes: Vec<u8> = expected.iter().flat_map(|&row| [row as u8; 2]).collect();
        if raw {
            let rows = batch.raw.unwrap();
            let of_rows = rows.column_by_name("bytes").unwrap().as_binary::<i32>();
            assert_eq!(
                of_rows
                    .iter()
                    .flatten()
                    .flatten()
                    .copied()
                    .collect::<Vec<_>>(),
                bytes
            );
            let ids = rows
                .column_by_name("id")
                .unwrap()
                .as_primitive::<Int64Type>();
            assert_eq!(ids.values(), &expected[..]);
        } else {
            assert_eq!(batch.inputs[2].as_slice::<u8>(), bytes);
        }
    }
}

#[test]
fn a_refused_row_is_named_as_it_lies_in_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let files = [flawed(&directory)];
    // Of the bad rows only 300, of the second row group.
    let read = parts(&directory, &files, |_, row| row % 3 == 1 || row == 300);
    let row_of = |spec: DatasetSpec| {
        let manifest = Manifest::read(&store(), &read, &spec);
        match manifest.and_then(read_manifest).unwrap_err() {
            DataError::NullValue { column, row, .. }
            | DataError::NanLabel { column, row, .. }
            | DataError::RaggedArray { column, row, .. }
            | DataError::InvalidWeight { column, row, .. } => (column, row),
            error => panic!("{error}"),
        }
    };
    let only = |tensor| DatasetSpec {
        inputs: vec![tensor],
        ..single("id", DType::Int64)
    };
    let expected = |column: &str| (column.to_owned(), 300);
    assert_eq!(
        row_of(only(tensor("x", &["number"], DType::Float32))),
        expected("number")
    );
    assert_eq!(
        row_of(only(tensor("x", &["list"], DType::Int64))),
        expected("list")
    );
    assert_eq!(
        row_of(only(tensor("x", &["bytes"], DType::UInt8))),
        expected("bytes")
    );
    let with = |labels, weight| DatasetSpec {
        labels,
        weight,
        ..single("id", DType::Int64)
    };
    let label = tensor("y", &["label"], DType::Float64);
    assert_eq!(row_of(with(vec![label], None)), expected("label"));
    let weight = tensor("w", &["weight"], DType::Float64);
    assert_eq!(row_of(with(vec![], Some(weight))), expected("weight"));
    let raw = DatasetSpec {
        raw_columns: vec!["bytes".into()],
        ..single("id", DType::Int64)
    };
    assert_eq!(row_of(raw), expected("bytes"));
}

#[test]
fn bitmaps_that_do_not_suit_their_files_are_refused() {
    let data = numbered(&[100, 30], 50);
    let files: Vec<_> = data.uris.iter().cloned().zip([100, 30]).collect();
    let good = parts(&data.directory, &files, |_, row| row % 2 == 0);
    let spec = data.manifest.spec();
    let refusal = |change: &dyn Fn(&mut BitmapRange)| {
        let mut files = good.clone();
        let DataFile::Selected(last) = &mut files[1] else {
            unreachable!()
        };
        let FileRows::Bitmap(range) = &mut last.rows else {
            unreachable!()
        };
        change(range);
        Manifest::read(&store(), &files, spec).unwrap_err()
    };
    for (length, expected) in [
        (5, "it has 5 bytes, and the file's 30 rows take 4"),
        (u64::MAX, "it has 18446744073709551615 bytes"),
    ] {
        let error = refusal(&|rows| rows.length = length);
        assert!(
            matches!(&error, DataError::InvalidBitmap { uri, .. } if uri.ends_with("part-1.parquet"))
        );
        assert!(error.to_string().contains(expected), "{error}");
    }
    // Of the first file's, whose rows go on where this file has none.
    let error = refusal(&|rows| rows.offset -= 8);
    assert!(
        error.to_string().contains("rows after the file's last"),
        "{error}"
    );
    let error = refusal(&|rows| rows.offset = 1 << 40);
    assert!(!error.is_transient(), "{error}");
    let error = refusal(&|rows| rows.offset = u64::MAX - 1);
    assert!(matches!(error, DataError::InvalidBitmap { .. }), "{error}");
    let error = refusal(&|rows| rows.uri.push_str(".gone"));
    assert!(matches!(error, DataError::NotFound { .. }), "{error}");
    let none = parts(&data.directory, &files, |_, _| false);
    let error = Manifest::read(&store(), &none, spec).unwrap_err();
    assert!(
        matches!(error, DataError::EmptyDataset { num_shards: 2 }),
        "{error}"
    );
}

#[test]
fn a_bitmap_that_changes_during_a_training_is_noticed() {
    let data = numbered(&[100], 50);
    let files = [(data.uris[0].clone(), 100)];
    let read = parts(&data.directory, &files, |_, row| row % 2 == 0);
    let manifest = Manifest::read(&store(), &read, data.manifest.spec()).unwrap();
    parts(&data.directory, &files, |_, row| row % 3 == 0);
    let error = read_manifest(manifest).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("names other rows of it than it did"),
        "{error}"
    );
}

#[test]
fn a_file_is_a_text_or_an_object() {
    let whole: DataFile = serde_json::from_str(r#""s3://bucket/x""#).unwrap();
    assert_eq!(whole, DataFile::Whole("s3://bucket/x".into()));
    let text = r#"{"uri":"x","rows":{"uri":"y","offset":8,"length":2}}"#;
    let part: DataFile = serde_json::from_str(text).unwrap();
    assert_eq!(part.uri(), "x");
    assert!(matches!(part.rows(), Some(FileRows::Bitmap(range)) if range.offset == 8));
    assert_eq!(serde_json::to_string(&part).unwrap(), text);
    let text = r#"{"uri":"x","rows":7}"#;
    let first: DataFile = serde_json::from_str(text).unwrap();
    assert_eq!(first.rows(), Some(&FileRows::First(7)));
    assert_eq!(serde_json::to_string(&first).unwrap(), text);
    for bad in [
        r#"{"uri":"x"}"#,
        "1",
        r#"{"uri":"x","rows":{"uri":"y","offset":-1,"length":2}}"#,
        r#"{"uri":"x","rows":-1}"#,
    ] {
        assert!(serde_json::from_str::<DataFile>(bad).is_err(), "{bad}");
    }
}
