//! The order of samples, against counting.

use std::collections::HashSet;

use flambeau_data::{OrderConfig, SampleOrder};
use proptest::prelude::*;

fn order(groups: &[u64], config: OrderConfig) -> SampleOrder {
    SampleOrder::over_row_groups(groups.iter().copied(), config).unwrap()
}

fn epoch_ids(order: &SampleOrder, epoch: u64, lane: usize) -> Vec<u64> {
    (0..order.batches_per_epoch())
        .flat_map(|batch| order.row_ids(epoch, lane, batch))
        .collect()
}

fn ids_of(order: &SampleOrder, lane: usize) -> Vec<u64> {
    let chunks = order.lane_chunks(lane).iter();
    chunks.flat_map(|chunk| chunk.rows()).collect()
}

/// A lane's rows by the definition. Where no more than `dealt_rows`, one of every `num_lanes` rows, which one by a hash of the round; of more,
/// lane by lane there and back, each two parts another lane first, a piece of one of `parts` of the lane's rows at a time.
fn dealt(num_rows: u64, config: &OrderConfig, parts: u64, wanted: usize) -> Vec<u64> {
    let lanes = config.num_lanes as u64;
    if config.shuffle && num_rows <= config.dealt_rows {
        let place = |round: u64| {
            let mut z = (round + 1).wrapping_mul(0x9e3779b97f4a7c15);
            z = (z ^ z >> 30).wrapping_mul(0xbf58476d1ce4e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d049bb133111eb);
            z ^= z >> 31;
            (wanted as u64 + (((z >> 32) * lanes) >> 32)) % lanes
        };
        let row = |round| round * lanes + place(round);
        return (0..=num_rows / lanes)
            .map(row)
            .filter(|&row| row < num_rows)
            .collect();
    }
    let parts = if config.shuffle { parts } else { 1 };
    let edge = |length: u64, index: u64, count: u64| length * index / count;
    let mut next = 0;
    let mut rows = vec![];
    for part in 0..parts {
        let mut turn: Vec<u64> = (0..lanes).collect();
        if part % 2 == 1 {
            turn.reverse();
        }
        for lane in turn {
            let lane = (lane + part / 2) % lanes;
            let of_lane = edge(num_rows, lane + 1, lanes) - edge(num_rows, lane, lanes);
            for _ in edge(of_lane, part, parts)..edge(of_lane, part + 1, parts) {
                if lane == wanted as u64 {
                    rows.push(next);
                }
                next += 1;
            }
        }
    }
    rows
}

prop_compose! {
    fn cases()(
        groups in prop::collection::vec(0u64..200, 1..12),
        num_lanes in 1usize..6,
        rows_per_lane in 1usize..40,
        seed in any::<u64>(),
        shuffle in any::<bool>(),
        drop_last in any::<bool>(),
        window_rows in prop_oneof![1usize..150, Just(3000)],
        dealt_rows in prop_oneof![Just(0), Just(u64::MAX)],
    ) -> (Vec<u64>, OrderConfig) {
        (groups, OrderConfig { num_lanes, rows_per_lane, seed, shuffle, drop_last, window_rows, dealt_rows })
    }
}

