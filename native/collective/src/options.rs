//! What a group is made with.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TransportChoice {
    /// Shared memory between ranks of one host, TCP between hosts; TCP everywhere on a host where sharing fails.
    #[default]
    Auto,
    /// As `Auto`, but a host where sharing memory fails is an error.
    SharedMemory,
    /// TCP between all ranks, also those of one host.
    Tcp,
}

/// Asked at least every 100 ms by every wait on the caller's thread; `true` ends the wait with `Interrupted`.
pub type Interrupt = Arc<dyn Fn() -> bool + Send + Sync>;

/// How a process group is made and how long it waits.
#[derive(Clone)]
pub struct GroupOptions {
    /// How long an operation waits for the slowest rank. Default 600 s.
    pub timeout: Duration,
    /// How long making the group may take once the rendezvous is over. Default 60 s.
    pub connect_timeout: Duration,
    /// How often at most a rank says that it lives, from a thread that needs nothing of the training thread: 4 ms for each other rank lie
    /// between, if that is not more than a quarter of `heartbeat_timeout`. Default 250 ms.
    pub heartbeat_interval: Duration,
    /// The silence after which a connected rank counts as frozen. Default 30 s, which outlives the pause of a virtual machine that moves.
    pub heartbeat_timeout: Duration,
    /// The address to listen on, which is also the one that the other ranks connect to; it must not be `0.0.0.0`.
    /// Default 127.0.0.1.
    pub bind_address: IpAddr,
    /// The attempt's secret, at least 16 bytes where there are several ranks. Connections prove that they know it and never
    /// send it. The same on all ranks.
    pub secret: Vec<u8>,
    /// What all ranks must mean alike, as names and values: the params of their job, and which attempt it is. The ranks
    /// compare hashes of the values before they connect, and refuse to where some differ. Names and their order are those
    /// of this release. Default none.
    pub terms: Vec<(String, String)>,
    /// Which way the bytes go; the same on all ranks. Default `Auto`.
    pub transport: TransportChoice,
    /// Ends waits from outside, for instance on a signal. Default none.
    pub interrupt: Option<Interrupt>,
    /// Overrides how the host is recognised: ranks share memory only with ranks of the same value. Tests play several
    /// hosts on one with it. Default: boot id and namespaces.
    pub host_id: Option<String>,
}

impl GroupOptions {
    /// Asks the interrupt, if there is one.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupt.as_ref().is_some_and(|interrupt| interrupt())
    }
}

impl Default for GroupOptions {
    fn default() -> Self {
        GroupOptions {
            timeout: Duration::from_secs(600),
            connect_timeout: Duration::from_secs(60),
            heartbeat_interval: Duration::from_millis(250),
            heartbeat_timeout: Duration::from_secs(30),
            bind_address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            secret: Vec::new(),
            terms: Vec::new(),
            transport: TransportChoice::Auto,
            interrupt: None,
            host_id: None,
        }
    }
}

impl fmt::Debug for GroupOptions {
    /// Leaves the secret out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupOptions")
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("heartbeat_interval", &self.heartbeat_interval)
            .field("heartbeat_timeout", &self.heartbeat_timeout)
            .field("bind_address", &self.bind_address)
            .field("transport", &self.transport)
            .field("interrupt", &self.interrupt.is_some())
            .field("host_id", &self.host_id)
            .finish_non_exhaustive()
    }
}
