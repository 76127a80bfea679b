//! Who is in a group.

use std::fmt;

/// One member of a group, as error messages name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The member's rank, `0..world_size`.
    pub rank: usize,
    /// The name of the host it runs on.
    pub host: String,
}

/// The ranks that one is connected to, by transport.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Connections {
    /// The others of its host, whose memory it shares.
    pub shared_memory: Vec<usize>,
    /// The leaders of the other hosts, where it leads its own.
    pub tcp: Vec<usize>,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} on {}", self.rank, self.host)
    }
}
