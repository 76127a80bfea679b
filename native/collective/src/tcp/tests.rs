//! What a peer's bytes can do to an exchange: every stream ends it, or is refused by name.

use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::Tcp;
use super::connection::{Connection, HEAD, Head, Kind};
use super::segment::SEGMENT;
use super::topology::Topology;
use crate::buffer::{DType, ReduceOp};
use crate::call::{Call, Entry, Operation};
use crate::corpus::mutations;
use crate::error::{CollectiveError, Result};
use crate::liveness::health::Health;
use crate::liveness::wait::Wait;
use crate::options::GroupOptions;
use crate::peer::Peer;
use crate::task::{StagedMask, Task};

/// Elements of a buffer that is cut into segments, and of one that travels with the first frame.
const LENS: [usize; 2] = [200_000, 100];
/// Elements on either side of a buffer, which nobody may touch.
const MARGIN: usize = 1024;
const UNTOUCHED: f32 = -7.0;

/// How many members this rank's host has; the last rank is on the other host.
fn topology(members: usize) -> Topology {
    let mut labels = vec![0; members];
    labels.push(1);
    Topology::new(&labels, 0)
}

fn entry(len: usize) -> [Entry; 1] {
    [Entry {
        dtype: DType::Float32,
        op: ReduceOp::Sum,
        len,
    }]
}

/// The outcome of an exchange whose peer sends these bytes and no more.
fn against(
    call: &Call<'_>,
    members: usize,
    bytes: Vec<u8>,
    timeout: Duration,
) -> Result<StagedMask> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (ours, _) = listener.accept().unwrap();
    let sender = thread::spawn(move || {
        // Who is not read to the end is hung up on.
        let _ = theirs.write_all(&bytes);
        let _ = theirs.shutdown(Shutdown::Write);
        theirs
    });
    let peers = (0..=members).map(|rank| Peer {
        rank,
        host: "a host".into(),
    });
    let controls = (0..=members).map(|_| None).collect();
    let health = Health::new(0, peers.collect(), controls, GroupOptions::default());
    let wait = Wait {
        health: &health,
        operation: call.operation,
        sequence: call.sequence,
        started: Instant::now(),
        timeout,
        interruptible: false,
    };
    let len = call.entries[0].len;
    let mut memory = vec![vec![UNTOUCHED; len + 2 * MARGIN]; members];
    let addresses: Vec<*mut u8> = memory
        .iter_mut()
        .map(|memory| memory[MARGIN..].as_mut_ptr().cast())
        .collect();
    // SAFETY: each address is that of `len` elements, which outlive the exchange.
    let tasks = [unsafe { Task::in_place(0, 0..len, 4, &addresses) }];
    let connection = Connection::new(ours).unwrap();
    let tcp = Tcp::new(topology(members), vec![None, Some(connection)]);
    let outcome = tcp.exchange(call, 0, &tasks, &wait);
    drop(tcp);
    sender.join().unwrap();
    for memory in &memory {
        let margins = [&memory[..MARGIN], &memory[MARGIN + len..]];
        assert!(margins.concat().iter().all(|value| *value == UNTOUCHED));
    }
    outcome
}

fn frame(kind: Kind, exchange: u64, stage: u16, segment: u32, body: &[u8]) -> Vec<u8> {
    let head = Head {
        exchange,
        kind,
        stage,
        segment,
        len: body.len(),
    };
    [&head.encode()[..], body].concat()
}

fn hello(call: &Call<'_>, elements: usize) -> Vec<u8> {
    let encoded = call.encode();
    let mut body = (encoded.len() as u32).to_le_bytes().to_vec();
    body.extend_from_slice(&encoded);
    body.extend_from_slice(&0u64.to_le_bytes());
    body.resize(body.len().next_multiple_of(8) + elements * 4, 0);
    frame(Kind::Hello, 1, 0, 0, &body)
}

