//! A rendezvous over TCP, for launchers without Spark: rank 0 serves, the others come.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::acceptor::{Acceptor, Refusal, listen};
use super::connector::connect;
use super::handshake::{self, Context, Proof, Purpose};
use super::rendezvous::Rendezvous;
use crate::deadline::Deadline;
use crate::error::{CollectiveError, Result};
use crate::options::Interrupt;
use crate::peer::Peer;
use crate::wire::{Reader, Writer};

/// The longest payload, and the longest answer: a rendezvous carries addresses, not data.
const MAX_MESSAGE: usize = 64 << 20;
/// What room is made for at a time.
const PIECE: usize = 1 << 20;
const GATHERED: u8 = 0;
const FAILED: u8 = 1;

/// Ranks meet at `host:port`, where rank 0 listens; each proves the attempt's secret by challenge and response.
///
/// The connections live as long as the value. Every `all_gather` waits for at most the timeout given to `new`.
pub struct TcpRendezvous {
    rank: usize,
    world_size: usize,
    timeout: Duration,
    interrupt: Option<Interrupt>,
    proof: Proof,
    address: SocketAddr,
    place: Place,
}

enum Place {
    /// Rank 0: where it listens, and the connections in rank order once all have come (rank 1 first).
    Server {
        listener: TcpListener,
        members: Vec<TcpStream>,
    },
    /// Any other rank: its connection, once made.
    Member { stream: Option<TcpStream> },
}

impl fmt::Debug for TcpRendezvous {
    /// Leaves the secret out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpRendezvous")
            .field("rank", &self.rank)
            .field("world_size", &self.world_size)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl TcpRendezvous {
    /// Prepares the meeting at `address` (`host:port`, where rank 0 runs). Rank 0 listens from here on (port 0 picks a
    /// free one: see `address`); the others connect in the first `all_gather`, and may come before rank 0 does.
    ///
    /// # Errors
    /// `InvalidArgument` for a rank outside the world, a secret of several ranks that has less than 16 bytes or an address
    /// that cannot be resolved, `Io` when rank 0 cannot listen.
    pub fn new(
        address: &str,
        rank: usize,
        world_size: usize,
        secret: &[u8],
        timeout: Duration,
    ) -> Result<Self> {
        if rank >= world_size {
            return Err(CollectiveError::invalid(format!(
                "rank {rank} is outside a world of {world_size}"
            )));
        }
        if world_size > 1 {
            handshake::check(secret)?;
        }
        let resolved = address
            .to_socket_addrs()
            .map_err(|error| {
                CollectiveError::invalid(format!("rendezvous address {address:?}: {error}"))
            })?
            .next()
            .ok_or_else(|| {
                CollectiveError::invalid(format!(
                    "rendezvous address {address:?} has no IP address"
                ))
            })?;
        let (place, address) = if rank == 0 {
            let context = || format!("listen for the rendezvous on {resolved}");
            let listener =
                listen(resolved).map_err(|error| CollectiveError::io(context(), error))?;
            let address = listener
                .local_addr()
                .map_err(|error| CollectiveError::io(context(), error))?;
            (
                Place::Server {
                    listener,
                    members: Vec::new(),
                },
                address,
            )
        } else {
            (Place::Member { stream: None }, resolved)
        };
        let proof = Proof {
            secret: secret.to_vec(),
            context: context(world_size, ""),
        };
        Ok(TcpRendezvous {
            rank,
            world_size,
            timeout,
            interrupt: None,
            proof,
            address,
            place,
        })
    }

    /// Binds the meeting to this attempt: ranks of another one are strangers to it, even with the same secret. The same on
    /// all ranks; to be called before the first `all_gather`.
    pub fn for_attempt(mut self, attempt: &str) -> Self {
        self.proof.context = context(self.world_size, attempt);
        self
    }

    /// Lets the caller end a wait.
    pub fn with_interrupt(mut self, interrupt: Interrupt) -> Self {
        self.interrupt = Some(interrupt);
        self
    }

    /// Where rank 0 listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn peer(&self, rank: usize) -> Peer {
        let host = if rank == 0 {
            self.address.ip().to_string()
        } else {
            "a host not yet known".into()
        };
        Peer { rank, host }
    }

