//! The timeline of some steps, against the rules of the Trace Event Format and the times of the history.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use flambeau_collective::TransportChoice;
use flambeau_train::{Hooks, StepTimes, TrainingJob, TrainingResult, Worker};
use serde_json::{Value, json};

use crate::model::{Config, Net, Optimizer, TestModel};
use crate::support::{Bench, Outcome, ranks_over, store, train};

/// A microsecond's rounding, of as many additions as there are events.
const ROUNDING: f64 = 1e-6;
/// Less than what two times differ by that are not one.
const TICK: f64 = 1e-10;

/// Nine steps an epoch on two ranks, each in three micro-batches, with an evaluation and a checkpoint after it.
fn job(bench: &Bench, attempt: &str, profile: Option<&str>) -> TrainingJob {
    let params = json!({
        "numWorkers": 2, "batchSize": 2, "gradientAccumulationSteps": 3, "epochs": 2, "checkpointInterval": 1,
        "profile": profile,
    });
    bench.job(attempt, params, false)
}

fn config() -> Config {
    Config::new(Net::Mlp { hidden: 5 }, Optimizer::Adam { rate: 0.01 })
}

/// A complete event.
#[derive(Clone, Debug)]
struct Span {
    name: String,
    rank: u64,
    lane: u64,
    began: f64,
    ended: f64,
    args: Value,
}

/// The complete events of a trace, once all events keep the format's rules.
fn spans(trace: &Value) -> Vec<Span> {
    let mut named = BTreeSet::new();
    let mut spans = vec![];
    for event in trace["traceEvents"].as_array().unwrap() {
        let number = |key: &str| event[key].as_u64().unwrap();
        let name = event["name"].as_str().unwrap().to_string();
        match event["ph"].as_str().unwrap() {
            "M" => {
                if name != "process_sort_index" {
                    assert!(event["args"]["name"].is_string(), "{event}");
                }
                named.insert((number("pid"), number("tid"), name));
            }
            "X" => {
                let (ts, dur) = (
                    event["ts"].as_f64().unwrap(),
                    event["dur"].as_f64().unwrap(),
                );
                assert!(
                    ts >= 0.0 && dur >= 0.0 && event["cat"].is_string(),
                    "{event}"
                );
                spans.push(Span {
                    name,
                    rank: number("pid"),
                    lane: number("tid"),
                    began: ts / 1e6,
                    ended: (ts + dur) / 1e6,
                    args: event["args"].clone(),
                });
            }
            other => panic!("a phase {other:?}"),
        }
    }
    for span in &spans {
        let lane = (span.rank, span.lane, "thread_name".to_string());
        assert!(named.contains(&lane), "{span:?}");
        assert!(named.contains(&(span.rank, 0, "process_name".into())));
    }
    spans
}

/// Two events of a lane either do not overlap, or one holds the other.
fn check_nesting(spans: &[Span]) {
    let mut lanes: BTreeMap<_, Vec<&Span>> = BTreeMap::new();
    for span in spans {
        lanes.entry((span.rank, span.lane)).or_default().push(span);
    }
    for mut lane in lanes.into_values() {
        lane.sort_by(|a, b| (a.began, b.ended).partial_cmp(&(b.began, a.ended)).unwrap());
        let mut open: Vec<&Span> = vec![];
        for span in lane {
            while open
                .last()
                .is_some_and(|outer| outer.ended <= span.began + ROUNDING)
            {
                open.pop();
            }
            if let Some(outer) = open.last() {
                assert!(
                    span.ended <= outer.ended + ROUNDING,
                    "{span:?} in {outer:?}"
                );
            }
            open.push(span);
        }
    }
}

/// A rank's events of that name.
fn of(spans: &[Span], rank: u64, name: &str) -> Vec<Span> {
    let of = spans.iter().filter(move |span| span.rank == rank);
    of.filter(|span| span.name == name).cloned().collect()
}

/// A collective of all ranks, which its wait and its transfer make up.
fn check_parts(spans: &[Span], call: &Span) {
    let part = |name: &str| {
        let mut parts = of(spans, call.rank, name);
        parts.retain(|part| part.args["sequence"] == call.args["sequence"]);
        assert_eq!(parts.len(), 1, "{call:?}");
        parts.remove(0)
    };
    let (wait, transfer) = (part("wait"), part("transfer"));
    assert!((wait.began - call.began).abs() < ROUNDING);
    assert!((wait.ended - transfer.began).abs() < ROUNDING);
    assert!((transfer.ended - call.ended).abs() < ROUNDING);
    assert!(call.args["lastRank"].as_u64().unwrap() < 2);
}

