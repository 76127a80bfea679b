//! What the libraries of the JVM share: how arguments come in, and how errors go out.

pub mod error;

use std::collections::HashMap;

use jni::Env;
use jni::objects::JString;

pub use error::{NativeError, Throw};

/// The options of a store, a JSON object of strings.
///
/// # Errors
///
/// [`NativeError::Message`] for anything else.
pub fn store_options(json: &str) -> Result<HashMap<String, String>, NativeError> {
    serde_json::from_str(json).map_err(|source| NativeError::Message {
        what: "the store's options",
        source,
    })
}

/// The Rust strings of some Java ones.
///
/// # Errors
///
/// [`NativeError::Argument`] for one that is null.
pub fn texts<const N: usize>(
    env: &Env<'_>,
    strings: [&JString<'_>; N],
) -> Result<[String; N], NativeError> {
    let mut texts = [const { String::new() }; N];
    for (index, (text, string)) in texts.iter_mut().zip(strings).enumerate() {
        if string.is_null() {
            return Err(NativeError::Argument(format!(
                "string argument {index} is null"
            )));
        }
        *text = string.try_to_string(env)?;
    }
    Ok(texts)
}
