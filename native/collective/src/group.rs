//! The process group.
#![allow(missing_docs, clippy::missing_safety_doc)]
use std::sync::Arc;

use crate::buffer::{DType, RawBuffer, ReduceOp};
use crate::error::{CollectiveError, Result};
use crate::options::GroupOptions;
use crate::rendezvous::Rendezvous;
use crate::work::Work;

#[derive(Clone)]
pub struct ProcessGroup {
    _inner: Arc<()>,
}

pub struct GroupBuffer;

impl GroupBuffer {
    pub fn as_ptr(&self) -> *mut u8 {
        unimplemented!()
    }
    pub fn len(&self) -> usize {
        unimplemented!()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    pub fn raw(&self, _byte_offset: usize, _len: usize, _dtype: DType) -> Result<RawBuffer> {
        unimplemented!()
    }
}

impl ProcessGroup {
    pub fn connect(_rendezvous: &mut dyn Rendezvous, _options: GroupOptions) -> Result<Self> {
        unimplemented!()
    }
    pub fn rank(&self) -> usize {
        unimplemented!()
    }
    pub fn world_size(&self) -> usize {
        unimplemented!()
    }
    pub fn host_of(&self, _rank: usize) -> &str {
        unimplemented!()
    }
    pub unsafe fn all_reduce(&self, _buffer: RawBuffer, _op: ReduceOp) -> Result<()> {
        unimplemented!()
    }
    pub unsafe fn grouped_all_reduce(&self, _buffers: &[(RawBuffer, ReduceOp)]) -> Result<()> {
        unimplemented!()
    }
    pub unsafe fn reduce_scatter(&self, _buffer: RawBuffer, _op: ReduceOp) -> Result<()> {
        unimplemented!()
    }
    pub unsafe fn all_gather(&self, _buffer: RawBuffer) -> Result<()> {
        unimplemented!()
    }
    pub unsafe fn broadcast(&self, _buffer: RawBuffer, _root: usize) -> Result<()> {
        unimplemented!()
    }
    pub unsafe fn all_reduce_async(&self, _buffer: RawBuffer, _op: ReduceOp) -> Result<Work> {
        unimplemented!()
    }
    pub unsafe fn grouped_all_reduce_async(&self, _buffers: &[(RawBuffer, ReduceOp)]) -> Result<Work> {
        unimplemented!()
    }
    pub unsafe fn reduce_scatter_async(&self, _buffer: RawBuffer, _op: ReduceOp) -> Result<Work> {
        unimplemented!()
    }
    pub unsafe fn all_gather_async(&self, _buffer: RawBuffer) -> Result<Work> {
        unimplemented!()
    }
    pub unsafe fn broadcast_async(&self, _buffer: RawBuffer, _root: usize) -> Result<Work> {
        unimplemented!()
    }
    pub fn barrier(&self) -> Result<()> {
        unimplemented!()
    }
    pub fn all_gather_bytes(&self, _payload: &[u8]) -> Result<Vec<Vec<u8>>> {
        unimplemented!()
    }
    pub fn broadcast_bytes(&self, _payload: &[u8], _root: usize) -> Result<Vec<u8>> {
        unimplemented!()
    }
    pub fn allocate(&self, _bytes: usize) -> Result<GroupBuffer> {
        unimplemented!()
    }
    pub fn abort(&self, _reason: &str) {
        unimplemented!()
    }
    pub fn failure(&self) -> Option<CollectiveError> {
        unimplemented!()
    }
}
