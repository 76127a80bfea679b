//! The params of an estimator that are JSON: names, defaults, bounds and doc strings.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::error::JobError;
use crate::record::bottleneck::Averaging;

/// The tensor type that an input is given as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum InputType {
    /// Follows the column's type.
    Auto,
    /// 32-bit floating point.
    Float32,
    /// 64-bit floating point.
    Float64,
    /// 64-bit integers.
    Int64,
    /// Booleans.
    Bool,
    /// Unsigned bytes.
    UInt8,
    /// Vectors as sparse tensors, for `preprocess`.
    Sparse,
}

/// What the numbers of an output mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum OutputKind {
    /// Numbers, written as they are.
    Number,
    /// One unbounded score of class 1 of two.
    Logit,
    /// Unbounded scores of classes.
    Logits,
    /// The probability of class 1 of two.
    Probability,
    /// Probabilities of classes.
    Probabilities,
    /// Logarithms of probabilities of classes.
    LogProbabilities,
    /// Unbounded scores of labels, of which a row may have several.
    Labels,
    /// Probabilities of such labels.
    LabelProbabilities,
}

/// The type that forward and loss are computed in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// As the module has it.
    #[default]
    Float32,
    /// As the module has it; on a GPU with TensorFloat-32 in matrix products and convolutions.
    Tf32,
    /// Mixed: torch's autocast to bfloat16.
    Bf16,
    /// Mixed: torch's autocast to float16, with dynamic loss scaling.
    Fp16,
}

impl JsonSchema for Precision {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Precision".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": ["float32", "tf32", "bf16", "fp16"] })
    }
}

/// How the learning rate changes over the training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LrSchedule {
    /// Not at all.
    #[default]
    Constant,
    /// By the same amount in each step.
    Linear,
    /// Along half a wave of the cosine.
    Cosine,
    /// By a factor after each so many epochs.
    Step,
    /// By a factor over so many epochs, evenly.
    Exponential,
    /// Up to its full value and down again, once.
    OneCycle,
    /// By a factor whenever the monitored number has not got better for so many epochs.
    Plateau,
}

impl JsonSchema for LrSchedule {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "LrSchedule".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": ["constant", "linear", "cosine", "step", "exponential", "onecycle", "plateau"] })
    }
}

/// Whether a fit reads the files that a DataFrame is read from, or writes its rows first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InPlace {
    /// It writes the rows.
    Never,
    /// It reads them where it can.
    #[default]
    Auto,
    /// It reads them, and is refused where it can't.
    Always,
}

impl JsonSchema for InPlace {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "InPlace".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": ["never", "auto", "always"] })
    }
}

/// What becomes of rows whose features hold a null or a NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HandleInvalid {
    /// The module is given a NaN; a null is refused.
    #[default]
    Keep,
    /// They are left out.
    Skip,
    /// They are refused.
    Error,
}

impl JsonSchema for HandleInvalid {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "HandleInvalid".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": ["keep", "skip", "error"] })
    }
}

/// Which of two values of the monitored number is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MonitorMode {
    /// What its name says.
    #[default]
    Auto,
    /// The smaller.
    Min,
    /// The larger.
    Max,
}

impl JsonSchema for MonitorMode {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "MonitorMode".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": ["auto", "min", "max"] })
    }
}

/// What gradients travel as between the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GradientCompression {
    /// As they are.
    #[default]
    None,
    /// As float16.
    Fp16,
    /// As bfloat16.
    Bf16,
    /// As products of two thin matrices.
    PowerSgd,
    /// As the entries of largest magnitude.
    TopK,
}

impl GradientCompression {
    /// Whether something is carried from step to step, and so lies in checkpoints.
    pub(crate) fn has_state(self) -> bool {
        matches!(
            self,
            GradientCompression::PowerSgd | GradientCompression::TopK
        )
    }
}

impl JsonSchema for GradientCompression {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "GradientCompression".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": ["none", "fp16", "bf16", "powersgd", "topk"] })
    }
}

/// Where a module is to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceChoice {
    /// On GPUs where every rank has one, on the CPU where none has.
    #[default]
    Auto,
    /// On the CPU.
    Cpu,
    /// On GPUs.
    Cuda,
}

impl JsonSchema for DeviceChoice {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "DeviceChoice".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": ["auto", "cpu", "cuda"] })
    }
}