    fn error(&self, error: io::Error, rank: usize, deadline: &Deadline) -> CollectiveError {
        match error.kind() {
            io::ErrorKind::TimedOut => self.timed_out(vec![self.peer(rank)], deadline),
            _ if deadline.interrupted() => CollectiveError::Interrupted,
            _ => CollectiveError::rendezvous_io(
                format!("with rank {rank} at {}: {error}", self.address),
                error,
            ),
        }
    }

    fn timed_out(&self, missing: Vec<Peer>, deadline: &Deadline) -> CollectiveError {
        CollectiveError::Timeout {
            operation: format!("rendezvous at {}", self.address),
            sequence: 0,
            missing: missing.into_iter().map(Into::into).collect(),
            waited: deadline.waited(),
        }
    }

    fn admit(&mut self, deadline: &Deadline) -> Result<()> {
        let Place::Server { listener, members } = &self.place else {
            return Ok(());
        };
        let expected: BTreeSet<usize> = (1..self.world_size).collect();
        if members.len() == expected.len() {
            return Ok(());
        }
        let acceptor = Acceptor {
            listener,
            proof: &self.proof,
        };
        let refusal = match acceptor.accept(Purpose::Rendezvous, &expected, deadline) {
            Ok(admitted) => {
                self.seat(admitted);
                return Ok(());
            }
            Err(refusal) => refusal,
        };
        Err(match refusal {
            Refusal::Twice(rank) => CollectiveError::rendezvous(format!(
                "two processes came to {} as rank {rank}",
                self.address
            )),
            Refusal::Missing {
                accepted,
                missing,
                trouble,
                ..
            } => {
                // Those who have come are told why it was in vain.
                self.seat(accepted);
                match trouble.text() {
                    _ if deadline.interrupted() => CollectiveError::Interrupted,
                    Some(trouble) => CollectiveError::rendezvous(format!(
                        "after {:.1?} ranks {missing:?} were missing at {}, and {trouble}",
                        deadline.waited(),
                        self.address
                    )),
                    None => self.timed_out(
                        missing.into_iter().map(|rank| self.peer(rank)).collect(),
                        deadline,
                    ),
                }
            }
        })
    }

    fn seat(&mut self, streams: BTreeMap<usize, TcpStream>) {
        if let Place::Server { members, .. } = &mut self.place {
            *members = streams.into_values().collect();
        }
    }

    fn serve(&mut self, payload: &[u8], deadline: &Deadline) -> Result<Vec<Vec<u8>>> {
        let gathered = self
            .admit(deadline)
            .and_then(|()| self.collect(payload, deadline));
        let answer = match &gathered {
            Ok(payloads) => payloads
                .iter()
                .fold(Writer::default().u8(GATHERED), |writer, payload| {
                    writer.bytes(payload)
                })
                .finish(),
            Err(error) => Writer::default()
                .u8(FAILED)
                .bytes(error.to_string().as_bytes())
                .finish(),
        };
        let mut unreachable = None;
        // The members also hear of a failure, so it has a little time even when the wait is over.
        let farewell = Deadline::new(Duration::from_secs(2), None);
        let deadline = if gathered.is_ok() {
            deadline
        } else {
            &farewell
        };
        if let Place::Server { members, .. } = &mut self.place {
            for (index, stream) in members.iter_mut().enumerate() {
                let sent = send(stream, &answer, deadline);
                unreachable = unreachable.or(sent.err().map(|error| (index + 1, error)));
            }
        }
        match unreachable {
            Some((rank, error)) if gathered.is_ok() => Err(self.error(error, rank, deadline)),
            _ => gathered,
        }
    }