proptest! {
    #[test]
    fn every_epoch_sees_every_row_once((groups, config) in cases(), epoch in 0u64..5) {
        let order = order(&groups, OrderConfig { drop_last: false, ..config.clone() });
        let num_rows: u64 = groups.iter().sum();
        let mut seen: Vec<u64> = (0..config.num_lanes).flat_map(|lane| epoch_ids(&order, epoch, lane)).collect();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..num_rows).collect::<Vec<_>>());
    }

    #[test]
    fn lanes_are_nearly_equal((groups, config) in cases()) {
        let order = order(&groups, config.clone());
        let lengths = || (0..config.num_lanes).map(|lane| order.lane_num_rows(lane));
        prop_assert_eq!(lengths().sum::<u64>(), groups.iter().sum::<u64>());
        prop_assert!(lengths().max().unwrap() - lengths().min().unwrap() <= 1);
    }

    /// Rows that are sorted by their number give each lane the same numbers, but for a piece of a sixteenth of them, if not as many.
    #[test]
    fn lanes_of_sorted_rows_look_alike(
        groups in prop::collection::vec(4000u64..9000, 2..12),
        num_lanes in 2usize..20,
        dealt_rows in prop_oneof![Just(0), Just(u64::MAX)],
    ) {
        let order = order(&groups, OrderConfig { num_lanes, dealt_rows, ..config() });
        let num_rows = groups.iter().sum::<u64>();
        for lane in 0..num_lanes {
            let mut rows = ids_of(&order, lane);
            let mean = rows.iter().sum::<u64>() as f64 / rows.len() as f64;
            prop_assert!((mean / num_rows as f64 - 0.5).abs() < 0.01, "lane {lane}: {mean} of {num_rows}");
            rows.sort_unstable();
            let length = rows.len() as f64;
            for (place, row) in rows.into_iter().enumerate() {
                let apart = row as f64 / num_rows as f64 - place as f64 / length;
                prop_assert!(apart.abs() < 1.02 / 16.0, "lane {lane}: {apart}");
            }
        }
    }

    #[test]
    fn batches_have_the_rows_that_were_announced((groups, config) in cases()) {
        let order = order(&groups, config.clone());
        let lane_lengths: Vec<usize> = (0..config.num_lanes).map(|lane| order.lane_num_rows(lane) as usize).collect();
        for batch in 0..order.batches_per_epoch() + 2 {
            let mut global = 0;
            for (lane, length) in lane_lengths.iter().enumerate() {
                let rows = order.row_ids(3, lane, batch).len();
                prop_assert_eq!(rows, order.lane_rows(lane, batch));
                let left = length.saturating_sub(batch as usize * config.rows_per_lane);
                let expected = if batch < order.batches_per_epoch() { left.min(config.rows_per_lane) } else { 0 };
                prop_assert_eq!(rows, expected);
                global += rows;
            }
            prop_assert_eq!(order.global_rows(batch), global);
            if config.drop_last && batch < order.batches_per_epoch() {
                prop_assert_eq!(global, config.rows_per_lane * config.num_lanes, "no short batch");
            }
        }
    }

    #[test]
    fn rows_stay_in_their_lane_and_windows_in_their_bounds((groups, config) in cases(), epoch in 0u64..4) {
        let order = order(&groups, config.clone());
        for lane in 0..config.num_lanes {
            let rows: HashSet<u64> = dealt(groups.iter().sum(), &config, 16, lane).into_iter().collect();
            let lane_order = order.lane_order(epoch, lane);
            prop_assert!(epoch_ids(&order, epoch, lane).iter().all(|id| rows.contains(id)));
            let windows = lane_order.windows();
            for (index, window) in windows.iter().enumerate() {
                let rows = window.num_rows as usize;
                prop_assert!(rows < 2 * config.window_rows && window.num_rows <= order.max_window_rows(lane));
                prop_assert!(rows >= config.window_rows || index + 1 == windows.len());
            }
        }
    }

    #[test]
    fn without_shuffling_rows_come_in_order((groups, config) in cases()) {
        let order = order(&groups, OrderConfig { shuffle: false, drop_last: false, ..config.clone() });
        let ids: Vec<u64> = (0..config.num_lanes).flat_map(|lane| epoch_ids(&order, 2, lane)).collect();
        prop_assert_eq!(ids, (0..groups.iter().sum()).collect::<Vec<u64>>());
    }
}

fn config() -> OrderConfig {
    OrderConfig {
        num_lanes: 2,
        rows_per_lane: 10,
        seed: 1,
        shuffle: true,
        drop_last: false,
        window_rows: 1000,
        dealt_rows: 0,
    }
}