/// The params by what they are about, in the order in which they are told: what Scala and Python have as traits.
const GROUPS: [(&str, &str, &[&str]); 11] = [
    (
        "HasInputColumns",
        "What the module reads: one features tensor, or inputCols with a tensor for each argument of forward.",
        &[
            "featuresCol",
            "featuresCols",
            "inputCols",
            "inputNames",
            "inputShapes",
            "inputTypes",
            "handleInvalid",
        ],
    ),
    (
        "HasOutputColumns",
        "What a fitted model writes, and how many rows it scores at once.",
        &[
            "predictionCol",
            "outputCols",
            "outputNames",
            "outputKinds",
            "threshold",
            "thresholds",
            "inferenceBatchSize",
            "inferenceBatchBytes",
        ],
    ),
    (
        "HasClassColumns",
        "The further columns that a fitted classifier writes.",
        &["rawPredictionCol", "probabilityCol"],
    ),
    (
        "HasLabelColumns",
        "What the loss compares with: labels, and the weight of each row.",
        &["labelCol", "labelCols", "weightCol"],
    ),
    (
        "HasInitialModel",
        "Whose weights and whose optimizer's state training starts from.",
        &["initialModel", "initialState"],
    ),
    (
        "HasValidation",
        "Which rows are kept out of training for validation.",
        &["validationIndicatorCol", "validationFraction"],
    ),
    (
        "HasTrainingLoop",
        "How the rows are gone through and the optimizer stepped.",
        &[
            "batchSize",
            "dropLast",
            "epochs",
            "seed",
            "shuffle",
            "shuffleWindow",
            "gradientAccumulationSteps",
            "gradientClipNorm",
            "gradientClipValue",
            "emaDecay",
            "syncEvery",
            "bucketSize",
            "gradientGroups",
            "gradientCompression",
            "powerSgdRank",
            "powerSgdStartStep",
            "topKRatio",
            "precision",
            "compile",
        ],
    ),
    (
        "HasLearningRate",
        "The learning rate over the training.",
        &[
            "learningRate",
            "scaleLearningRate",
            "warmupEpochs",
            "lrSchedule",
            "lrEndFactor",
            "lrDecayRate",
            "lrDecayEpochs",
            "oneCyclePctStart",
            "oneCycleDivFactor",
            "oneCycleFinalDivFactor",
            "plateauPatience",
            "plateauThreshold",
            "plateauCooldown",
        ],
    ),
    (
        "HasEarlyStopping",
        "Which epoch was the best, whether training ends after it, and whose weights are kept.",
        &[
            "monitor",
            "monitorMode",
            "minDelta",
            "earlyStoppingPatience",
            "restoreBestWeights",
        ],
    ),
    ("HasDevice", "Where the module runs.", &["device"]),
    (
        "HasWorkers",
        "How many workers train, what they may use, and what happens when one is lost.",
        &[
            "numWorkers",
            "dataLanes",
            "numThreads",
            "numGpusPerWorker",
            "memoryBudget",
            "checkpointInterval",
            "checkpointSteps",
            "keepCheckpoints",
            "runId",
            "maxRestarts",
            "collectiveTimeout",
            "heartbeatTimeout",
            "slotTimeout",
            "workDir",
            "inPlace",
            "verbose",
            "tensorBoardDir",
            "logEveryNSteps",
            "profile",
            "logGradientNorm",
            "verifyReplicas",
        ],
    ),
];

/// Params whose defaults serve in all but special cases: Spark ML's expert params.
const EXPERT: [&str; 20] = [
    "inferenceBatchBytes",
    "shuffleWindow",
    "syncEvery",
    "bucketSize",
    "gradientGroups",
    "powerSgdRank",
    "powerSgdStartStep",
    "topKRatio",
    "oneCyclePctStart",
    "oneCycleDivFactor",
    "oneCycleFinalDivFactor",
    "plateauThreshold",
    "plateauCooldown",
    "dataLanes",
    "numThreads",
    "memoryBudget",
    "collectiveTimeout",
    "heartbeatTimeout",
    "slotTimeout",
    "verifyReplicas",
];

fn groups() -> Value {
    let group = |(name, description, params): &(&str, &str, &[&str])| json!({ "name": name, "description": description, "params": params });
    GROUPS.iter().map(group).collect()
}

/// Every param of the estimators that has a JSON value.
///
/// The schema of this type is the contract that the Python and Scala params are held against: the description of
/// each property is the doc string that users read, and its bounds are the ones that [`TrainingJob`] enforces.
///
/// [`TrainingJob`]: crate::TrainingJob
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(extend("x-groups" = groups(), "x-expert" = EXPERT))]
pub struct TrainingParams {
    /// Name of the features column: a vector, an array or a number. Used when neither featuresCols nor inputCols is set.
    #[schemars(title = "Features column", length(min = 1))]
    pub features_col: String,

    /// Names of numeric columns, which are packed into one tensor in this order. Takes the place of featuresCol; used when
    /// inputCols is not set.
    #[schemars(title = "Features columns", length(min = 1))]
    pub features_cols: Option<Vec<String>>,

    /// Names of the columns given to the module's forward, one tensor for each argument, in this order. When not
    /// set, featuresCol or featuresCols is the only input.
    #[schemars(title = "Input columns", length(min = 1))]
    pub input_cols: Option<Vec<String>>,

