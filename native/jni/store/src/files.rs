//! `StoreApi`'s functions on files.

use std::path::Path;

use flambeau_data::Store;
use flambeau_jni_common::{NativeError, Throw, store_options, texts};
use jni::objects::{JByteArray, JObject, JString};
use jni::sys::jlong;
use jni::{Env, EnvUnowned};
use serde_json::Value;

/// Runs `call` for the JVM with the arguments that are strings and with the store whose options the first of them is.
fn on_store<'frame, const N: usize, T: Default>(
    mut env: EnvUnowned<'frame>,
    strings: [&JString<'frame>; N],
    call: impl FnOnce(&mut Env<'frame>, &Store, [String; N]) -> Result<T, NativeError>,
) -> T {
    env.with_env(|env| {
        let texts = texts(env, strings)?;
        let store = Store::shared(&store_options(&texts[0])?)?;
        call(env, &store, texts)
    })
    .resolve::<Throw>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_StoreApi_get<'frame>(
    env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    options: JString<'frame>,
    uri: JString<'frame>,
) -> JByteArray<'frame> {
    on_store(env, [&options, &uri], |env, store, [_, uri]| {
        let bytes = store.get(&uri)?;
        if i32::try_from(bytes.len()).is_err() {
            return Err(NativeError::Argument(format!(
                "{uri} has {} bytes, which no Java array holds: copy it with getToFile",
                bytes.len()
            )));
        }
        Ok(env.byte_array_from_slice(&bytes)?)
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_StoreApi_put<'frame>(
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
extern "system" fn Java_flambeau_jni_StoreApi_getToFile<'frame>(
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
extern "system" fn Java_flambeau_jni_StoreApi_putFile<'frame>(
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
extern "system" fn Java_flambeau_jni_StoreApi_size<'frame>(
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
extern "system" fn Java_flambeau_jni_StoreApi_list<'frame>(
    env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    options: JString<'frame>,
    directory: JString<'frame>,
) -> JString<'frame> {
    on_store(env, [&options, &directory], |env, store, [_, directory]| {
        let files = Value::from(store.list(&directory)?);
        Ok(JString::from_str(env, files.to_string())?)
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_StoreApi_deletePrefix<'frame>(
    env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    options: JString<'frame>,
    directory: JString<'frame>,
) {
    on_store(env, [&options, &directory], |_, store, [_, directory]| {
        Ok(store.delete_prefix(&directory)?)
    })
}
