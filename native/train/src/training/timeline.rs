//! A timeline of some steps on all ranks: recorded by each, gathered, and written by rank 0 as one trace.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use flambeau_collective::{CallRecord, Connections, ProcessGroup};
use flambeau_data::Store;

use super::evaluation::gather;
use super::phases::{Phases, Span};
use super::trace::{self, Call, RankRecord, Timed};
use crate::error::{Cause, error_chain};
use crate::job::TrainingJob;
use crate::job::profile::Profile;

/// Meetings of all ranks that their clocks are compared by.
const NUM_MEETINGS: usize = 16;

/// The most collectives of a rank that are recorded, and of all ranks together, which rank 0 holds.
const MOST_CALLS: usize = 100_000;
const MOST_CALLS_OF_ALL: usize = 400_000;

/// The most phases of all ranks together.
const MOST_PHASES_OF_ALL: usize = 800_000;

/// Bytes of all ranks that are gathered at a time.
const PART: usize = 64 << 20;

/// The timeline of a job that asks for one.
pub(crate) struct Timeline {
    profile: Profile,
    group: ProcessGroup,
    store: Store,
    uri: String,
    recording: Option<Recording>,
    is_over: bool,
}

/// What is recorded since `base`.
struct Recording {
    base: Instant,
    /// Seconds since 1970.
    began: f64,
    meetings: Vec<(i64, i64)>,
}

impl Timeline {
    /// That of a job; none where it asks for none. Its `profile` was checked.
    pub(crate) fn of(job: &TrainingJob, group: &ProcessGroup, store: &Store) -> Option<Timeline> {
        let profile = Profile::parse(job.params.profile.as_deref()?).ok()?;
        Some(Timeline {
            profile,
            group: group.clone(),
            store: store.clone(),
            uri: job.attempt.timeline(),
            recording: None,
            is_over: false,
        })
    }

    /// Begins or ends the record where the step that is next asks for it. All ranks call this. Returns what
    /// [`end`](Self::end) does.
    pub(crate) fn before_step(
        &mut self,
        step: u64,
        phases: &mut Phases,
    ) -> Result<Option<Written>, Cause> {
        if self.recording.is_some() && !self.profile.contains(step) {
            return self.end(phases);
        }
        if self.recording.is_none() && !self.is_over && self.profile.contains(step) {
            self.begin(phases)?;
        }
        Ok(None)
    }

    fn begin(&mut self, phases: &mut Phases) -> Result<(), Cause> {
        let base = Instant::now();
        let mut meetings = Vec::with_capacity(NUM_MEETINGS);
        for _ in 0..NUM_MEETINGS {
            let entered = nanos(base, Instant::now());
            self.group.barrier()?;
            meetings.push((entered, nanos(base, Instant::now())));
        }
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        self.recording = Some(Recording {
            base,
            began: since_1970.map_or(0.0, |since| since.as_secs_f64())
                - base.elapsed().as_secs_f64(),
            meetings,
        });
        let world_size = self.group.world_size();
        self.group
            .start_call_log(MOST_CALLS.min(MOST_CALLS_OF_ALL / world_size));
        phases.record(MOST_PHASES_OF_ALL / world_size);
        Ok(())
    }

    /// Ends the record, where there is one, and writes it. All ranks call this.
    pub(crate) fn end(&mut self, phases: &mut Phases) -> Result<Option<Written>, Cause> {
        let Some(recording) = self.recording.take() else {
            return Ok(None);
        };
        self.is_over = true;
        let recorded = phases.take_record();
        let (calls, num_dropped) = self.group.take_call_log();
        let base = recording.base;
        let record = RankRecord {
            host: self.group.host_of(self.group.rank()).into(),
            peers: peers_of(self.group.connections()),
            began: recording.began,
            meetings: recording.meetings,
            phases: timed(base, &recorded.phases, |phase| phase.name().into()),
            steps: timed(base, &recorded.steps, |step| step),
            calls: calls.into_iter().map(|call| call_of(base, call)).collect(),
            num_dropped,
            num_phases_dropped: recorded.num_dropped,
        };
        let bytes = serde_json::to_vec(&record).expect("a record has string keys");
        let part = PART / self.group.world_size();
        let is_written = self.group.rank() == 0;
        let gathered = gather(&self.group, &bytes, part, is_written)?;
        if !is_written {
            return Ok(None);
        }
        let read = |bytes: &Vec<u8>| serde_json::from_slice(bytes);
        let records: Result<Vec<RankRecord>, _> = gathered.iter().map(read).collect();
        let written = records
            .map_err(|error| error.to_string())
            .and_then(|records| {
                let put = self.store.put(&self.uri, trace::merge(&records).into());
                put.map_err(|error| error_chain(&error))
            });
        Ok(Some(match written {
            Ok(()) => Written::At(self.uri.clone()),
            // No reason to end a training.
            Err(reason) => Written::Not(format!("the timeline could not be written: {reason}")),
        }))
    }

    /// What is to be told where the training has ended before the steps, or went on after them.
    pub(crate) fn missed(&self) -> Option<String> {
        let Profile { first, last } = self.profile;
        (!self.is_over)
            .then(|| format!("there is no timeline: none of the steps {first}-{last} was taken"))
    }
}

/// What came of a timeline, on rank 0.
pub(crate) enum Written {
    At(String),
    /// Why it could not be written.
    Not(String),
}

fn nanos(base: Instant, at: Instant) -> i64 {
    at.saturating_duration_since(base).as_nanos() as i64
}

fn timed<T: Copy, U>(base: Instant, spans: &[Span<T>], name: impl Fn(T) -> U) -> Vec<Timed<U>> {
    let timed = |span: &Span<T>| Timed {
        of: name(span.of),
        began: nanos(base, span.began),
        ended: nanos(base, span.ended),
    };
    spans.iter().map(timed).collect()
}

fn peers_of(connections: &Connections) -> BTreeMap<String, String> {
    let transports = [
        ("sharedMemory", &connections.shared_memory),
        ("tcp", &connections.tcp),
    ];
    let told = transports
        .into_iter()
        .filter(|(_, ranks)| !ranks.is_empty());
    told.map(|(transport, ranks)| (transport.into(), trace::ranges(ranks)))
        .collect()
}

fn call_of(base: Instant, call: CallRecord) -> Timed<Call> {
    Timed {
        of: Call {
            sequence: call.sequence,
            operation: call.operation,
            is_of_all: call.is_of_all,
            num_bytes: call.num_bytes,
            label: call.label,
        },
        began: nanos(base, call.began),
        ended: nanos(base, call.ended),
    }
}
