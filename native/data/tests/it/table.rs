//! What is written as a table is what its footer, and Parquet's own reader, say of it.

use std::fs::File;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use flambeau_data::{Contents, DType, DataError, Numbers, StoredColumn, TableWriter};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::fixtures;

#[test]
fn a_table_is_read_as_it_was_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("scores.parquet");
    let names = ["prediction", "probability", "class"].map(str::to_owned);
    let mut writer = TableWriter::create(&path, names.to_vec()).unwrap();
    for start in [0, 3] {
        let rows = start..start + 3;
        let columns = vec![
            Numbers::Float64(rows.clone().map(f64::from).collect()),
            Numbers::Float32(rows.clone().flat_map(|row| [row as f32, 0.5]).collect()),
            Numbers::Int64(rows.map(i64::from).collect()),
        ];
        writer.write(3, columns).unwrap();
    }
    writer.finish().unwrap();

    let contents = Contents::read(&fixtures::store(), path.to_str().unwrap()).unwrap();
    assert_eq!((contents.num_rows, contents.num_row_groups), (6, 1));
    let column = |name: &str, data_type: &str, dtype| StoredColumn {
        name: name.into(),
        data_type: data_type.into(),
        dtype: Some(dtype),
    };
    let expected = [
        column("prediction", "double", DType::Float32),
        column("probability", "array<float>", DType::Float32),
        column("class", "long", DType::Int64),
    ];
    assert_eq!(contents.columns, expected);

    let file = File::open(&path).unwrap();
    let mut reader = ParquetRecordBatchReaderBuilder::try_new(file)
        .unwrap()
        .build()
        .unwrap();
    let batch = reader.next().unwrap().unwrap();
    let predictions = batch.column(0).as_primitive::<Float64Type>();
    assert_eq!(predictions.values(), &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let lists = batch.column(1).as_list::<i32>();
    assert!((0..6).all(|row| lists.value(row).len() == 2));
    let classes = batch.column(2).as_primitive::<Int64Type>();
    assert_eq!(classes.values(), &[0, 1, 2, 3, 4, 5]);
}

#[test]
fn numbers_that_fill_no_rows_and_tables_without_rows_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("scores.parquet");
    let mut writer = TableWriter::create(&path, vec!["prediction".into()]).unwrap();
    let refused = writer.write(2, vec![Numbers::Float32(vec![1.0, 2.0, 3.0])]);
    let text = format!("{:?}", refused.unwrap_err());
    assert!(text.contains("3 numbers do not fill 2 rows"), "{text}");
    assert!(matches!(
        writer.finish(),
        Err(DataError::EmptyDataset { .. })
    ));
}
