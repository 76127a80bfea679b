//! From a rendezvous to a connected group.
//!
//! 1. Every rank listens, and tells all others where in the one rendezvous call (`peer_info`).
//! 2. Every two ranks make a control connection (`full_mesh`), and the monitor starts.
//! 3. The ranks of one host try to share memory (`attach`); all ranks vote, so that all know where it worked.
//! 4. The leaders of the hosts make data connections.
//!
//! Each connection proves that both ends hold the attempt's secret (`handshake`) before a byte of it is believed. All of it blocks
//! the caller for at most `GroupOptions::connect_timeout` after the rendezvous, looking at the interrupt every 50 ms; from step 3 on a
//! rank that fails frees the others.

mod acceptor;
mod attach;
mod connector;
mod full_mesh;
mod handshake;
mod identity;
mod peer_info;
mod rendezvous;
mod tcp_rendezvous;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use sha2::{Digest, Sha256};

pub use self::identity::host_name;
pub use self::rendezvous::Rendezvous;
pub use self::tcp_rendezvous::TcpRendezvous;

use self::attach::{Attachment, LocalListener};
use self::full_mesh::FullMesh;
use self::handshake::{Proof, Purpose};
use self::peer_info::PeerInfo;
use crate::call::Operation;
use crate::deadline::Deadline;
use crate::error::{CollectiveError, Result};
use crate::hierarchical::Hierarchical;
use crate::liveness::control_connection::ControlConnection;
use crate::liveness::health::Health;
use crate::liveness::monitor::Monitor;
use crate::liveness::wait::Wait;
use crate::memory::region::Registry;
use crate::options::{GroupOptions, TransportChoice};
use crate::peer::{Connections, Peer};
use crate::shared_memory::SharedMemory;
use crate::shared_memory::host::Host;
use crate::tcp::Tcp;
use crate::tcp::connection::Connection;
use crate::tcp::topology::Topology;
use crate::transport::Transport;

/// The parts of a connected group.
pub(crate) struct Connected {
    pub(crate) health: Arc<Health>,
    pub(crate) monitor: Option<Monitor>,
    pub(crate) registry: Arc<Registry>,
    /// `None` for a group of one rank.
    pub(crate) transport: Option<Box<dyn Transport>>,
    pub(crate) connections: Connections,
}

/// Connects this rank to all others.
///
/// # Errors
/// See `ProcessGroup::connect`.
pub(crate) fn connect(rendezvous: &mut dyn Rendezvous, options: GroupOptions) -> Result<Connected> {
    let (rank, world_size) = (rendezvous.rank(), rendezvous.world_size());
    if rank >= world_size {
        return Err(CollectiveError::invalid(format!(
            "rank {rank} is outside a world of {world_size}"
        )));
    }
    let registry = Arc::new(Registry::default());
    let host = options.host_id.clone().unwrap_or_else(identity::host_name);
    if world_size == 1 {
        let health = Health::new(0, vec![Peer { rank, host }], vec![None], options);
        return Ok(Connected {
            health: Arc::new(health),
            monitor: None,
            registry,
            transport: None,
            connections: Connections::default(),
        });
    }
    handshake::check(&options.secret)?;
    if options.bind_address.is_unspecified() {
        return Err(CollectiveError::invalid(format!(
            "bind address {}: the other ranks connect to it, so it must be an address of this host that they reach",
            options.bind_address
        )));
    }

    let failed = |error| CollectiveError::io(format!("listen on {}", options.bind_address), error);
    let listener = acceptor::listen((options.bind_address, 0).into()).map_err(failed)?;
    let local = LocalListener::open(&options);
    let own = PeerInfo {
        world_size,
        transport: options.transport as u8,
        host,
        host_id: match (&options.host_id, options.transport) {
            (_, TransportChoice::Tcp) => format!("rank {rank}"),
            (Some(host_id), _) => host_id.clone(),
            (None, _) => identity::host_id().unwrap_or_else(|_| format!("rank {rank}")),
        },
        address: listener.local_addr().map_err(failed)?,
        local_name: local.name(),
        terms: options.terms.iter().map(peer_info::hash).collect(),
    };
    let encoded = own
        .encode()
        .map_err(|error| CollectiveError::io("random bytes", error))?;
    let payloads = rendezvous.all_gather(&encoded)?;
    let deadline = Deadline::new(options.connect_timeout, options.interrupt.clone());
    let infos = peer_info::read_all(&payloads, &own)?;
    peer_info::compare_terms(&infos, &options.terms)?;
    let peers: Vec<Peer> = infos
        .iter()
        .enumerate()
        .map(|(rank, info)| Peer {
            rank,
            host: info.host.clone(),
        })
        .collect();

    let mut context = Sha256::new();
    payloads
        .iter()
        .for_each(|payload| context.update(Sha256::digest(payload)));
    let proof = Proof {
        secret: options.secret.clone(),
        context: context.finalize().into(),
    };
    let full_mesh = FullMesh {
        rank,
        listener: &listener,
        infos: &infos,
        peers: &peers,
        proof: &proof,
    };
    let others = (0..world_size).filter(|other| *other != rank).collect();
    let mut controls: Vec<Option<ControlConnection>> = (0..world_size).map(|_| None).collect();
    for (other, stream) in full_mesh.connect_all(Purpose::Control, &others, &deadline)? {
        let control = ControlConnection::new(stream);
        controls[other] =
            Some(control.map_err(|error| CollectiveError::io("make a connection", error))?);
    }
    let health = Arc::new(Health::new(rank, peers.clone(), controls, options));
    let monitor = Monitor::start(health.clone())?;

    // From here on the others hear of a failure.
    let wait = Wait {
        health: &health,
        operation: Operation::Barrier,
        sequence: 0,
        started: Instant::now() - deadline.waited(),
        timeout: health.options.connect_timeout,
        interruptible: true,
    };
    let (topology, attachment) = share_memory(local, &infos, &proof, &health, &wait)?;
    let host = attachment
        .map(|Attachment { board, links }| Host::new(board, links, registry.clone(), world_size));
    let connections = topology.connections(rank);
    let tcp = if topology.hosts.len() > 1 {
        let connections = connect_leaders(&full_mesh, &topology, &health, &deadline)?;
        Some(Tcp::new(topology, connections))
    } else {
        None
    };
    let transport: Option<Box<dyn Transport>> = match (host, tcp) {
        (Some(host), Some(tcp)) => Some(Box::new(Hierarchical::new(host, tcp))),
        (Some(host), None) => Some(Box::new(SharedMemory::new(host))),
        (None, Some(tcp)) => Some(Box::new(tcp)),
        (None, None) => {
            let alone = "this rank found no way to the others";
            return Err(health.fail(CollectiveError::rendezvous(alone)));
        }
    };
    Ok(Connected {
        health,
        monitor: Some(monitor),
        registry,
        transport,
        connections,
    })
}

