//! Messages of any length, over the collectives of buffers: first the lengths, then the bytes.

use super::ProcessGroup;
use crate::buffer::{DType, RawBuffer};
use crate::error::{CollectiveError, Result};

/// The most bytes that `broadcast_bytes` and `all_gather_bytes` carry, all ranks' together: they are for descriptions, not for
/// data.
const MAX_MESSAGE: usize = 1 << 30;

/// See `ProcessGroup::all_gather_bytes`.
pub(super) fn all_gather(group: &ProcessGroup, payload: &[u8]) -> Result<Vec<Vec<u8>>> {
    let (rank, world_size) = (group.rank(), group.world_size());
    check_message(payload, world_size)?;
    let mut lens = vec![0i64; world_size];
    lens[rank] = payload.len() as i64;
    // SAFETY: the vector is alive and nobody else's.
    unsafe {
        group.all_gather(RawBuffer::cpu(
            lens.as_mut_ptr().cast(),
            world_size,
            DType::Int64,
        ))?
    };
    // All ranks see the same lengths, and so make the same second call, or none.
    let lens = lengths(group, &lens)?;
    let longest = lens.iter().copied().max().unwrap_or(0);
    let mut bytes = zeroed(group, longest * world_size)?;
    bytes[rank * longest..][..payload.len()].copy_from_slice(payload);
    // SAFETY: the vector is alive and nobody else's.
    unsafe {
        group.all_gather(RawBuffer::cpu(
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            DType::UInt8,
        ))?
    };
    Ok(lens
        .iter()
        .enumerate()
        .map(|(rank, len)| bytes[rank * longest..][..*len].to_vec())
        .collect())
}

/// See `ProcessGroup::broadcast_bytes`.
pub(super) fn broadcast(group: &ProcessGroup, payload: &[u8], root: usize) -> Result<Vec<u8>> {
    check_message(payload, 1)?;
    let mut len = payload.len() as i64;
    // SAFETY: the number is alive and nobody else's.
    unsafe { group.broadcast(RawBuffer::cpu((&raw mut len).cast(), 1, DType::Int64), root)? };
    let mut bytes = if group.rank() == root {
        payload.to_vec()
    } else {
        zeroed(group, lengths(group, &[len])?[0])?
    };
    // SAFETY: the vector is alive and nobody else's.
    unsafe {
        group.broadcast(
            RawBuffer::cpu(bytes.as_mut_ptr().cast(), bytes.len(), DType::UInt8),
            root,
        )?
    };
    Ok(bytes)
}

/// Lengths that came from peers, once they are found to be such as peers can send.
fn lengths(group: &ProcessGroup, lens: &[i64]) -> Result<Vec<usize>> {
    let most = MAX_MESSAGE / lens.len();
    let known = |len: &i64| usize::try_from(*len).ok().filter(|len| *len <= most);
    let wrong = lens
        .iter()
        .enumerate()
        .find(|(_, len)| known(len).is_none());
    if let Some((index, len)) = wrong {
        return Err(group.health().fail(CollectiveError::io(
            format!("message {index} is of {len} bytes, where {most} are allowed"),
            std::io::ErrorKind::InvalidData.into(),
        )));
    }
    Ok(lens.iter().filter_map(known).collect())
}

/// Room for what comes from peers.
fn zeroed(group: &ProcessGroup, len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| {
        group.health().fail(CollectiveError::io(
            format!("make room for messages of {len} bytes"),
            std::io::ErrorKind::OutOfMemory.into(),
        ))
    })?;
    bytes.resize(len, 0);
    Ok(bytes)
}

/// Refuses what no rank would take for true, before anything is sent.
fn check_message(payload: &[u8], count: usize) -> Result<()> {
    let most = MAX_MESSAGE / count;
    if payload.len() <= most {
        return Ok(());
    }
    Err(CollectiveError::invalid(format!(
        "a message of {} bytes: {count} such messages may have at most {most} each",
        payload.len()
    )))
}
