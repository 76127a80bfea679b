//! `NativeApi`'s functions on files.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use flambeau_data::Store;
use jni::objects::{JByteArray, JObject, JObjectArray, JString};
use jni::sys::jlong;
use jni::{Env, EnvUnowned};

use crate::error::{NativeError, Throw};

/// The store of the last options given, which those of the next call mostly are: it keeps its connections.
static LAST: Mutex<Option<(String, Store)>> = Mutex::new(None);

/// The store with some options, a JSON object of strings.
pub(crate) fn store(options: &str) -> Result<Store, NativeError> {
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((known, store)) = &*last
        && known == options
    {
        return Ok(store.clone());
    }
    let read: HashMap<String, String> =
        serde_json::from_str(options).map_err(|source| NativeError::Message {
            what: "the store's options",
            source,
        })?;
    let store = Store::new(&read)?;
    *last = Some((options.to_owned(), store.clone()));
    Ok(store)
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

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_NativeApi_storeGet<'frame>(
    mut env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    options: JString<'frame>,
    uri: JString<'frame>,
) -> JByteArray<'frame> {
    env.with_env(|env| {
        let [options, uri] = texts(env, [&options, &uri])?;
        let bytes = store(&options)?.get(&uri)?;
        if i32::try_from(bytes.len()).is_err() {
            return Err(NativeError::Argument(format!(
                "{uri} has {} bytes, which no Java array holds: copy it with storeGetToFile",
                bytes.len()
            )));
        }
        Ok(env.byte_array_from_slice(&bytes)?)
    })
    .resolve::<Throw>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_NativeApi_storePut<'frame>(
    mut env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    options: JString<'frame>,
    uri: JString<'frame>,
    bytes: JByteArray<'frame>,
) {
    env.with_env(|env| {
        let [options, uri] = texts(env, [&options, &uri])?;
        let bytes = env.convert_byte_array(&bytes)?;
        Ok(store(&options)?.put(&uri, bytes.into())?)
    })
    .resolve::<Throw>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_NativeApi_storeGetToFile<'frame>(
    mut env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    options: JString<'frame>,
    uri: JString<'frame>,
    local: JString<'frame>,
) {
    env.with_env(|env| {
        let [options, uri, local] = texts(env, [&options, &uri, &local])?;
        Ok(store(&options)?.get_to_file(&uri, Path::new(&local))?)
    })
    .resolve::<Throw>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_NativeApi_storePutFile<'frame>(
    mut env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    options: JString<'frame>,
    uri: JString<'frame>,
    local: JString<'frame>,
) {
    env.with_env(|env| {
        let [options, uri, local] = texts(env, [&options, &uri, &local])?;
        Ok(store(&options)?.put_file(&uri, Path::new(&local))?)
    })
    .resolve::<Throw>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_NativeApi_storeSize<'frame>(
    mut env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    options: JString<'frame>,
    uri: JString<'frame>,
) -> jlong {
    env.with_env(|env| {
        let [options, uri] = texts(env, [&options, &uri])?;
        let size = store(&options)?.size(&uri)?;
        Ok(size.map_or(-1, u64::cast_signed))
    })
    .resolve::<Throw>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_NativeApi_storeList<'frame>(
    mut env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    options: JString<'frame>,
    directory: JString<'frame>,
) -> JObjectArray<'frame, JString<'frame>> {
    env.with_env(|env| {
        let [options, directory] = texts(env, [&options, &directory])?;
        let files = store(&options)?.list(&directory)?;
        let list = JObjectArray::<JString>::new(env, files.len(), JString::null())?;
        for (index, file) in files.iter().enumerate() {
            let file = JString::from_str(env, file)?;
            list.set_element(env, index, &file)?;
            env.delete_local_ref(file);
        }
        Ok(list)
    })
    .resolve::<Throw>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_NativeApi_storeDelete<'frame>(
    mut env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    options: JString<'frame>,
    uri: JString<'frame>,
) {
    env.with_env(|env| {
        let [options, uri] = texts(env, [&options, &uri])?;
        Ok(store(&options)?.delete(&uri)?)
    })
    .resolve::<Throw>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_NativeApi_storeDeletePrefix<'frame>(
    mut env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    options: JString<'frame>,
    directory: JString<'frame>,
) {
    env.with_env(|env| {
        let [options, directory] = texts(env, [&options, &directory])?;
        Ok(store(&options)?.delete_prefix(&directory)?)
    })
    .resolve::<Throw>()
}
