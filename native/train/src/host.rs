//! How ranks share the cores of their host.

use std::thread;

use flambeau_collective::ProcessGroup;

use crate::job::TrainingJob;

/// The ranks on this rank's host, itself included.
pub(crate) fn num_ranks_here(group: &ProcessGroup) -> usize {
    let host = group.host_of(group.rank());
    (0..group.world_size())
        .filter(|&rank| group.host_of(rank) == host)
        .count()
}

/// The cores of this host that the process may use.
pub(crate) fn num_cores() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get())
}

/// Threads that a rank computes with: what the job says, else its share of its host's cores, at least one.
pub fn num_threads(job: &TrainingJob, group: &ProcessGroup) -> usize {
    job.params
        .num_threads
        .unwrap_or_else(|| (num_cores() / num_ranks_here(group)).max(1))
}
