//! `TorchApi`'s functions on scorers.

use flambeau_jni_common::{NativeError, Throw, texts};
use flambeau_torch::{Scorer, ScorerSpec, Scores};
use jni::objects::{JByteBuffer, JObject, JObjectArray, JString};
use jni::sys::{jint, jlong};
use jni::{Env, EnvUnowned};

use crate::buffers::with_bytes;
use crate::registry::Registry;
use crate::thrown;

/// The opened scorers.
static SCORERS: Registry<OpenScorer> = Registry::new();

struct OpenScorer {
    scorer: Scorer,
    /// Bytes of one row of each input.
    row_bytes: Vec<usize>,
}

/// Before anything of libtorch's runs in this JVM, or it goes on without. Why it may be missing is told where a GPU is asked
/// for.
fn load_cuda() {
    let _ = flambeau_torch::load_cuda();
}

fn closed(handle: i64) -> NativeError {
    NativeError::Argument(format!(
        "there is no open scorer {handle}: it was closed, or never opened"
    ))
}

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_TorchApi_openScorer<'frame>(
    mut env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    spec: JString<'frame>,
) -> jlong {
    env.with_env(|env| {
        let [spec] = texts(env, [&spec])?;
        let spec: ScorerSpec =
            serde_json::from_str(&spec).map_err(|source| NativeError::Message {
                what: "the scorer's description",
                source,
            })?;
        let row_bytes = spec.inputs.iter().map(|input| input.row_bytes()).collect();
        flambeau_train::keep_freed_batches();
        load_cuda();
        let scorer = Scorer::open(&spec).map_err(thrown)?;
        Ok(SCORERS.insert(OpenScorer { scorer, row_bytes }))
    })
    .resolve::<Throw>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_TorchApi_score<'frame>(
    mut env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    handle: jlong,
    num_rows: jint,
    inputs: JObjectArray<'frame, JByteBuffer<'frame>>,
) -> JObjectArray<'frame> {
    env.with_env(|env| {
        let open = SCORERS.get(handle).ok_or_else(|| closed(handle))?;
        let num_rows = usize::try_from(num_rows).map_err(|_| {
            NativeError::Argument(format!(
                "{num_rows} rows were given to score; give 0 or more"
            ))
        })?;
        let num_bytes: Vec<usize> = open
            .row_bytes
            .iter()
            .map(|bytes| bytes * num_rows)
            .collect();
        let scores = with_bytes(env, &inputs, &num_bytes, |bytes| {
            open.scorer.score(num_rows, bytes).map_err(thrown)
        })?;
        let arrays = JObjectArray::<JObject>::new(env, scores.len(), JObject::null())?;
        for (index, scores) in scores.iter().enumerate() {
            let array = java_array(env, scores)?;
            arrays.set_element(env, index, &array)?;
            env.delete_local_ref(array);
        }
        Ok(arrays)
    })
    .resolve::<Throw>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_TorchApi_closeScorer<'frame>(
    mut env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    handle: jlong,
) {
    env.with_env(|_| match SCORERS.remove(handle) {
        Some(scorer) => {
            drop(scorer);
            Ok(())
        }
        None => Err(closed(handle)),
    })
    .resolve::<Throw>()
}

/// A `float[]`, `double[]`, `long[]` or `boolean[]` of the scores.
fn java_array<'frame>(
    env: &mut Env<'frame>,
    scores: &Scores,
) -> Result<JObject<'frame>, NativeError> {
    Ok(match scores {
        Scores::F32(values) => {
            let array = env.new_float_array(values.len())?;
            array.set_region(env, 0, values)?;
            array.into()
        }
        Scores::F64(values) => {
            let array = env.new_double_array(values.len())?;
            array.set_region(env, 0, values)?;
            array.into()
        }
        Scores::I64(values) => {
            let array = env.new_long_array(values.len())?;
            array.set_region(env, 0, values)?;
            array.into()
        }
        Scores::Bool(values) => {
            let array = env.new_boolean_array(values.len())?;
            array.set_region(env, 0, values)?;
            array.into()
        }
    })
}
