//! The border to C++: texts and errors that come over it.

use std::ffi::{CStr, c_char};

use crate::error::TorchError;

unsafe extern "C" {
    fn flambeau_free_text(text: *mut c_char);
}

/// What a function of the shim returned: null, or the text of an exception, which is freed here.
pub(crate) fn check(failure: *mut c_char) -> Result<(), TorchError> {
    if failure.is_null() {
        return Ok(());
    }
    Err(TorchError::of_exception(&take_text(failure)))
}

/// A text that C++ allocated, which is freed here.
pub(crate) fn take_text(text: *mut c_char) -> String {
    // SAFETY: the shim gives texts that end in 0 and leaves them to the caller, who gives them here once.
    unsafe {
        let owned = CStr::from_ptr(text).to_string_lossy().into_owned();
        flambeau_free_text(text);
        owned
    }
}