    fn collect(&mut self, payload: &[u8], deadline: &Deadline) -> Result<Vec<Vec<u8>>> {
        let mut payloads = vec![payload.to_vec()];
        let mut failed = None;
        if let Place::Server { members, .. } = &mut self.place {
            for (index, stream) in members.iter_mut().enumerate() {
                match receive(stream, deadline) {
                    Ok(payload) => payloads.push(payload),
                    Err(error) => {
                        failed = Some((index + 1, error));
                        break;
                    }
                }
            }
        }
        match failed {
            Some((rank, error)) => Err(self.error(error, rank, deadline)),
            None => Ok(payloads),
        }
    }

    fn attend(&mut self, payload: &[u8], deadline: &Deadline) -> Result<Vec<Vec<u8>>> {
        let answer = self
            .ask(payload, deadline)
            .map_err(|error| self.error(error, 0, deadline))?;
        let mut reader = Reader::new(&answer);
        let malformed = || CollectiveError::rendezvous("rank 0's answer is malformed");
        match reader.u8() {
            Some(GATHERED) => {
                let payloads: Option<Vec<_>> = (0..self.world_size)
                    .map(|_| reader.bytes().map(<[u8]>::to_vec))
                    .collect();
                payloads.filter(|_| reader.is_empty()).ok_or_else(malformed)
            }
            Some(FAILED) => {
                let reason = reader.string().ok_or_else(malformed)?;
                Err(CollectiveError::rendezvous(format!(
                    "rank 0 gave up: {reason}"
                )))
            }
            _ => Err(malformed()),
        }
    }

    fn ask(&mut self, payload: &[u8], deadline: &Deadline) -> io::Result<Vec<u8>> {
        let Place::Member { stream } = &mut self.place else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        if stream.is_none() {
            let (proof, rank) = (&self.proof, self.rank);
            let made = connect(
                self.address,
                proof,
                Purpose::Rendezvous,
                rank,
                deadline,
                self.timeout,
            )?;
            *stream = Some(made);
        }
        let Some(stream) = stream else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        send(stream, payload, deadline)?;
        // Rank 0 ends the wait and says who is missing: give its word the time to arrive.
        let patience = deadline.remaining() + Duration::from_secs(2);
        let word = Deadline::new(patience, deadline.interrupt().cloned());
        receive(stream, &word)
    }
}

impl Rendezvous for TcpRendezvous {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    /// Waits for at most the timeout given to `new`, and is woken by the last rank to come.
    fn all_gather(&mut self, payload: &[u8]) -> Result<Vec<Vec<u8>>> {
        if payload.len() > MAX_MESSAGE / self.world_size {
            return Err(CollectiveError::invalid(format!(
                "a rendezvous payload of {} bytes",
                payload.len()
            )));
        }
        let deadline = Deadline::new(self.timeout, self.interrupt.clone());
        if self.rank == 0 {
            self.serve(payload, &deadline)
        } else {
            self.attend(payload, &deadline)
        }
    }
}

fn context(world_size: usize, attempt: &str) -> Context {
    Sha256::digest(format!("flambeau rendezvous of {world_size} in {attempt}")).into()
}

fn send(stream: &mut TcpStream, message: &[u8], deadline: &Deadline) -> io::Result<()> {
    deadline.write_all(stream, &(message.len() as u32).to_le_bytes())?;
    deadline.write_all(stream, message)
}

fn receive(stream: &mut TcpStream, deadline: &Deadline) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    deadline.read_exact(stream, &mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > MAX_MESSAGE + (64 << 10) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a message of {len} bytes"),
        ));
    }
    // Room is made as bytes come, and not for a length alone.
    let mut message = Vec::new();
    while message.len() < len {
        let start = message.len();
        message.resize(len.min(start + PIECE), 0);
        deadline.read_exact(stream, &mut message[start..])?;
    }
    Ok(message)
}
