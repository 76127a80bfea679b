//! What the ranks recorded, as one trace in the Trace Event Format that Chrome (`chrome://tracing`) and Perfetto
//! (`ui.perfetto.dev`) read: a process for each rank, with one lane for its loop and one for its collectives.
//!
//! The ranks' clocks are compared by meetings (barriers) that each rank notes its way into and out of. Nobody leaves a meeting
//! before everybody has come, so a rank whose clock is ahead of rank 0's by `d` has, of each meeting,
//! `entered - left0 <= d <= left - entered0`: all meetings together give an interval, whose middle is taken.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The lanes of a rank.
const LOOP: u32 = 0;
const COLLECTIVES: u32 = 1;

/// What a rank recorded, in nanoseconds since its own beginning.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RankRecord {
    pub(crate) host: String,
    /// The ranks that it is connected to, by transport, each as `ranges` tells them.
    pub(crate) peers: BTreeMap<String, String>,
    /// That beginning by the rank's clock, in seconds since 1970.
    pub(crate) began: f64,
    /// When it entered and left each meeting.
    pub(crate) meetings: Vec<(i64, i64)>,
    pub(crate) phases: Vec<Timed<String>>,
    pub(crate) steps: Vec<Timed<u64>>,
    pub(crate) calls: Vec<Timed<Call>>,
    /// Calls beyond the most that are recorded.
    pub(crate) num_dropped: u64,
    /// Phases beyond the most that are recorded.
    pub(crate) num_phases_dropped: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Timed<T> {
    pub(crate) of: T,
    pub(crate) began: i64,
    pub(crate) ended: i64,
}

/// A collective.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) sequence: u64,
    pub(crate) operation: String,
    /// Whether it ends nowhere before it has begun everywhere.
    pub(crate) is_of_all: bool,
    pub(crate) num_bytes: u64,
    pub(crate) label: Option<String>,
}

/// By how much a rank's times are ahead of rank 0's, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Offset {
    value: i64,
    /// It is not further off than this.
    exact_to: i64,
}

impl Offset {
    fn of(meetings: &[(i64, i64)], of_rank_0: &[(i64, i64)]) -> Offset {
        let pairs = || meetings.iter().zip(of_rank_0);
        let least = pairs()
            .map(|((entered, _), (_, left))| entered - left)
            .max();
        let most = pairs()
            .map(|((_, left), (entered, _))| left - entered)
            .min();
        let (least, most) = (least.unwrap_or(0), most.unwrap_or(0));
        Offset {
            value: least + (most - least) / 2,
            exact_to: (most - least + 1) / 2,
        }
    }
}

/// The trace of all ranks, in their order, as JSON. Times are in microseconds from the first event on.
pub(crate) fn merge(records: &[RankRecord]) -> Vec<u8> {
    // Event after event, since all of them as values would be many times as large.
    let mut trace = br#"{"displayTimeUnit":"ms","traceEvents":["#.to_vec();
    let Some(first) = records.first() else {
        trace.extend(b"]}");
        return trace;
    };
    let offsets: Vec<Offset> = records
        .iter()
        .enumerate()
        .map(|(rank, record)| match rank {
            0 => Offset {
                value: 0,
                exact_to: 0,
            },
            _ => Offset::of(&record.meetings, &first.meetings),
        })
        .collect();
    let arrivals = arrivals(records, &offsets);
    let begins = |(record, offset): (&RankRecord, &Offset)| {
        let phases = record.phases.iter().map(|phase| phase.began);
        let calls = record.calls.iter().map(|call| call.began);
        phases.chain(calls).min().map(|began| began - offset.value)
    };
    let zero = records.iter().zip(&offsets).filter_map(begins).min();
    for (rank, (record, offset)) in records.iter().zip(&offsets).enumerate() {
        let lanes = Lanes {
            rank,
            shift: -offset.value - zero.unwrap_or(0),
        };
        for name in lanes.names(&record.host) {
            append(&mut trace, &name);
        }
        for step in &record.steps {
            let name = format!("step {}", step.of);
            let args = json!({ "step": step.of });
            let event = lanes.event(LOOP, &name, "step", step.began, step.ended, args);
            append(&mut trace, &event);
        }
        for phase in &record.phases {
            let (began, ended) = (phase.began, phase.ended);
            let event = lanes.event(LOOP, &phase.of, "phase", began, ended, json!({}));
            append(&mut trace, &event);
        }
        for call in &record.calls {
            let arrival = arrivals.get(&call.of.sequence).map(|(at, last)| {
                let here = at + offset.value;
                (here.clamp(call.began, call.ended), *last)
            });
            for event in lanes.call(call, arrival) {
                append(&mut trace, &event);
            }
        }
    }
    let clocks: Vec<Value> = offsets
        .iter()
        .enumerate()
        .map(|(rank, offset)| json!({ "rank": rank, "exactToMicroseconds": micros(offset.exact_to) }))
        .collect();
    // Once for each rank: in each of its events they would be most of the file where there are many hosts.
    let peers: Vec<_> = records.iter().map(|record| &record.peers).collect();
    let num_dropped: u64 = records.iter().map(|record| record.num_dropped).sum();
    let num_phases_dropped: u64 = records.iter().map(|record| record.num_phases_dropped).sum();
    let others = json!({
        "secondsSince1970": first.began + zero.unwrap_or(0) as f64 / 1e9,
        "clocks": clocks,
        "peers": peers,
        "collectivesLeftOut": num_dropped,
        "phasesLeftOut": num_phases_dropped,
    });
    trace.extend(format!("],\"otherData\":{others}}}").into_bytes());
    trace
}

