//! What ranks tell each other outside the collectives, over the control connections.
//!
//! A frame is one byte of kind, four of length, and the payload.

use std::time::Duration;

use crate::error::{CollectiveError, LossCause};
use crate::peer::Peer;
use crate::phase::{LateRank, MAX_NAME, Phase};
use crate::wire::{Reader, Writer};

/// The longest payload that a peer may send.
const MAX_PAYLOAD: usize = 1 << 20;
/// The longest reason or description that is passed on.
const MAX_TEXT: usize = 64 << 10;

/// One message.
pub(crate) enum Notice {
    /// The sender lives; the last collective that it has entered, and what it is in.
    Heartbeat { entered: u64, phase: Option<Phase> },
    /// The sender leaves in good order after this collective.
    Goodbye { entered: u64 },
    /// Whether the sender could attach its host's shared memory.
    Vote(bool),
    /// The group has failed, and this is the first cause as the sender knows it.
    Failure(Box<CollectiveError>),
}

impl Notice {
    /// The frame. `own` is the sender: causes that only it can have become its abort.
    pub(crate) fn encode(&self, own: &Peer) -> Vec<u8> {
        let (kind, payload) = match self {
            Notice::Heartbeat { entered, phase } => {
                (1, encode_phase(Writer::default().u64(*entered), phase))
            }
            Notice::Goodbye { entered } => (2, Writer::default().u64(*entered)),
            Notice::Vote(yes) => (3, Writer::default().u8(u8::from(*yes))),
            Notice::Failure(error) => (4, encode_failure(error, own)),
        };
        let payload = payload.finish();
        let mut frame = Writer::default()
            .u8(kind)
            .u32(payload.len() as u32)
            .finish();
        frame.extend_from_slice(&payload);
        frame
    }

    /// Takes whole frames off the front of `received`. `Err` when the bytes cannot be a peer's.
    pub(crate) fn decode_all(received: &mut Vec<u8>) -> Result<Vec<Notice>, Malformed> {
        let mut notices = Vec::new();
        let mut start = 0;
        while let Some(head) = received.get(start..start + 5) {
            let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
            if len > MAX_PAYLOAD {
                return Err(Malformed);
            }
            let Some(payload) = received.get(start + 5..start + 5 + len) else {
                break;
            };
            notices.push(Self::decode(head[0], payload).ok_or(Malformed)?);
            start += 5 + len;
        }
        received.drain(..start);
        Ok(notices)
    }

    fn decode(kind: u8, payload: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(payload);
        let notice = match kind {
            1 => Notice::Heartbeat {
                entered: reader.u64()?,
                phase: decode_phase(&mut reader)?,
            },
            2 => Notice::Goodbye {
                entered: reader.u64()?,
            },
            3 => Notice::Vote(reader.u8()? == 1),
            4 => Notice::Failure(Box::new(decode_failure(&mut reader)?)),
            _ => return None,
        };
        reader.is_empty().then_some(notice)
    }
}

/// Bytes that no peer of this version sends.
#[derive(Debug)]
pub(crate) struct Malformed;

fn encode_failure(error: &CollectiveError, own: &Peer) -> Writer {
    let peer =
        |writer: Writer, peer: &Peer| writer.u32(peer.rank as u32).bytes(peer.host.as_bytes());
    match error {
        CollectiveError::PeerLost {
            rank,
            host,
            operation,
            cause,
        } => {
            let cause = match cause {
                LossCause::Closed => 0,
                LossCause::Silent => 1,
                LossCause::Left => 2,
            };
            let lost = Peer {
                rank: *rank,
                host: host.clone(),
            };
            peer(Writer::default().u8(1), &lost)
                .bytes(operation.as_bytes())
                .u8(cause)
        }
        CollectiveError::Timeout {
            operation,
            sequence,
            missing,
            waited,
        } => {
            let writer = Writer::default()
                .u8(2)
                .bytes(operation.as_bytes())
                .u64(*sequence);
            let writer = writer
                .u64(waited.as_millis() as u64)
                .u32(missing.len() as u32);
            missing.iter().fold(writer, |writer, late| {
                encode_phase(peer(writer, &late.peer), &late.phase)
            })
        }
        CollectiveError::Mismatch { sequence, calls } => {
            let writer = Writer::default()
                .u8(3)
                .u64(*sequence)
                .u32(calls.len() as u32);
            calls.iter().fold(writer, |writer, (caller, call)| {
                peer(writer, caller).bytes(cut(call))
            })
        }
        CollectiveError::Aborted { rank, host, reason } => peer(
            Writer::default().u8(4),
            &Peer {
                rank: *rank,
                host: host.clone(),
            },
        )
        .bytes(cut(reason)),
        CollectiveError::Nccl {
            rank,
            host,
            operation,
            message,
        } => peer(
            Writer::default().u8(5),
            &Peer {
                rank: *rank,
                host: host.clone(),
            },
        )
        .bytes(operation.as_bytes())
        .bytes(cut(message)),
        other => peer(Writer::default().u8(4), own).bytes(cut(&other.to_string())),
    }
}