    /// Names of the arguments of forward that the inputs are given to, in the order of inputCols: the first arguments, in
    /// any order. When not set, the inputs are given in the order of inputCols.
    #[schemars(title = "Input names", length(min = 1))]
    pub input_names: Option<Vec<String>>,

    /// Shape of one row of each input, in the order of inputCols, for columns that hold flattened arrays, such as
    /// [3, 32, 32] for an image. An empty list leaves that input as its column has it. When not set, all are left.
    #[schemars(title = "Input shapes", length(min = 1))]
    pub input_shapes: Option<Vec<Vec<usize>>>,

    /// Type of the tensor of each input, in the order of inputCols: auto, float32, float64, int64, bool or uint8.
    /// auto follows the column: float, double and decimal give float32; byte, short, int and long give int64;
    /// boolean gives bool; binary gives uint8. In PySpark also sparse, with which vectors and arrays reach preprocess as
    /// sparse CSR tensors of float32. When not set, all are auto.
    #[schemars(title = "Input types", length(min = 1))]
    pub input_types: Option<Vec<InputType>>,

    /// What becomes of rows whose features hold a null or a NaN, in training and where a DataFrame is transformed or
    /// evaluated: keep (a NaN goes on to preprocess or the module, and a null is refused), skip (they are left out), error
    /// (they are refused). Labels and weights are held to their own rules.
    #[schemars(title = "Invalid features")]
    pub handle_invalid: HandleInvalid,

    /// Name of the label column. Used when labelCols is not set.
    #[schemars(title = "Label column", length(min = 1))]
    pub label_col: String,

    /// Names of several label columns, given to the loss as one tuple of tensors in this order. When not set,
    /// labelCol is the only label.
    #[schemars(title = "Label columns", length(min = 1))]
    pub label_cols: Option<Vec<String>>,

    /// Name of the column with the weight of each row, a number that is not negative. When not set, every row
    /// weighs 1.
    #[schemars(title = "Weight column", length(min = 1))]
    pub weight_col: Option<String>,

    /// Name of the column that the fitted model writes its predictions to. An
    /// empty name leaves that column out.
    #[schemars(title = "Prediction column")]
    pub prediction_col: String,

    /// Name of the column that a fitted classifier writes the module's raw outputs (logits) to, as a vector. An
    /// empty name leaves that column out.
    #[schemars(title = "Raw prediction column")]
    pub raw_prediction_col: String,

    /// Name of the column that a fitted classifier writes the probability of each class to, as a vector. An
    /// empty name leaves that column out.
    #[schemars(title = "Probability column")]
    pub probability_col: String,

    /// Names of columns for the tensors that the module returns, one for each in their order, in place of predictionCol;
    /// an empty name leaves that tensor out. Not for classifiers, and not beside outputNames. When not set, predictionCol
    /// has them all.
    #[schemars(title = "Output columns", length(min = 1))]
    pub output_cols: Option<Vec<String>>,

    /// Names of the fields that predictionCol has where the module returns several tensors, in their order. When not
    /// set, the keys of a dict, the fields of a named tuple, or _1, _2, ...
    #[schemars(title = "Output names", length(min = 1))]
    pub output_names: Option<Vec<String>>,

    /// What each tensor that the module returns is, in their order: number, which is written as it is; logits,
    /// probabilities or log_probabilities of classes; logit or probability of class 1 of two; labels or
    /// label_probabilities, the logits or probabilities of labels of which a row may have several. When not set, a
    /// classifier's follows from loss and module, and all others are number.
    #[schemars(title = "Output kinds", length(min = 1))]
    pub output_kinds: Option<Vec<OutputKind>>,

    /// What the probability of class 1 of two, or of a label, has to exceed to be predicted. When not set, 0.5, or what
    /// thresholds says.
    #[schemars(title = "Threshold", range(min = 0.0, max = 1.0))]
    pub threshold: Option<f64>,

    /// One threshold for each class: the class with the largest ratio of probability and threshold is predicted. Of
    /// labels, what the probability of each has to exceed. When not set, the largest probability counts, or what
    /// threshold says.
    #[schemars(title = "Thresholds", length(min = 1))]
    pub thresholds: Option<Vec<f64>>,

    /// Directory of a saved model whose weights training starts from; they must be those of a module like the one that
    /// is trained. When not set, training starts from the module's own weights.
    #[schemars(title = "Initial model", length(min = 1))]
    pub initial_model: Option<String>,

    /// Directory of a checkpoint that an earlier fit kept (keepCheckpoints), from whose optimizer's state training starts: its
    /// momenta and numbers of steps. The optimizer must be of the same kind and have the same parameters; the weights are
    /// initialModel's, and rates and other options those of optimizer. When not set, the optimizer begins anew.
    #[schemars(title = "Initial state", length(min = 1))]
    pub initial_state: Option<String>,

