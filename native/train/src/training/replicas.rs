//! Keeping the tensors of all ranks the same, and proving that they are.

use std::slice;

use flambeau_collective::{ProcessGroup, RawBuffer};
use sha2::{Digest, Sha256};

use crate::error::Cause;
use crate::model::{Model, TensorRef, Tensors};

use super::average::WeightAverage;

/// Checks that all ranks have the same parameters and tensors as rank 0, by name, type and size.
///
/// # Errors
///
/// [`Cause::ModelMismatch`] on a rank that differs, naming the first difference.
pub(crate) fn check_same_model(model: &mut dyn Model, group: &ProcessGroup) -> Result<(), Cause> {
    let parameters = model.parameters().map_err(Cause::Model)?;
    let tensors = model.tensors(Tensors::All).map_err(Cause::Model)?;
    let mut lines: Vec<String> = vec![];
    lines.extend(parameters.iter().map(|p| {
        format!(
            "parameter {} {} [{}] on {:?}",
            p.name, p.dtype, p.numel, p.device
        )
    }));
    lines.extend(
        tensors
            .iter()
            .map(|t| format!("tensor {} {} [{}]", t.name, t.dtype, t.numel)),
    );
    lines.push(format!(
        "{} metric sums",
        model.num_metric_sums().map_err(Cause::Model)?
    ));
    let text = lines.join("\n");
    let theirs = group.broadcast_bytes(text.as_bytes(), 0)?;
    if theirs == text.as_bytes() {
        return Ok(());
    }
    let theirs = String::from_utf8_lossy(&theirs);
    let theirs: Vec<&str> = theirs.lines().collect();
    let first = (0..)
        .find(|&i| lines.get(i).map(String::as_str) != theirs.get(i).copied())
        .unwrap_or(0);
    let line = |line: Option<&str>| line.unwrap_or("nothing").to_string();
    Err(Cause::ModelMismatch(format!(
        "it has {} where rank 0 has {}",
        line(lines.get(first).map(String::as_str)),
        line(theirs.get(first).copied()),
    )))
}

/// Overwrites the model's tensors with those of rank 0.
pub(crate) fn broadcast(
    model: &mut dyn Model,
    group: &ProcessGroup,
    which: Tensors,
) -> Result<(), Cause> {
    for tensor in model.tensors(which).map_err(Cause::Model)? {
        if tensor.numel > 0 {
            let buffer = RawBuffer::cpu(tensor.ptr, tensor.numel, tensor.dtype);
            // SAFETY: the model says that this memory is its own and stays until its next call.
            unsafe { group.broadcast(buffer, 0) }?;
        }
    }
    model.take_tensors().map_err(Cause::Model)
}

/// Compares a hash of every tensor over all ranks, averages of weights included.
///
/// # Errors
///
/// [`Cause::Replicas`] on all ranks alike where a bit differs.
pub(crate) fn verify(
    model: &mut dyn Model,
    average: Option<&WeightAverage>,
    group: &ProcessGroup,
) -> Result<(), Cause> {
    let tensors = model.tensors(Tensors::All).map_err(Cause::Model)?;
    let mut names: Vec<String> = vec![];
    let mut hashes = vec![];
    for tensor in &tensors {
        names.push(tensor.name.clone());
        hashes.extend_from_slice(&Sha256::digest(bytes_of(tensor)));
    }
    if let Some(average) = average {
        let trained = model.tensors(Tensors::Trained).map_err(Cause::Model)?;
        for (tensor, value) in trained.iter().zip(average.values()) {
            names.push(format!("{} (its average)", tensor.name));
            hashes.extend_from_slice(&Sha256::digest(value));
        }
    }
    let all = group.all_gather_bytes(&hashes)?;
    let of = |rank: usize, index: usize| all[rank].get(index * 32..(index + 1) * 32);
    for (index, tensor) in names.into_iter().enumerate() {
        let ranks: Vec<usize> = (1..all.len())
            .filter(|&rank| of(rank, index) != of(0, index))
            .collect();
        if !ranks.is_empty() {
            return Err(Cause::Replicas { tensor, ranks });
        }
    }
    Ok(())
}

fn bytes_of(tensor: &TensorRef) -> &[u8] {
    if tensor.numel == 0 {
        return &[];
    }
    // SAFETY: the model says that it has that many elements there until its next call, and the caller holds the model.
    unsafe { slice::from_raw_parts(tensor.ptr.cast(), tensor.numel * tensor.dtype.size()) }
}
