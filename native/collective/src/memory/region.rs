//! Memory that the group owns, and how a collective recognises it.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use super::mapping::Mapping;
use crate::buffer::{DType, RawBuffer};
use crate::error::{CollectiveError, Result};

/// Where an entry's elements lie, if in memory of the group: which allocation, and how many bytes into the member's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) region: u32,
    pub(crate) offset: u64,
}

/// One allocation: a part of equal size for each member of the host, or this rank's part alone.
pub(crate) struct Region {
    /// Unique in the group, and the same for all members.
    pub(crate) id: u32,
    mapping: Mapping,
    /// Bytes of one part.
    bytes: usize,
    /// Bytes from one part to the next.
    stride: usize,
    /// Whose part is this rank's.
    me: usize,
    /// Whether the other members have mapped it too.
    is_shared: bool,
}

impl Region {
    /// The bytes from one part to the next: whole cache lines, and parts start on different cache sets.
    pub(crate) fn stride(bytes: usize) -> usize {
        bytes.next_multiple_of(64) + 17 * 64
    }

    pub(crate) fn shared(id: u32, mapping: Mapping, bytes: usize, me: usize) -> Self {
        Region {
            id,
            mapping,
            bytes,
            stride: Self::stride(bytes),
            me,
            is_shared: true,
        }
    }

    pub(crate) fn private(id: u32, mapping: Mapping, bytes: usize) -> Self {
        Region {
            id,
            mapping,
            bytes,
            stride: 0,
            me: 0,
            is_shared: false,
        }
    }

    fn own(&self) -> *mut u8 {
        self.mapping.at(self.me * self.stride)
    }

    /// A member's address of `location`, if `len` bytes from there lie within its part and are aligned for `dtype`.
    pub(crate) fn resolve(
        &self,
        member: usize,
        location: Location,
        len: usize,
        dtype: DType,
    ) -> Option<*mut u8> {
        let offset = usize::try_from(location.offset).ok()?;
        let end = offset.checked_add(len)?;
        let fits =
            location.region == self.id && end <= self.bytes && offset.is_multiple_of(dtype.size());
        fits.then(|| self.mapping.at(member * self.stride + offset))
    }
}

/// The allocations that are alive.
#[derive(Default)]
pub(crate) struct Registry(RwLock<Vec<Arc<Region>>>);

impl Registry {
    fn add(&self, region: Arc<Region>) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push(region);
    }

    fn remove(&self, id: u32) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|region| region.id != id);
    }

    /// The shared allocation that holds all of `buffer`, and where in it.
    pub(crate) fn find(&self, buffer: &RawBuffer) -> Option<(Arc<Region>, Location)> {
        let start = buffer.ptr as usize;
        let regions = self.0.read().unwrap_or_else(PoisonError::into_inner);
        regions
            .iter()
            .filter(|region| region.is_shared)
            .find_map(|region| {
                let offset = start.checked_sub(region.own() as usize)?;
                let fits = buffer.len > 0 && offset.checked_add(buffer.bytes())? <= region.bytes;
                fits.then(|| {
                    (
                        region.clone(),
                        Location {
                            region: region.id,
                            offset: offset as u64,
                        },
                    )
                })
            })
    }
}

/// This rank's part of an allocation that all ranks made together with `ProcessGroup::allocate`.
///
/// Where the ranks of a host share memory, collectives on it need no staging. It starts zeroed and aligned to 64 bytes,
/// and is freed when dropped (the pages when the last rank of the host drops its own); it may outlive the group.
pub struct GroupBuffer {
    region: Arc<Region>,
    registry: Arc<Registry>,
}

impl fmt::Debug for GroupBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupBuffer")
            .field("len", &self.len())
            .field("is_shared", &self.is_shared())
            .finish()
    }
}

impl GroupBuffer {
    pub(crate) fn new(region: Region, registry: Arc<Registry>) -> Self {
        let region = Arc::new(region);
        registry.add(region.clone());
        GroupBuffer { region, registry }
    }

    /// The first byte. Valid as long as this value.
    pub fn as_ptr(&self) -> *mut u8 {
        self.region.own()
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.region.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.region.bytes == 0
    }

    /// Whether other ranks of this host reach the memory: false without such ranks, and where sharing failed.
    pub fn is_shared(&self) -> bool {
        self.region.is_shared
    }

    /// Describes `len` elements that start `byte_offset` bytes in.
    ///
    /// # Errors
    /// `InvalidArgument` when they do not lie within the buffer or the offset is not a multiple of the element size.
    pub fn raw(&self, byte_offset: usize, len: usize, dtype: DType) -> Result<RawBuffer> {
        let end = len
            .checked_mul(dtype.size())
            .and_then(|bytes| bytes.checked_add(byte_offset));
        if end.is_none_or(|end| end > self.len()) || !byte_offset.is_multiple_of(dtype.size()) {
            return Err(CollectiveError::invalid(format!(
                "{len} {dtype} at byte {byte_offset} of a group buffer of {} bytes",
                self.len()
            )));
        }
        // SAFETY: within the buffer, as checked.
        let start = unsafe { self.as_ptr().add(byte_offset) };
        Ok(RawBuffer::cpu(start.cast(), len, dtype))
    }
}

impl Drop for GroupBuffer {
    fn drop(&mut self) {
        self.registry.remove(self.region.id);
    }
}
