//! Shards, specs and readers for the tests.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, Float64Array, Int64Array, RecordBatch};
use flambeau_data::{
    Batch, BatchReader, DType, DataError, DataFile, DatasetSpec, HostTensor, Manifest, OrderConfig,
    ReaderOptions, SampleOrder, Store, TensorSpec,
};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use parquet::schema::types::ColumnPath;
use tempfile::TempDir;

pub fn store() -> Store {
    Store::new(&HashMap::new()).unwrap()
}

/// Writes one shard and gives its path.
pub fn write(
    directory: &Path,
    name: &str,
    columns: &[(&str, ArrayRef)],
    rows_per_group: usize,
) -> String {
    write_with(
        directory,
        name,
        columns,
        small_pages(rows_per_group).build(),
    )
}

/// Row groups of several pages, so that reading some rows skips others.
pub fn small_pages(rows_per_group: usize) -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_max_row_group_row_count(Some(rows_per_group))
        .set_data_page_row_count_limit(100)
        .set_write_batch_size(50)
}

pub fn write_with(
    directory: &Path,
    name: &str,
    columns: &[(&str, ArrayRef)],
    properties: WriterProperties,
) -> String {
    let path = directory.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let nullable = columns
        .iter()
        .map(|(name, array)| (*name, array.clone(), true));
    let batch = RecordBatch::try_from_iter_with_nullable(nullable).unwrap();
    let file = std::fs::File::create(&path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    path.to_str().unwrap().to_owned()
}

pub fn tensor(name: &str, columns: &[&str], dtype: DType) -> TensorSpec {
    TensorSpec {
        name: name.into(),
        columns: columns.iter().map(|&column| column.into()).collect(),
        dtype,
        shape: None,
    }
}

/// One input of one column.
pub fn single(column: &str, dtype: DType) -> DatasetSpec {
    DatasetSpec {
        inputs: vec![tensor("x", &[column], dtype)],
        labels: vec![],
        weight: None,
        raw_columns: vec![],
    }
}

pub fn order_config(num_lanes: usize, rows_per_lane: usize) -> OrderConfig {
    OrderConfig {
        num_lanes,
        rows_per_lane,
        seed: 7,
        shuffle: true,
        drop_last: false,
        window_rows: 64,
        dealt_rows: 0,
    }
}

/// Reads all rows in file order.
pub fn read_all(uris: &[String], spec: &DatasetSpec) -> Result<Batch, DataError> {
    let manifest = Manifest::read(&store(), &DataFile::whole(uris), spec)?;
    read_manifest(manifest)
}

pub fn read_manifest(manifest: Manifest) -> Result<Batch, DataError> {
    let config = OrderConfig {
        shuffle: false,
        window_rows: 1 << 20,
        ..order_config(1, manifest.num_rows() as usize)
    };
    let order = SampleOrder::new(&manifest, config)?;
    let mut reader = BatchReader::new(
        store(),
        Arc::new(manifest),
        Arc::new(order),
        0,
        1,
        ReaderOptions::default(),
    )?;
    reader.start(0, 0)?;
    let batch = reader.next()?.expect("one batch of all rows");
    assert!(reader.next()?.is_none());
    Ok(batch)
}

/// Two float features, a double label that is the row's number, and an integer id, in shards of several row groups.
pub struct Numbered {
    pub directory: TempDir,
    pub uris: Vec<String>,
    pub manifest: Arc<Manifest>,
}

pub fn numbered(shard_rows: &[usize], rows_per_group: usize) -> Numbered {
    let directory = tempfile::tempdir().unwrap();
    let mut first = 0;
    let mut uris = Vec::new();
    for (index, &rows) in shard_rows.iter().enumerate() {
        let ids: Vec<i64> = (first..first + rows as i64).collect();
        first += rows as i64;
        let columns: Vec<(&str, ArrayRef)> = vec![
            (
                "a",
                Arc::new(Float32Array::from_iter_values(
                    ids.iter().map(|&id| id as f32),
                )),
            ),
            (
                "b",
                Arc::new(Float32Array::from_iter_values(
                    ids.iter().map(|&id| -(id as f32)),
                )),
            ),
            (
                "y",
                Arc::new(Float64Array::from_iter_values(
                    ids.iter().map(|&id| id as f64),
                )),
            ),
            ("id", Arc::new(Int64Array::from(ids.clone()))),
        ];
        // A column with a dictionary and some without.
        let properties = small_pages(rows_per_group)
            .set_dictionary_enabled(false)
            .set_column_dictionary_enabled(ColumnPath::from("a"), true)
            .build();
        uris.push(write_with(
            directory.path(),
            &format!("part-{index}.parquet"),
            &columns,
            properties,
        ));
    }
    let spec = DatasetSpec {
        inputs: vec![
            tensor("x", &["a", "b"], DType::Float32),
            tensor("id", &["id"], DType::Int64),
        ],
        labels: vec![tensor("y", &["y"], DType::Float64)],
        weight: None,
        raw_columns: vec![],
    };
    let manifest = Arc::new(Manifest::read(&store(), &DataFile::whole(&uris), &spec).unwrap());
    Numbered {
        directory,
        uris,
        manifest,
    }
}

impl Numbered {
    pub fn order(&self, config: OrderConfig) -> Arc<SampleOrder> {
        Arc::new(SampleOrder::new(&self.manifest, config).unwrap())
    }

    pub fn reader(
        &self,
        order: &Arc<SampleOrder>,
        rank: usize,
        world: usize,
        options: ReaderOptions,
    ) -> BatchReader {
        BatchReader::new(
            store(),
            self.manifest.clone(),
            order.clone(),
            rank,
            world,
            options,
        )
        .unwrap()
    }
}

/// The values of a batch of [`numbered`] rows are those of its row ids.
pub fn check_numbered(batch: &Batch) {
    let ids = &batch.row_ids;
    assert_eq!(batch.num_rows, ids.len());
    let features: Vec<f32> = ids
        .iter()
        .flat_map(|&id| [id as f32, -(id as f32)])
        .collect();
    assert_eq!(batch.inputs[0].as_slice::<f32>(), features);
    assert_eq!(batch.inputs[0].shape(), [ids.len(), 2]);
    assert_eq!(
        batch.inputs[1].as_slice::<i64>(),
        ids.iter().map(|&id| id as i64).collect::<Vec<_>>()
    );
    assert_eq!(
        batch.labels[0].as_slice::<f64>(),
        ids.iter().map(|&id| id as f64).collect::<Vec<_>>()
    );
    assert!(
        batch
            .inputs
            .iter()
            .chain(&batch.labels)
            .all(|tensor: &HostTensor| (tensor.as_ptr() as usize).is_multiple_of(64))
    );
}
