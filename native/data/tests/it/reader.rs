//! Batches, however they are decoded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flambeau_data::{BatchReader, DataError, Manifest, OrderConfig, ReaderOptions, SampleOrder};
use proptest::prelude::*;

use crate::fixtures::{check_numbered, numbered, order_config, store};

const WINDOWED: ReaderOptions = ReaderOptions {
    memory_budget: 0,
    num_threads: 2,
    prefetch: 1,
    timeout: Duration::from_secs(60),
    interrupt: None,
};

fn resident() -> ReaderOptions {
    ReaderOptions {
        memory_budget: 1 << 30,
        ..WINDOWED
    }
}

/// The row ids of an epoch's batches from one on; values are checked on the way.
fn epoch(reader: &mut BatchReader, epoch: u64, first: u64) -> Vec<Vec<u64>> {
    reader.start(epoch, first).unwrap();
    let mut batches = Vec::new();
    while let Some(batch) = reader.next().unwrap() {
        assert_eq!(batch.index, first + batches.len() as u64);
        check_numbered(&batch);
        batches.push(batch.row_ids);
    }
    batches
}

/// What the order says a rank reads.
fn expected(
    order: &SampleOrder,
    epoch: u64,
    from: u64,
    rank: usize,
    world: usize,
) -> Vec<Vec<u64>> {
    let lanes = || (rank..order.config().num_lanes).step_by(world);
    let batch = |batch| {
        lanes()
            .flat_map(|lane| order.row_ids(epoch, lane, batch))
            .collect()
    };
    (from..order.batches_per_epoch()).map(batch).collect()
}

#[test]
fn resident_and_windowed_readers_read_what_the_order_says() {
    let data = numbered(&[700, 0, 333, 1200], 150);
    for options in [
        resident(),
        WINDOWED,
        ReaderOptions {
            num_threads: 0,
            ..WINDOWED
        },
        ReaderOptions {
            num_threads: 0,
            ..resident()
        },
        ReaderOptions {
            prefetch: 0,
            ..WINDOWED
        },
        ReaderOptions {
            memory_budget: 20_000,
            prefetch: 5,
            ..WINDOWED
        },
    ] {
        for (world, drop_last, shuffle, window_rows, dealt_rows) in [
            (1, false, true, 64, 0),
            (2, true, true, 64, 0),
            (3, false, true, 64, 0),
            (4, false, false, 64, 0),
            (1, false, true, 64, 3000),
            (3, true, true, 300, 3000),
            (4, false, true, 3000, 3000),
        ] {
            let order = data.order(OrderConfig {
                drop_last,
                shuffle,
                window_rows,
                dealt_rows,
                ..order_config(4, 17)
            });
            for rank in 0..world {
                let mut reader = data.reader(&order, rank, world, options.clone());
                let rows: u64 = (rank..4)
                    .step_by(world)
                    .map(|lane| order.lane_num_rows(lane))
                    .sum();
                assert_eq!(
                    reader.is_resident(),
                    rows * data.manifest.bytes_per_row() <= options.memory_budget
                );
                for number in [0, 1] {
                    assert_eq!(
                        epoch(&mut reader, number, 0),
                        expected(&order, number, 0, rank, world)
                    );
                }
            }
        }
    }
}