    /// Name of a boolean column: rows where it is true are used for validation and not for training. Takes the
    /// place of validationFraction. When not set, validationFraction decides.
    #[schemars(title = "Validation indicator column", length(min = 1))]
    pub validation_indicator_col: Option<String>,

    /// Fraction of the rows that are kept out of training, by a seeded random choice, and used for validation after
    /// each epoch. 0 means no validation.
    #[schemars(title = "Validation fraction", range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
    pub validation_fraction: f64,

    /// Number of workers that train together. Each is one task of a barrier stage and needs one free task slot.
    #[schemars(title = "Number of workers", range(min = 1, max = 4096))]
    pub num_workers: usize,

    /// Number of lanes that the rows are dealt to. The order of the rows depends on the lanes and not on the
    /// workers, so runs with the same dataLanes and the same global batch (batchSize x numWorkers) see the same
    /// batches on any number of workers up to dataLanes. Must divide the global batch. When not set, numWorkers.
    #[schemars(title = "Data lanes", range(min = 1, max = 65536))]
    pub data_lanes: Option<usize>,

    /// Number of rows in a batch of one worker. The global batch has batchSize x numWorkers rows.
    #[schemars(title = "Batch size", range(min = 1, max = 16_777_216))]
    pub batch_size: usize,

    /// Whether the last batch of an epoch is left out where it would be smaller than the others.
    #[schemars(title = "Drop last batch")]
    pub drop_last: bool,

    /// Number of passes over the training rows.
    #[schemars(title = "Epochs", range(min = 1, max = 1_000_000))]
    pub epochs: u64,

    /// Seed of the order of the rows, of the choice made by validationFraction and of the random generators of the
    /// workers.
    #[schemars(title = "Random seed")]
    pub seed: i64,

    /// Whether the rows are shuffled, anew in every epoch. When false they are read in the order of the data.
    #[schemars(title = "Shuffle")]
    pub shuffle: bool,

    /// Number of rows that are shuffled together in memory by each lane. Larger mixes better and takes more memory.
    /// When not set, as many as fit in 64 MiB, but at least 4096 and at most 1048576.
    #[schemars(title = "Shuffle window", range(min = 1, max = 1_073_741_824))]
    pub shuffle_window: Option<usize>,

    /// Learning rate. When not set, the rate that the optimizer was made with is kept.
    #[schemars(title = "Learning rate", range(min = 0.0))]
    pub learning_rate: Option<f64>,

    /// Whether the learning rate is multiplied by numWorkers, since the global batch is that many times larger than one
    /// worker's. With warmupEpochs it grows from the rate of one worker.
    #[schemars(title = "Scale learning rate")]
    pub scale_learning_rate: bool,

    /// Number of epochs, which need not be whole, over which the learning rate grows step by step to its full value, at
    /// most epochs. 0 begins with that.
    #[schemars(title = "Warm-up epochs", range(min = 0.0))]
    pub warmup_epochs: f64,

    /// How the learning rate falls after the warm-up: constant, not at all; linear or cosine, step by step to lrEndFactor
    /// of it at the end of the last epoch; step, to lrDecayRate of what it was after every lrDecayEpochs epochs;
    /// exponential, by as much, but evenly in each step; plateau, to lrDecayRate of what it was whenever monitor has not
    /// got better for more than plateauPatience epochs. onecycle has a warm-up of its own: the rate rises to its full
    /// value and falls to almost nothing, by the three params that begin with oneCycle; the momentum stays as it is.
    #[schemars(title = "Learning rate schedule")]
    pub lr_schedule: LrSchedule,

    /// What lrSchedule linear and cosine leave of the learning rate at the end of the last epoch, and the least that
    /// plateau leaves of it.
    #[schemars(title = "Learning rate end factor", range(min = 0.0, max = 1.0))]
    pub lr_end_factor: f64,

    /// What lrSchedule step and exponential multiply the learning rate by in lrDecayEpochs epochs, and plateau at a time.
    #[schemars(title = "Learning rate decay rate", range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
    pub lr_decay_rate: f64,

    /// Number of epochs in which lrSchedule step and exponential multiply the learning rate by lrDecayRate.
    #[schemars(title = "Learning rate decay epochs", range(min = 1, max = 1_000_000))]
    pub lr_decay_epochs: u64,

