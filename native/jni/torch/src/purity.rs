//! `TorchApi`'s check of a program.

use std::collections::HashMap;

use flambeau_data::Store;
use flambeau_jni_common::{NativeError, Throw, texts};
use jni::EnvUnowned;
use jni::objects::{JObject, JString};

use crate::thrown;

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_TorchApi_checkPure<'frame>(
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
        flambeau_torch::check_pure(form, &program).map_err(thrown)
    })
    .resolve::<Throw>()
}