/// Shares memory between the ranks of each host, where all of them can. Returns who shares with whom, and what this rank shares.
fn share_memory(
    local: LocalListener,
    infos: &[PeerInfo],
    proof: &Proof,
    health: &Arc<Health>,
    wait: &Wait<'_>,
) -> Result<(Topology, Option<Attachment>)> {
    let (rank, world_size) = (health.rank, infos.len());
    let same_host = |info: &PeerInfo| infos.iter().position(|other| other.host_id == info.host_id);
    let labels: Vec<usize> = infos
        .iter()
        .map(|info| same_host(info).unwrap_or_default())
        .collect();
    let members = Topology::new(&labels, rank).members().to_vec();
    let leader_name = &infos[members[0]].local_name;
    let attached = attach::attach(local, leader_name, &members, proof, health, wait);
    let shares = attach::vote(attached.is_ok(), health, wait)?;
    if health.options.transport == TransportChoice::SharedMemory
        && let Some(rank) = (0..world_size).find(|rank| !shares[*rank])
    {
        let reason = attached.err().map_or_else(
            || "it could not map the memory".into(),
            |error| error.to_string(),
        );
        return Err(health.fail(CollectiveError::rendezvous(format!(
            "{} cannot share memory with its host's other ranks, and the transport allows nothing else: {reason}",
            health.peer(rank)
        ))));
    }
    // A host where one member could not attach is split into hosts of one rank each.
    let is_split =
        |label: usize| (0..world_size).any(|other| labels[other] == label && !shares[other]);
    let split: Vec<usize> = (0..world_size)
        .map(|rank| {
            if is_split(labels[rank]) {
                world_size + rank
            } else {
                labels[rank]
            }
        })
        .collect();
    let topology = Topology::new(&split, rank);
    let attachment = if topology.members().len() > 1 {
        attached.ok().flatten()
    } else {
        None
    };
    if let Some(attachment) = &attachment {
        let board = attachment.board.clone();
        health.set_alarm(move || board.alarm());
    }
    Ok((topology, attachment))
}

/// The data connections of this rank, by host: one to each other leader, if it leads.
fn connect_leaders(
    full_mesh: &FullMesh<'_>,
    topology: &Topology,
    health: &Arc<Health>,
    deadline: &Deadline,
) -> Result<Vec<Option<Connection>>> {
    let mut connections: Vec<Option<Connection>> = topology.hosts.iter().map(|_| None).collect();
    if topology.leader(topology.here) != health.rank {
        return Ok(connections);
    }
    let leaders: BTreeSet<usize> = (0..topology.hosts.len())
        .filter(|host| *host != topology.here)
        .map(|host| topology.leader(host))
        .collect();
    let watched = health.clone();
    let stop = move || watched.failure().is_some() || watched.options.is_interrupted();
    let streams = full_mesh
        .connect_all(
            Purpose::Data,
            &leaders,
            &deadline.with_interrupt(Some(Arc::new(stop))),
        )
        .map_err(|error| health.fail(error))?;
    for (leader, stream) in streams {
        let connection = Connection::new(stream)
            .map_err(|error| health.fail(CollectiveError::io("make a connection", error)))?;
        connections[topology.place(leader).0] = Some(connection);
    }
    Ok(connections)
}