/// A row group is decoded some thousand rows at a time, of each of which a lane has its own.
#[test]
fn dealt_rows_of_large_row_groups_are_read() {
    let data = numbered(&[30_000, 7_000], 20_000);
    for (window_rows, memory_budget) in [(1 << 20, 1 << 30), (40_000, 1 << 30), (40_000, 0)] {
        let config = OrderConfig {
            window_rows,
            dealt_rows: u64::MAX,
            ..order_config(3, 500)
        };
        let order = data.order(config);
        let options = ReaderOptions {
            memory_budget,
            ..ReaderOptions::default()
        };
        for (rank, world) in [(0, 1), (0, 2), (1, 2)] {
            let mut reader = data.reader(&order, rank, world, options.clone());
            assert_eq!(
                epoch(&mut reader, 1, 0),
                expected(&order, 1, 0, rank, world)
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_batch_is_reached_alone(
        starts in prop::collection::vec((0u64..3, 0u64..40), 1..5),
        windowed in any::<bool>(),
        window_rows in 1usize..400,
        dealt_rows in prop_oneof![Just(0), Just(u64::MAX)],
        rows_per_lane in 5usize..60,
    ) {
        let data = numbered(&[400, 250], 130);
        let order = data.order(OrderConfig { window_rows, dealt_rows, ..order_config(3, rows_per_lane) });
        let options = if windowed { WINDOWED } else { resident() };
        let mut reader = data.reader(&order, 1, 2, options);
        for (number, batch) in starts {
            let batch = batch.min(order.batches_per_epoch());
            prop_assert_eq!(epoch(&mut reader, number, batch), expected(&order, number, batch, 1, 2));
        }
    }

    /// Every worker count sees the same global batches, lane by lane.
    #[test]
    fn worker_counts_agree(
        rows in 1usize..900,
        rows_per_lane in 1usize..80,
        window_rows in 1usize..200,
        dealt_rows in prop_oneof![Just(0), Just(u64::MAX)],
    ) {
        let data = numbered(&[rows / 3, rows - rows / 3], 100);
        let order = data.order(OrderConfig { window_rows, dealt_rows, ..order_config(4, rows_per_lane) });
        let mut global = Vec::new();
        for world in 1..=4 {
            let mut batches = vec![vec![Vec::new(); 4]; order.batches_per_epoch() as usize];
            for rank in 0..world {
                let options = if world % 2 == 0 { WINDOWED } else { resident() };
                let mut reader = data.reader(&order, rank, world, options);
                for (batch, ids) in epoch(&mut reader, 1, 0).into_iter().enumerate() {
                    let mut rest = ids.as_slice();
                    for lane in (rank..4).step_by(world) {
                        let (mine, others) = rest.split_at(order.lane_rows(lane, batch as u64));
                        batches[batch][lane] = mine.to_vec();
                        rest = others;
                    }
                    prop_assert!(rest.is_empty());
                }
            }
            global.push(batches);
        }
        prop_assert!(global.windows(2).all(|pair| pair[0] == pair[1]));
        let mut seen: Vec<u64> = global[0].iter().flatten().flatten().copied().collect();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..rows as u64).collect::<Vec<_>>());
    }
}

#[test]
fn memory_stays_within_the_stated_bound() {
    let data = numbered(&[3000, 3000], 1000);
    let bytes = data.manifest.bytes_per_row();
    let order = data.order(OrderConfig {
        window_rows: 200,
        ..order_config(2, 25)
    });
    let stored: u64 = data
        .manifest
        .row_groups()
        .map(|(_, group)| group.stored_bytes)
        .max()
        .unwrap();
    for (budget, prefetch, arenas) in [
        (0, 3, 2),
        (1200 * bytes, 3, 3),
        (1 << 16, 1, 4),
        (6000 * bytes, 0, 0),
    ] {
        let options = ReaderOptions {
            memory_budget: budget,
            prefetch,
            ..WINDOWED
        };
        let mut reader = data.reader(&order, 0, 1, options);
        let largest_window = order.max_window_rows(0).max(order.max_window_rows(1)) * bytes;
        let held = if reader.is_resident() {
            6000 * bytes
        } else {
            arenas * largest_window
        };
        assert_eq!(reader.memory_bound(), held + 2 * stored);
        for number in 0..2 {
            epoch(&mut reader, number, 0);
            epoch(&mut reader, number, 100);
        }
        assert!(reader.peak_memory() > 0);
        assert!(
            reader.peak_memory() <= reader.memory_bound(),
            "{} > {}",
            reader.peak_memory(),
            reader.memory_bound()
        );
    }
}

/// Of a row group of many windows only the pages are read that a window needs, where the file has an index of its pages.
#[test]
fn windows_read_their_pages_only() {
    let data = numbered(&[40_000], 40_000);
    let order = data.order(OrderConfig {
        window_rows: 1000,
        ..order_config(1, 100)
    });
    let options = ReaderOptions {
        num_threads: 0,
        prefetch: 0,
        ..WINDOWED
    };
    let mut reader = data.reader(&order, 0, 1, options);
    assert_eq!(epoch(&mut reader, 0, 0), expected(&order, 0, 0, 0, 1));
    let window = order.max_window_rows(0) * data.manifest.bytes_per_row();
    let stored = data.manifest.shards()[0].row_groups[0].stored_bytes;
    assert!(
        reader.peak_memory() - window < stored / 4,
        "{} of {stored}",
        reader.peak_memory() - window
    );
}

/// Shards may go away once a resident reader has decoded them.
#[test]
fn a_resident_share_is_decoded_once() {
    let data = numbered(&[500, 500], 100);
    let order = data.order(order_config(2, 50));
    let mut reader = data.reader(&order, 0, 1, resident());
    epoch(&mut reader, 0, 0);
    for uri in &data.uris {
        std::fs::remove_file(uri).unwrap();
    }
    assert_eq!(epoch(&mut reader, 1, 0), expected(&order, 1, 0, 0, 1));
    assert_eq!(epoch(&mut reader, 5, 3), expected(&order, 5, 3, 0, 1));
}

#[test]
fn a_pooled_buffer_is_not_used_twice_at_once() {
    let data = numbered(&[500], 100);
    let order = data.order(order_config(1, 50));
    let mut reader = data.reader(&order, 0, 1, WINDOWED);
    reader.start(0, 0).unwrap();
    let mut kept = Vec::new();
    while let Some(batch) = reader.next().unwrap() {
        kept.push(batch);
        if kept.len() == 3 {
            kept.remove(0);
        }
        kept.iter().for_each(check_numbered);
    }
    drop(reader);
    kept.iter().for_each(check_numbered);
}

#[test]
fn a_rank_without_rows_gets_empty_batches() {
    let data = numbered(&[3], 100);
    let order = data.order(order_config(4, 2));
    let mut rows = 0;
    for rank in 0..4 {
        let mut reader = data.reader(&order, rank, 4, resident());
        reader.start(0, 0).unwrap();
        let batch = reader.next().unwrap().unwrap();
        assert_eq!(batch.inputs[0].shape(), [batch.num_rows, 2]);
        rows += batch.num_rows;
        assert!(reader.next().unwrap().is_none());
        assert!(reader.next().unwrap().is_none(), "the end stays the end");
    }
    assert_eq!(rows, 3);
}

#[test]
fn errors_of_decoding_threads_reach_the_caller() {
    let data = numbered(&[500, 500], 100);
    let order = data.order(order_config(1, 50));
    for options in [
        resident(),
        WINDOWED,
        ReaderOptions {
            num_threads: 0,
            ..WINDOWED
        },
    ] {
        std::fs::rename(&data.uris[1], data.directory.path().join("hidden")).unwrap();
        let mut reader = data.reader(&order, 0, 1, options);
        assert!(matches!(reader.next(), Err(DataError::NotStarted)));
        reader.start(0, 0).unwrap();
        let error = (0..=order.batches_per_epoch())
            .find_map(|_| reader.next().err())
            .expect("a shard is gone");
        assert!(
            matches!(&error, DataError::ShardChanged { uri, .. } if *uri == data.uris[1]),
            "{error}"
        );
        assert!(matches!(reader.next(), Err(DataError::NotStarted)));
        // With the shard back, a new start reads on.
        std::fs::rename(data.directory.path().join("hidden"), &data.uris[1]).unwrap();
        assert_eq!(epoch(&mut reader, 0, 2), expected(&order, 0, 2, 0, 1));
    }
}

#[test]
fn dropping_a_reader_ends_its_threads() {
    let data = numbered(&[2000], 100);
    let order = data.order(order_config(1, 10));
    let mut readers: Vec<BatchReader> = (0..3)
        .map(|_| data.reader(&order, 0, 1, WINDOWED))
        .collect();
    for reader in &mut readers {
        reader.start(0, 0).unwrap();
        reader.next().unwrap();
    }
    // A decoding thread holds the manifest as long as it runs.
    let manifest = Arc::downgrade(&data.manifest);
    drop((data, readers));
    assert_eq!(manifest.strong_count(), 0);
}

#[test]
fn waiting_ends_when_asked() {
    let data = numbered(&[1000], 100);
    let order = data.order(order_config(1, 50));
    // A pipe in the shard's place: whoever opens it waits.
    let manifest: Arc<Manifest> = data.manifest.clone();
    std::fs::remove_file(&data.uris[0]).unwrap();
    let path = std::ffi::CString::new(data.uris[0].as_str()).unwrap();
    // SAFETY: the path is a C string.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let interrupt: Arc<dyn Fn() -> bool + Send + Sync> =
        Arc::new(move || counter.fetch_add(1, Ordering::Relaxed) >= 3);
    let options = ReaderOptions {
        interrupt: Some(interrupt),
        ..resident()
    };
    let mut reader =
        BatchReader::new(store(), manifest.clone(), order.clone(), 0, 1, options).unwrap();
    reader.start(0, 0).unwrap();
    assert!(matches!(reader.next(), Err(DataError::Interrupted)));
    assert!(asked.load(Ordering::Relaxed) >= 3);
    let options = ReaderOptions {
        timeout: Duration::from_millis(200),
        ..resident()
    };
    let mut late = BatchReader::new(store(), manifest, order, 0, 1, options).unwrap();
    late.start(0, 0).unwrap();
    let error = late.next().unwrap_err();
    assert!(
        matches!(&error, DataError::Timeout { uri, .. } if uri.contains("part-0")),
        "{error}"
    );
    // Frees the threads, so that the readers can be dropped.
    let writer = std::fs::OpenOptions::new()
        .write(true)
        .open(&data.uris[0])
        .unwrap();
    drop(writer);
    drop((reader, late));
}

/// Of two threads the second one decodes what comes next while the caller waits for what the first one reads, and only then.
#[test]
fn a_spare_thread_decodes_while_the_caller_waits() {
    for (num_threads, decodes_more) in [(1, false), (2, true)] {
        let data = numbered(&[500, 500], 500);
        let order = data.order(OrderConfig {
            shuffle: false,
            ..order_config(1, 100)
        });
        // A pipe in the first shard's place: the first thread waits for it until somebody writes.
        std::fs::remove_file(&data.uris[0]).unwrap();
        let path = std::ffi::CString::new(data.uris[0].as_str()).unwrap();
        // SAFETY: the path is a C string.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        let begun = Instant::now();
        let options = ReaderOptions {
            num_threads,
            interrupt: Some(Arc::new(move || begun.elapsed() > Duration::from_secs(2))),
            ..resident()
        };
        let mut reader = data.reader(&order, 0, 1, options);
        reader.start(0, 0).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        // What is read from a file is counted on top of the rows' own memory.
        let rows = 1000 * data.manifest.bytes_per_row();
        assert!(reader.peak_memory() <= rows);
        assert!(matches!(reader.next(), Err(DataError::Interrupted)));
        assert_eq!(reader.peak_memory() > rows, decodes_more);
        // Frees the first thread, so that the reader can be dropped.
        let writer = std::fs::OpenOptions::new()
            .write(true)
            .open(&data.uris[0])
            .unwrap();
        drop((writer, reader));
    }
}

#[test]
fn readers_and_batches_go_to_other_threads() {
    fn is_send<T: Send>() {}
    is_send::<BatchReader>();
    is_send::<flambeau_data::Batch>();
    is_send::<DataError>();
}

#[test]
fn odd_ranks_are_refused() {
    let data = numbered(&[100], 100);
    let order = data.order(order_config(2, 5));
    for (rank, world) in [(0, 3), (2, 2), (0, 0)] {
        let reader = BatchReader::new(
            store(),
            data.manifest.clone(),
            order.clone(),
            rank,
            world,
            resident(),
        );
        assert!(matches!(reader, Err(DataError::InvalidOption { .. })));
    }
    let mut reader = data.reader(&order, 0, 1, resident());
    assert!(matches!(
        reader.start(0, 11),
        Err(DataError::InvalidOption { .. })
    ));
    reader.start(0, 10).unwrap();
    assert!(reader.next().unwrap().is_none());
}
