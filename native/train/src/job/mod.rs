//! The one message that describes a training: what every front end produces and every worker reads.

mod bounds;
pub(crate) mod compression;
pub(crate) mod groups;
pub(crate) mod monitor;
pub(crate) mod params;
pub(crate) mod profile;
pub(crate) mod program;
pub(crate) mod purity;
mod range_test;
mod storages;

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;

use flambeau_data::{DataError, DataFile, DatasetSpec, Store};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::monitor::Monitor;
use self::params::{GradientCompression, LrSchedule, Precision, TrainingParams};
use self::profile::Profile;
use self::program::{LossSpec, NativeProgram};
pub use self::range_test::RangeTest;
use crate::digest;
use crate::error::JobError;
use crate::model::MetricNames;

/// The version of the job's format that this build reads and writes.
pub const FORMAT: u32 = 1;

/// A whole training job.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "TrainingJob")]
pub struct TrainingJob {
    /// Version of the format, 1.
    #[schemars(range(min = 1, max = 1))]
    pub format: u32,
    /// The estimator's params.
    pub params: TrainingParams,
    /// Where the rows are and how they become tensors.
    pub data: JobData,
    /// Which submission of the job this is.
    pub attempt: Attempt,
    /// The program, where libtorch trains it rather than Python.
    #[serde(default)]
    pub program: Option<NativeProgram>,
    /// Has the training be a learning rate range test.
    #[serde(default)]
    pub range_test: Option<RangeTest>,
    /// Options of the store, such as credentials and endpoints, as `object_store` names them.
    #[serde(default)]
    #[schemars(with = "HashMap<String, String>")]
    pub store: StoreOptions,
}

/// Options of a store. Debug tells their names alone, since the values may be credentials.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StoreOptions(HashMap<String, String>);

impl Deref for StoreOptions {
    type Target = HashMap<String, String>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The rows of a job.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(inline)]
pub struct JobData {
    /// The Parquet files with the training rows, each a URI, or an object where only some of its rows are read.
    #[schemars(length(min = 1))]
    pub train: Vec<DataFile>,
    /// Those with the validation rows; empty where there is no validation.
    #[serde(default)]
    pub validation: Vec<DataFile>,
    /// The tensors that columns are packed into.
    pub spec: DatasetSpec,
}

/// One submission of a job. A job that is started again has the same params and data under another attempt.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(inline)]
pub struct Attempt {
    /// Name of the attempt, unique in the work directory; letters, digits, `-` and `_` only.
    #[schemars(length(min = 1, max = 128))]
    pub id: String,
    /// The work directory that all ranks reach.
    #[schemars(length(min = 1))]
    pub work_dir: String,
    /// URI of the checkpoint to go on from; none starts afresh.
    #[serde(default)]
    pub resume: Option<String>,
    /// How many attempts of the same fit came before.
    #[serde(default)]
    pub restarts: u32,
    /// URI of a file that rank 0 looks for about once a second: once it is there, training ends after the same step on all
    /// ranks, as early stopping does.
    #[serde(default)]
    pub stop_file: Option<String>,
    /// Whether a rank may ask for such an end, by a hook or the file: the ranks then agree on it after each epoch too.
    #[serde(default)]
    pub callbacks: bool,
    /// Seconds after which each rank tells again what it uses of its machine; none asks for nothing of it.
    #[serde(default)]
    pub usage_seconds: Option<f64>,
}

impl Attempt {
    /// The directory of what this attempt writes: `<workDir>/attempts/<id>`.
    pub fn directory(&self) -> String {
        format!(
            "{}/attempts/{}",
            self.work_dir.trim_end_matches('/'),
            self.id
        )
    }

    /// The file of the attempt's timeline: `<workDir>/timelines/<id>.json`.
    pub(crate) fn timeline(&self) -> String {
        let work_dir = self.work_dir.trim_end_matches('/');
        format!("{work_dir}/timelines/{}.json", self.id)
    }

    /// The directory of the weights: `<workDir>/models/<id>`.
    pub fn models_directory(&self) -> String {
        format!("{}/models/{}", self.work_dir.trim_end_matches('/'), self.id)
    }
}

