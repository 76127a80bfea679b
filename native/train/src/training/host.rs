//! How ranks share the cores of their host, and what follows from where they are.

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

/// Whether buckets are reduced while backward goes on, on a communication thread. Between hosts it is the network that a step
/// waits for, so backward's time is used for it; on one host reducing is work for a core, and worth a thread only where the
/// ranks leave a core free.
pub(crate) fn overlaps(job: &TrainingJob, group: &ProcessGroup) -> bool {
    decide_overlap(
        num_ranks_here(group),
        group.world_size(),
        num_cores(),
        job.params.num_threads,
    )
}

/// Without `num_threads` the ranks of a host use all its cores.
fn decide_overlap(
    num_ranks_here: usize,
    world_size: usize,
    num_cores: usize,
    num_threads: Option<usize>,
) -> bool {
    let is_across_hosts = num_ranks_here < world_size;
    is_across_hosts || num_threads.is_some_and(|threads| num_cores > num_ranks_here * threads)
}

/// Threads that a rank computes with: what the job says, else its share of its host's cores, at least one.
pub fn num_threads(job: &TrainingJob, group: &ProcessGroup) -> usize {
    job.params
        .num_threads
        .unwrap_or_else(|| (num_cores() / num_ranks_here(group)).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backward_overlaps_with_the_network_and_on_one_host_with_a_spare_core() {
        for (num_ranks_here, world_size, num_cores, num_threads, expected) in [
            // Several hosts, whatever their cores.
            (4, 16, 4, None, true),
            (1, 2, 1, None, true),
            (4, 16, 4, Some(1), true),
            // One host.
            (4, 4, 4, None, false),
            (4, 4, 64, None, false),
            (4, 4, 4, Some(1), false),
            (4, 4, 5, Some(1), true),
            (2, 2, 8, Some(4), false),
            (2, 2, 8, Some(3), true),
            (1, 1, 2, Some(1), true),
        ] {
            let decided = decide_overlap(num_ranks_here, world_size, num_cores, num_threads);
            let case = (num_ranks_here, world_size, num_cores, num_threads);
            assert_eq!(decided, expected, "{case:?}");
        }
    }
}
