//! `StoreApi`'s function on attempts and runs.

use flambeau_jni_common::error::{GENERAL, PARAM, RUN_IN_USE, class_of};
use flambeau_jni_common::{NativeError, Throw, store_options, texts};
use flambeau_supervisor::SupervisorError;
use jni::EnvUnowned;
use jni::objects::{JObject, JString};

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_StoreApi_supervise<'frame>(
    mut env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    options: JString<'frame>,
    work_dir: JString<'frame>,
    question: JString<'frame>,
) -> JString<'frame> {
    env.with_env(|env| {
        let [options, work_dir, question] = texts(env, [&options, &work_dir, &question])?;
        let options = store_options(&options)?;
        let answer = flambeau_supervisor::answer(&work_dir, &question, &options).map_err(thrown)?;
        Ok(JString::from_str(env, answer)?)
    })
    .resolve::<Throw>()
}

fn thrown(error: SupervisorError) -> NativeError {
    let class = match &error {
        SupervisorError::Refused(_) => PARAM,
        SupervisorError::RunInUse(_) => RUN_IN_USE,
        SupervisorError::Data(error) => class_of(error),
        _ => GENERAL,
    };
    NativeError::Own {
        class,
        source: error.into(),
    }
}