fn decode_failure(reader: &mut Reader<'_>) -> Option<CollectiveError> {
    let peer = |reader: &mut Reader<'_>| {
        Some(Peer {
            rank: reader.u32()? as usize,
            host: reader.string()?,
        })
    };
    Some(match reader.u8()? {
        1 => {
            let Peer { rank, host } = peer(reader)?;
            let operation = reader.string()?;
            let cause = match reader.u8()? {
                0 => LossCause::Closed,
                1 => LossCause::Silent,
                2 => LossCause::Left,
                _ => return None,
            };
            CollectiveError::PeerLost {
                rank,
                host,
                operation,
                cause,
            }
        }
        2 => {
            let (operation, sequence) = (reader.string()?, reader.u64()?);
            let waited = Duration::from_millis(reader.u64()?);
            let count = reader.u32()?;
            let missing = (0..count)
                .map(|_| {
                    Some(LateRank {
                        peer: peer(reader)?,
                        phase: decode_phase(reader)?,
                    })
                })
                .collect::<Option<Vec<_>>>()?;
            CollectiveError::Timeout {
                operation,
                sequence,
                missing,
                waited,
            }
        }
        3 => {
            let sequence = reader.u64()?;
            let count = reader.u32()?;
            let calls = (0..count)
                .map(|_| Some((peer(reader)?, reader.string()?)))
                .collect::<Option<Vec<_>>>()?;
            CollectiveError::Mismatch { sequence, calls }
        }
        4 => {
            let Peer { rank, host } = peer(reader)?;
            CollectiveError::Aborted {
                rank,
                host,
                reason: reader.string()?,
            }
        }
        5 => {
            let Peer { rank, host } = peer(reader)?;
            CollectiveError::Nccl {
                rank,
                host,
                operation: reader.string()?,
                message: reader.string()?,
            }
        }
        _ => return None,
    })
}

/// A phase that there is none of has no name.
fn encode_phase(writer: Writer, phase: &Option<Phase>) -> Writer {
    let (name, lasted) = phase.as_ref().map_or(("", Duration::ZERO), |phase| {
        (phase.name.as_str(), phase.lasted)
    });
    writer
        .bytes(cut_at(name, MAX_NAME))
        .u64(lasted.as_millis() as u64)
}

fn decode_phase(reader: &mut Reader<'_>) -> Option<Option<Phase>> {
    let name = reader.string()?;
    let lasted = Duration::from_millis(reader.u64()?);
    Some((!name.is_empty()).then_some(Phase { name, lasted }))
}

fn cut(text: &str) -> &[u8] {
    cut_at(text, MAX_TEXT)
}

