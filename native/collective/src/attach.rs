//! How the ranks of one host come to share memory.

use std::collections::BTreeMap;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::board::Board;
use crate::descriptor;
use crate::health::Wait;
use crate::options::{GroupOptions, Transport};
use crate::patience::{Patience, Timed};
use crate::secret::{Proof, Purpose, random};

/// How long one connection may take to prove itself, so that a stranger on the host cannot hold up the others for long.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// A socket in the abstract namespace of this host, over which the leader gives out the memory. Closed when dropped.
pub(crate) struct Door {
    name: String,
    listener: Option<UnixListener>,
}

impl Door {
    /// Listens under a name that nobody can guess. No rank knows yet whether it leads, so every rank does. Where the system
    /// refuses, the rank shares no memory.
    pub(crate) fn open(options: &GroupOptions) -> Self {
        let opened = if options.transport == Transport::Tcp {
            None
        } else {
            Self::listen().ok()
        };
        opened.unwrap_or(Door {
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
        Ok(Door {
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
/// # Errors
/// Whatever keeps this rank, or the leader, from it; the caller votes on the outcome.
pub(crate) fn attach(
    door: Door,
    leader_door: &str,
    members: &[usize],
    proof: &Proof,
    wait: &Wait<'_>,
) -> io::Result<Option<Attachment>> {
    let rank = wait.health.rank;
    let Some(me) = members
        .iter()
        .position(|member| *member == rank)
        .filter(|_| members.len() > 1)
    else {
        return Ok(None);
    };
    if me == 0 {
        lead(&door, members, proof, wait)
    } else {
        follow(leader_door, members, me, proof, wait)
    }
    .map(Some)
}

fn lead(door: &Door, members: &[usize], proof: &Proof, wait: &Wait<'_>) -> io::Result<Attachment> {
    let board = Board::create(members.to_vec(), 0, &proof.context)?;
    let Some(listener) = &door.listener else {
        return Err(io::ErrorKind::NotConnected.into());
    };
    let mut links = BTreeMap::new();
    while links.len() + 1 < members.len() {
        match listener.accept() {
            Ok((mut stream, _)) => {
                stream.set_nonblocking(false)?;
                if let Ok((Purpose::Attach, rank)) =
                    proof.accept(&mut stream, &Patience::new(HANDSHAKE, None))
                    && let Some(index) = members.iter().position(|member| *member == rank)
                {
                    descriptor::send(&stream, 1, board.file())?;
                    links.insert(index, stream);
                }
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                let absent = || {
                    members
                        .iter()
                        .enumerate()
                        .filter(|(index, _)| !links.contains_key(index))
                };
                if members.iter().any(|member| wait.health.voted_no(*member)) {
                    return Err(io::Error::other(
                        "another rank of this host cannot share memory",
                    ));
                }
                wait.check(|| absent().map(|(_, rank)| *rank).collect())
                    .map_err(io::Error::other)?;
                thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Attachment {
        board: Arc::new(board),
        links,
    })
}

fn follow(
    leader_door: &str,
    members: &[usize],
    me: usize,
    proof: &Proof,
    wait: &Wait<'_>,
) -> io::Result<Attachment> {
    // The leader listens since before the rendezvous: a refusal is final, most likely another namespace.
    let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(leader_door)?)?;
    proof.connect(
        &mut stream,
        Purpose::Attach,
        wait.health.rank,
        &Patience::new(wait.timeout, wait.health.options.interrupt.clone()),
    )?;
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