/// Appends an event to those of a trace.
fn append(trace: &mut Vec<u8>, event: &Value) {
    if trace.last() != Some(&b'[') {
        trace.push(b',');
    }
    serde_json::to_writer(trace, event).expect("an event is JSON");
}

/// When the last rank began each collective that ends nowhere before that, in rank 0's time, and which that was. What was not
/// recorded on all ranks is left out.
fn arrivals(records: &[RankRecord], offsets: &[Offset]) -> HashMap<u64, (i64, usize)> {
    let mut begun: HashMap<u64, (usize, i64, usize)> = HashMap::new();
    for (rank, (record, offset)) in records.iter().zip(offsets).enumerate() {
        for call in record.calls.iter().filter(|call| call.of.is_of_all) {
            let at = call.began - offset.value;
            let (count, latest, last) = begun.entry(call.of.sequence).or_insert((0, at, rank));
            *count += 1;
            if at > *latest {
                (*latest, *last) = (at, rank);
            }
        }
    }
    let of_all = |(count, at, last)| (count == records.len()).then_some((at, last));
    begun
        .into_iter()
        .filter_map(|(sequence, begun)| Some((sequence, of_all(begun)?)))
        .collect()
}

/// The events of a rank.
struct Lanes {
    rank: usize,
    /// What makes a time of the rank's one of the trace.
    shift: i64,
}

impl Lanes {
    fn names(&self, host: &str) -> [Value; 4] {
        let name = |kind: &str, tid: u32, args: Value| json!({"name": kind, "ph": "M", "pid": self.rank, "tid": tid, "args": args});
        [
            name(
                "process_name",
                LOOP,
                json!({"name": format!("rank {} on {host}", self.rank)}),
            ),
            name("process_sort_index", LOOP, json!({"sort_index": self.rank})),
            name("thread_name", LOOP, json!({"name": "training loop"})),
            name("thread_name", COLLECTIVES, json!({"name": "collectives"})),
        ]
    }

    fn event(
        &self,
        tid: u32,
        name: &str,
        category: &str,
        began: i64,
        ended: i64,
        args: Value,
    ) -> Value {
        json!({
            "name": name,
            "cat": category,
            "ph": "X",
            "ts": micros(began + self.shift),
            "dur": micros(ended - began),
            "pid": self.rank,
            "tid": tid,
            "args": args,
        })
    }

