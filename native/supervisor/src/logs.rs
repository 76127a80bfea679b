//! What the ranks of an attempt wrote.

use flambeau_data::DataError;
use serde::Serialize;

use crate::work_directory::WorkDirectory;

/// The directory of an attempt's logs, below its own.
pub(crate) const LOGS: &str = "logs";
/// How many of a log's last lines are told.
const NUM_LINES: usize = 20;
/// How much of a log's end is read for them.
const END: u64 = 64 << 10;

/// The end of a rank's log.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LogEnd {
    rank: usize,
    uri: String,
    /// Its last lines.
    lines: Vec<String>,
}

/// The ends of the logs of an attempt's ranks, of those that wrote something, by rank.
pub(crate) fn ends(work: &WorkDirectory<'_>, attempt: &str) -> Result<Vec<LogEnd>, DataError> {
    let mut ends = vec![];
    for uri in work
        .store
        .list(&work.path(&format!("attempts/{attempt}/{LOGS}")))?
    {
        let name = uri.rsplit('/').next().unwrap_or_default();
        let rank = name
            .strip_prefix("rank-")
            .and_then(|name| name.strip_suffix(".log"));
        let Some(rank) = rank.and_then(|rank| rank.parse().ok()) else {
            continue;
        };
        let size = work.store.size(&uri)?.unwrap_or(0);
        if size == 0 {
            continue;
        }
        let start = size.saturating_sub(END);
        // A rank may be writing it anew, shorter: the others' are worth telling without it.
        let Ok(bytes) = work.store.get_range(&uri, start..size) else {
            continue;
        };
        let text = String::from_utf8_lossy(&bytes);
        let mut lines: Vec<&str> = text.lines().collect();
        if start > 0 && lines.len() > 1 {
            // The first may have begun before.
            lines.remove(0);
        }
        let last = &lines[lines.len().saturating_sub(NUM_LINES)..];
        ends.push(LogEnd {
            rank,
            lines: last.iter().map(|line| line.to_string()).collect(),
            uri,
        });
    }
    ends.sort_by_key(|end| end.rank);
    Ok(ends)
}
