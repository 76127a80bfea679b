//! `TorchApi`'s function on GPUs.

use flambeau_collective::Gpu;
use flambeau_jni_common::Throw;
use jni::EnvUnowned;
use jni::objects::{JObject, JString};
use serde_json::json;

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_TorchApi_gpus<'frame>(
    mut env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
) -> JString<'frame> {
    env.with_env(|env| {
        let (visible, obstacle) = match Gpu::visible() {
            Ok(visible) => (visible, flambeau_torch::check_cuda().err()),
            Err(error) => (vec![], Some(error.to_string())),
        };
        let uuids: Vec<&str> = visible.iter().map(|gpu| gpu.uuid.as_str()).collect();
        let found = json!({"uuids": uuids, "obstacle": obstacle});
        Ok(JString::from_str(env, found.to_string())?)
    })
    .resolve::<Throw>()
}
