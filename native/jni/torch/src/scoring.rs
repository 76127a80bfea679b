//! `TorchApi`'s functions on scorers.

use std::collections::HashMap;

use flambeau_data::Store;
use flambeau_jni_common::{NativeError, Throw, texts};
use flambeau_torch::{Judge, JudgeSpec, Scorer, ScorerSpec, Scores, TorchError};
use jni::objects::{JByteBuffer, JDoubleArray, JObject, JObjectArray, JString};
use jni::sys::{jint, jlong};
use jni::{Env, EnvUnowned};
use serde_json::json;

use crate::buffers::with_bytes;
use crate::registry::Registry;
use crate::thrown;

/// The opened scorers.
static SCORERS: Registry<OpenScorer> = Registry::new();

struct OpenScorer {
    scorer: Scorer,
    /// Bytes of one row of each input, then of each label and of the weight, where there are some.
    row_bytes: Vec<usize>,
}

impl OpenScorer {
    fn new(spec: &ScorerSpec) -> Result<OpenScorer, TorchError> {
        let judged = spec.judged.iter();
        let held = judged.flat_map(|judged| judged.labels.iter().chain(&judged.weight));
        Ok(OpenScorer {
            scorer: Scorer::open(spec)?,
            row_bytes: spec
                .inputs
                .iter()
                .chain(held)
                .map(|tensor| tensor.row_bytes())
                .collect(),
        })
    }

    /// What `compute` makes of rows in direct buffers.
    fn with_rows<'frame, T>(
        &self,
        env: &mut Env<'frame>,
        num_rows: jint,
        buffers: &JObjectArray<'frame, JByteBuffer<'frame>>,
        compute: impl FnOnce(&Scorer, usize, &[&[u8]]) -> Result<T, TorchError>,
    ) -> Result<T, NativeError> {
        let num_rows = usize::try_from(num_rows).map_err(|_| {
            NativeError::Argument(format!(
                "{num_rows} rows were given to score; give 0 or more"
            ))
        })?;
        let row_bytes = self.row_bytes.iter();
        let num_bytes: Vec<usize> = row_bytes.map(|bytes| bytes * num_rows).collect();
        with_bytes(env, buffers, &num_bytes, |bytes| {
            compute(&self.scorer, num_rows, bytes).map_err(thrown)
        })
    }
}

/// Before anything of libtorch's runs in this JVM, or it goes on without. Why it may be missing is told where a GPU is asked
/// for.
fn load_cuda() {
    let _ = flambeau_torch::load_cuda();
}

fn unreadable(what: &'static str) -> impl Fn(serde_json::Error) -> NativeError {
    move |source| NativeError::Message { what, source }
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
            serde_json::from_str(&spec).map_err(unreadable("the scorer's description"))?;
        flambeau_train::keep_freed_batches();
        load_cuda();
        Ok(SCORERS.insert(OpenScorer::new(&spec).map_err(thrown)?))
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
        let scores = open.with_rows(env, num_rows, &inputs, Scorer::score)?;
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
extern "system" fn Java_flambeau_jni_TorchApi_sums<'frame>(
    mut env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    handle: jlong,
    num_rows: jint,
    tensors: JObjectArray<'frame, JByteBuffer<'frame>>,
) -> JDoubleArray<'frame> {
    env.with_env(|env| {
        let open = SCORERS.get(handle).ok_or_else(|| closed(handle))?;
        let sums = open.with_rows(env, num_rows, &tensors, Scorer::sums)?;
        let array = env.new_double_array(sums.len())?;
        array.set_region(env, 0, &sums)?;
        Ok(array)
    })
    .resolve::<Throw>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_TorchApi_figures<'frame>(
    mut env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    judge: JString<'frame>,
    sums: JDoubleArray<'frame>,
) -> JString<'frame> {
    env.with_env(|env| {
        let [spec] = texts(env, [&judge])?;
        let spec: JudgeSpec = serde_json::from_str(&spec).map_err(unreadable("what judges"))?;
        let mut numbers = vec![0.0; sums.len(env)?];
        sums.get_region(env, 0, &mut numbers)?;
        let store = Store::new(&HashMap::new())?;
        let figures = Judge::new(&spec, &store).map_err(thrown)?.finish(&numbers);
        Ok(JString::from_str(env, json!(figures).to_string())?)
    })
    .resolve::<Throw>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_flambeau_jni_TorchApi_rowsAtOnce<'frame>(
    mut env: EnvUnowned<'frame>,
    _this: JObject<'frame>,
    handle: jlong,
) -> jint {
    env.with_env(|_| {
        let open = SCORERS.get(handle).ok_or_else(|| closed(handle))?;
        Ok(jint::try_from(open.scorer.rows_at_once()).unwrap_or(jint::MAX))
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