fn trace_of(results: [&TrainingResult; 2]) -> Value {
    assert_eq!(results[1].timeline, None);
    let uri = results[0].timeline.as_ref().unwrap();
    serde_json::from_slice(&fs::read(uri).unwrap()).unwrap()
}

fn traced(outcomes: &[Outcome]) -> Value {
    trace_of([0, 1].map(|rank| outcomes[rank].result.as_ref().unwrap()))
}

#[test]
fn a_timeline_has_all_ranks_steps_and_lanes_and_adds_up_to_the_history() {
    let bench = Bench::new(97, 31);
    let mut job = job(&bench, "traced", Some("steps 0-8"));
    job.params.tensor_board_dir = Some(bench.path("board").to_str().unwrap().into());
    job.params.log_every_n_steps = 2;
    let outcomes = train(&job, 2, &config());
    let trace = traced(&outcomes);
    let spans = spans(&trace);
    check_nesting(&spans);
    let of = |rank: u64, name: &str| of(&spans, rank, name);
    let total = |rank: u64, name: &str| {
        let lengths = of(rank, name)
            .into_iter()
            .map(|span| span.ended - span.began);
        lengths.sum::<f64>()
    };
    for (rank, outcome) in outcomes.iter().enumerate() {
        let rank = rank as u64;
        // The times of a rank's result are its own.
        let StepTimes {
            data_seconds,
            model_seconds,
            reduce_seconds,
            optimizer_seconds,
        } = outcome.result.as_ref().unwrap().history.epochs[0].times;
        for (sum, expected) in [
            (total(rank, "data"), data_seconds),
            (
                total(rank, "forward and backward") + total(rank, "gradient reduction"),
                model_seconds + reduce_seconds,
            ),
            (total(rank, "optimizer"), optimizer_seconds),
        ] {
            assert!(
                (sum - expected).abs() <= 100.0 * ROUNDING,
                "{sum} {expected}"
            );
        }
        let steps: Vec<_> = (0..9)
            .map(|step| of(rank, &format!("step {step}")))
            .collect();
        for (number, step) in steps.iter().enumerate() {
            let [step] = &step[..] else {
                panic!("step {number} of rank {rank}: {step:?}");
            };
            assert_eq!(step.args["step"], number);
            let inside = |name: &str| {
                // A step that follows at once may have its first data within less than a rounding.
                let inside = (step.began - TICK)..(step.ended - TICK);
                let spans = of(rank, name).into_iter();
                spans.filter(|span| inside.contains(&span.began)).count()
            };
            // The last step has fewer micro-batches.
            let num_micro = if number == 8 { 1 } else { 3 };
            assert_eq!(inside("data"), num_micro, "{number}");
            assert_eq!(inside("forward and backward"), num_micro, "{number}");
            assert_eq!((inside("gradient reduction"), inside("optimizer")), (1, 1));
        }
        assert_eq!(of(rank, "evaluation").len(), 1);
        assert_eq!(of(rank, "checkpoint").len(), 1);
        // Rank 0 tells TensorBoard of every other step.
        assert_eq!(of(rank, "logging").len(), if rank == 0 { 4 } else { 0 });
        // An all-reduce of each step, with its wait and its transfer, which make it up.
        let reduced = of(rank, "all_reduce of bucket 0 and the sums");
        assert_eq!(reduced.len(), 9);
        assert_eq!(
            trace["otherData"]["peers"][rank as usize],
            json!({ "sharedMemory": (1 - rank).to_string() })
        );
        for call in reduced {
            check_parts(&spans, &call);
            // The module's 31 float64 and the sums.
            assert!(call.args["bytes"].as_u64().unwrap() > 31 * 8, "{call:?}");
        }
    }
    // All ranks run on one clock here, and that is what the trace shows: a collective ends on no rank before it has begun on all.
    let clocks = trace["otherData"]["clocks"].as_array().unwrap();
    let exact = clocks[1]["exactToMicroseconds"].as_f64().unwrap() / 1e6;
    assert!(clocks[0]["exactToMicroseconds"] == 0.0 && exact >= 0.0);
    let mut calls: BTreeMap<u64, Vec<&Span>> = BTreeMap::new();
    for span in spans.iter().filter(|span| span.args["lastRank"].is_u64()) {
        let sequence = span.args["sequence"].as_u64().unwrap();
        calls.entry(sequence).or_default().push(span);
    }
    for calls in calls.values() {
        let began = calls.iter().map(|call| call.began).fold(0.0, f64::max);
        let ended = calls.iter().map(|call| call.ended).fold(f64::MAX, f64::min);
        assert_eq!(calls.len(), 2);
        assert!(ended >= began - 2.0 * exact - ROUNDING, "{calls:?}");
    }
}

