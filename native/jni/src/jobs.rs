//! `NativeApi`'s functions on jobs.

use std::collections::HashMap;

use flambeau_data::Store;
use jni::EnvUnowned;
use jni::objects::{JObject, JString};

use crate::error::{NativeError, Throw};
use crate::stores::{store, texts};

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_NativeApi_checkPure<'frame>(
    mut env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    form: JString<'frame>,
    program: JString<'frame>,
) {
    env.with_env(|env| {
        let [form, program] = texts(env, [&form, &program])?;
        let form = serde_json::from_value(form.into()).map_err(|source| NativeError::Message {
            what: "the program's form",
            source,
        })?;
        let program = Store::new(&HashMap::new())?.get(&program)?;
        Ok(flambeau_torch::check_pure(form, &program)?)
    })
    .resolve::<Throw>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_NativeApi_newestCheckpoint<'frame>(
    mut env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    work_dir: JString<'frame>,
    attempts: JString<'frame>,
    options: JString<'frame>,
) -> JString<'frame> {
    env.with_env(|env| {
        let [work_dir, attempts, options] = texts(env, [&work_dir, &attempts, &options])?;
        let attempts: Vec<String> =
            serde_json::from_str(&attempts).map_err(|source| NativeError::Message {
                what: "the list of attempts",
                source,
            })?;
        let found = flambeau_train::checkpoint::newest(&store(&options)?, &work_dir, &attempts)?;
        Ok(match found {
            Some(found) => {
                let text = serde_json::to_string(&found)
                    .expect("a checkpoint's place is text and a number");
                JString::from_str(env, text)?
            }
            None => JString::null(),
        })
    })
    .resolve::<Throw>()
}
