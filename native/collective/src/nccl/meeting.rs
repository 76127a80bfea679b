//! What the ranks have to agree on before they can make a communicator.

use std::env;
use std::path::PathBuf;

use super::abi::RawUniqueId;
use super::library::NcclLibrary;
use super::version::NcclVersion;
use crate::error::{CollectiveError, Result};
use crate::group::ProcessGroup;
use crate::peer::Peer;
use crate::wire::{Reader, Writer};

/// Set to 1, it goes before the config of every communicator (`envConfigOverride` in NCCL's `src/init.cc`), whose calls then wait
/// for the other ranks with no deadline.
const BLOCKING: &str = "NCCL_COMM_BLOCKING";

/// A communicator's identity: the same on all of its ranks.
#[derive(Clone, Copy)]
pub struct UniqueId(pub(crate) RawUniqueId);

impl UniqueId {
    /// NCCL's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0.0
    }
}

/// The same version of NCCL on every rank, and the identity that rank 0 has made for their communicator. Needs no GPU.
pub struct NcclMeeting {
    library: NcclLibrary,
    unique_id: UniqueId,
}

impl NcclMeeting {
    /// Opens NCCL (`NcclLibrary::open`) and compares it with the other ranks'. All ranks call it; two collectives of `group`,
    /// which stays as it was where the ranks do not agree.
    ///
    /// # Errors
    /// `NcclVersions`, the same on all ranks, with what each has; none has who is told to wait without end
    /// (`NCCL_COMM_BLOCKING`). What fails the group.
    pub fn hold(group: &ProcessGroup, directories: &[PathBuf]) -> Result<Self> {
        let own = Equipment::find(directories, group.rank() == 0);
        let (found, id) = own.compare(group)?;
        let versions_agree = found
            .iter()
            .all(|rank| rank.version.is_some() && rank.version == found[0].version);
        match (own, id) {
            (Equipment::Ready { library, .. }, Some(id)) if versions_agree => Ok(NcclMeeting {
                library,
                unique_id: UniqueId(id),
            }),
            _ => Err(CollectiveError::NcclVersions {
                found: found
                    .into_iter()
                    .map(|Found { peer, what, .. }| (peer, what))
                    .collect(),
            }),
        }
    }

    /// This rank's library.
    pub fn library(&self) -> &NcclLibrary {
        &self.library
    }

    /// The communicator's identity.
    pub fn unique_id(&self) -> UniqueId {
        self.unique_id
    }
}

/// What this rank brings.
enum Equipment {
    Ready {
        library: NcclLibrary,
        /// Rank 0's.
        unique_id: Option<RawUniqueId>,
    },
    None(String),
}

/// What a rank has said of itself.
struct Found {
    peer: Peer,
    version: Option<NcclVersion>,
    what: String,
}

impl Equipment {
    fn find(directories: &[PathBuf], makes_id: bool) -> Self {
        let library = match NcclLibrary::open(directories) {
            Ok(library) => library,
            Err(error) => return Equipment::None(error.to_string()),
        };
        let unique_id = match makes_id.then(|| library.unique_id()).transpose() {
            Ok(unique_id) => unique_id,
            Err(reason) => return Equipment::None(reason),
        };
        // Not before the identity, for which NCCL reads its files into the environment.
        if env::var(BLOCKING).is_ok_and(|value| value.trim() == "1") {
            return Equipment::None(format!(
                "{BLOCKING} is 1, with which NCCL waits for a lost rank without end; unset it"
            ));
        }
        Equipment::Ready { library, unique_id }
    }

    fn encode(&self) -> Vec<u8> {
        match self {
            Equipment::Ready { library, unique_id } => Writer::default()
                .u8(1)
                .u32(library.version().code())
                .bytes(library.path().to_string_lossy().as_bytes())
                .bytes(unique_id.as_ref().map_or(&[], |id| &id.0))
                .finish(),
            Equipment::None(reason) => Writer::default().u8(0).bytes(reason.as_bytes()).finish(),
        }
    }

    /// Tells the others, and returns what all have said, in rank order, with rank 0's identity.
    fn compare(&self, group: &ProcessGroup) -> Result<(Vec<Found>, Option<RawUniqueId>)> {
        let mut unique_id = None;
        let found = group
            .all_gather_bytes(&self.encode())?
            .iter()
            .enumerate()
            .map(|(rank, message)| {
                let (version, what, id) =
                    decode(message).unwrap_or((None, "another release of Flambeau".into(), None));
                unique_id = unique_id.or(id);
                Found {
                    peer: group.health().peer(rank),
                    version,
                    what,
                }
            })
            .collect();
        Ok((found, unique_id))
    }
}

/// A rank's version, what it has in words, and the identity if it has made one.
fn decode(message: &[u8]) -> Option<(Option<NcclVersion>, String, Option<RawUniqueId>)> {
    let mut reader = Reader::new(message);
    match reader.u8()? {
        0 => Some((None, format!("none ({})", reader.string()?), None)),
        1 => {
            let version = NcclVersion::from_code(reader.u32()?);
            let path = reader.string()?;
            let id = match reader.bytes()? {
                [] => None,
                id => Some(RawUniqueId(id.try_into().ok()?)),
            };
            Some((Some(version), format!("{version} ({path})"), id))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_rank_without_nccl_says_why() {
        let message = Equipment::None("no NCCL library".into()).encode();
        let (version, what, id) = decode(&message).unwrap();
        assert!(version.is_none() && id.is_none());
        assert_eq!(what, "none (no NCCL library)");
    }

    proptest! {
        #[test]
        fn bytes_of_strangers_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }
}
