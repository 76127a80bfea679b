//! What a rank's loop is in, from one moment to the next: for the times of the history, for the ranks that wait for this one, and
//! for a timeline while one is recorded.

use std::mem;
use std::time::Instant;

use flambeau_collective::ProcessGroup;

/// What the loop is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Waiting for rows.
    Data,
    /// Forward and backward, buckets that are reduced meanwhile included.
    Model,
    /// What is reduced after backward, or, with `syncEvery`, averaged after the optimizer's step.
    Reduction,
    /// Scaling and clipping of gradients, and the optimizer's step.
    Optimizer,
    Evaluation,
    Checkpoint,
    /// Whoever is told of steps and events.
    Callback,
    /// What TensorBoard is told of a step.
    Log,
    /// The final weights.
    Weights,
    /// What lies between the others.
    Loop,
}

impl Phase {
    /// Its name in timelines and messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Phase::Data => "data",
            Phase::Model => "forward and backward",
            Phase::Reduction => "gradient reduction",
            Phase::Optimizer => "optimizer",
            Phase::Evaluation => "evaluation",
            Phase::Checkpoint => "checkpoint",
            Phase::Callback => "a callback",
            Phase::Log => "logging",
            Phase::Weights => "the writing of weights",
            Phase::Loop => "the training loop",
        }
    }
}

/// A phase that has ended, or a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<T> {
    pub(crate) of: T,
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
}

/// What was recorded.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    pub(crate) phases: Vec<Span<Phase>>,
    pub(crate) steps: Vec<Span<u64>>,
    /// The most phases that are recorded.
    most: usize,
    /// Those beyond them.
    pub(crate) num_dropped: u64,
}

/// What the loop is in. The group is told of each change.
pub(crate) struct Phases {
    group: ProcessGroup,
    current: Phase,
    since: Instant,
    step: Option<(u64, Instant)>,
    recorded: Option<Recorded>,
}

impl Phases {
    pub(crate) fn new(group: ProcessGroup) -> Phases {
        let mut phases = Phases {
            group,
            current: Phase::Loop,
            since: Instant::now(),
            step: None,
            recorded: None,
        };
        phases.enter(Phase::Loop);
        phases
    }

    /// Ends the present phase for another. Returns how long it was, in seconds.
    pub(crate) fn enter(&mut self, phase: Phase) -> f64 {
        self.group.enter_phase(phase.name());
        let now = Instant::now();
        let of = mem::replace(&mut self.current, phase);
        let began = mem::replace(&mut self.since, now);
        if let Some(recorded) = &mut self.recorded {
            if recorded.phases.len() < recorded.most {
                recorded.phases.push(Span {
                    of,
                    began,
                    ended: now,
                });
            } else {
                recorded.num_dropped += 1;
            }
        }
        (now - began).as_secs_f64()
    }

    /// Does `body` in a phase, and goes on with the present one.
    pub(crate) fn within<T>(&mut self, phase: Phase, body: impl FnOnce() -> T) -> T {
        let before = self.current;
        self.enter(phase);
        let done = body();
        self.enter(before);
        done
    }

    /// Begins a step, with its data.
    pub(crate) fn begin_step(&mut self, step: u64) {
        self.enter(Phase::Data);
        self.step = Some((step, self.since));
    }

    /// Ends the step and its last phase. Returns how long that was, in seconds.
    pub(crate) fn end_step(&mut self) -> f64 {
        let seconds = self.enter(Phase::Loop);
        if let (Some(recorded), Some((of, began))) = (&mut self.recorded, self.step.take()) {
            let ended = self.since;
            recorded.steps.push(Span { of, began, ended });
        }
        seconds
    }

    /// Records steps and up to so many phases from now on.
    pub(crate) fn record(&mut self, most: usize) {
        self.enter(self.current);
        self.recorded = Some(Recorded {
            most,
            ..Recorded::default()
        });
    }

    /// Ends the record, with the present phase so far.
    pub(crate) fn take_record(&mut self) -> Recorded {
        self.enter(self.current);
        self.recorded.take().unwrap_or_default()
    }
}
