//! How long a collective waits for the other ranks, and what ends the wait early.

use std::time::{Duration, Instant};

use super::health::Health;
use crate::call::Operation;
use crate::deadline::SLICE;
use crate::error::{CollectiveError, LossCause, Result};

/// One call's wait for the other ranks: how long, and what ends it early.
pub(crate) struct Wait<'a> {
    pub(crate) health: &'a Health,
    pub(crate) operation: Operation,
    /// 0 while the group is made.
    pub(crate) sequence: u64,
    pub(crate) started: Instant,
    pub(crate) timeout: Duration,
    /// Whether the interrupt is asked: not on the communication thread, whose work is waited for elsewhere.
    pub(crate) interruptible: bool,
}

impl Wait<'_> {
    /// Called at least every `SLICE` while waiting. `suspects` are the ranks that the caller is waiting for.
    ///
    /// # Errors
    /// The group's failure; a rank that left before this call; the interrupt; the deadline. Each fails the group.
    pub(crate) fn check(&self, suspects: impl FnOnce() -> Vec<usize>) -> Result<()> {
        let health = self.health;
        if let Some(error) = health.failure() {
            return Err(error);
        }
        let left = |rank: &usize| health.left_before(*rank, self.sequence);
        if let Some(rank) = health.others().find(left) {
            return Err(health.lose(rank, LossCause::Left));
        }
        if self.interruptible && health.options.is_interrupted() {
            return Err(health.fail(CollectiveError::Interrupted));
        }
        let waited = self.started.elapsed();
        if waited < self.timeout {
            return Ok(());
        }
        let operation = if self.sequence == 0 {
            "connect".into()
        } else {
            self.operation.to_string()
        };
        let missing = self
            .missing(suspects())
            .into_iter()
            .map(|rank| health.late(rank))
            .collect();
        Err(health.fail(CollectiveError::Timeout {
            operation,
            sequence: self.sequence,
            missing,
            waited,
        }))
    }

    /// Who is to blame: a rank that waits in the same call for a third is a suspect too, so the heartbeats' word on who
    /// has entered the call decides where it can.
    fn missing(&self, suspects: Vec<usize>) -> Vec<usize> {
        let late = |rank: &usize| !self.health.has_entered(*rank, self.sequence);
        let late_suspects: Vec<usize> = suspects.iter().copied().filter(late).collect();
        if !late_suspects.is_empty() {
            return late_suspects;
        }
        let late: Vec<usize> = self.health.others().filter(late).collect();
        if late.is_empty() { suspects } else { late }
    }

    /// What a data connection's end means: the monitor's verdict on `rank`, or a loss when none comes soon.
    pub(crate) fn verdict(&self, rank: usize, since: Instant) -> Result<()> {
        if since.elapsed() > Duration::from_secs(2) && !self.health.has_left(rank) {
            return Err(self.health.lose(rank, LossCause::Closed));
        }
        Ok(())
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.timeout.saturating_sub(self.started.elapsed())
    }

    pub(crate) fn slice(&self) -> Duration {
        SLICE.min(self.remaining().max(Duration::from_millis(1)))
    }
}