/// Frames of every kind that may, or may not, come in an exchange: with the sizes that segments have, and others.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop::sample::select(vec![
        Kind::Hello,
        Kind::Partial,
        Kind::Finished,
        Kind::Done,
        Kind::Share,
    ]);
    let len = prop::sample::select(vec![0, 4, 400, 200_000, SEGMENT, SEGMENT + 8]);
    let frame = (kind, 0u64..3, 0u16..4, 0u32..8, len);
    prop::collection::vec(frame, 0..6).prop_map(|frames| {
        let bytes = frames
            .into_iter()
            .map(|(kind, exchange, stage, segment, len)| {
                let body = vec![0; len];
                self::frame(kind, exchange, stage, segment, &body)
            });
        bytes.collect::<Vec<_>>().concat()
    })
}

/// A first frame as it should be, or nearly, then frames as they may come, or not.
fn stream() -> impl Strategy<Value = (u8, usize, usize, Vec<u8>)> {
    let shape = (1u8..=4, 1usize..=2, prop::sample::select(&LENS[..]));
    shape.prop_flat_map(|(operation, members, len)| {
        let entries = entry(len);
        let call = Call {
            sequence: 1,
            operation: Operation::from_code(operation).unwrap(),
            root: 0,
            entries: &entries,
        };
        let first = hello(&call, if len < 1000 { len } else { 0 });
        let first = prop_oneof![Just(first.clone()), mutations(first)];
        (first, frames()).prop_map(move |(first, rest)| {
            let bytes = [first, rest].concat();
            (operation, members, len, bytes)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        // Each waits for its deadline.
        cases: ProptestConfig::default().cases / 4,
        ..ProptestConfig::default()
    })]

    /// Whatever a peer sends, an exchange ends, with an error unless it was whole, and touches its buffers alone.
    #[test]
    fn no_bytes_of_a_peer_harm_an_exchange((operation, members, len, bytes) in stream()) {
        let entries = entry(len);
        let call = Call {
            sequence: 1,
            operation: Operation::from_code(operation).unwrap(),
            root: 0,
            entries: &entries,
        };
        let outcome = against(&call, members, bytes, Duration::from_millis(30));
        if let Err(error) = outcome {
            prop_assert!(
                matches!(
                    error,
                    CollectiveError::Io { .. }
                        | CollectiveError::Mismatch { .. }
                        | CollectiveError::Timeout { .. }
                        | CollectiveError::PeerLost { .. }
                ),
                "{error:?}"
            );
        }
    }
}

#[test]
fn each_malformation_of_a_stream_is_named() {
    let entries = entry(LENS[0]);
    let call = Call {
        sequence: 1,
        operation: Operation::AllReduce,
        root: 0,
        entries: &entries,
    };
    let endless = Head {
        exchange: 1,
        kind: Kind::Hello,
        stage: 0,
        segment: 0,
        len: 1 << 40,
    };
    let first = hello(&call, 0);
    let then = |frame: Vec<u8>| [first.clone(), frame].concat();
    for (bytes, expected) in [
        (endless.encode().to_vec(), "an unexpected first frame"),
        (vec![0xff; HEAD], "a malformed frame"),
        (frame(Kind::Share, 1, 0, 0, &[]), "a frame before the first"),
        (
            frame(Kind::Hello, 0, 0, 0, &[]),
            "a frame of a past exchange",
        ),
        (
            frame(Kind::Hello, 1, 0, 0, &[0xff; 64]),
            "a call that cannot be read",
        ),
        (then(first.clone()), "an unexpected first frame"),
        (
            then(frame(Kind::Share, 1, 0, 99, &[])),
            "a segment that is not there",
        ),
        (
            then(frame(Kind::Share, 1, 0, 0, &[0; 8])),
            "a frame that is not expected",
        ),
        (
            then(frame(Kind::Partial, 1, 1, 0, &[0; 8])),
            "a frame that is not expected",
        ),
        (
            then(frame(Kind::Done, 1, 0, 0, &[])),
            "a frame that is not expected",
        ),
    ] {
        let error = against(&call, 1, bytes, Duration::from_secs(20))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("rank 1 on a host sent") && error.contains(expected),
            "{error}, not {expected}"
        );
    }
}
