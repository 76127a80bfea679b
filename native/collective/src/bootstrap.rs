//! From a rendezvous to a connected group.
//!
//! 1. Every rank listens, and tells all others where in the one rendezvous call.
//! 2. Every two ranks make a control connection, and the monitor starts.
//! 3. The ranks of one host try to share memory; all ranks vote, so that all know where it worked.
//! 4. The leaders of the hosts make data connections.

use std::array;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::attach::{self, Attachment, Door};
use crate::call::Operation;
use crate::connection::Connection;
use crate::error::{CollectiveError, Peer, Result};
use crate::gate::{self, Refusal};
use crate::health::{Health, Line, Wait};
use crate::identity;
use crate::mesh::Mesh;
use crate::monitor::Monitor;
use crate::options::{GroupOptions, Transport};
use crate::patience::Patience;
use crate::rendezvous::Rendezvous;
use crate::secret::{self, Proof, Purpose, random};
use crate::topology::Topology;
use crate::wire::{Reader, Writer};

/// Changes with anything that ranks tell each other.
const PROTOCOL: u32 = 2;

/// How long a refused connection is tried again: the other end listened before the rendezvous, so it is gone.
const REFUSALS: Duration = Duration::from_secs(1);

/// The parts of a connected group.
pub(crate) struct Connected {
    pub(crate) health: Arc<Health>,
    pub(crate) monitor: Option<Monitor>,
    pub(crate) attachment: Option<Attachment>,
    pub(crate) mesh: Option<Mesh>,
}

/// What a rank tells the others.
struct Card {
    world_size: usize,
    transport: u8,
    host: String,
    host_id: String,
    address: SocketAddr,
    door: String,
    /// The beginning of each term's hash.
    terms: Vec<u64>,
}

impl Card {
    fn encode(&self) -> io::Result<Vec<u8>> {
        let card = Writer::default()
            .u32(PROTOCOL)
            .u32(self.world_size as u32)
            .u8(self.transport);
        let card = card
            .bytes(self.host.as_bytes())
            .bytes(self.host_id.as_bytes());
        let card = card
            .bytes(self.address.to_string().as_bytes())
            .bytes(self.door.as_bytes())
            .u32(self.terms.len() as u32);
        let card = self.terms.iter().fold(card, |card, term| card.u64(*term));
        // No two groups have the same cards, and so none has another's context.
        Ok(card.bytes(&random::<16>()?).finish())
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        if reader.u32()? != PROTOCOL {
            return None;
        }
        Some(Card {
            world_size: reader.u32()? as usize,
            transport: reader.u8()?,
            host: reader.string()?,
            host_id: reader.string()?,
            address: reader.string()?.parse().ok()?,
            door: reader.string()?,
            terms: (0..reader.u32()?)
                .map(|_| reader.u64())
                .collect::<Option<_>>()?,
        })
    }
}

