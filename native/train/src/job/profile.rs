//! The param `profile`: which steps a timeline is recorded of.

use crate::error::JobError;

/// The most steps that are recorded: viewers of traces get slow above some hundred thousand events.
const MOST_STEPS: u64 = 1000;

/// Steps, counted from 0 over all epochs, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl Profile {
    /// Reads `steps FIRST-LAST`.
    ///
    /// # Errors
    ///
    /// [`JobError::Invalid`] for another text, and for more than 1000 steps.
    pub(crate) fn parse(text: &str) -> Result<Profile, JobError> {
        let number = |digits: &str| {
            let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            is_plain.then(|| digits.parse().ok()).flatten()
        };
        let read = || {
            let (first, last) = text.strip_prefix("steps ")?.split_once('-')?;
            let (first, last) = (number(first)?, number(last)?);
            (first <= last && last - first < MOST_STEPS).then_some(Profile { first, last })
        };
        let allowed = format!(
            "\"steps FIRST-LAST\", such as \"steps 100-120\", of at most {MOST_STEPS} steps, counted from 0"
        );
        read().ok_or_else(|| JobError::invalid("profile", format!("{text:?}"), allowed))
    }

    pub(crate) fn contains(self, step: u64) -> bool {
        (self.first..=self.last).contains(&step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read() {
        for (text, first, last) in [
            ("steps 100-120", 100, 120),
            ("steps 0-0", 0, 0),
            ("steps 0-999", 0, 999),
        ] {
            assert_eq!(Profile::parse(text).unwrap(), Profile { first, last });
        }
    }

    #[test]
    fn another_text_is_refused_with_what_is_allowed() {
        for text in [
            "",
            "steps",
            "steps 5",
            "steps 5-4",
            "steps -5",
            "steps 1-2-3",
            "steps +1-2",
            "steps 1 - 2",
            "100-120",
            "epochs 1-2",
            "steps 0-1000",
            "steps 1-99999999999999999999",
        ] {
            let error = Profile::parse(text).unwrap_err().to_string();
            assert!(
                error.contains("profile") && error.contains("steps 100-120"),
                "{error}"
            );
        }
    }
}
