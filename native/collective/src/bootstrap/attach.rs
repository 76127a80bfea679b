//! How the ranks of one host come to share memory.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use super::acceptor::{Acceptor, Refusal};
use super::handshake::{Proof, Purpose, random};
use crate::deadline::{Deadline, Timed};
use crate::error::Result;
use crate::liveness::health::Health;
use crate::liveness::wait::Wait;
use crate::options::{GroupOptions, TransportChoice};
use crate::shared_memory::board::Board;
use crate::shared_memory::descriptor;

/// A socket in the abstract namespace of this host, over which the leader gives out the memory. Closed when dropped.
pub(crate) struct LocalListener {
    name: String,
    listener: Option<UnixListener>,
}

impl LocalListener {
    /// Listens under a name that nobody can guess. No rank knows yet whether it leads, so every rank does. Where the system
    /// refuses, the rank shares no memory.
    pub(crate) fn open(options: &GroupOptions) -> Self {
        let opened = if options.transport == TransportChoice::Tcp {
            None
        } else {
            Self::listen().ok()
        };
        opened.unwrap_or(LocalListener {
            name: String::new(),
            listener: None,
        })
    }

    fn listen() -> io::Result<Self> {
        let token: String = random::<16>()?
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let name = format!("flambeau-{token}");
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        listener.set_nonblocking(true)?;
        Ok(LocalListener {
            name,
            listener: Some(listener),
        })
    }

    pub(crate) fn name(&self) -> String {
        self.name.clone()
    }
}

/// What the members of a host share.
pub(crate) struct Attachment {
    pub(crate) board: Arc<Board>,
    /// At the leader one socket per other member, by member index; else the leader's, under 0.
    pub(crate) links: BTreeMap<usize, UnixStream>,
}

/// Shares memory between `members`, of which the first leads. `None` when this rank is alone on its host.
///
/// Blocks until the other members have come, or one of them has voted no, for as long as `wait` allows.
///
/// # Errors
/// Whatever keeps this rank, or the leader, from it; the caller votes on the outcome.
pub(crate) fn attach(
    local: LocalListener,
    leader_name: &str,
    members: &[usize],
    proof: &Proof,
    health: &Arc<Health>,
    wait: &Wait<'_>,
) -> io::Result<Option<Attachment>> {
    let rank = health.rank;
    let Some(me) = members
        .iter()
        .position(|member| *member == rank)
        .filter(|_| members.len() > 1)
    else {
        return Ok(None);
    };
    if me == 0 {
        lead(&local, members, proof, health, wait)
    } else {
        follow(leader_name, members, me, proof, health, wait)
    }
    .map(Some)
}

fn lead(
    local: &LocalListener,
    members: &[usize],
    proof: &Proof,
    health: &Arc<Health>,
    wait: &Wait<'_>,
) -> io::Result<Attachment> {
    let board = Board::create(members.to_vec(), 0, &proof.context)?;
    let Some(listener) = &local.listener else {
        return Err(io::ErrorKind::NotConnected.into());
    };
    let expected: BTreeSet<usize> = members[1..].iter().copied().collect();
    let refused_by = {
        let (health, expected) = (health.clone(), expected.clone());
        move || expected.iter().any(|member| health.voted_no(*member))
    };
    let stop = {
        let (health, refused_by) = (health.clone(), refused_by.clone());
        move || health.failure().is_some() || refused_by() || health.options.is_interrupted()
    };
    let deadline = Deadline::new(wait.remaining(), Some(Arc::new(stop)));
    let acceptor = Acceptor { listener, proof };
    let streams = match acceptor.accept(Purpose::Attach, &expected, &deadline) {
        Ok(streams) => streams,
        Err(Refusal::Missing { error, .. }) if refused_by() => {
            let reason = "another rank of this host cannot share memory";
            return Err(io::Error::new(error.kind(), reason));
        }
        Err(Refusal::Missing {
            missing,
            trouble,
            error,
            ..
        }) => {
            let absent = || missing.into_iter().collect();
            let ended = wait.check(absent).err().map_or(error, io::Error::other);
            return Err(match trouble.text() {
                Some(trouble) => io::Error::new(ended.kind(), format!("{ended}; {trouble}")),
                None => ended,
            });
        }
        Err(Refusal::Twice(rank)) => {
            let reason = format!("two processes came as rank {rank}");
            return Err(io::Error::other(reason));
        }
    };
    for stream in streams.values() {
        descriptor::send(stream, 1, board.file())?;
    }
    Ok(Attachment {
        board: Arc::new(board),
        // Members are in rank order, and so are the streams.
        links: (1..).zip(streams.into_values()).collect(),
    })
}

