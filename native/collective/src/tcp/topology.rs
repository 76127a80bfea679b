//! Which ranks share memory, and the ways that elements take between those that do not.

use std::ops::Range;

use crate::call::{Piece, Ranks};
use crate::peer::Connections;

/// Consecutive ranks on one host, whose elements are added one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stage {
    pub(crate) host: usize,
    /// Indices into the host's members.
    pub(crate) members: Range<usize>,
}

/// The hosts of a group. A host here is a set of ranks that share memory; a rank that shares with none is its own.
#[derive(Debug, Clone)]
pub(crate) struct Topology {
    /// The members of each host, ascending; hosts in the order of their first member.
    pub(crate) hosts: Vec<Vec<usize>>,
    /// The host of each rank.
    host_of: Vec<usize>,
    /// All ranks in order, cut where the host changes.
    stages: Vec<Stage>,
    /// This rank's host.
    pub(crate) here: usize,
}

impl Topology {
    /// Groups the ranks by label: `labels[rank]` is equal for ranks that share memory.
    pub(crate) fn new(labels: &[usize], rank: usize) -> Self {
        let mut hosts: Vec<Vec<usize>> = Vec::new();
        let mut host_of: Vec<usize> = Vec::with_capacity(labels.len());
        let mut stages: Vec<Stage> = Vec::new();
        for (member, label) in labels.iter().enumerate() {
            let host = labels[..member]
                .iter()
                .position(|other| other == label)
                .map(|first| host_of[first]);
            let host = host.unwrap_or(hosts.len());
            if host == hosts.len() {
                hosts.push(Vec::new());
            }
            let index = hosts[host].len();
            hosts[host].push(member);
            host_of.push(host);
            match stages.last_mut() {
                Some(stage) if stage.host == host => stage.members.end = index + 1,
                _ => stages.push(Stage {
                    host,
                    members: index..index + 1,
                }),
            }
        }
        let here = host_of[rank];
        Topology {
            hosts,
            host_of,
            stages,
            here,
        }
    }

    pub(crate) fn world_size(&self) -> usize {
        self.host_of.len()
    }

    /// The members of this rank's host.
    pub(crate) fn members(&self) -> &[usize] {
        &self.hosts[self.here]
    }

    /// The rank that works with the other hosts.
    pub(crate) fn leader(&self, host: usize) -> usize {
        self.hosts[host][0]
    }

    /// Whom a rank of this host is connected to.
    pub(crate) fn connections(&self, rank: usize) -> Connections {
        let leaders = (0..self.hosts.len()).map(|host| self.leader(host));
        Connections {
            shared_memory: others(self.members().iter().copied(), rank),
            tcp: match self.leader(self.here) == rank {
                true => others(leaders, rank),
                false => vec![],
            },
        }
    }

    /// Whether any host has several members.
    pub(crate) fn is_hierarchical(&self) -> bool {
        self.hosts.iter().any(|members| members.len() > 1)
    }

    /// A rank's host, and its index among the host's members.
    pub(crate) fn place(&self, rank: usize) -> (usize, usize) {
        let host = self.host_of[rank];
        let index = self.hosts[host]
            .iter()
            .position(|member| *member == rank)
            .unwrap_or_default();
        (host, index)
    }

    /// The stages that pieces from all ranks pass, in rank order.
    pub(crate) fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// The number of stages that a piece passes on its way to being whole.
    pub(crate) fn num_stages(&self, piece: &Piece) -> usize {
        if piece.from == Ranks::All {
            self.stages.len()
        } else {
            1
        }
    }

    /// The members who add to a piece at one stage.
    pub(crate) fn stage(&self, piece: &Piece, stage: usize) -> Stage {
        match piece.from {
            Ranks::All => self.stages[stage].clone(),
            Ranks::One(rank) => {
                let (host, index) = self.place(rank);
                Stage {
                    host,
                    members: index..index + 1,
                }
            }
        }
    }

    /// Where a whole piece is, and where it is passed on to: the last stage's host first, then
    /// - for all, from all: the other hosts from the last to the first, against the direction of the partial sums, so
    ///   that both directions of each link are used, and the first stage's host, which paces the whole, comes late;
    /// - for all, from one: around the ring of hosts;
    /// - for one: its host.
    pub(crate) fn route(&self, piece: &Piece) -> Vec<usize> {
        let last = self.stage(piece, self.num_stages(piece) - 1).host;
        let num_hosts = self.hosts.len();
        let rest: Vec<usize> = match (piece.from, piece.to) {
            (Ranks::All, Ranks::All) => (0..num_hosts).rev().collect(),
            (Ranks::One(_), Ranks::All) => (1..num_hosts)
                .map(|step| (last + step) % num_hosts)
                .collect(),
            (_, Ranks::One(rank)) => vec![self.host_of[rank]],
        };
        let mut route = vec![last];
        route.extend(rest.into_iter().filter(|host| *host != last));
        route
    }
}

fn others(ranks: impl Iterator<Item = usize>, rank: usize) -> Vec<usize> {
    ranks.filter(|other| *other != rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(from: Ranks, to: Ranks) -> Piece {
        Piece {
            range: 0..1,
            from,
            to,
        }
    }

    #[test]
    fn ranks_are_added_in_order_wherever_they_are() {
        let topology = Topology::new(&[7, 7, 3, 7, 3, 9], 4);
        assert_eq!(topology.hosts, [vec![0, 1, 3], vec![2, 4], vec![5]]);
        assert_eq!(topology.here, 1);
        let all = piece(Ranks::All, Ranks::All);
        let order: Vec<usize> = (0..topology.num_stages(&all))
            .flat_map(|stage| {
                let stage = topology.stage(&all, stage);
                topology.hosts[stage.host][stage.members].to_vec()
            })
            .collect();
        assert_eq!(order, [0, 1, 2, 3, 4, 5]);
        assert_eq!(topology.num_stages(&all), 5);
    }

    #[test]
    fn every_route_reaches_whom_it_must() {
        let topology = Topology::new(&[0, 0, 1, 2, 1], 0);
        assert_eq!(topology.route(&piece(Ranks::All, Ranks::All)), [1, 2, 0]);
        assert_eq!(topology.route(&piece(Ranks::One(4), Ranks::All)), [1, 2, 0]);
        assert_eq!(topology.route(&piece(Ranks::One(0), Ranks::All)), [0, 1, 2]);
        assert_eq!(topology.route(&piece(Ranks::All, Ranks::One(3))), [1, 2]);
        assert_eq!(topology.route(&piece(Ranks::All, Ranks::One(2))), [1]);
    }
}