    /// Share of all optimizer steps in which the learning rate rises, with lrSchedule onecycle.
    #[schemars(
        title = "One cycle: share of rising steps",
        range(min = 0.0, max = 1.0)
    )]
    pub one_cycle_pct_start: f64,

    /// What the learning rate is divided by in the first step, with lrSchedule onecycle.
    #[schemars(title = "One cycle: division at the start", range(min = 1.0))]
    pub one_cycle_div_factor: f64,

    /// What the learning rate of the first step is divided by in the last one, with lrSchedule onecycle.
    #[schemars(title = "One cycle: division at the end", range(min = 1.0))]
    pub one_cycle_final_div_factor: f64,

    /// Number of epochs in a row without a better value of monitor that lrSchedule plateau lets pass; one more, and the
    /// learning rate falls.
    #[schemars(title = "Plateau patience", range(min = 0, max = 1_000_000))]
    pub plateau_patience: u64,

    /// By what share of the best value so far monitor must be better for lrSchedule plateau to count it as such.
    #[schemars(title = "Plateau threshold", range(min = 0.0))]
    pub plateau_threshold: f64,

    /// Number of epochs after the learning rate fell in which lrSchedule plateau does not count.
    #[schemars(title = "Plateau cooldown", range(min = 0, max = 1_000_000))]
    pub plateau_cooldown: u64,

    /// Name of the loss or metric in the history that says which epoch was the best, such as val_loss or val_accuracy.
    /// When not set, val_loss where there are validation rows, else loss.
    #[schemars(title = "Monitor", length(min = 1))]
    pub monitor: Option<String>,

    /// Whether the smaller (min) or the larger (max) value of monitor is better. auto goes by its name, for the loss and
    /// the named metrics.
    #[schemars(title = "Monitor mode")]
    pub monitor_mode: MonitorMode,

    /// By how much more than this an epoch must be better than the best one so far to become the best.
    #[schemars(title = "Minimum delta", range(min = 0.0))]
    pub min_delta: f64,

    /// Number of epochs in a row without a new best one after which training stops. When not set, it takes all epochs.
    #[schemars(title = "Early stopping patience", range(min = 1, max = 1_000_000))]
    pub early_stopping_patience: Option<u64>,

    /// Whether the fitted model has the weights of the best epoch, by monitor, rather than of the last.
    #[schemars(title = "Restore best weights")]
    pub restore_best_weights: bool,

    /// Number of batches whose gradients are accumulated before each step of the optimizer. The step is that of one
    /// batch that many times larger.
    #[schemars(title = "Gradient accumulation steps", range(min = 1, max = 1_000_000))]
    pub gradient_accumulation_steps: u32,

    /// Largest 2-norm of all gradients together; larger gradients are scaled down to it before each step of the
    /// optimizer. When not set, gradients are not clipped.
    #[schemars(title = "Gradient clip norm", extend("exclusiveMinimum" = 0.0))]
    pub gradient_clip_norm: Option<f64>,

    /// Largest magnitude of each entry of the gradients; larger entries are cut to it before each step of the optimizer.
    /// Not together with gradientClipNorm, and not on GPUs. When not set, gradients are not clipped.
    #[schemars(title = "Gradient clip value", extend("exclusiveMinimum" = 0.0))]
    pub gradient_clip_value: Option<f64>,

    /// Decay of an exponential moving average of the weights: after each step of the optimizer the average is emaDecay of
    /// itself and the rest of the weights. Validation rows are evaluated with it, and the fitted model has it. Not on GPUs.
    /// When not set, the weights are those of the optimizer.
    #[schemars(title = "Decay of averaged weights", range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
    pub ema_decay: Option<f64>,

    /// Steps of the optimizer between two averages. With 1 the workers average their gradients in each step. With more each
    /// steps on its own gradients, and after so many steps, before each checkpoint and at the end of each epoch the weights
    /// and the optimizer's state are averaged (local SGD). Not on GPUs, nor with gradientCompression, gradientGroups,
    /// emaDecay or precision fp16.
    #[schemars(title = "Steps between averages", range(min = 1, max = 1_000_000))]
    pub sync_every: u64,

    /// Bytes of gradients that are reduced at once: while backward goes on, a bucket is reduced as soon as its gradients
    /// are there. The first one is closed at 1 MiB where that is less. Larger ones make fewer messages, smaller ones begin
    /// earlier.
    #[schemars(title = "Bucket size", range(min = 1, max = 1_073_741_824))]
    pub bucket_size: usize,

    /// Names of parameters whose gradients are reduced together, as soon as the last of them is there, a list for each
    /// group, such as [["encoder.weight", "encoder.bias"]]: a group is a bucket of its own, whatever its bytes, and one
    /// for each type where its parameters have several. The others are in buckets by bucketSize, as all are when it is not
    /// set.
    #[schemars(
        title = "Gradient groups",
        length(min = 1),
        inner(length(min = 1), inner(length(min = 1)))
    )]
    pub gradient_groups: Option<Vec<Vec<String>>>,

    /// What float32 gradients travel as between the workers: none, as they are; fp16 or bf16, as 16-bit floats, summed in
    /// float32 between CPUs, where fp16 has more digits and bf16 the range of float32; powersgd, matrices as products of two
    /// thin ones; topk, the largest entries alone. With powersgd and topk, which GPUs do not have, a worker adds what it has not
    /// sent to its next gradients. It pays where the network is slow; workers of one host share memory and are slower with it. All workers
    /// get the same bits.
    #[schemars(title = "Gradient compression")]
    pub gradient_compression: GradientCompression,

    /// Number of columns of the two matrices that gradientCompression powersgd makes of a gradient: more are nearer to it
    /// and take longer.
    #[schemars(title = "PowerSGD rank", range(min = 1, max = 1024))]
    pub power_sgd_rank: usize,

    /// Number of optimizer steps before gradientCompression powersgd begins, while gradients travel as they are: the first
    /// ones change the most.
    #[schemars(title = "PowerSGD start step", range(min = 0))]
    pub power_sgd_start_step: u64,

    /// Share of the entries of each parameter's gradient that gradientCompression topk sends, rounded up.
    #[schemars(title = "Top-k ratio", range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
    pub top_k_ratio: f64,

    /// Type that forward and loss are computed in: float32, which leaves the module as it is; tf32, which is float32
    /// but for the matrix products and convolutions of GPUs, and float32 to the bit on a CPU; bf16 or fp16, which run
    /// both under torch's autocast to bfloat16 or float16 while weights, gradients and optimizer keep their type, fp16
    /// with dynamic loss scaling. bf16 is faster on processors with AMX or AVX-512 BF16 instructions, and slower, not
    /// wrong, on others; fp16 is meant for GPUs. The fitted model predicts in the module's own type.
    #[schemars(title = "Precision")]
    pub precision: Precision,

    /// Whether the module is compiled by torch.compile for training. Where that fails it trains as it is, and a warning
    /// says why. The fitted model holds the module as it was given. The native runtime, whose programs are compiled
    /// already, refuses it.
    #[schemars(title = "Compile")]
    pub compile: bool,

    /// Where modules are trained and score: cpu; cuda, on one GPU for each worker, which is the one that Spark has
    /// assigned to its task, else one of the machine's that no other worker has; auto, on GPUs where every worker has
    /// one that torch can use, and on the CPU where none has. Fewer GPUs than workers and machines of which only some
    /// have GPUs are refused unless it is cpu.
    #[schemars(title = "Device")]
    pub device: DeviceChoice,

    /// Number of GPUs that Spark is asked for with the task of each worker: 1 schedules the training by a resource profile
    /// of its own (stage-level scheduling), 0 asks for none. Workers then have the GPUs that spark.task.resource.gpu.amount
    /// gives them, else those that they find.
    #[schemars(title = "GPUs per worker", range(min = 0, max = 1))]
    pub num_gpus_per_worker: u32,

    /// Number of epochs between checkpoints, from the newest of which training goes on after a worker was lost.
    /// -1 turns checkpoints at the end of epochs off.
    #[schemars(title = "Checkpoint interval", range(min = -1, max = 1_000_000), extend("not" = json!({ "const": 0 })))]
    pub checkpoint_interval: i64,

    /// Number of optimizer steps between further checkpoints, for epochs that take long. When not set, there are
    /// checkpoints at the end of epochs only.
    #[schemars(title = "Checkpoint steps", range(min = 1))]
    pub checkpoint_steps: Option<u64>,

    /// Number of checkpoints that a fit which succeeds leaves in the work directory: the newest ones, with the weights as a
    /// file of their own, the last of them from the end of the training. 0 leaves none.
    #[schemars(title = "Keep checkpoints", range(min = 0, max = 1_000_000))]
    pub keep_checkpoints: usize,

    /// Name of the run in the work directory, of letters, digits, - and _. A fit that fails or is interrupted keeps its
    /// checkpoints, and the next one with the same runId goes on from the newest, to the same bits. It must be the same
    /// job on the same rows, and is refused otherwise. When not set, a fit is a run with a name of its own, which is told
    /// where it fails.
    #[schemars(title = "Run", length(min = 1))]
    pub run_id: Option<String>,

    /// How many times training is started again after a worker was lost. An error of the module, bad data or a
    /// diverged loss never start it again.
    #[schemars(title = "Maximum restarts", range(min = 0, max = 1000))]
    pub max_restarts: u32,

    /// Seconds that a worker waits for another in one operation before it gives up. A dead worker is noticed in
    /// seconds; this is for one that is slow.
    #[schemars(title = "Collective timeout", range(max = 31_536_000.0), extend("exclusiveMinimum" = 0.0))]
    pub collective_timeout: f64,

    /// Seconds without a sign of life after which a worker counts as lost, though its connections stand: one that is
    /// stopped, or whose network is gone. A virtual machine may pause for some seconds and is not lost.
    #[schemars(title = "Heartbeat timeout", range(min = 1.0, max = 31_536_000.0))]
    pub heartbeat_timeout: f64,

    /// Seconds to wait for numWorkers free task slots before training is refused. 0 refuses at once.
    #[schemars(title = "Slot timeout", range(min = 0.0, max = 31_536_000.0))]
    pub slot_timeout: f64,

    /// Directory that the driver and all workers can reach, for shards, checkpoints, progress and weights: a path,
    /// or a URI with the scheme file, dbfs, s3, s3a, abfss or gs. When not set, what the session's
    /// spark.flambeau.workDir names, else a temporary directory in local mode; one of the two is required on a cluster.
    #[schemars(title = "Work directory", length(min = 1))]
    pub work_dir: Option<String>,

    /// Whether training reads the rows of a DataFrame in the Parquet files, the Delta or the Iceberg table that they come
    /// from, and no copy of them in workDir: never, auto (where that is possible and a quarter or more of the rows
    /// of their row groups are read), always (else the fit is refused). The files must stay as they are until the fit has ended.
    #[schemars(title = "Rows in place")]
    pub in_place: InPlace,

    /// Number of rows given to the module at once when the fitted model transforms a DataFrame.
    #[schemars(title = "Inference batch size", range(min = 1, max = 16_777_216))]
    pub inference_batch_size: usize,

    /// Bytes that an input or an output may take of the rows given to the module at once, which are fewer than
    /// inferenceBatchSize where they take more. A single row may take more.
    #[schemars(title = "Inference batch bytes", range(min = 1, max = 1_073_741_824))]
    pub inference_batch_bytes: usize,

    /// How much is shown while training: 0 nothing, 1 a progress bar, 2 a line for each epoch.
    #[schemars(title = "Verbosity", range(min = 0, max = 2))]
    pub verbose: u8,

    /// Directory for TensorBoard's event files, where each fit gets a directory of its own: a path, or a URI as workDir's, that
    /// the first worker can write. When not set, there are none.
    #[schemars(title = "TensorBoard directory", length(min = 1))]
    pub tensor_board_dir: Option<String>,

    /// Number of optimizer steps from one whose loss, learning rate and gradient norm go to TensorBoard to the next.
    #[schemars(title = "Log every n steps", range(min = 1, max = 1_000_000))]
    pub log_every_n_steps: u32,

    /// Steps to record a timeline of on all workers, as "steps FIRST-LAST", counted from 0, at most 1000: what each worker is in, and
    /// each of its collectives. It is one file in the work directory, in the Trace Event Format of Chrome and Perfetto, and
    /// the model's summary tells its place. On the CPU only. When not set, nothing is recorded.
    #[schemars(title = "Profile", length(min = 1))]
    pub profile: Option<String>,

    /// Whether the 2-norm of all gradients, before clipping, is computed in each step: for the history, which has the mean over
    /// an epoch's steps, and for TensorBoard and callbacks. On a GPU it is not told, since the worker would have to wait for
    /// it. With gradientClipNorm it is told in any case.
    #[schemars(title = "Log gradient norm")]
    pub log_gradient_norm: bool,

    /// Whether the workers compare hashes of all parameters, buffers and averaged weights after each epoch and fail where
    /// they differ in a single bit. For debugging: it reads every tensor once per epoch.
    #[schemars(title = "Verify replicas")]
    pub verify_replicas: bool,

    /// Number of threads that torch computes with in each worker. When not set, the cores of the machine are shared
    /// evenly among its workers.
    #[schemars(title = "Threads per worker", range(min = 1, max = 4096))]
    pub num_threads: Option<usize>,

    /// Bytes that each worker may use for decoded rows. A worker whose share of the data fits decodes it once and
    /// keeps it; otherwise it decodes the rows again in every epoch.
    #[schemars(title = "Memory budget", range(min = 1_048_576))]
    pub memory_budget: u64,
}

