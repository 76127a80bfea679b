//! Times reading Parquet shards: `read_shards COLUMN,COLUMN,... FILE...` packs the columns into one float32 tensor, prints how long the first
//! epoch (which decodes) and the second (which gathers) take, in batches of 512 rows, and what the memory bound and peak are.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use flambeau_data::{
    BatchReader, DType, DatasetSpec, Manifest, OrderConfig, ReaderOptions, SampleOrder, Store,
    TensorSpec,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let columns = arguments.next().ok_or("the columns are missing")?;
    let uris: Vec<String> = arguments.collect();
    let columns = columns.split(',').map(str::to_owned).collect();
    let features = TensorSpec {
        name: "features".into(),
        columns,
        dtype: DType::Float32,
        shape: None,
    };
    let spec = DatasetSpec {
        inputs: vec![features],
        labels: vec![],
        weight: None,
    };
    let store = Store::new(&HashMap::new())?;
    let begun = Instant::now();
    let manifest = Arc::new(Manifest::read(&store, &uris, &spec)?);
    println!(
        "manifest: {} rows in {:.1?}",
        manifest.num_rows(),
        begun.elapsed()
    );
    let window_rows = ((64 << 20) / manifest.bytes_per_row() as usize).clamp(4096, 1 << 20);
    for memory_budget in [u64::MAX, 0] {
        for num_threads in [0, 1] {
            let config = OrderConfig {
                num_lanes: 1,
                rows_per_lane: 512,
                seed: 1,
                shuffle: true,
                drop_last: false,
                window_rows,
            };
            let order = Arc::new(SampleOrder::new(&manifest, config)?);
            let options = ReaderOptions {
                memory_budget,
                num_threads,
                ..ReaderOptions::default()
            };
            let mut reader =
                BatchReader::new(store.clone(), manifest.clone(), order, 0, 1, options)?;
            for epoch in 0..3 {
                let begun = Instant::now();
                reader.start(epoch, 0)?;
                let begun_cpu = processor_time();
                let mut num_batches = 0;
                let mut waiting = std::time::Duration::ZERO;
                let mut first = None;
                while let Some(batch) = reader.next()? {
                    num_batches += 1;
                    first.get_or_insert_with(|| begun.elapsed());
                    drop(batch);
                    waiting = begun.elapsed();
                }
                let rest = waiting - first.unwrap_or_default();
                println!(
                    "budget {memory_budget}, {num_threads} threads, epoch {epoch}: {:.1?} ({:.1?} of processors); \
                     first batch {:.1?}, then {:.2?} a batch",
                    waiting,
                    processor_time() - begun_cpu,
                    first.unwrap_or_default(),
                    rest / num_batches.max(1),
                );
            }
            println!(
                "  bound {} MiB, peak {} MiB",
                reader.memory_bound() >> 20,
                reader.peak_memory() >> 20
            );
        }
    }
    Ok(())
}

/// What the process has used so far, which a busy machine changes less than the time on the wall.
fn processor_time() -> std::time::Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    std::time::Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