/// Two sorted pieces, as Spark's `randomSplit` leaves them, of a log-logistic distribution, whose tail is heavy, within the lanes'
/// windows: what batch normalization takes of them, the mean and the variance, is each lane's as it is all rows'.
#[test]
fn a_heavy_tail_of_sorted_rows_is_shared_by_all_lanes() {
    let piece = 150_000;
    let value = |row: u64| {
        let quantile = ((row % piece) as f64 + 0.5) / piece as f64;
        (quantile / (1.0 - quantile)).powf(0.25)
    };
    let moments = |rows: &mut dyn Iterator<Item = u64>| {
        let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
        for value in rows.map(value) {
            (count, sum, squares) = (count + 1.0, sum + value, squares + value * value);
        }
        let mean: f64 = sum / count;
        (mean, squares / count - mean * mean)
    };
    let (mean, variance) = moments(&mut (0..2 * piece));
    for num_lanes in [2, 3, 8] {
        let window_rows = 1 << 20;
        let order = order(
            &[piece, piece],
            OrderConfig {
                num_lanes,
                window_rows,
                dealt_rows: u64::MAX,
                ..config()
            },
        );
        for lane in 0..num_lanes {
            let found = moments(&mut ids_of(&order, lane).into_iter());
            let off = (
                (found.0 - mean).abs() / variance.sqrt(),
                (found.1 / variance - 1.0).abs(),
            );
            assert!(
                off.0 < 0.005 && off.1 < 0.03,
                "lane {lane} of {num_lanes}: {found:?} of {:?}",
                (mean, variance)
            );
        }
    }
}

#[test]
fn seeds_epochs_and_lanes_differ() {
    let first = order(&[1000, 1000], config());
    let other = OrderConfig {
        seed: 2,
        ..config()
    };
    // As places among the lane's rows, of which all lanes have as many.
    let places = |order: &SampleOrder, epoch, lane: usize| -> Vec<usize> {
        let rows = ids_of(order, lane);
        let place = |id: &u64| rows.binary_search(id).unwrap();
        epoch_ids(order, epoch, lane).iter().map(place).collect()
    };
    assert_ne!(places(&first, 0, 0), places(&first, 1, 0));
    assert_ne!(places(&first, 0, 0), places(&first, 0, 1));
    assert_ne!(
        places(&first, 0, 0),
        places(&order(&[1000, 1000], other), 0, 0)
    );
    assert_eq!(
        places(&first, 1, 1),
        places(&order(&[1000, 1000], config()), 1, 1)
    );
}

/// Each row stands at each place about equally often: chi-squared over 2,000 epochs of 8 rows.
#[test]
fn the_shuffle_is_fair() {
    let order = order(
        &[8],
        OrderConfig {
            num_lanes: 1,
            rows_per_lane: 8,
            ..config()
        },
    );
    let epochs = 2000;
    let mut counts = [[0f64; 8]; 8];
    for epoch in 0..epochs {
        for (place, id) in order.row_ids(epoch, 0, 0).into_iter().enumerate() {
            counts[place][id as usize] += 1.0;
        }
    }
    let expected = epochs as f64 / 8.0;
    let chi: f64 = counts
        .iter()
        .flatten()
        .map(|count| (count - expected).powi(2) / expected)
        .sum();
    // 49 degrees of freedom: 99.9 % of fair shuffles lie below 85.4.
    assert!(chi < 85.4, "chi-squared {chi}");
}

/// Resuming a job needs the order that it began with: a change here needs a new format of checkpoints.
#[test]
fn the_order_is_the_one_it_always_was() {
    let order = order(
        &[5, 7],
        OrderConfig {
            rows_per_lane: 12,
            window_rows: 4,
            num_lanes: 1,
            ..config()
        },
    );
    assert_eq!(order.row_ids(0, 0, 0), GOLDEN[0]);
    assert_eq!(order.row_ids(1, 0, 0), GOLDEN[1]);
    for (dealt_rows, golden) in [(u64::MAX, DEALT), (0, IN_PARTS)] {
        let order = self::order(
            &[5, 0, 40, 7],
            OrderConfig {
                num_lanes: 3,
                rows_per_lane: 20,
                window_rows: 20,
                dealt_rows,
                ..config()
            },
        );
        for (lane, rows) in golden.into_iter().enumerate() {
            assert_eq!(order.row_ids(2, lane, 0), rows, "lane {lane}");
        }
    }
}

