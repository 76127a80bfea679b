//! Names for what a fit makes in the work directory: the time in UTC and a random part, so that no two are alike and
//! what a crash left behind is known by its age.

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};

const STAMP: &str = "%Y%m%dT%H%M%SZ";
const RANDOM_DIGITS: usize = 12;

/// A new name, with the time of `since` where that is such a name.
pub(crate) fn new_id(now: DateTime<Utc>, since: Option<&str>) -> String {
    let random = rand::random::<u64>() >> (64 - 4 * RANDOM_DIGITS);
    let since = since.filter(|id| age_of(id, now).is_some());
    let stamp = since.and_then(|id| id.split('-').next());
    let stamp = stamp.map_or_else(|| now.format(STAMP).to_string(), str::to_owned);
    format!("{stamp}-{random:0RANDOM_DIGITS$x}")
}

/// How long ago a name was made, which may end in `.json`; none for one that is not such a name.
pub(crate) fn age_of(name: &str, now: DateTime<Utc>) -> Option<TimeDelta> {
    let (stamp, random) = name.strip_suffix(".json").unwrap_or(name).split_once('-')?;
    let is_hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    if random.len() != RANDOM_DIGITS || !random.chars().all(is_hex) {
        return None;
    }
    let made = NaiveDateTime::parse_from_str(stamp, STAMP).ok()?;
    Some(now - made.and_utc())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_tells_its_age() {
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let id = new_id(now, None);
        assert_eq!(id.len(), "20270115T080000Z-0123456789ab".len(), "{id}");
        assert!(id.starts_with("20270115T080000Z-"), "{id}");
        let later = now + TimeDelta::days(3);
        assert_eq!(age_of(&id, later), Some(TimeDelta::days(3)));
        assert_eq!(
            age_of(&format!("{id}.json"), later),
            Some(TimeDelta::days(3))
        );
        assert_ne!(new_id(now, None), id);
    }

    #[test]
    fn what_is_no_id_has_no_age() {
        let now = Utc::now();
        for name in [
            "",
            "nightly",
            "nightly.json",
            "20270115T080000Z",
            "20270115T080000Z-xyz",
            "20270115T080000Z-0123456789AB",
            "20271315T080000Z-0123456789ab",
            "20270115T080000Z-0123456789ab.owner",
        ] {
            assert_eq!(age_of(name, now), None, "{name}");
        }
    }
}
