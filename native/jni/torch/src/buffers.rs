//! Memory of the JVM's direct buffers.

use flambeau_jni_common::NativeError;
use jni::Env;
use jni::objects::{JByteBuffer, JObjectArray};

/// Runs `use_bytes` on the first `num_bytes[i]` bytes of the direct buffers.
///
/// # Errors
///
/// [`NativeError::Argument`] for another number of buffers, a buffer that is null, on the heap or too short.
pub(crate) fn with_bytes<'frame, T>(
    env: &mut Env<'frame>,
    buffers: &JObjectArray<'frame, JByteBuffer<'frame>>,
    num_bytes: &[usize],
    use_bytes: impl FnOnce(&[&[u8]]) -> Result<T, NativeError>,
) -> Result<T, NativeError> {
    if buffers.is_null() {
        return Err(NativeError::Argument(
            "the array of input buffers is null".into(),
        ));
    }
    let given = buffers.len(env)?;
    if given != num_bytes.len() {
        return Err(NativeError::Argument(format!(
            "{given} input buffers were given where the program takes {}",
            num_bytes.len()
        )));
    }
    let mut references = Vec::with_capacity(given);
    let mut slices: Vec<&[u8]> = Vec::with_capacity(given);
    for (index, &needed) in num_bytes.iter().enumerate() {
        let buffer = buffers.get_element(env, index)?;
        let refused = |what: String| NativeError::Argument(format!("input buffer {index} {what}"));
        if buffer.is_null() {
            return Err(refused("is null".into()));
        }
        let address = env.get_direct_buffer_address(&buffer);
        let (Ok(address), Ok(capacity)) = (address, env.get_direct_buffer_capacity(&buffer)) else {
            return Err(refused(
                "is no direct buffer: allocate it with ByteBuffer.allocateDirect".into(),
            ));
        };
        if capacity < needed {
            return Err(refused(format!(
                "has {capacity} bytes where the rows take {needed}"
            )));
        }
        // SAFETY: the memory is the buffer's own, which `references` keeps alive until `use_bytes` is done. Other
        // threads of the JVM may write to it meanwhile only by breaking `score`'s contract; bytes have no invalid values.
        slices.push(unsafe { std::slice::from_raw_parts(address, needed) });
        references.push(buffer);
    }
    let result = use_bytes(&slices);
    for buffer in references {
        env.delete_local_ref(buffer);
    }
    result
}