/// Connects this rank to all others.
pub(crate) fn connect(rendezvous: &mut dyn Rendezvous, options: GroupOptions) -> Result<Connected> {
    let (rank, world_size) = (rendezvous.rank(), rendezvous.world_size());
    if rank >= world_size {
        return Err(CollectiveError::invalid(format!(
            "rank {rank} is outside a world of {world_size}"
        )));
    }
    let host = options.host_id.clone().unwrap_or_else(identity::host_name);
    if world_size == 1 {
        let health = Health::new(0, vec![Peer { rank, host }], vec![None], options);
        return Ok(Connected {
            health: Arc::new(health),
            monitor: None,
            attachment: None,
            mesh: None,
        });
    }
    secret::check(&options.secret)?;
    if options.bind_address.is_unspecified() {
        return Err(CollectiveError::invalid(format!(
            "bind address {}: the other ranks connect to it, so it must be an address of this host that they reach",
            options.bind_address
        )));
    }

    let failed = |error| CollectiveError::io(format!("listen on {}", options.bind_address), error);
    let listener = TcpListener::bind((options.bind_address, 0)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let door = Door::open(&options);
    let card = Card {
        world_size,
        transport: options.transport as u8,
        host,
        host_id: match (&options.host_id, options.transport) {
            (_, Transport::Tcp) => format!("rank {rank}"),
            (Some(host_id), _) => host_id.clone(),
            (None, _) => identity::host_id().unwrap_or_else(|_| format!("rank {rank}")),
        },
        address: listener.local_addr().map_err(failed)?,
        door: door.name(),
        terms: options.terms.iter().map(hash).collect(),
    };
    let payloads = rendezvous.all_gather(
        &card
            .encode()
            .map_err(|error| CollectiveError::io("random bytes", error))?,
    )?;
    let patience = Patience::new(options.connect_timeout, options.interrupt.clone());
    let cards = read_cards(&payloads, &card)?;
    compare_terms(&cards, &options.terms)?;
    let peers: Vec<Peer> = cards
        .iter()
        .enumerate()
        .map(|(rank, card)| Peer {
            rank,
            host: card.host.clone(),
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
    let others = |rank: usize| {
        (0..world_size)
            .filter(|other| *other != rank)
            .collect::<BTreeSet<_>>()
    };
    let web = Web {
        rank,
        listener: &listener,
        cards: &cards,
        peers: &peers,
        proof: &proof,
    };
    let mut lines: Vec<Option<Line>> = (0..world_size).map(|_| None).collect();
    for (other, stream) in web.weave(Purpose::Control, &others(rank), &patience)? {
        lines[other] = Some(
            Line::new(stream).map_err(|error| CollectiveError::io("make a connection", error))?,
        );
    }
    let health = Arc::new(Health::new(rank, peers.clone(), lines, options));
    let monitor = Monitor::start(health.clone())?;
    let options = &health.options;

    // From here on the others hear of a failure.
    let wait = Wait {
        health: &health,
        operation: Operation::Barrier,
        sequence: 0,
        started: Instant::now() - patience.waited(),
        timeout: options.connect_timeout,
        interruptible: true,
    };
    let labels: Vec<usize> = cards
        .iter()
        .map(|card| {
            cards
                .iter()
                .position(|other| other.host_id == card.host_id)
                .unwrap_or_default()
        })
        .collect();
    let mut topology = Topology::new(&labels, rank);
    let members = topology.members().to_vec();
    let attached = attach::attach(
        door,
        &cards[members[0]].door,
        &members,
        &proof,
        &health,
        &wait,
    );
    let shares = health.vote(attached.is_ok(), &wait)?;
    // A host where one member could not attach is split into hosts of one rank each.
    let is_split =
        |label: usize| (0..world_size).any(|other| labels[other] == label && !shares[other]);
    if options.transport == Transport::SharedMemory
        && let Some(rank) = (0..world_size).find(|rank| !shares[*rank])
    {
        let reason = attached.err().map_or_else(
            || "it could not map the segment".into(),
            |error| error.to_string(),
        );
        return Err(health.fail(CollectiveError::rendezvous(format!(
            "{} cannot share memory with its host's other ranks, and the transport allows nothing else: {reason}",
            peers[rank]
        ))));
    }
    let split: Vec<usize> = (0..world_size)
        .map(|rank| {
            if is_split(labels[rank]) {
                world_size + rank
            } else {
                labels[rank]
            }
        })
        .collect();
    topology = Topology::new(&split, rank);
    let attachment = if topology.members().len() > 1 {
        attached.ok().flatten()
    } else {
        None
    };
    if let Some(attachment) = &attachment {
        let board = attachment.board.clone();
        health.set_alarm(move || board.alarm());
    }

    let mut mesh = None;
    if topology.hosts.len() > 1 {
        let mut connections: Vec<Option<Connection>> =
            topology.hosts.iter().map(|_| None).collect();
        if topology.leader(topology.here) == rank {
            let leaders: BTreeSet<usize> = (0..topology.hosts.len())
                .map(|host| topology.leader(host))
                .collect();
            let leaders = leaders
                .into_iter()
                .filter(|leader| *leader != rank)
                .collect();
            let watched = health.clone();
            let interrupt = options.interrupt.clone();
            let stop = move || {
                watched.failure().is_some()
                    || interrupt.as_ref().is_some_and(|interrupt| interrupt())
            };
            let streams = web
                .weave(
                    Purpose::Data,
                    &leaders,
                    &patience.with_interrupt(Some(Arc::new(stop))),
                )
                .map_err(|error| health.fail(error))?;
            for (leader, stream) in streams {
                let connection = Connection::new(stream).map_err(|error| {
                    health.fail(CollectiveError::io("make a connection", error))
                })?;
                connections[topology.place(leader).0] = Some(connection);
            }
        }
        mesh = Some(Mesh::new(topology, connections));
    }
    Ok(Connected {
        health,
        monitor: Some(monitor),
        attachment,
        mesh,
    })
}

fn read_cards(payloads: &[Vec<u8>], own: &Card) -> Result<Vec<Card>> {
    if payloads.len() != own.world_size {
        return Err(CollectiveError::rendezvous(format!(
            "{} ranks came to a rendezvous of {}",
            payloads.len(),
            own.world_size
        )));
    }
    payloads
        .iter()
        .enumerate()
        .map(|(rank, payload)| {
            let card = Card::decode(payload).ok_or_else(|| {
                CollectiveError::rendezvous(format!("rank {rank} runs another version"))
            })?;
            if card.world_size != own.world_size || card.transport != own.transport {
                return Err(CollectiveError::rendezvous(format!(
                    "{} has another world size ({} against {}) or another transport",
                    Peer {
                        rank,
                        host: card.host
                    },
                    card.world_size,
                    own.world_size
                )));
            }
            Ok(card)
        })
        .collect()
}

/// The beginning of a term's hash: enough to see a difference.
fn hash((name, value): &(String, String)) -> u64 {
    let digest: [u8; 32] = Sha256::digest(format!("{name}={value}")).into();
    u64::from_le_bytes(array::from_fn(|index| digest[index]))
}

/// Checks that all ranks mean the same. All of them come to the same answer, from the same cards.
fn compare_terms(cards: &[Card], own: &[(String, String)]) -> Result<()> {
    let peer = |rank: usize| Peer {
        rank,
        host: cards[rank].host.clone(),
    };
    if let Some(rank) = (0..cards.len()).find(|rank| cards[*rank].terms.len() != own.len()) {
        return Err(CollectiveError::rendezvous(format!(
            "{} runs another version",
            peer(rank)
        )));
    }
    let names = |rank: usize| -> Vec<String> {
        let differs = |index: &usize| cards[rank].terms[*index] != cards[0].terms[*index];
        let indices = (0..own.len()).filter(differs);
        indices.map(|index| own[index].0.clone()).collect()
    };
    let differing: Vec<_> = (1..cards.len())
        .map(|rank| (peer(rank), names(rank)))
        .filter(|(_, names)| !names.is_empty())
        .collect();
    if differing.is_empty() {
        return Ok(());
    }
    let reference = peer(0);
    Err(CollectiveError::Terms {
        reference,
        differing,
    })
}

/// What connections are made from.
struct Web<'a> {
    rank: usize,
    listener: &'a TcpListener,
    cards: &'a [Card],
    peers: &'a [Peer],
    proof: &'a Proof,
}

impl Web<'_> {
    /// One connection with each of `others`: to the lower ranks, from the higher ones, both at the same time.
    fn weave(
        &self,
        purpose: Purpose,
        others: &BTreeSet<usize>,
        patience: &Patience,
    ) -> Result<BTreeMap<usize, TcpStream>> {
        let (lower, higher): (BTreeSet<usize>, BTreeSet<usize>) =
            others.iter().partition(|other| **other < self.rank);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        // The caller's interrupt is asked on the caller's thread alone.
        let quiet =
            patience.with_interrupt(Some(Arc::new(move || stopped.load(Ordering::Relaxed))));
        let interrupt = patience.interrupt().cloned();
        let stopped = stop.clone();
        let both = move || {
            stopped.load(Ordering::Relaxed)
                || interrupt.as_ref().is_some_and(|interrupt| interrupt())
        };
        let loud = patience.with_interrupt(Some(Arc::new(both)));

        thread::scope(|scope| {
            let connecting = scope.spawn(|| {
                let made = self.connect(purpose, &lower, &quiet);
                if made.is_err() {
                    stop.store(true, Ordering::Relaxed);
                }
                made
            });
            let accepted = gate::accept(self.listener, self.proof, purpose, &higher, &loud);
            if accepted.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            // Connecting looks at the interrupt too, when there is nobody to accept.
            while !connecting.is_finished() {
                if loud.interrupted() {
                    stop.store(true, Ordering::Relaxed);
                }
                thread::sleep(Duration::from_millis(1));
            }
            let made = connecting.join().unwrap_or_else(|_| Err(Failure::Stopped));
            match (made, accepted) {
                (Ok(mut made), Ok(accepted)) => {
                    made.extend(accepted);
                    Ok(made)
                }
                (Err(Failure::With(rank, error)), _) => {
                    Err(self.unreachable(rank, error, patience))
                }
                (_, Err(refusal)) => Err(self.refused(refusal, patience)),
                (Err(Failure::Stopped), Ok(_)) => Err(CollectiveError::Interrupted),
            }
        })
    }

    fn connect(
        &self,
        purpose: Purpose,
        lower: &BTreeSet<usize>,
        patience: &Patience,
    ) -> std::result::Result<BTreeMap<usize, TcpStream>, Failure> {
        let mut made = BTreeMap::new();
        for rank in lower {
            let address = self.cards[*rank].address;
            match gate::connect(address, self.proof, purpose, self.rank, patience, REFUSALS) {
                Ok(stream) => drop(made.insert(*rank, stream)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    return Err(Failure::Stopped);
                }
                Err(error) => return Err(Failure::With(*rank, error)),
            }
        }
        Ok(made)
    }

    fn unreachable(&self, rank: usize, error: io::Error, patience: &Patience) -> CollectiveError {
        let address = self.cards[rank].address;
        match error.kind() {
            io::ErrorKind::TimedOut => self.timed_out(&BTreeSet::from([rank]), patience),
            _ => CollectiveError::rendezvous_io(
                format!("with {} at {address}: {error}", self.peers[rank]),
                error,
            ),
        }
    }

    fn refused<S>(&self, refusal: Refusal<S>, patience: &Patience) -> CollectiveError {
        match refusal {
            Refusal::Twice(rank) => {
                CollectiveError::rendezvous(format!("two processes are {}", self.peers[rank]))
            }
            Refusal::Missing { error, .. } if error.kind() == io::ErrorKind::Interrupted => {
                CollectiveError::Interrupted
            }
            Refusal::Missing {
                missing, trouble, ..
            } => match trouble.text() {
                Some(trouble) => CollectiveError::rendezvous(format!(
                    "after {:.1?} {} had not connected, and {trouble}",
                    patience.waited(),
                    missing
                        .iter()
                        .map(|rank| self.peers[*rank].to_string())
                        .collect::<Vec<_>>()
                        .join(", ")
                )),
                None => self.timed_out(&missing, patience),
            },
        }
    }

    fn timed_out(&self, missing: &BTreeSet<usize>, patience: &Patience) -> CollectiveError {
        CollectiveError::Timeout {
            operation: "connect".into(),
            sequence: 0,
            missing: missing
                .iter()
                .map(|rank| self.peers[*rank].clone())
                .collect(),
            waited: patience.waited(),
        }
    }
}

/// Why the connecting thread stopped.
enum Failure {
    /// It was told to.
    Stopped,
    /// This rank could not be reached.
    With(usize, io::Error),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::corpus::mutations;

    fn card(num_terms: usize) -> Card {
        Card {
            world_size: 3,
            transport: 0,
            host: "a host".into(),
            host_id: "a boot and a namespace".into(),
            address: "127.0.0.1:4242".parse().unwrap(),
            door: "flambeau-0123".into(),
            terms: vec![1; num_terms],
        }
    }

    #[test]
    fn a_card_arrives_as_it_was_sent() {
        let sent = card(2);
        let read = Card::decode(&sent.encode().unwrap()).unwrap();
        assert_eq!((read.world_size, read.transport), (3, 0));
        assert_eq!((&read.host, &read.host_id), (&sent.host, &sent.host_id));
        assert_eq!((read.address, &read.door), (sent.address, &sent.door));
        assert_eq!(read.terms, sent.terms);
    }

    proptest! {
        /// Ranks that are nearly of this version are taken, or refused in words.
        #[test]
        fn nearly_a_peers_cards_are_taken_or_refused(
            others in prop::collection::vec(mutations(card(2).encode().unwrap()), 2)
        ) {
            let own = card(2);
            let payloads = [vec![own.encode().unwrap()], others].concat();
            let terms = ["seed", "epochs"].map(|name| (name.to_owned(), "1".to_owned()));
            let compared = read_cards(&payloads, &own)
                .and_then(|cards| compare_terms(&cards, &terms).map(|()| cards));
            match compared {
                Ok(cards) => prop_assert!(cards.iter().all(|card| card.world_size == 3)),
                Err(error) => {
                    let is_refusal = matches!(
                        error,
                        CollectiveError::Rendezvous { .. } | CollectiveError::Terms { .. }
                    );
                    prop_assert!(is_refusal, "{error:?}");
                }
            }
        }
    }
}
