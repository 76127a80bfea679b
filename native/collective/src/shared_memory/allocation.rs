//! Memory that all members of a host reach: the leader makes it and passes it on.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use super::descriptor;
use super::host::Host;
use crate::deadline::Timed;
use crate::error::Result;
use crate::liveness::wait::Wait;
use crate::memory::mapping::Mapping;
use crate::memory::region::Region;

/// Makes memory that all members of this host can reach, after an `Allocate` call that all agreed on. `None` when the
/// system refuses it to any of them.
pub(crate) fn allocate(
    host: &Host,
    id: u32,
    bytes: usize,
    wait: &Wait<'_>,
) -> Result<Option<Region>> {
    let len = Region::stride(bytes) * host.num_members();
    let mapping = if host.leads() {
        offer(host, len)
    } else {
        take(host, len, wait)?
    };
    let vote = host.board.vote(host.board.me);
    vote.store(u64::from(mapping.is_ok()), Ordering::Relaxed);
    host.board.barrier(wait)?;
    let all =
        (0..host.num_members()).all(|member| host.board.vote(member).load(Ordering::Relaxed) == 1);
    // So that no vote is cast again before all have been counted.
    host.board.barrier(wait)?;
    Ok(mapping
        .ok()
        .filter(|_| all)
        .map(|mapping| Region::shared(id, mapping, bytes, host.board.me)))
}

fn offer(host: &Host, len: usize) -> io::Result<Mapping> {
    let mapping = Mapping::create(len);
    let file = mapping
        .as_ref()
        .ok()
        .and_then(|mapping| mapping.file())
        .map(|file| file.as_fd());
    let mut sent = Ok(());
    for link in host.links.values() {
        sent = sent.and(descriptor::send(link, u8::from(file.is_some()), file));
    }
    sent.and(mapping)
}

fn take(host: &Host, len: usize, wait: &Wait<'_>) -> Result<io::Result<Mapping>> {
    let Some(link) = host.links.get(&0) else {
        return Ok(Err(io::ErrorKind::NotConnected.into()));
    };
    loop {
        if let Err(error) = link.set_slice(wait.slice()) {
            return Ok(Err(error));
        }
        match descriptor::receive(link) {
            Ok((1, Some(file))) => return Ok(Mapping::attach(file.as_fd(), len)),
            Ok(_) => return Ok(Err(io::ErrorKind::OutOfMemory.into())),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                wait.check(|| vec![host.board.ranks[0]])?;
            }
            Err(error) => return Ok(Err(error)),
        }
    }
}
