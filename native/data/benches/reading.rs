//! The hot kernels of reading: decoding columns and arrays of floats, gathering shuffled rows from memory, and the order itself.
//!
//! `cargo bench -p flambeau-data`; without threads, so that a figure is one processor's.

use std::collections::HashMap;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use flambeau_data::{
    BatchReader, DType, DataFile, DatasetSpec, Manifest, Numbers, OrderConfig, ReaderOptions,
    SampleOrder, Store, TableWriter, TensorSpec,
};

const NUM_ROWS: usize = 200_000;

/// A file of `num_columns` columns with `width` floats a row, read as one tensor.
struct Table {
    store: Store,
    manifest: Arc<Manifest>,
    order: Arc<SampleOrder>,
    _directory: tempfile::TempDir,
}

impl Table {
    fn new(num_rows: usize, num_columns: usize, width: usize) -> Table {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("rows.parquet");
        let columns: Vec<String> = (0..num_columns).map(|index| format!("x{index}")).collect();
        write(&path, num_rows, columns.clone(), width);
        let spec = DatasetSpec {
            inputs: vec![TensorSpec {
                name: "features".into(),
                columns,
                dtype: DType::Float32,
                shape: None,
            }],
            labels: vec![],
            weight: None,
            raw_columns: vec![],
        };
        let store = Store::new(&HashMap::new()).expect("a store");
        let uri = path.display().to_string();
        let manifest =
            Arc::new(Manifest::read(&store, &[DataFile::Whole(uri)], &spec).expect("a manifest"));
        let order = SampleOrder::new(&manifest, order_config()).expect("an order");
        Table {
            store,
            manifest,
            order: Arc::new(order),
            _directory: directory,
        }
    }

    fn reader(&self) -> BatchReader {
        let options = ReaderOptions {
            num_threads: 0,
            ..ReaderOptions::default()
        };
        let (manifest, order) = (self.manifest.clone(), self.order.clone());
        BatchReader::new(self.store.clone(), manifest, order, 0, 1, options).expect("a reader")
    }

    fn bytes(&self) -> Throughput {
        Throughput::Bytes(self.manifest.num_rows() * self.manifest.bytes_per_row())
    }
}

fn write(path: &Path, num_rows: usize, columns: Vec<String>, width: usize) {
    let num_columns = columns.len();
    let mut writer = TableWriter::create(path, columns).expect("a file");
    // Numbers that do not repeat, so that the file holds them as they are.
    let column = |index: usize| {
        (0..num_rows * width).map(move |row| (row * num_columns + index) as f32 / 3.0)
    };
    let columns = (0..num_columns).map(|index| Numbers::Float32(column(index).collect()));
    writer.write(num_rows, columns.collect()).expect("rows");
    writer.finish().expect("a footer");
}

fn order_config() -> OrderConfig {
    OrderConfig {
        num_lanes: 1,
        rows_per_lane: 512,
        seed: 1,
        shuffle: true,
        drop_last: false,
        window_rows: 1 << 20,
        dealt_rows: 0,
    }
}

fn epoch(reader: &mut BatchReader, number: u64) {
    reader.start(number, 0).expect("a first batch");
    while let Some(batch) = reader.next().expect("rows") {
        black_box(&batch);
    }
}

/// Decodes all rows; the gathering is small beside it.
fn decode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode");
    group.sample_size(20);
    for (name, num_rows, num_columns, width) in [
        ("10 float columns", NUM_ROWS, 10, 1),
        ("200 float columns", NUM_ROWS / 10, 200, 1),
        ("arrays of 784 floats", NUM_ROWS / 20, 1, 784),
    ] {
        let table = Table::new(num_rows, num_columns, width);
        group.throughput(table.bytes());
        group.bench_function(name, |bencher| {
            bencher.iter(|| epoch(&mut table.reader(), 0));
        });
    }
    group.finish();
}

/// An epoch over rows that are in memory.
fn gather(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("gather");
    for (name, num_rows, num_columns) in [
        ("rows of 10 floats", NUM_ROWS * 10, 10),
        ("rows of 200 floats", NUM_ROWS, 200),
    ] {
        let table = Table::new(num_rows, num_columns, 1);
        let mut reader = table.reader();
        epoch(&mut reader, 0);
        let mut number = 0;
        group.sample_size(20).throughput(table.bytes());
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                number += 1;
                epoch(&mut reader, number);
            });
        });
    }
    group.finish();
}

/// The permutation of one window.
fn order(criterion: &mut Criterion) {
    let num_rows = 1u32 << 20;
    let order = SampleOrder::over_row_groups([u64::from(num_rows)], order_config());
    let lane = order.expect("an order").lane_order(0, 0);
    let mut group = criterion.benchmark_group("order");
    group.throughput(Throughput::Elements(u64::from(num_rows)));
    group.bench_function("window of 2^20 rows", |bencher| {
        let mut rows: Vec<u32> = (0..num_rows).collect();
        bencher.iter(|| lane.permute(0, black_box(&mut rows)));
    });
    group.finish();
}

criterion_group!(benches, decode, gather, order);
criterion_main!(benches);
