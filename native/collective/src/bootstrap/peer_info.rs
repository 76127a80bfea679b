//! What ranks tell each other in the rendezvous: where they listen, which host they are on, and what they mean to do.

use std::array;
use std::io;
use std::net::SocketAddr;

use sha2::{Digest, Sha256};

use super::handshake::random;
use crate::error::{CollectiveError, Result};
use crate::peer::Peer;
use crate::wire::{Reader, Writer};

/// Changes with anything that ranks tell each other.
const PROTOCOL: u32 = 2;

/// What a rank tells the others.
pub(super) struct PeerInfo {
    pub(super) world_size: usize,
    pub(super) transport: u8,
    pub(super) host: String,
    pub(super) host_id: String,
    pub(super) address: SocketAddr,
    pub(super) local_name: String,
    /// The beginning of each term's hash.
    pub(super) terms: Vec<u64>,
}

impl PeerInfo {
    pub(super) fn encode(&self) -> io::Result<Vec<u8>> {
        let info = Writer::default()
            .u32(PROTOCOL)
            .u32(self.world_size as u32)
            .u8(self.transport);
        let info = info
            .bytes(self.host.as_bytes())
            .bytes(self.host_id.as_bytes());
        let info = info
            .bytes(self.address.to_string().as_bytes())
            .bytes(self.local_name.as_bytes())
            .u32(self.terms.len() as u32);
        let info = self.terms.iter().fold(info, |info, term| info.u64(*term));
        // No two groups have the same information, and so none has another's context.
        Ok(info.bytes(&random::<16>()?).finish())
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        if reader.u32()? != PROTOCOL {
            return None;
        }
        Some(PeerInfo {
            world_size: reader.u32()? as usize,
            transport: reader.u8()?,
            host: reader.string()?,
            host_id: reader.string()?,
            address: reader.string()?.parse().ok()?,
            local_name: reader.string()?,
            terms: (0..reader.u32()?)
                .map(|_| reader.u64())
                .collect::<Option<_>>()?,
        })
    }
}

/// Reads what all ranks have told, in rank order, and checks that they can be one group with this one.
pub(super) fn read_all(payloads: &[Vec<u8>], own: &PeerInfo) -> Result<Vec<PeerInfo>> {
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
            let info = PeerInfo::decode(payload).ok_or_else(|| {
                CollectiveError::rendezvous(format!("rank {rank} runs another version"))
            })?;
            if info.world_size != own.world_size || info.transport != own.transport {
                return Err(CollectiveError::rendezvous(format!(
                    "{} has another world size ({} against {}) or another transport",
                    Peer {
                        rank,
                        host: info.host
                    },
                    info.world_size,
                    own.world_size
                )));
            }
            Ok(info)
        })
        .collect()
}

/// The beginning of a term's hash: enough to see a difference.
pub(super) fn hash((name, value): &(String, String)) -> u64 {
    let digest: [u8; 32] = Sha256::digest(format!("{name}={value}")).into();
    u64::from_le_bytes(array::from_fn(|index| digest[index]))
}

/// Checks that all ranks mean the same. All of them come to the same answer, from the same words.
pub(super) fn compare_terms(infos: &[PeerInfo], own: &[(String, String)]) -> Result<()> {
    let peer = |rank: usize| Peer {
        rank,
        host: infos[rank].host.clone(),
    };
    if let Some(rank) = (0..infos.len()).find(|rank| infos[*rank].terms.len() != own.len()) {
        return Err(CollectiveError::rendezvous(format!(
            "{} runs another version",
            peer(rank)
        )));
    }
    let names = |rank: usize| -> Vec<String> {
        let differs = |index: &usize| infos[rank].terms[*index] != infos[0].terms[*index];
        let indices = (0..own.len()).filter(differs);
        indices.map(|index| own[index].0.clone()).collect()
    };
    let differing: Vec<_> = (1..infos.len())
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::corpus::mutations;

    fn info(num_terms: usize) -> PeerInfo {
        PeerInfo {
            world_size: 3,
            transport: 0,
            host: "a host".into(),
            host_id: "a boot and a namespace".into(),
            address: "127.0.0.1:4242".parse().unwrap(),
            local_name: "flambeau-0123".into(),
            terms: vec![1; num_terms],
        }
    }

    #[test]
    fn what_a_rank_tells_arrives_as_it_was_sent() {
        let sent = info(2);
        let read = PeerInfo::decode(&sent.encode().unwrap()).unwrap();
        assert_eq!((read.world_size, read.transport), (3, 0));
        assert_eq!((&read.host, &read.host_id), (&sent.host, &sent.host_id));
        assert_eq!(
            (read.address, &read.local_name),
            (sent.address, &sent.local_name)
        );
        assert_eq!(read.terms, sent.terms);
    }

    proptest! {
        /// Ranks that are nearly of this version are taken, or refused in words.
        #[test]
        fn nearly_what_a_peer_tells_is_taken_or_refused(
            others in prop::collection::vec(mutations(info(2).encode().unwrap()), 2)
        ) {
            let own = info(2);
            let payloads = [vec![own.encode().unwrap()], others].concat();
            let terms = ["seed", "epochs"].map(|name| (name.to_owned(), "1".to_owned()));
            let compared = read_all(&payloads, &own)
                .and_then(|infos| compare_terms(&infos, &terms).map(|()| infos));
            match compared {
                Ok(infos) => prop_assert!(infos.iter().all(|info| info.world_size == 3)),
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
