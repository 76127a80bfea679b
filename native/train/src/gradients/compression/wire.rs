//! The memory that travels.

use std::marker::PhantomData;
use std::slice;

use flambeau_collective::{DType, GroupBuffer, ProcessGroup, RawBuffer, Result};
use half::{bf16, f16};

/// Elements in memory of the group's, where the ranks of a host read each other's.
pub(super) struct Wire<T> {
    memory: GroupBuffer,
    len: usize,
    elements: PhantomData<T>,
}

/// Types of which every pattern of bits is a value, zero bytes among them.
pub(super) trait Plain: Copy {
    /// What the group calls it.
    const DTYPE: DType;
}

impl Plain for f16 {
    const DTYPE: DType = DType::Float16;
}

impl Plain for bf16 {
    const DTYPE: DType = DType::BFloat16;
}

impl Plain for f32 {
    const DTYPE: DType = DType::Float32;
}

impl Plain for i64 {
    const DTYPE: DType = DType::Int64;
}

impl<T: Plain> Wire<T> {
    /// Room for `len` elements, zero at first. A collective call: all ranks make it with the same length.
    ///
    /// # Errors
    ///
    /// What [`ProcessGroup::allocate`] says.
    pub(super) fn new(group: &ProcessGroup, len: usize) -> Result<Wire<T>> {
        Ok(Wire {
            memory: group.allocate((len * T::DTYPE.size()).max(1))?,
            len,
            elements: PhantomData,
        })
    }

    /// The elements. None of them is travelling.
    pub(super) fn elements(&mut self) -> &mut [T] {
        // SAFETY: the memory holds `len` elements of a type that any bytes are values of; between exchanges it is this
        // rank's alone, and the borrow of `self` keeps a second one away.
        unsafe { slice::from_raw_parts_mut(self.memory.as_ptr().cast(), self.len) }
    }

    /// The elements as an exchange takes them.
    pub(super) fn raw(&self) -> RawBuffer {
        RawBuffer::cpu(self.memory.as_ptr().cast(), self.len, T::DTYPE)
    }
}