/// The front of a text, whole characters only.
fn cut_at(text: &str, most: usize) -> &[u8] {
    let end = (0..=most.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or(0);
    &text.as_bytes()[..end]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::corpus::mutations;

    fn peer() -> impl Strategy<Value = Peer> {
        (0usize..1000, ".{0,20}").prop_map(|(rank, host)| Peer { rank, host })
    }

    fn late() -> impl Strategy<Value = LateRank> {
        let lasted = (0u64..1_000_000).prop_map(Duration::from_millis);
        let phase = (".{1,20}", lasted).prop_map(|(name, lasted)| Phase { name, lasted });
        (peer(), prop::option::of(phase)).prop_map(|(peer, phase)| LateRank { peer, phase })
    }

    fn failure() -> impl Strategy<Value = CollectiveError> {
        let cause =
            prop::sample::select(vec![LossCause::Closed, LossCause::Silent, LossCause::Left]);
        let waited = (0u64..1_000_000).prop_map(Duration::from_millis);
        prop_oneof![
            (peer(), ".{0,30}", cause).prop_map(|(Peer { rank, host }, operation, cause)| {
                CollectiveError::PeerLost {
                    rank,
                    host,
                    operation,
                    cause,
                }
            }),
            (
                ".{0,30}",
                any::<u64>(),
                prop::collection::vec(late(), 0..5),
                waited
            )
                .prop_map(|(operation, sequence, missing, waited)| {
                    CollectiveError::Timeout {
                        operation,
                        sequence,
                        missing,
                        waited,
                    }
                }),
            (
                any::<u64>(),
                prop::collection::vec((peer(), ".{0,50}"), 0..5)
            )
                .prop_map(|(sequence, calls)| CollectiveError::Mismatch { sequence, calls }),
            (peer(), ".{0,100}").prop_map(|(Peer { rank, host }, reason)| {
                CollectiveError::Aborted { rank, host, reason }
            }),
            (peer(), ".{0,30}", ".{0,100}").prop_map(
                |(Peer { rank, host }, operation, message)| {
                    CollectiveError::Nccl {
                        rank,
                        host,
                        operation,
                        message,
                    }
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn failures_arrive_as_they_were_sent(errors in prop::collection::vec(failure(), 1..4), split in any::<usize>()) {
            let own = Peer { rank: 0, host: "here".into() };
            let frames: Vec<u8> =
                errors.iter().flat_map(|error| Notice::Failure(Box::new(error.clone())).encode(&own)).collect();
            // In two reads, cut anywhere.
            let cut = split % frames.len();
            let mut received = frames[..cut].to_vec();
            let mut notices = Notice::decode_all(&mut received).unwrap();
            received.extend_from_slice(&frames[cut..]);
            notices.extend(Notice::decode_all(&mut received).unwrap());
            prop_assert!(received.is_empty());
            let texts: Vec<_> = notices
                .iter()
                .map(|notice| match notice {
                    Notice::Failure(error) => format!("{error:?}"),
                    _ => "another notice".into(),
                })
                .collect();
            prop_assert_eq!(texts, errors.iter().map(|error| format!("{error:?}")).collect::<Vec<_>>());
        }

        /// What is left over never grows past one notice, however many come.
        #[test]
        fn nearly_a_peers_bytes_are_refused_or_kept(
            mut bytes in prop::collection::vec(failure(), 1..4).prop_flat_map(|errors| {
                let own = Peer { rank: 0, host: "here".into() };
                let notices = errors.into_iter().map(|error| Notice::Failure(Box::new(error)));
                let others = [Notice::Heartbeat { entered: 3, phase: None }, Notice::Vote(true), Notice::Goodbye { entered: 9 }];
                mutations(others.into_iter().chain(notices).flat_map(|notice| notice.encode(&own)).collect())
            }),
        ) {
            let len = bytes.len();
            if let Ok(notices) = Notice::decode_all(&mut bytes) {
                prop_assert!(notices.len() * 5 <= len - bytes.len());
                prop_assert!(bytes.len() < 5 + MAX_PAYLOAD);
            }
        }

        #[test]
        fn bytes_of_strangers_are_refused_or_kept(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Notice::decode_all(&mut bytes);
        }
    }

    fn refused(kind: u8, payload: &[u8]) -> bool {
        let mut frame = Writer::default()
            .u8(kind)
            .u32(payload.len() as u32)
            .finish();
        frame.extend_from_slice(payload);
        Notice::decode_all(&mut frame).is_err()
    }

    #[test]
    fn each_malformation_is_refused() {
        assert!(refused(9, &[]), "an unknown kind");
        let heartbeat = Writer::default().u64(1).bytes(b"data").u64(1).finish();
        assert!(!refused(1, &heartbeat), "a heartbeat");
        let short = &heartbeat[..heartbeat.len() - 1];
        assert!(refused(1, short), "a short heartbeat");
        let long = [&heartbeat[..], &[0]].concat();
        assert!(refused(1, &long), "a long heartbeat");
        assert!(refused(4, &[7]), "an unknown failure");
        assert!(
            refused(4, &Writer::default().u8(4).u32(0).u32(100).finish()),
            "a text that is cut off"
        );
        assert!(
            refused(4, &Writer::default().u8(3).u64(1).u32(u32::MAX).finish()),
            "calls that are not there"
        );
        let mut endless = Writer::default().u8(1).u32(u32::MAX).finish();
        assert!(
            Notice::decode_all(&mut endless).is_err(),
            "a length out of bounds"
        );
    }
}