impl Default for TrainingParams {
    fn default() -> Self {
        TrainingParams {
            features_col: "features".into(),
            features_cols: None,
            input_cols: None,
            input_names: None,
            input_shapes: None,
            input_types: None,
            handle_invalid: HandleInvalid::Keep,
            label_col: "label".into(),
            label_cols: None,
            weight_col: None,
            prediction_col: "prediction".into(),
            raw_prediction_col: "rawPrediction".into(),
            probability_col: "probability".into(),
            output_cols: None,
            output_names: None,
            output_kinds: None,
            threshold: None,
            thresholds: None,
            initial_model: None,
            initial_state: None,
            validation_indicator_col: None,
            validation_fraction: 0.0,
            num_workers: 1,
            data_lanes: None,
            batch_size: 32,
            drop_last: false,
            epochs: 1,
            seed: 0,
            shuffle: true,
            shuffle_window: None,
            learning_rate: None,
            scale_learning_rate: false,
            warmup_epochs: 0.0,
            lr_schedule: LrSchedule::Constant,
            lr_end_factor: 0.0,
            lr_decay_rate: 0.1,
            lr_decay_epochs: 10,
            one_cycle_pct_start: 0.3,
            one_cycle_div_factor: 25.0,
            one_cycle_final_div_factor: 1e4,
            plateau_patience: 10,
            plateau_threshold: 1e-4,
            plateau_cooldown: 0,
            monitor: None,
            monitor_mode: MonitorMode::Auto,
            min_delta: 0.0,
            early_stopping_patience: None,
            restore_best_weights: false,
            gradient_accumulation_steps: 1,
            gradient_clip_norm: None,
            gradient_clip_value: None,
            ema_decay: None,
            sync_every: 1,
            bucket_size: 25 << 20,
            gradient_groups: None,
            gradient_compression: GradientCompression::None,
            power_sgd_rank: 1,
            power_sgd_start_step: 1000,
            top_k_ratio: 0.01,
            precision: Precision::Float32,
            compile: false,
            device: DeviceChoice::Auto,
            num_gpus_per_worker: 0,
            checkpoint_interval: 1,
            checkpoint_steps: None,
            keep_checkpoints: 0,
            run_id: None,
            max_restarts: 3,
            collective_timeout: 600.0,
            heartbeat_timeout: 30.0,
            slot_timeout: 0.0,
            work_dir: None,
            in_place: InPlace::Auto,
            inference_batch_size: 4096,
            inference_batch_bytes: 64 << 20,
            verbose: 1,
            tensor_board_dir: None,
            log_every_n_steps: 50,
            profile: None,
            log_gradient_norm: false,
            verify_replicas: false,
            num_threads: None,
            memory_budget: 1 << 30,
        }
    }
}

