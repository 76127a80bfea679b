//! What a model's framework does on a device so that gradients are compressed there.
//!
//! Which numbers travel as what, in which order and in which rounds is said here, in operations on flat tensors that every
//! framework has in one or a few calls. They are told once, as a [`DevicePlan`], and carried out by number in each step.

use std::ffi::c_void;
use std::ops::Range;

use flambeau_collective::DType;

use crate::model::ModelError;

/// Elements of a flat tensor on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPart {
    /// The tensor: a bucket by its number, or one of the plan's, which are numbered after the buckets.
    pub tensor: usize,
    /// Which of its elements.
    pub range: Range<usize>,
}

/// Matrices of one shape, one after the other, each row by row, in float32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrices {
    /// All their elements.
    pub part: TensorPart,
    /// Rows of each.
    pub num_rows: usize,
    /// Columns of each.
    pub num_columns: usize,
}

/// One operation. None waits for the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceOperation {
    /// Copies each source over its target, which has as many elements, perhaps of another floating type.
    Copy {
        /// What is copied.
        sources: Vec<TensorPart>,
        /// Over what.
        targets: Vec<TensorPart>,
    },
    /// Adds each source to its target, which has as many elements; all are float32.
    Add {
        /// What is added.
        sources: Vec<TensorPart>,
        /// To what.
        targets: Vec<TensorPart>,
    },
    /// Makes the rows of each matrix, fewer than its columns, orthonormal: with Q R = Aᵀ and no negative number on the diagonal
    /// of R, A becomes Qᵀ. A row that depends on those before becomes one that does not, so that zeros leave a basis
    /// behind; one that is not finite stays so.
    Orthonormalize(Matrices),
    /// Makes each product the matrix of `vectors` times the one of `matrices`, or times that transposed.
    Multiply {
        /// The left factors: few rows each.
        vectors: Matrices,
        /// The right factors.
        matrices: Matrices,
        /// Whether these are transposed.
        is_transposed: bool,
        /// The products.
        products: Matrices,
    },
    /// Makes each gradient the transposed matrix of `left` times the one of `right`, and takes it off that of `unsent`.
    Expand {
        /// The left factors.
        left: Matrices,
        /// The right factors.
        right: Matrices,
        /// What loses the products.
        unsent: Matrices,
        /// Where each product goes as well.
        gradients: Vec<TensorPart>,
    },
    /// Moves the elements of largest magnitude to `entries`, as many as these are, in any order, and leaves zeros behind. An entry
    /// is an int64: the element's index in its tensor in the upper half, the bits of its float32 in the lower. Of equal
    /// magnitudes the first are taken; NaN counts as the largest.
    TakeLargest {
        /// The elements that are chosen from.
        unsent: TensorPart,
        /// The entries.
        entries: TensorPart,
    },
    /// Makes the gradients the mean of the ranks' entries, which are each as many and follow each other by rank: sums in that order
    /// from zero on, then the division. An index is one of the gradients' tensor. No rank has an index twice.
    Average {
        /// All ranks' entries.
        entries: TensorPart,
        /// The number of ranks.
        num_ranks: usize,
        /// A whole bucket.
        gradients: TensorPart,
    },
}

/// Tensors beside the buckets, and programs on all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DevicePlan {
    /// Type and number of elements of each tensor that is wanted, of zeros.
    pub tensors: Vec<(DType, usize)>,
    /// Operations that are asked for together, in their order.
    pub programs: Vec<Vec<DeviceOperation>>,
}

/// A plan's tensors and programs, as a framework has made them. They live as long as this, and the buckets with them.
///
/// Everything is work of the model's stream. `run` may be called from a thread of autograd's.
pub trait DevicePrograms: Send + Sync {
    /// The first element of a tensor of the plan's.
    fn address(&self, tensor: usize) -> *mut c_void;

    /// Carries out a program. Does not wait for the device.
    ///
    /// # Errors
    ///
    /// The framework's.
    fn run(&self, program: usize) -> Result<(), ModelError>;

    /// The elements of a tensor of the plan's, of float32. Waits for the device.
    ///
    /// # Errors
    ///
    /// The framework's.
    fn read(&self, tensor: usize) -> Result<Vec<f32>, ModelError>;

    /// Overwrites a tensor of the plan's, of as many float32.
    ///
    /// # Errors
    ///
    /// The framework's.
    fn write(&self, tensor: usize, values: &[f32]) -> Result<(), ModelError>;
}
