//! What the reader hands out.

use arrow_array::RecordBatch;

use crate::buffer::AlignedBuffer;
use crate::spec::DType;

/// A tensor in host memory: contiguous, row-major, 64-byte aligned.
#[derive(Debug)]
pub struct HostTensor {
    dtype: DType,
    shape: Vec<usize>,
    data: AlignedBuffer,
}

impl HostTensor {
    /// A tensor over `data`, whose first dimension is rows.
    ///
    /// # Panics
    /// If `data` is not exactly the shape's elements long.
    pub fn new(dtype: DType, shape: Vec<usize>, data: AlignedBuffer) -> Self {
        assert_eq!(
            data.len(),
            shape.iter().product::<usize>() * dtype.size(),
            "a tensor's bytes must fill its shape"
        );
        HostTensor { dtype, shape, data }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// `[rows, ...]`.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Where the elements begin; valid as long as the tensor lives.
    pub fn as_ptr(&self) -> *const u8 {
        self.data.as_ptr()
    }

    /// The elements' bytes in native order.
    pub fn as_bytes(&self) -> &[u8] {
        self.data.as_bytes()
    }

    /// The elements as a slice of `T`.
    ///
    /// # Panics
    /// If `T` is not as wide as the dtype.
    pub fn as_slice<T: bytemuck::Pod>(&self) -> &[T] {
        assert_eq!(
            size_of::<T>(),
            self.dtype.size(),
            "the element type must be as wide as {}",
            self.dtype
        );
        bytemuck::cast_slice(self.as_bytes())
    }

    /// The memory itself, for whoever takes ownership of it.
    pub fn into_buffer(self) -> AlignedBuffer {
        self.data
    }
}

/// The rows of one rank in one global batch.
#[derive(Debug)]
pub struct Batch {
    /// The epoch that the reader was started on, counted from 0.
    pub epoch: u64,
    /// The number of the batch within its epoch, counted from 0.
    pub index: u64,
    /// Rows in every tensor; 0 where the rank has none of it.
    pub num_rows: usize,
    /// One tensor an input of the spec, in its order.
    pub inputs: Vec<HostTensor>,
    /// One tensor a label of the spec, in its order.
    pub labels: Vec<HostTensor>,
    /// `[rows]`, where the spec has a weight.
    pub weight: Option<HostTensor>,
    /// The columns that stay as they are, in the spec's order; `None` where it has none. They hold no nulls.
    pub raw: Option<RecordBatch>,
    /// The rows' numbers in the manifest's order.
    pub row_ids: Vec<u64>,
}