/// Former names of params, which jobs that were kept may still say, and their present ones.
const RENAMED: [(&str, &str); 1] = [("timeout", "collectiveTimeout")];

/// Gives the params of a job as JSON their present names.
pub(crate) fn rename(params: &mut Map<String, Value>) {
    for (former, name) in RENAMED {
        if !params.contains_key(name)
            && let Some(value) = params.remove(former)
        {
            params.insert(name.into(), value);
        }
    }
}

impl TrainingParams {
    /// Whether some rows are kept for validation.
    pub fn validates(&self) -> bool {
        self.validation_fraction > 0.0 || self.validation_indicator_col.is_some()
    }

    /// What the ranks average, and as what it travels.
    pub(crate) fn averaging(&self) -> Averaging {
        match self.gradient_compression {
            _ if self.sync_every > 1 => Averaging::Weights,
            GradientCompression::None => Averaging::Gradients,
            GradientCompression::Fp16 | GradientCompression::Bf16 => Averaging::HalfPrecision,
            GradientCompression::PowerSgd => Averaging::PowerSgd,
            GradientCompression::TopK => Averaging::TopK,
        }
    }

    /// Refuses what a GPU has no code for.
    ///
    /// # Errors
    ///
    /// [`JobError::Invalid`] names the param, and what to do.
    pub(crate) fn check_on_device(&self) -> Result<(), JobError> {
        let sync_every = (self.sync_every > 1).then_some(self.sync_every as f64);
        let values = [
            ("gradientClipValue", self.gradient_clip_value),
            ("emaDecay", self.ema_decay),
            ("syncEvery", sync_every),
        ];
        for (param, value) in values {
            if let Some(value) = value {
                return Err(JobError::invalid(
                    param,
                    value,
                    "left unset on a GPU; or device cpu",
                ));
            }
        }
        Ok(())
    }