/// More parts where there are row groups for them, empty ones not counted: here 400 for 8 lanes.
#[test]
fn lanes_of_many_row_groups_have_a_piece_of_more_parts() {
    let groups: Vec<u64> = (0..25_600).map(|group| group % 2 * 3).collect();
    let config = OrderConfig {
        num_lanes: 8,
        ..config()
    };
    let order = order(&groups, config.clone());
    for lane in 0..8 {
        let mut rows = ids_of(&order, lane);
        rows.sort_unstable();
        assert_eq!(rows, dealt(38_400, &config, 400, lane));
    }
}

/// A window's chunks are of many places, so that of sorted rows the lanes' windows look alike too.
#[test]
fn windows_of_dealt_sorted_rows_look_alike() {
    let order = order(
        &[200_000; 20],
        OrderConfig {
            window_rows: 500_000,
            dealt_rows: u64::MAX,
            ..config()
        },
    );
    for lane in 0..2 {
        let lane_order = order.lane_order(0, lane);
        for window in 0..lane_order.windows().len() {
            let rows = lane_order.window_row_ids(window);
            let mean = rows.iter().sum::<u64>() as f64 / rows.len() as f64;
            assert!((mean / 4e6 - 0.5).abs() < 0.2, "lane {lane}: {mean}");
        }
    }
}

/// Computed by another program, written in Python from the definitions of ChaCha, Fisher-Yates and `SplitMix64`.
const GOLDEN: [[u64; 12]; 2] = [
    [5, 10, 8, 6, 11, 7, 9, 1, 4, 0, 3, 2],
    [10, 9, 5, 8, 11, 6, 7, 4, 3, 1, 2, 0],
];
const DEALT: [&[u64]; 3] = [
    &[
        44, 37, 11, 49, 18, 29, 15, 6, 46, 12, 40, 2, 31, 4, 24, 35, 23,
    ],
    &[
        19, 38, 47, 16, 50, 7, 13, 9, 33, 42, 32, 21, 27, 25, 0, 5, 41, 51,
    ],
    &[
        20, 43, 17, 3, 8, 34, 26, 1, 14, 30, 39, 22, 36, 48, 10, 28, 45,
    ],
];
const IN_PARTS: [&[u64]; 3] = [
    &[
        47, 28, 32, 45, 16, 8, 5, 37, 24, 35, 46, 18, 9, 0, 42, 27, 13,
    ],
    &[
        33, 50, 25, 11, 6, 19, 30, 4, 14, 38, 15, 51, 23, 1, 43, 34, 41,
    ],
    &[
        22, 12, 26, 36, 31, 17, 44, 21, 39, 7, 49, 20, 10, 29, 3, 48, 40, 2,
    ],
];

#[test]
fn odd_settings_are_refused_by_name() {
    for (name, bad) in [
        (
            "num_lanes",
            OrderConfig {
                num_lanes: 0,
                ..config()
            },
        ),
        (
            "rows_per_lane",
            OrderConfig {
                rows_per_lane: 0,
                ..config()
            },
        ),
        (
            "window_rows",
            OrderConfig {
                window_rows: 0,
                ..config()
            },
        ),
        (
            "window_rows",
            OrderConfig {
                window_rows: (1 << 30) + 1,
                ..config()
            },
        ),
    ] {
        let error = SampleOrder::over_row_groups([10], bad)
            .unwrap_err()
            .to_string();
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn fewer_rows_than_lanes_leave_lanes_empty() {
    let order = order(
        &[2],
        OrderConfig {
            num_lanes: 5,
            ..config()
        },
    );
    assert_eq!(order.batches_per_epoch(), 1);
    assert_eq!(
        (0..5).map(|lane| order.lane_rows(lane, 0)).sum::<usize>(),
        2
    );
    let dropped = SampleOrder::over_row_groups(
        [2],
        OrderConfig {
            num_lanes: 5,
            drop_last: true,
            ..config()
        },
    )
    .unwrap();
    assert_eq!(dropped.batches_per_epoch(), 0);
}
