//! Which failure was the first, and whether it is worth another attempt.

use serde::{Deserialize, Serialize};

/// How a rank ended, as its launcher knows it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Ended {
    /// What it failed with; none where all went well.
    kind: Option<String>,
    /// False where it only noticed that another one had failed.
    is_cause: bool,
    /// Whether it left no word of its own, as one does that was killed or is stuck.
    #[serde(default)]
    is_silent: bool,
}

/// What comes of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Verdict {
    /// The place among them of the failure that is the reason for the others'; none where all went well.
    cause: Option<usize>,
    /// Whether another attempt may go better.
    is_transient: bool,
    /// Whether the training is started again.
    again: bool,
    /// What is waited before that.
    back_off_seconds: u64,
    /// For how long at least the next attempt is given to find its task slots.
    slot_seconds: u64,
}

/// An executor that is lost comes back within this time, or Spark's cluster manager does not replace it.
const SLOT_SECONDS: u64 = 120;

/// A store that throttles is left alone for longer each time: 5 s, 10 s, 20 s, 40 s, then 60 s.
const FIRST_BACK_OFF_SECONDS: u64 = 5;
const LAST_BACK_OFF_SECONDS: u64 = 60;

/// The kinds that another attempt may mend, the surest sign of what happened first. Everything else, such as an error of
/// the user's code, bad rows or a diverged loss, would only fail again.
const RETRIED: [&str; 3] = ["lost", "store", "collective"];

/// Judges an attempt after so many restarts.
///
/// Where several ranks say that it began with them, one that says something comes before one that is silent, one with an
/// error of its own before one that was killed, that before one whose store failed, and that before one that missed another.
pub(crate) fn judge(ended: &[Ended], restarts: u64, max_restarts: u64) -> Verdict {
    let retried = |one: &Ended| {
        let kind = one.kind.as_deref();
        RETRIED.iter().position(|retried| Some(*retried) == kind)
    };
    let order = |(_, one): &(usize, &Ended)| {
        let kind = retried(one).map_or(0, |position| position + 1);
        (!one.is_cause, one.is_silent, kind)
    };
    let failed = ended.iter().enumerate();
    let failed = failed.filter(|(_, one)| one.kind.is_some());
    let cause = failed.min_by_key(order);
    let kind = cause.and_then(|(_, one)| one.kind.as_deref());
    let back_off_seconds = match kind {
        Some("store") => (FIRST_BACK_OFF_SECONDS << restarts.min(4)).min(LAST_BACK_OFF_SECONDS),
        _ => 0,
    };
    let is_transient = cause.is_some_and(|(_, one)| retried(one).is_some());
    Verdict {
        cause: cause.map(|(place, _)| place),
        is_transient,
        again: is_transient && restarts < max_restarts,
        back_off_seconds,
        slot_seconds: SLOT_SECONDS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(kind: &str, is_cause: bool, is_silent: bool) -> Ended {
        Ended {
            kind: (!kind.is_empty()).then(|| kind.to_owned()),
            is_cause,
            is_silent,
        }
    }

    #[test]
    fn an_error_of_a_ranks_own_is_the_cause() {
        let ranks = [
            ended("collective", true, false),
            ended("lost", true, false),
            ended("model", true, false),
            ended("lost", false, false),
        ];
        let verdict = judge(&ranks, 0, 3);
        assert_eq!((verdict.cause, verdict.again), (Some(2), false));
        let verdict = judge(&ranks[..2], 0, 3);
        assert_eq!((verdict.cause, verdict.again), (Some(1), true));
    }

    #[test]
    fn one_that_noticed_says_more_than_one_that_is_silent() {
        let ranks = [
            ended("lost", false, true),
            ended("collective", false, false),
        ];
        assert_eq!(judge(&ranks, 0, 3).cause, Some(1));
    }

    #[test]
    fn restarts_end() {
        let ranks = [ended("", true, false), ended("store", true, false)];
        assert!(judge(&ranks, 2, 3).again);
        let last = judge(&ranks, 3, 3);
        assert!(last.is_transient && !last.again);
        let well = judge(&ranks[..1], 0, 3);
        assert_eq!((well.cause, well.again), (None, false));
    }

    #[test]
    fn a_store_is_left_alone_for_longer_each_time() {
        let waits = |kind| {
            [0, 1, 4, u64::MAX]
                .map(|restarts| judge(&[ended(kind, true, false)], restarts, 9).back_off_seconds)
        };
        assert_eq!(waits("store"), [5, 10, 60, 60]);
        assert_eq!(waits("lost"), [0; 4]);
    }
}