    /// A collective, with its wait for the last rank and what followed where all ranks' beginnings are known.
    fn call(&self, call: &Timed<Call>, arrival: Option<(i64, usize)>) -> Vec<Value> {
        let (began, ended, of) = (call.began, call.ended, &call.of);
        let name = match &of.label {
            Some(label) => format!("{} of {label}", of.operation),
            None => of.operation.clone(),
        };
        let mut args = json!({
            "operation": of.operation,
            "sequence": of.sequence,
            "bytes": of.num_bytes,
        });
        let mut parts = vec![];
        if let Some((arrived, last)) = arrival {
            args["waitMicroseconds"] = micros(arrived - began);
            args["lastRank"] = last.into();
            let of_part = || json!({ "sequence": of.sequence });
            parts.push(self.event(COLLECTIVES, "wait", "wait", began, arrived, of_part()));
            parts.push(self.event(
                COLLECTIVES,
                "transfer",
                "transfer",
                arrived,
                ended,
                of_part(),
            ));
        }
        let whole = self.event(COLLECTIVES, &name, "collective", began, ended, args);
        parts.insert(0, whole);
        parts
    }
}

/// Ascending ranks, those that follow one another by the first and the last of them: `0-2, 5`.
pub(crate) fn ranges(ranks: &[usize]) -> String {
    let runs = ranks.chunk_by(|rank, next| rank + 1 == *next);
    let told = runs.map(|run| match run {
        [rank] => rank.to_string(),
        _ => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    told.collect::<Vec<_>>().join(", ")
}

/// Nanoseconds in microseconds.
fn micros(nanos: i64) -> Value {
    json!(nanos as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(ahead: i64, meetings: &[(i64, i64)], began: i64, ended: i64) -> RankRecord {
        let call = Call {
            sequence: 9,
            operation: "all_reduce".into(),
            is_of_all: true,
            num_bytes: 40,
            label: Some("bucket 1".into()),
        };
        RankRecord {
            host: "here".into(),
            peers: BTreeMap::from([("sharedMemory".into(), ranges(&[0, 1, 2, 5, 7, 8]))]),
            began: 100.0,
            meetings: meetings
                .iter()
                .map(|(entered, left)| (entered + ahead, left + ahead))
                .collect(),
            phases: vec![],
            steps: vec![],
            calls: vec![Timed {
                of: call,
                began: began + ahead,
                ended: ended + ahead,
            }],
            num_dropped: 0,
            num_phases_dropped: 0,
        }
    }

    #[test]
    fn clocks_are_set_right_and_waits_end_with_the_last_rank() {
        // True times: rank 1's clock is ahead by five seconds, and it comes last to the collective.
        let ahead = 5_000_000_000;
        let of_0 = record(0, &[(0, 3_000), (10_000, 11_000)], 20_000, 60_000);
        let of_1 = record(ahead, &[(2_000, 2_500), (10_200, 10_800)], 50_000, 61_000);
        let offset = Offset::of(&of_1.meetings, &of_0.meetings);
        assert!(
            (offset.value - ahead).abs() <= offset.exact_to,
            "{offset:?}"
        );
        assert!(offset.exact_to <= 800, "{offset:?}");
        let trace: Value = serde_json::from_slice(&merge(&[of_0, of_1])).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let find = |name: &str, pid: u64| {
            let found = events
                .iter()
                .find(|event| event["name"] == name && event["pid"] == pid);
            let event = found.unwrap();
            (
                event["ts"].as_f64().unwrap(),
                event["dur"].as_f64().unwrap(),
            )
        };
        let near = |value: f64, expected: f64| assert!((value - expected).abs() <= 0.8, "{value}");
        let ((ts, wait), (from, transfer)) = (find("wait", 0), find("transfer", 0));
        assert_eq!(ts, 0.0);
        near(wait, 30.0);
        near(from, 30.0);
        near(transfer, 10.0);
        let (ts, wait) = find("wait", 1);
        near(ts, 30.0);
        near(wait, 0.0);
        let whole = &events[4];
        assert_eq!(whole["name"], "all_reduce of bucket 1");
        assert_eq!(whole["args"]["lastRank"], 1);
        assert_eq!(whole["args"]["bytes"], 40);
        assert_eq!(
            trace["otherData"]["peers"][1],
            json!({"sharedMemory": "0-2, 5, 7-8"})
        );
    }
}
