//! `NativeApi`'s functions on jobs.

use std::collections::HashMap;

use flambeau_data::Store;
use jni::EnvUnowned;
use jni::objects::{JObject, JString};

use crate::error::{NativeError, Throw};
use crate::stores::texts;

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
extern "system" fn Java_flambeau_jni_NativeApi_supervise<'frame>(
    mut env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    options: JString<'frame>,
    work_dir: JString<'frame>,
    question: JString<'frame>,
) -> JString<'frame> {
    env.with_env(|env| {
        let [options, work_dir, question] = texts(env, [&options, &work_dir, &question])?;
        let options = serde_json::from_str(&options).map_err(|source| NativeError::Message {
            what: "the store's options",
            source,
        })?;
        let answer = flambeau_supervisor::answer(&work_dir, &question, &options)?;
        Ok(JString::from_str(env, answer)?)
    })
    .resolve::<Throw>()
}