impl TrainingJob {
    /// Reads and validates a job.
    ///
    /// # Errors
    ///
    /// [`JobError`] names the field, the value that it has and what is allowed: for a field that does not exist, a
    /// value of the wrong type or outside its bounds, and values that do not go together.
    pub fn from_json(text: &str) -> Result<TrainingJob, JobError> {
        let mut value: Value = serde_json::from_str(text).map_err(JobError::Malformed)?;
        // Before the params, of which learningRate is minRate and would be refused in its place.
        if let Some(test) = value.get("rangeTest") {
            let test: Option<RangeTest> =
                serde_json::from_value(test.clone()).map_err(JobError::Malformed)?;
            test.map_or(Ok(()), |test| test.validate())?;
        }
        if let Some(params) = value.get_mut("params") {
            if let Some(params) = params.as_object_mut() {
                params::rename(params);
            }
            bounds::check_params(params)?;
        }
        let job: TrainingJob = serde_json::from_value(value).map_err(JobError::Malformed)?;
        job.validate()?;
        Ok(job)
    }

    /// Checks what the params say of the metrics, for a training with metrics of these names.
    ///
    /// # Errors
    ///
    /// [`JobError::Invalid`] for a `monitor` that names none of them.
    pub fn check_metrics(&self, names: &MetricNames) -> Result<(), JobError> {
        Monitor::new(&self.params, names).map(drop)
    }

    /// Checks what the params say of the parameters, for a model that trains those of these names.
    ///
    /// # Errors
    ///
    /// [`JobError::Invalid`] for `gradientGroups` with a name that is none of theirs.
    pub fn check_parameters(&self, names: &[impl AsRef<str>]) -> Result<(), JobError> {
        let groups = self.params.gradient_groups.as_deref().unwrap_or_default();
        groups::places(groups, names).map(drop)
    }

