//! The checkpoints that outlive a fit.

use std::collections::{BTreeMap, BTreeSet};

use flambeau_data::{DataError, Store};
use flambeau_train::checkpoint::{self, KeptCheckpoint};

use crate::error::SupervisorError;
use crate::logs::LOGS;
use crate::work_directory::{KEPT, WorkDirectory};

/// Refuses the directory of an `initialState` in which no whole checkpoint is.
pub(crate) fn check_initial_state(store: &Store, uri: &str) -> Result<(), SupervisorError> {
    match checkpoint::objection(store, uri)? {
        None => Ok(()),
        Some(objection) => Err(SupervisorError::Refused(format!(
            "initialState {uri} is no checkpoint to start from: {objection}; keepCheckpoints=1 has a fit leave one, whose \
             place its model's lineage tells"
        ))),
    }
}

/// Removes all that those attempts left but for what their ranks wrote and their newest `num` checkpoints with weights, and
/// describes these, oldest first. Of two after as many steps that of the later attempt is taken, which went on from what the
/// earlier one had.
///
/// # Errors
///
/// The first of the store's, after the others are done. Where a checkpoint could not be looked at nothing is removed, now or by a
/// sweep.
pub(crate) fn keep_newest(
    work: &WorkDirectory<'_>,
    attempts: &[String],
    failed: &[String],
    num: usize,
) -> Result<Vec<KeptCheckpoint>, DataError> {
    let roots: Vec<String> = attempts
        .iter()
        .map(|attempt| work.path(&format!("attempts/{attempt}")))
        .collect();
    let mark = |root: &String| {
        let mark = format!("{root}/{KEPT}");
        work.store.put(&mark, Vec::new().into())
    };
    let kept = match newest(work, &roots, num) {
        Ok(kept) => kept,
        Err(error) => {
            let _ = roots.iter().try_for_each(mark);
            return Err(error);
        }
    };
    let ends = roots.iter().map(|root| {
        let holds = kept.iter().any(|kept| is_below(&kept.uri, root));
        if holds {
            mark(root)?;
        }
        if holds || !work.store.list(&format!("{root}/{LOGS}"))?.is_empty() {
            remove_others(work, root, &kept)
        } else {
            work.store.delete_prefix(root)
        }
    });
    // A worker that is lost while the others end leaves a model that nobody has.
    let models = failed.iter().map(|attempt| {
        let model = work.path(&format!("models/{attempt}"));
        work.store.delete_prefix(&model)
    });
    let ends: Vec<Result<(), DataError>> = ends.chain(models).collect();
    ends.into_iter().collect::<Result<(), _>>()?;
    Ok(kept)
}

/// The newest `num` checkpoints with weights below those directories.
fn newest(
    work: &WorkDirectory<'_>,
    roots: &[String],
    num: usize,
) -> Result<Vec<KeptCheckpoint>, DataError> {
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
    Ok(found.into_values().skip(too_many).collect())
}

/// Removes what an attempt left beside its logs and the checkpoints that are kept.
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
    parts.remove(&format!("{root}/{KEPT}"));
    parts.remove(&format!("{root}/{LOGS}"));
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