#[test]
fn buckets_that_are_reduced_while_backward_goes_on_are_shown_beside_it() {
    let bench = Bench::new(97, 0);
    let hidden = 140_000;
    // Between hosts, as ranks without shared memory count, a thread reduces them.
    let results = ranks_over(TransportChoice::Tcp, 2, |group| {
        let config = Config::new(Net::Mlp { hidden }, Optimizer::Adam { rate: 0.01 });
        let mut model = TestModel::new(config, group.rank());
        let job = job(&bench, "overlapping", Some("steps 0-8"));
        Worker::new(job, group, &mut model, store(), Hooks::default())
            .run()
            .unwrap()
    });
    let trace = trace_of([&results[0], &results[1]]);
    let spans = spans(&trace);
    check_nesting(&spans);
    let bytes = |call: &Span| call.args["bytes"].as_u64().unwrap();
    let mut num_overlapping = 0;
    for rank in 0..2 {
        let first = of(&spans, rank, "all_reduce of bucket 0");
        let second = of(&spans, rank, "all_reduce of bucket 1 and the sums");
        assert_eq!((first.len(), second.len()), (9, 9));
        assert_eq!(
            trace["otherData"]["peers"][rank as usize],
            json!({ "tcp": (1 - rank).to_string() })
        );
        let backward = of(&spans, rank, "forward and backward");
        for (first, second) in first.iter().zip(&second) {
            check_parts(&spans, first);
            check_parts(&spans, second);
            assert!(first.ended <= second.began + ROUNDING);
            // `w2` fills the first, `w1` and `b1` are in the second.
            assert!(bytes(first) >= 8 * hidden as u64);
            assert!(bytes(second) >= 8 * 5 * hidden as u64);
            let is_beside = |phase: &&Span| first.began < phase.ended && phase.began < first.ended;
            num_overlapping += backward.iter().filter(is_beside).count();
        }
    }
    assert!(num_overlapping > 0);
}

/// Of four parameters, which a small bucketSize reduces one by one, three are one transfer.
#[test]
fn a_group_of_gradients_is_one_transfer() {
    let bench = Bench::new(97, 0);
    let mut job = job(&bench, "grouped", Some("steps 1-8"));
    job.params.bucket_size = 1;
    job.params.gradient_groups = Some(vec![["w1", "b2", "b1"].map(String::from).into()]);
    let spans = spans(&traced(&train(&job, 2, &config())));
    let of_buckets = spans
        .iter()
        .filter(|span| span.name.starts_with("all_reduce of bucket "));
    let told: Vec<_> = of_buckets
        .map(|span| (&*span.name, span.args["bytes"].as_u64().unwrap()))
        .collect();
    let (alone, group): (Vec<_>, Vec<_>) = told
        .into_iter()
        .partition(|(name, _)| *name == "all_reduce of bucket 0");
    // On two ranks, of float64: `w2`, and the others with the sums, as the last of them is the last of all.
    assert_eq!((alone.len(), group.len()), (16, 16));
    assert!(alone.iter().all(|(_, bytes)| *bytes == 5 * 8));
    for (name, bytes) in group {
        assert_eq!(name, "all_reduce of bucket 1 and the sums");
        assert!(bytes > (25 + 5 + 1) * 8, "{bytes}");
    }
}

#[test]
fn a_timeline_ends_with_the_training_and_does_not_change_it() {
    let bench = Bench::new(97, 31);
    let plain = train(&job(&bench, "plain", None), 2, &config());
    let traced_to_the_end = train(&job(&bench, "late", Some("steps 16-400")), 2, &config());
    let spans = spans(&traced(&traced_to_the_end));
    let steps: BTreeSet<_> = spans
        .iter()
        .filter_map(|span| span.args["step"].as_u64())
        .collect();
    assert_eq!(steps, BTreeSet::from([16, 17]));
    assert!(plain[0].result.as_ref().unwrap().timeline.is_none());
    assert!(!bench.path("timelines/plain.json").exists());
    let hash = |outcomes: &[Outcome]| {
        let weights = outcomes[0].result.as_ref().unwrap().weights.clone();
        weights.unwrap().sha256
    };
    assert_eq!(hash(&plain), hash(&traced_to_the_end));

    let missed = train(&job(&bench, "missed", Some("steps 18-20")), 2, &config());
    let result = missed[0].result.as_ref().unwrap();
    assert_eq!(result.timeline, None);
    assert_eq!(
        result.warnings,
        ["there is no timeline: none of the steps 18-20 was taken"]
    );
}