    /// What all ranks must have alike, by name, for `GroupOptions::terms`: each param but those that concern one machine or what
    /// is told of the training, the attempt, the data, and of a program what is not its place on this rank's machine: its files' SHA-256 stand for
    /// them.
    ///
    /// # Errors
    ///
    /// What the store says of a program's file.
    pub fn terms(&self, store: &Store) -> Result<Vec<(String, String)>, DataError> {
        const FREE: [&str; 6] = [
            "logEveryNSteps",
            "logGradientNorm",
            "memoryBudget",
            "numThreads",
            "tensorBoardDir",
            "verbose",
        ];
        let json = |value: Result<Value, _>| value.expect("a job is JSON");
        let params = json(serde_json::to_value(&self.params));
        let mut terms: Vec<(String, String)> = params
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, _)| !FREE.contains(&name.as_str()))
            .map(|(name, value)| (name.clone(), value.to_string()))
            .collect();
        let program = self.program.as_ref();
        let digest_of = |uri: &String| store.get(uri).map(|bytes| digest::of_bytes(&bytes));
        let loss = program.map(|program| match &program.loss {
            LossSpec::Named(loss) => Ok(json(serde_json::to_value(loss))),
            LossSpec::Scripted(loss) => digest_of(&loss.script).map(Value::from),
        });
        let optimizer = program.map(|program| json(serde_json::to_value(&program.optimizer)));
        let files = program.map(|program| {
            let weights = program.weights.as_ref().map(|weights| &weights.sha256);
            let train = program.train.as_ref().map(digest_of).transpose()?;
            Ok((program.form, weights, digest_of(&program.eval)?, train))
        });
        let metrics = program.map(|program| &program.metrics);
        let others = [
            ("data", json(serde_json::to_value(&self.data))),
            ("attempt", json(serde_json::to_value(&self.attempt))),
            ("rangeTest", json(serde_json::to_value(self.range_test))),
            ("program", json(serde_json::to_value(files.transpose()?))),
            ("loss", json(serde_json::to_value(loss.transpose()?))),
            ("optimizer", json(serde_json::to_value(optimizer))),
            ("metrics", json(serde_json::to_value(metrics))),
        ];
        terms.extend(others.map(|(name, value)| (name.into(), value.to_string())));
        Ok(terms)
    }

    /// The job as JSON, every param written out.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a job has string keys and finite numbers only")
    }

    /// The JSON Schema of a job, pretty-printed. `docs/training-job.schema.json` holds this text.
    pub fn schema_json() -> String {
        let mut schema = schemars::schema_for!(TrainingJob).to_value();
        unwrap_lines(&mut schema);
        let mut text = serde_json::to_string_pretty(&schema).expect("a schema is JSON");
        text.push('\n');
        text
    }

    /// Checks what no single param's bounds can say.
    fn validate(&self) -> Result<(), JobError> {
        if self.format != FORMAT {
            return Err(JobError::invalid(
                "format",
                self.format,
                format!("{FORMAT}"),
            ));
        }
        if self.data.train.is_empty() {
            return Err(JobError::invalid("data.train", "[]", "at least one shard"));
        }
        self.data.spec.validate().map_err(JobError::Spec)?;
        if let Some(profile) = &self.params.profile {
            Profile::parse(profile)?;
        }
        self.check_attempt()?;
        self.check_runtime()?;
        if let Some(program) = &self.program {
            self.check_metrics(&MetricNames::of_both(program.metrics.clone()))?;
        }
        self.check_range_test()?;
        self.check_gradients()?;
        self.check_warm_up()?;
        self.check_lanes()?;
        self.check_inputs()
    }

    /// The attempt, its run and its checkpoints.
    fn check_attempt(&self) -> Result<(), JobError> {
        let params = &self.params;
        let id = &self.attempt.id;
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        for (name, id) in [("attempt.id", Some(id)), ("runId", params.run_id.as_ref())] {
            if let Some(id) = id
                && (id.is_empty() || id.len() > 128 || !id.chars().all(plain))
            {
                return Err(JobError::invalid(
                    name,
                    format!("{id:?}"),
                    "1 to 128 letters, digits, '-' and '_'",
                ));
            }
        }
        if self.attempt.work_dir.is_empty() {
            return Err(JobError::invalid(
                "attempt.workDir",
                "\"\"",
                "a path or a URI",
            ));
        }
        if params.checkpoint_interval == 0 {
            return Err(JobError::invalid(
                "checkpointInterval",
                "0",
                "-1, or at least 1",
            ));
        }
        Ok(())
    }

    /// What the native runtime does not do.
    fn check_runtime(&self) -> Result<(), JobError> {
        let params = &self.params;
        if params.compile && self.program.is_some() {
            return Err(JobError::invalid(
                "compile",
                "true",
                "false for the native runtime, whose programs are compiled already",
            ));
        }
        if self.program.is_some() && !self.data.spec.raw_columns.is_empty() {
            return Err(JobError::invalid(
                "data.spec.rawColumns",
                format!("{:?}", self.data.spec.raw_columns),
                "no columns for the native runtime: a program of libtorch takes numbers, as tensors of fixed shapes; make them \
                 of such columns before the fit, or train an nn.Module with preprocess in Python",
            ));
        }
        Ok(())
    }

    /// A test of learning rates, which is a whole training of its own.
    fn check_range_test(&self) -> Result<(), JobError> {
        let params = &self.params;
        if let Some(test) = &self.range_test
            && params.learning_rate != Some(test.min_rate)
        {
            return Err(JobError::invalid(
                "learningRate",
                params
                    .learning_rate
                    .map_or("not set".into(), |rate| format!("{rate:?}")),
                format!("{:?}, rangeTest's minRate", test.min_rate),
            ));
        }
        if let (Some(_), Some(uri)) = (&self.range_test, &self.attempt.resume) {
            return Err(JobError::invalid(
                "attempt.resume",
                format!("{uri:?}"),
                "left unset with rangeTest: a test has the losses of all its steps, so it begins with the first",
            ));
        }
        Ok(())
    }

    /// What is done to gradients: compressed, clipped, averaged.
    fn check_gradients(&self) -> Result<(), JobError> {
        let params = &self.params;
        if params.precision == Precision::Fp16 && params.gradient_compression.has_state() {
            let name = serde_json::to_string(&params.gradient_compression).expect("a name is JSON");
            return Err(JobError::invalid(
                "gradientCompression",
                name,
                "none, fp16 or bf16 with precision fp16: what is not sent in one step would meet the next ones in \
                 another loss scale",
            ));
        }
        if let (Some(value), Some(_)) = (params.gradient_clip_value, params.gradient_clip_norm) {
            return Err(JobError::invalid(
                "gradientClipValue",
                value,
                "left unset where gradientClipNorm is set: gradients are clipped by one of the two",
            ));
        }
        groups::check(params.gradient_groups.as_deref().unwrap_or_default())?;
        let excluded = [
            (
                params.gradient_compression != GradientCompression::None,
                "gradientCompression none",
            ),
            (params.ema_decay.is_some(), "emaDecay left unset"),
            (
                params.gradient_groups.is_some(),
                "gradientGroups left unset",
            ),
            (
                params.precision == Precision::Fp16,
                "another precision than fp16",
            ),
        ];
        if let Some((_, needed)) = excluded.iter().find(|(is_set, _)| *is_set)
            && params.sync_every > 1
        {
            return Err(JobError::invalid(
                "syncEvery",
                params.sync_every,
                format!(
                    "1, or {needed}: with more than 1 step the workers do not average their gradients"
                ),
            ));
        }
        Ok(())
    }

    /// The learning rate's warm-up.
    fn check_warm_up(&self) -> Result<(), JobError> {
        let params = &self.params;
        if params.lr_schedule == LrSchedule::OneCycle && params.warmup_epochs > 0.0 {
            return Err(JobError::invalid(
                "warmupEpochs",
                params.warmup_epochs,
                "0 with lrSchedule onecycle, whose own warm-up has the share oneCyclePctStart of the steps",
            ));
        }
        if params.warmup_epochs > params.epochs as f64 {
            return Err(JobError::invalid(
                "warmupEpochs",
                params.warmup_epochs,
                format!("at most epochs ({})", params.epochs),
            ));
        }
        Ok(())
    }

    /// The lanes that the rows are dealt to, beside the workers and their batches.
    fn check_lanes(&self) -> Result<(), JobError> {
        let params = &self.params;
        let (lanes, workers) = (params.lanes(), params.num_workers);
        if lanes < workers {
            return Err(JobError::invalid(
                "dataLanes",
                lanes,
                format!("at least numWorkers ({workers})"),
            ));
        }
        let batch = params.global_batch();
        if !batch.is_multiple_of(lanes) {
            return Err(JobError::invalid(
                "dataLanes",
                lanes,
                format!(
                    "a divisor of the global batch, batchSize x numWorkers = {} x {workers} = {batch}",
                    params.batch_size
                ),
            ));
        }
        Ok(())
    }

    /// Lists that have an entry for each input.
    fn check_inputs(&self) -> Result<(), JobError> {
        let params = &self.params;
        let num_inputs = params.input_cols.as_ref().map_or(1, Vec::len);
        let lengths = [
            ("inputNames", params.input_names.as_ref().map(Vec::len)),
            ("inputShapes", params.input_shapes.as_ref().map(Vec::len)),
            ("inputTypes", params.input_types.as_ref().map(Vec::len)),
        ];
        for (name, length) in lengths {
            if length.is_some_and(|length| length != num_inputs) {
                return Err(JobError::invalid(
                    name,
                    format!("a list of {}", length.unwrap_or(0)),
                    format!("one entry for each input, which is {num_inputs}"),
                ));
            }
        }
        Ok(())
    }
}

/// Makes one line of each description: where the source breaks its lines is none of a reader's business.
fn unwrap_lines(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "description" => *text = text.replace('\n', " "),
                    other => unwrap_lines(other),
                }
            }
        }
        Value::Array(elements) => elements.iter_mut().for_each(unwrap_lines),
        _ => {}
    }
}
