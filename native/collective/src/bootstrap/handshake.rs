//! Proof that both ends of a connection hold the attempt's secret, without sending it.
//!
//! ```text
//! connector -> acceptor   MAGIC, context, purpose, rank, nonce_c
//! acceptor  -> connector  nonce_s, HMAC(secret, "acceptor"  ‖ all of the above)
//! connector -> acceptor            HMAC(secret, "connector" ‖ all of the above)
//! acceptor  -> connector  one byte: welcome
//! ```
//!
//! To a connector of another group the acceptor answers zeros, which prove nothing: so one that hangs up without an answer
//! has refused nobody.
//!
//! The context binds a connection to one group, so that a straggler of another group with the same secret is refused;
//! the labels keep one end's proof from being played back as the other's.

use std::io;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::deadline::{Deadline, Timed};
use crate::error::{CollectiveError, Result};

const MAGIC: &[u8; 8] = b"FLAMBEA2";
const NONCE: usize = 32;
const PROOF: usize = 32;
const WELCOME: u8 = 1;

/// The SHA-256 of what a group's connections have in common.
pub(crate) type Context = [u8; 32];

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Purpose {
    /// A rank joins the TCP rendezvous.
    Rendezvous = 1,
    /// Heartbeats, farewells and causes of failure.
    Control = 2,
    /// Collectives' bytes.
    Data = 3,
    /// Shared memory.
    Attach = 4,
}

impl Purpose {
    fn from_code(code: u8) -> Option<Self> {
        use Purpose::*;
        [Rendezvous, Control, Data, Attach]
            .into_iter()
            .find(|purpose| *purpose as u8 == code)
    }
}

/// The least length of a secret, in bytes: 128 bits.
const LEAST: usize = 16;

/// Checks that a secret of several ranks is none that could be tried out.
///
/// # Errors
/// `InvalidArgument` for one that is too short.
pub(crate) fn check(secret: &[u8]) -> Result<()> {
    if secret.len() >= LEAST {
        return Ok(());
    }
    Err(CollectiveError::invalid(format!(
        "the secret has {} bytes, but must have at least {LEAST}: give all ranks the same random ones, such as `openssl rand \
         -hex 32` prints",
        secret.len()
    )))
}

/// The secret, and the context it is used in.
#[derive(Clone)]
pub(crate) struct Proof {
    pub(crate) secret: Vec<u8>,
    pub(crate) context: Context,
}

impl Proof {
    fn mac(&self, label: &[u8], transcript: &[u8]) -> Hmac<Sha256> {
        let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(&self.secret)
            .expect("HMAC takes keys of any length");
        mac.update(label);
        mac.update(transcript);
        mac
    }

    /// Proves itself over a new connection, and has the other end prove itself.
    ///
    /// # Errors
    /// `PermissionDenied` when the other end does not hold the secret or refuses ours, `ConnectionAborted` when it hung up
    /// before the end; otherwise the connection's error.
    pub(crate) fn connect(
        &self,
        stream: &mut impl Timed,
        purpose: Purpose,
        rank: usize,
        deadline: &Deadline,
    ) -> io::Result<()> {
        let mut transcript = Vec::with_capacity(MAGIC.len() + 32 + 5 + 2 * NONCE);
        transcript.extend_from_slice(MAGIC);
        transcript.extend_from_slice(&self.context);
        transcript.push(purpose as u8);
        transcript.extend_from_slice(&(rank as u32).to_le_bytes());
        transcript.extend_from_slice(&random::<NONCE>()?);
        let mut answer = [0; NONCE + PROOF];
        deadline
            .write_all(stream, &transcript)
            .and_then(|()| deadline.read_exact(stream, &mut answer))
            .map_err(|error| {
                let reason = "the other end hung up before it answered";
                hung_up(error, io::ErrorKind::ConnectionAborted, reason)
            })?;
        transcript.extend_from_slice(&answer[..NONCE]);
        self.mac(b"acceptor", &transcript)
            .verify_slice(&answer[NONCE..])
            .map_err(|_| denied("the other end's secret, its attempt or its world size differs"))?;

        deadline.write_all(
            stream,
            &self.mac(b"connector", &transcript).finalize().into_bytes(),
        )?;
        let mut welcome = [0];
        deadline.read_exact(stream, &mut welcome).map_err(|error| {
            let reason = "the other end hung up after it was answered";
            hung_up(error, io::ErrorKind::ConnectionAborted, reason)
        })?;
        if welcome != [WELCOME] {
            return Err(denied("the other end did not welcome this one"));
        }
        Ok(())
    }

    /// The other end of `connect`: returns what the connection is for and the rank that made it.
    ///
    /// # Errors
    /// `PermissionDenied` when the other end does not hold the secret, `InvalidData` when it does not speak this
    /// protocol or belongs to another group.
    pub(crate) fn accept(
        &self,
        stream: &mut impl Timed,
        deadline: &Deadline,
    ) -> io::Result<(Purpose, usize)> {
        let mut transcript = vec![0; MAGIC.len() + 32 + 5 + NONCE];
        deadline.read_exact(stream, &mut transcript)?;
        let (magic, rest) = transcript.split_at(MAGIC.len());
        let (context, rest) = rest.split_at(32);
        let purpose = Purpose::from_code(rest[0]);
        let rank = u32::from_le_bytes([rest[1], rest[2], rest[3], rest[4]]) as usize;
        let stranger = || {
            let reason = "the connection is not one of this group";
            io::Error::new(io::ErrorKind::InvalidData, reason)
        };
        let (true, Some(purpose)) = (magic == MAGIC, purpose) else {
            return Err(stranger());
        };
        if context != self.context {
            deadline.write_all(stream, &[0; NONCE + PROOF])?;
            return Err(stranger());
        }

        let nonce = random::<NONCE>()?;
        transcript.extend_from_slice(&nonce);
        let mut answer = nonce.to_vec();
        answer.extend_from_slice(&self.mac(b"acceptor", &transcript).finalize().into_bytes());
        deadline.write_all(stream, &answer)?;

        let mut proof = [0; PROOF];
        deadline.read_exact(stream, &mut proof).map_err(refused)?;
        self.mac(b"connector", &transcript)
            .verify_slice(&proof)
            .map_err(|_| {
                denied("a connection could not prove that it holds this attempt's secret")
            })?;
        deadline.write_all(stream, &[WELCOME])?;
        Ok((purpose, rank))
    }
}

fn denied(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

/// An end that hangs up after its answer has refused us.
fn refused(error: io::Error) -> io::Error {
    let reason =
        "the other end hung up during the handshake: its secret differs, or it has given up";
    hung_up(error, io::ErrorKind::PermissionDenied, reason)
}

fn hung_up(error: io::Error, kind: io::ErrorKind, reason: &str) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => io::Error::new(kind, reason),
        _ => error,
    }
}

/// Random bytes from the kernel.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: the pointer and the length are those of a live array; requests up to 256 bytes are never cut short.
    let read = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    if read == N as isize {
        Ok(bytes)
    } else {
        Err(io::Error::last_os_error())
    }
}
