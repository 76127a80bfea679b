//! What scoring gives.

use tch::Tensor;

use crate::tensor::bytes_of;

/// One column of results, rows one after another.
#[derive(Clone, Debug, PartialEq)]
pub enum Scores {
    /// Elements of a vector output of a narrower floating type or float32.
    F32(Vec<f32>),
    /// A scalar output, a classifier's column, or elements of a float64 vector output.
    F64(Vec<f64>),
    /// Elements of an integer vector output.
    I64(Vec<i64>),
    /// Elements of a boolean vector output.
    Bool(Vec<bool>),
}

/// The elements of a contiguous tensor, of as many bytes each as `T` has.
pub(crate) fn elements<T: Copy>(tensor: &Tensor) -> Vec<T> {
    assert_eq!(size_of::<T>(), tensor.kind().elt_size_in_bytes());
    let bytes = bytes_of(tensor);
    let mut values = Vec::with_capacity(tensor.numel());
    // SAFETY: the bytes are as many elements of that width, any bits of which are a number, and the vector has room.
    unsafe {
        std::ptr::copy_nonoverlapping(
            bytes.as_ptr().cast::<T>(),
            values.as_mut_ptr(),
            tensor.numel(),
        );
        values.set_len(tensor.numel());
    }
    values
}
