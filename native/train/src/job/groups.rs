//! Parameters whose gradients are reduced together, by their names.

use std::collections::{HashMap, HashSet};

use crate::error::JobError;

/// Refuses a name that is given twice.
pub(crate) fn check(groups: &[Vec<String>]) -> Result<(), JobError> {
    let mut known = HashSet::new();
    for (place, name) in named(groups) {
        if !known.insert(name) {
            return Err(refused(place, name, "a name that is given once"));
        }
    }
    Ok(())
}

/// The groups by the places of their parameters among the `names` of those that are trained.
///
/// # Errors
///
/// [`JobError::Invalid`] for a name that is none of them, with the one that is most like it.
pub(crate) fn places(
    groups: &[Vec<String>],
    names: &[impl AsRef<str>],
) -> Result<Vec<Vec<usize>>, JobError> {
    let known: HashMap<&str, usize> = names.iter().map(AsRef::as_ref).zip(0..).collect();
    let mut places: Vec<Vec<usize>> = vec![vec![]; groups.len()];
    for ((group, member), name) in named(groups) {
        let Some(&place) = known.get(name) else {
            let known = names.iter().map(AsRef::as_ref);
            let like = known.min_by_key(|known| distance(known, name));
            let like = like.map_or(String::new(), |like| format!(", such as {like}"));
            let allowed = format!("the name of a parameter that is trained{like}");
            return Err(refused((group, member), name, &allowed));
        };
        places[group].push(place);
    }
    Ok(places)
}

/// All names, each with the numbers of its group and of its place in that.
fn named(groups: &[Vec<String>]) -> impl Iterator<Item = ((usize, usize), &str)> {
    groups.iter().enumerate().flat_map(|(group, members)| {
        let members = members.iter().enumerate();
        members.map(move |(member, name)| ((group, member), name.as_str()))
    })
}

fn refused((group, member): (usize, usize), name: &str, allowed: &str) -> JobError {
    let param = format!("gradientGroups[{group}][{member}]");
    JobError::invalid(param, format!("{name:?}"), allowed)
}

/// How many bytes have to be put in, left out or replaced to make one name of the other (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, byte) in one.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], above + 1);
        for (index, wanted) in other.bytes().enumerate() {
            let replaced = diagonal + usize::from(byte != wanted);
            diagonal = row[index + 1];
            row[index + 1] = replaced.min(diagonal + 1).min(row[index] + 1);
        }
    }
    row[other.len()]
}
