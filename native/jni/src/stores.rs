//! `NativeApi`'s functions on files.

use std::path::Path;

use flambeau_data::Store;
use jni::objects::{JByteArray, JObject, JString};
use jni::sys::jlong;
use jni::{Env, EnvUnowned};

use crate::error::{NativeError, Throw};

/// The store with some options, a JSON object of strings.
fn store(options: &str) -> Result<Store, NativeError> {
    let options = serde_json::from_str(options).map_err(|source| NativeError::Message {
        what: "the store's options",
        source,
    })?;
    Ok(Store::shared(&options)?)
}

/// The Rust strings of some Java ones.
pub(crate) fn texts<const N: usize>(
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

/// Runs `call` for the JVM with the arguments that are strings and with the store whose options the first of them is.
fn on_store<'frame, const N: usize, T: Default>(
    mut env: EnvUnowned<'frame>,
    strings: [&JString<'frame>; N],
    call: impl FnOnce(&mut Env<'frame>, &Store, [String; N]) -> Result<T, NativeError>,
) -> T {
    env.with_env(|env| {
        let texts = texts(env, strings)?;
        call(env, &store(&texts[0])?, texts)
    })
    .resolve::<Throw>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_NativeApi_storeGet<'frame>(
    env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    options: JString<'frame>,
    uri: JString<'frame>,
) -> JByteArray<'frame> {
    on_store(env, [&options, &uri], |env, store, [_, uri]| {
        let bytes = store.get(&uri)?;
        if i32::try_from(bytes.len()).is_err() {
            return Err(NativeError::Argument(format!(
                "{uri} has {} bytes, which no Java array holds: copy it with storeGetToFile",
                bytes.len()
            )));
        }
        Ok(env.byte_array_from_slice(&bytes)?)
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_NativeApi_storePut<'frame>(
    env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    options: JString<'frame>,
    uri: JString<'frame>,
    bytes: JByteArray<'frame>,
) {
    on_store(env, [&options, &uri], |env, store, [_, uri]| {
        let bytes = env.convert_byte_array(&bytes)?;
        Ok(store.put(&uri, bytes.into())?)
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_NativeApi_storeGetToFile<'frame>(
    env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    options: JString<'frame>,
    uri: JString<'frame>,
    local: JString<'frame>,
) {
    on_store(
        env,
        [&options, &uri, &local],
        |_, store, [_, uri, local]| Ok(store.get_to_file(&uri, Path::new(&local))?),
    )
}

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_NativeApi_storePutFile<'frame>(
    env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    options: JString<'frame>,
    uri: JString<'frame>,
    local: JString<'frame>,
) {
    on_store(
        env,
        [&options, &uri, &local],
        |_, store, [_, uri, local]| Ok(store.put_file(&uri, Path::new(&local))?),
    )
}

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_NativeApi_storeSize<'frame>(
    env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    options: JString<'frame>,
    uri: JString<'frame>,
) -> jlong {
    on_store(env, [&options, &uri], |_, store, [_, uri]| {
        Ok(store.size(&uri)?.map_or(-1, u64::cast_signed))
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_NativeApi_storeDeletePrefix<'frame>(
    env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    options: JString<'frame>,
    directory: JString<'frame>,
) {
    on_store(env, [&options, &directory], |_, store, [_, directory]| {
        Ok(store.delete_prefix(&directory)?)
    })
}