    /// Rows of a global batch: `batchSize x numWorkers`, whatever number of ranks runs the job.
    pub fn global_batch(&self) -> usize {
        self.batch_size * self.num_workers
    }

    /// The number of lanes: `dataLanes`, or `numWorkers` when that is not set.
    pub fn lanes(&self) -> usize {
        self.data_lanes.unwrap_or(self.num_workers)
    }

    /// Rows that a lane gives to a global batch. Exact, since a valid job's lanes divide its global batch.
    pub fn rows_per_lane(&self) -> usize {
        self.global_batch() / self.lanes()
    }

    /// Rows that each lane shuffles together, for rows of `bytes_per_row` bytes. A function of the job and the data
    /// alone, so that the order does not depend on the number of workers or their memory.
    pub fn window_rows(&self, bytes_per_row: u64) -> usize {
        const WINDOW_BYTES: u64 = 64 << 20;
        self.shuffle_window
            .unwrap_or_else(|| (WINDOW_BYTES / bytes_per_row.max(1)).clamp(4096, 1 << 20) as usize)
    }

    /// The most rows of `bytes_per_row` bytes that are dealt to the lanes one by one, each lane decoding all of them: 512 MiB, about a
    /// second's decoding, and 4 GiB for all lanes together. A function of the job and the data alone, as `window_rows` is.
    pub fn dealt_rows(&self, bytes_per_row: u64) -> u64 {
        const DEALT_BYTES: u64 = 512 << 20;
        const DECODED_BYTES: u64 = 4 << 30;
        DEALT_BYTES.min(DECODED_BYTES / self.lanes() as u64) / bytes_per_row.max(1)
    }
}
