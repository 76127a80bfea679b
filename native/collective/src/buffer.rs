//! The memory that a collective works on, described without any tensor library.

use std::ffi::c_void;
use std::fmt;

use crate::error::{CollectiveError, Result};

/// The element types that travel. How those of 16 bits are reduced holds for a `ProcessGroup`; an `NcclGroup` says its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DType {
    /// IEEE single precision, 4 bytes.
    Float32 = 0,
    /// IEEE double precision, 8 bytes.
    Float64 = 1,
    /// IEEE half precision, 2 bytes; reduced in float32 and rounded once at the end.
    Float16 = 2,
    /// bfloat16, 2 bytes; reduced in float32 and rounded once at the end.
    BFloat16 = 3,
    /// Signed 64-bit integers; sums wrap.
    Int64 = 4,
    /// Bytes, for `broadcast` and `all_gather` only.
    UInt8 = 5,
}

impl DType {
    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DType::Float32 => 4,
            DType::Float64 | DType::Int64 => 8,
            DType::Float16 | DType::BFloat16 => 2,
            DType::UInt8 => 1,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        use DType::*;
        [Float32, Float64, Float16, BFloat16, Int64, UInt8]
            .into_iter()
            .find(|dtype| *dtype as u8 == code)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::Float32 => "float32",
            DType::Float64 => "float64",
            DType::Float16 => "float16",
            DType::BFloat16 => "bfloat16",
            DType::Int64 => "int64",
            DType::UInt8 => "uint8",
        })
    }
}

/// How the ranks' elements become one.
///
/// Every element is reduced in rank order, `((x0 ∘ x1) ∘ x2) …`, on every transport, so results are bitwise equal on
/// all ranks and from run to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// The sum.
    Sum = 0,
    /// The sum divided by the world size; integers round toward zero.
    Average = 1,
    /// The least; NaN if any is NaN, as in torch.
    Min = 2,
    /// The greatest; NaN if any is NaN, as in torch.
    Max = 3,
}

impl ReduceOp {
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        use ReduceOp::*;
        [Sum, Average, Min, Max]
            .into_iter()
            .find(|op| *op as u8 == code)
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Average => "average",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
        })
    }
}

/// Where a buffer lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Device {
    /// Main memory.
    Cpu,
    /// The CUDA device of this index, among those that the process sees. An `NcclGroup` reaches it; a `ProcessGroup`
    /// refuses it by name.
    Cuda(u32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// A device's stream (`cudaStream_t`) on which the buffer's contents are made and used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Stream(pub usize);

/// A contiguous run of elements. It owns nothing: who passes it keeps the memory alive and to itself until the
/// operation has ended.
#[derive(Debug, Clone, Copy)]
pub struct RawBuffer {
    /// The first element, aligned for `dtype`. May be null when `len` is 0.
    pub ptr: *mut c_void,
    /// The number of elements.
    pub len: usize,
    /// Their type.
    pub dtype: DType,
    /// Where they lie.
    pub device: Device,
    /// The stream that orders access to them; `None` on the CPU.
    pub stream: Option<Stream>,
}

// SAFETY: a RawBuffer is an address and a length; the functions that read through it are unsafe and say what must hold.
unsafe impl Send for RawBuffer {}

impl RawBuffer {
    /// Describes `len` elements of main memory at `ptr`.
    pub fn cpu(ptr: *mut c_void, len: usize, dtype: DType) -> Self {
        RawBuffer {
            ptr,
            len,
            dtype,
            device: Device::Cpu,
            stream: None,
        }
    }

    /// Describes `len` elements at `ptr` on CUDA device `index`, made and used on `stream`.
    pub fn cuda(ptr: *mut c_void, len: usize, dtype: DType, index: u32, stream: Stream) -> Self {
        RawBuffer {
            ptr,
            len,
            dtype,
            device: Device::Cuda(index),
            stream: Some(stream),
        }
    }

    /// The number of bytes. Saturates, and `check` refuses what saturated.
    pub fn bytes(&self) -> usize {
        self.len.saturating_mul(self.dtype.size())
    }

    pub(crate) fn check(&self) -> Result<()> {
        if let Device::Cuda(index) = self.device {
            return Err(CollectiveError::invalid(format!(
                "a buffer on cuda:{index}: this group reduces main memory only; copy it to the CPU first"
            )));
        }
        self.check_extent()
    }

    /// Checks the address and the length, wherever they lie.
    pub(crate) fn check_extent(&self) -> Result<()> {
        if self.bytes() > isize::MAX as usize {
            return Err(CollectiveError::invalid(format!(
                "{} elements of {} do not fit in memory",
                self.len, self.dtype
            )));
        }
        if self.len > 0
            && (self.ptr.is_null() || !(self.ptr as usize).is_multiple_of(self.dtype.size()))
        {
            return Err(CollectiveError::invalid(format!(
                "the address {:p} is not that of an aligned {} buffer",
                self.ptr, self.dtype
            )));
        }
        Ok(())
    }

    pub(crate) fn check_reducible(&self) -> Result<()> {
        self.check()?;
        self.check_arithmetic()
    }

    /// Checks that the elements are numbers to reduce.
    pub(crate) fn check_arithmetic(&self) -> Result<()> {
        if self.dtype == DType::UInt8 {
            return Err(CollectiveError::invalid(
                "uint8 can be broadcast and gathered, not reduced; reduce int64 or a float type",
            ));
        }
        Ok(())
    }
}
