//! The checkpoints that outlive a fit.

use std::collections::{BTreeMap, BTreeSet};

use flambeau_data::DataError;
use flambeau_train::checkpoint::{self, KeptCheckpoint};

use crate::work_directory::{KEPT, WorkDirectory};

/// Removes all that those attempts left but for their newest `num` checkpoints with weights, and describes these, oldest
/// first. Of two after as many steps that of the later attempt is taken, which went on from what the earlier one had.
pub(crate) fn keep_newest(
    work: &WorkDirectory<'_>,
    attempts: &[String],
    num: usize,
) -> Result<Vec<KeptCheckpoint>, DataError> {
    let roots: Vec<String> = attempts
        .iter()
        .map(|attempt| work.path(&format!("attempts/{attempt}")))
        .collect();
    let mut found = BTreeMap::new();
    for root in roots.iter().filter(|_| num > 0) {
        for uri in work.store.list(&format!("{root}/checkpoints"))? {
            if let Some(checkpoint) = uri.strip_suffix("/COMMITTED")
                && let Some(kept) = checkpoint::with_weights(work.store, checkpoint)?
            {
                found.insert(kept.step, kept);
            }
        }
    }
    let too_many = found.len().saturating_sub(num);
    let kept: Vec<KeptCheckpoint> = found.into_values().skip(too_many).collect();
    for root in &roots {
        if kept.iter().any(|kept| is_below(&kept.uri, root)) {
            remove_others(work, root, &kept)?;
            work.store
                .put(&format!("{root}/{KEPT}"), Vec::new().into())?;
        } else {
            work.store.delete_prefix(root)?;
        }
    }
    Ok(kept)
}

/// Removes what an attempt left beside the checkpoints that are kept.
fn remove_others(
    work: &WorkDirectory<'_>,
    root: &str,
    kept: &[KeptCheckpoint],
) -> Result<(), DataError> {
    let mut parts = BTreeSet::new();
    for uri in work.store.list(root)? {
        let names: Vec<&str> = uri[root.len()..].split('/').skip(1).collect();
        let depth = if names[0] == "checkpoints" { 2 } else { 1 };
        parts.insert(format!(
            "{root}/{}",
            names[..depth.min(names.len())].join("/")
        ));
    }
    for part in parts {
        if !kept.iter().any(|kept| kept.uri == part) {
            work.store.delete_prefix(&part)?;
        }
    }
    Ok(())
}

fn is_below(uri: &str, root: &str) -> bool {
    uri.strip_prefix(root)
        .is_some_and(|below| below.starts_with('/'))
}