fn follow(
    leader_name: &str,
    members: &[usize],
    me: usize,
    proof: &Proof,
    health: &Arc<Health>,
    wait: &Wait<'_>,
) -> io::Result<Attachment> {
    // The leader listens since before the rendezvous: a refusal is final, most likely another namespace.
    let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(leader_name)?)?;
    // A leader that has stopped is found by its beats, sooner than by the deadline.
    let watched = health.clone();
    let stop = move || watched.failure().is_some() || watched.options.is_interrupted();
    let deadline = Deadline::new(wait.remaining(), Some(Arc::new(stop)));
    if let Err(error) = proof.connect(&mut stream, Purpose::Attach, health.rank, &deadline) {
        wait.check(|| vec![members[0]]).map_err(io::Error::other)?;
        return Err(error);
    }
    loop {
        stream.set_slice(wait.slice())?;
        match descriptor::receive(&stream) {
            Ok((1, Some(file))) => {
                let board = Board::attach(file, members.to_vec(), me, &proof.context)?;
                return Ok(Attachment {
                    board: Arc::new(board),
                    links: BTreeMap::from([(0, stream)]),
                });
            }
            Ok(_) => return Err(io::Error::other("the leader gave no memory")),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                if wait.health.voted_no(members[0]) {
                    return Err(io::Error::other("the host's leader cannot share memory"));
                }
                wait.check(|| vec![members[0]]).map_err(io::Error::other)?;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Votes on whether this rank could attach its host's shared memory, and waits for all votes; `true` at its index for a rank
/// that could. Blocks for as long as `wait` allows, and is woken by a vote's coming and by the group's failure.
///
/// # Errors
/// What fails the group.
pub(super) fn vote(own: bool, health: &Health, wait: &Wait<'_>) -> Result<Vec<bool>> {
    health.cast_vote(own);
    loop {
        let absent: Vec<usize> = health
            .others()
            .filter(|rank| health.vote(*rank).is_none())
            .collect();
        if absent.is_empty() {
            let ranks = 0..health.members.len();
            return Ok(ranks.map(|rank| health.vote(rank) == Some(true)).collect());
        }
        wait.check(|| absent)?;
        health.sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Instant;

    use super::*;
    use crate::call::Operation;
    use crate::peer::Peer;

    fn rank(rank: usize) -> (Arc<Health>, Proof) {
        let peer = |rank| Peer {
            rank,
            host: "here".into(),
        };
        let peers = vec![peer(0), peer(1)];
        let health = Health::new(rank, peers, vec![None, None], GroupOptions::default());
        let proof = Proof {
            secret: b"of both of the ranks".to_vec(),
            context: [7; 32],
        };
        (Arc::new(health), proof)
    }

    /// How long two ranks take to share memory after `strangers` have come to the leader's socket.
    fn attach_after(strangers: impl FnOnce(&SocketAddr) -> Vec<UnixStream>) -> Duration {
        let local = LocalListener::open(&GroupOptions::default());
        let name = local.name();
        let held = strangers(&SocketAddr::from_abstract_name(&name).unwrap());
        let started = Instant::now();
        thread::scope(|scope| {
            let join = |local: LocalListener, member: usize| {
                let name = &name;
                scope.spawn(move || {
                    let (health, proof) = rank(member);
                    let wait = Wait {
                        health: &health,
                        operation: Operation::Barrier,
                        sequence: 0,
                        started,
                        timeout: Duration::from_secs(20),
                        interruptible: true,
                    };
                    attach(local, name, &[0, 1], &proof, &health, &wait)
                })
            };
            let members = [
                join(local, 0),
                join(LocalListener::open(&GroupOptions::default()), 1),
            ];
            for member in members {
                assert!(member.join().unwrap().unwrap().is_some());
            }
        });
        drop(held);
        started.elapsed()
    }

    #[test]
    fn silent_connections_keep_no_rank_waiting() {
        let took = attach_after(|address| {
            (0..100)
                .map(|_| UnixStream::connect_addr(address).unwrap())
                .collect()
        });
        assert!(took < Duration::from_secs(15), "{took:?}");
    }

    /// Even one that holds the secret.
    #[test]
    fn another_users_connection_is_refused() {
        let (connected, is_connected) = mpsc::channel();
        let mut stranger = None;
        attach_after(|address| {
            let address = address.clone();
            stranger = Some(thread::spawn(move || {
                const NOBODY: libc::uid_t = 65534;
                // SAFETY: the bare system call changes the user of this thread alone, which ends here.
                let changed = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
                let mut stream = UnixStream::connect_addr(&address).unwrap();
                connected.send(()).unwrap();
                let deadline = Deadline::new(Duration::from_secs(10), None);
                let (_, proof) = rank(1);
                (changed == 0).then(|| proof.connect(&mut stream, Purpose::Attach, 1, &deadline))
            }));
            is_connected.recv().unwrap();
            Vec::new()
        });
        match stranger.unwrap().join().unwrap() {
            Some(outcome) => {
                let error = outcome.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted, "{error}");
            }
            None => println!("SKIPPED: only root can play another user"),
        }
    }
}
