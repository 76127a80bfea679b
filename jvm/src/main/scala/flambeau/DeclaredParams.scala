package flambeau

import org.apache.spark.ml.param.{BooleanParam, DoubleParam, IntParam, LongParam, Param, StringArrayParam}
import org.apache.spark.ml.param.shared.{
  HasCheckpointInterval, HasFeaturesCol, HasInputCols, HasLabelCol, HasOutputCols, HasPredictionCol,
  HasProbabilityCol, HasRawPredictionCol, HasSeed, HasThreshold, HasThresholds, HasValidationIndicatorCol,
  HasWeightCol
}

// Made from docs/training-job.schema.json by `make params`; do not edit.

/** What the module reads: one features tensor, or inputCols with a tensor for each argument of forward. */
trait HasInputColumns extends CheckedParams with HasFeaturesCol with HasInputCols {

  /** The same as `setFeaturesCols`.
    *
    * @group setParam
    */
  def setFeaturesCol(value: Array[String]): this.type = setFeaturesCols(value)

  /** Sets `featuresCol`.
    *
    * @group setParam
    */
  def setFeaturesCol(value: String): this.type = setChecked(featuresCol, value)

  /** @group param */
  final val featuresCols: StringArrayParam = new StringArrayParam(
    this,
    "featuresCols",
    "Names of numeric columns, which are packed into one tensor in this order. Takes the place of " +
      "featuresCol; used when inputCols is not set.",
    Check.Columns.of("featuresCols")
  )

  /** Sets `featuresCols`.
    *
    * @group setParam
    */
  def setFeaturesCols(value: Array[String]): this.type = setChecked(featuresCols, value)

  /** The value of `featuresCols`; NoSuchElementException where it is not set.
    *
    * @group getParam
    */
  def getFeaturesCols: Array[String] = $(featuresCols)

  /** Sets `inputCols`.
    *
    * @group setParam
    */
  def setInputCols(value: Array[String]): this.type = setChecked(inputCols, value)

  /** @group param */
  final val inputNames: StringArrayParam = new StringArrayParam(
    this,
    "inputNames",
    "Names of the arguments of forward that the inputs are given to, in the order of inputCols: the " +
      "first arguments, in any order. When not set, the inputs are given in the order of inputCols.",
    Check.Columns.of("inputNames")
  )

  /** Sets `inputNames`.
    *
    * @group setParam
    */
  def setInputNames(value: Array[String]): this.type = setChecked(inputNames, value)

  /** The value of `inputNames`; NoSuchElementException where it is not set.
    *
    * @group getParam
    */
  def getInputNames: Array[String] = $(inputNames)

  /** @group param */
  final val inputShapes: ShapesParam = new ShapesParam(
    this,
    "inputShapes",
    "Shape of one row of each input, in the order of inputCols, for columns that hold flattened arrays, " +
      "such as [3, 32, 32] for an image. An empty list leaves that input as its column has it. When not " +
      "set, all are left.",
    Check.Shapes.of("inputShapes")
  )

  /** Sets `inputShapes`.
    *
    * @group setParam
    */
  def setInputShapes(value: Array[Array[Int]]): this.type = setChecked(inputShapes, value)

  /** The value of `inputShapes`; NoSuchElementException where it is not set.
    *
    * @group getParam
    */
  def getInputShapes: Array[Array[Int]] = $(inputShapes)

  /** @group param */
  final val inputTypes: StringArrayParam = new StringArrayParam(
    this,
    "inputTypes",
    "Type of the tensor of each input, in the order of inputCols: auto, float32, float64, int64, bool " +
      "or uint8. auto follows the column: float, double and decimal give float32; byte, short, int and " +
      "long give int64; boolean gives bool; binary gives uint8. In PySpark also sparse, with which " +
      "vectors and arrays reach preprocess as sparse CSR tensors of float32. When not set, all are auto.",
    Check.InputTypes.of("inputTypes")
  )

  /** Sets `inputTypes`.
    *
    * @group setParam
    */
  def setInputTypes(value: Array[String]): this.type = setChecked(inputTypes, value)

  /** The value of `inputTypes`; NoSuchElementException where it is not set.
    *
    * @group getParam
    */
  def getInputTypes: Array[String] = $(inputTypes)

  /** @group param */
  final val handleInvalid: Param[String] = new Param[String](
    this,
    "handleInvalid",
    "What becomes of rows whose features hold a null or a NaN, in training and where a DataFrame is " +
      "transformed or evaluated: keep (a NaN goes on to preprocess or the module, and a null is refused), " +
      "skip (they are left out), error (they are refused). Labels and weights are held to their own " +
      "rules.",
    Check.OneOf("keep", "skip", "error").of("handleInvalid")
  )

  /** Sets `handleInvalid`.
    *
    * @group setParam
    */
  def setHandleInvalid(value: String): this.type = setChecked(handleInvalid, value)

  /** The value of `handleInvalid`, or its default.
    *
    * @group getParam
    */
  def getHandleInvalid: String = $(handleInvalid)

  setDefault(featuresCol -> "features", handleInvalid -> "keep")
}

/** What a fitted model writes, and how many rows it scores at once. */
trait HasOutputColumns
    extends CheckedParams
    with HasPredictionCol
    with HasOutputCols
    with HasThreshold
    with HasThresholds {

  /** Sets `predictionCol`.
    *
    * @group setParam
    */
  def setPredictionCol(value: String): this.type = setChecked(predictionCol, value)

  /** Sets `outputCols`.
    *
    * @group setParam
    */
  def setOutputCols(value: Array[String]): this.type = setChecked(outputCols, value)

  /** @group param */
  final val outputNames: StringArrayParam = new StringArrayParam(
    this,
    "outputNames",
    "Names of the fields that predictionCol has where the module returns several tensors, in their " +
      "order. When not set, the keys of a dict, the fields of a named tuple, or _1, _2, ...",
    Check.Columns.of("outputNames")
  )

  /** Sets `outputNames`.
    *
    * @group setParam
    */
  def setOutputNames(value: Array[String]): this.type = setChecked(outputNames, value)

  /** The value of `outputNames`; NoSuchElementException where it is not set.
    *
    * @group getParam
    */
  def getOutputNames: Array[String] = $(outputNames)

  /** @group param */
  final val outputKinds: StringArrayParam = new StringArrayParam(
    this,
    "outputKinds",
    "What each tensor that the module returns is, in their order: number, which is written as it is; " +
      "logits, probabilities or log_probabilities of classes; logit or probability of class 1 of two; " +
      "labels or label_probabilities, the logits or probabilities of labels of which a row may have " +
      "several. When not set, a classifier's follows from loss and module, and all others are number.",
    Check.OutputKinds.of("outputKinds")
  )

  /** Sets `outputKinds`.
    *
    * @group setParam
    */
  def setOutputKinds(value: Array[String]): this.type = setChecked(outputKinds, value)

  /** The value of `outputKinds`; NoSuchElementException where it is not set.
    *
    * @group getParam
    */
  def getOutputKinds: Array[String] = $(outputKinds)

  /** Sets `threshold`.
    *
    * @group setParam
    */
  def setThreshold(value: Double): this.type = setChecked(threshold, value)

  /** Sets `thresholds`.
    *
    * @group setParam
    */
  def setThresholds(value: Array[Double]): this.type = setChecked(thresholds, value)

  /** @group param */
  final val inferenceBatchSize: IntParam = new IntParam(
    this,
    "inferenceBatchSize",
    "Number of rows given to the module at once when the fitted model transforms a DataFrame.",
    Check.Integer(1, 16777216).of("inferenceBatchSize")
  )

  /** Sets `inferenceBatchSize`.
    *
    * @group setParam
    */
  def setInferenceBatchSize(value: Int): this.type = setChecked(inferenceBatchSize, value)

  /** The value of `inferenceBatchSize`, or its default.
    *
    * @group getParam
    */
  def getInferenceBatchSize: Int = $(inferenceBatchSize)

  /** @group expertParam */
  final val inferenceBatchBytes: IntParam = new IntParam(
    this,
    "inferenceBatchBytes",
    "Bytes that an input or an output may take of the rows given to the module at once, which are fewer " +
      "than inferenceBatchSize where they take more. A single row may take more.",
    Check.Integer(1, 1073741824).of("inferenceBatchBytes")
  )

  /** Sets `inferenceBatchBytes`.
    *
    * @group expertSetParam
    */
  def setInferenceBatchBytes(value: Int): this.type = setChecked(inferenceBatchBytes, value)

  /** The value of `inferenceBatchBytes`, or its default.
    *
    * @group expertGetParam
    */
  def getInferenceBatchBytes: Int = $(inferenceBatchBytes)

  setDefault(predictionCol -> "prediction", inferenceBatchSize -> 4096, inferenceBatchBytes -> 67108864)
}

/** The further columns that a fitted classifier writes. */
trait HasClassColumns extends CheckedParams with HasRawPredictionCol with HasProbabilityCol {

  /** Sets `rawPredictionCol`.
    *
    * @group setParam
    */
  def setRawPredictionCol(value: String): this.type = setChecked(rawPredictionCol, value)

  /** Sets `probabilityCol`.
    *
    * @group setParam
    */
  def setProbabilityCol(value: String): this.type = setChecked(probabilityCol, value)

  setDefault(rawPredictionCol -> "rawPrediction", probabilityCol -> "probability")
}

/** What the loss compares with: labels, and the weight of each row. */
trait HasLabelColumns extends CheckedParams with HasLabelCol with HasWeightCol {

  /** Sets `labelCol`.
    *
    * @group setParam
    */
  def setLabelCol(value: String): this.type = setChecked(labelCol, value)

  /** @group param */
  final val labelCols: StringArrayParam = new StringArrayParam(
    this,
    "labelCols",
    "Names of several label columns, given to the loss as one tuple of tensors in this order. When not " +
      "set, labelCol is the only label.",
    Check.Columns.of("labelCols")
  )

  /** Sets `labelCols`.
    *
    * @group setParam
    */
  def setLabelCols(value: Array[String]): this.type = setChecked(labelCols, value)

  /** The value of `labelCols`; NoSuchElementException where it is not set.
    *
    * @group getParam
    */
  def getLabelCols: Array[String] = $(labelCols)

  /** Sets `weightCol`.
    *
    * @group setParam
    */
  def setWeightCol(value: String): this.type = setChecked(weightCol, value)

  setDefault(labelCol -> "label")
}

/** Whose weights and whose optimizer's state training starts from. */
trait HasInitialModel extends CheckedParams {

  /** @group param */
  final val initialModel: Param[String] = new Param[String](
    this,
    "initialModel",
    "Directory of a saved model whose weights training starts from; they must be those of a module like " +
      "the one that is trained. When not set, training starts from the module's own weights.",
    Check.Text.of("initialModel")
  )

  /** Sets `initialModel`.
    *
    * @group setParam
    */
  def setInitialModel(value: String): this.type = setChecked(initialModel, value)

  /** The value of `initialModel`; NoSuchElementException where it is not set.
    *
    * @group getParam
    */
  def getInitialModel: String = $(initialModel)

  /** @group param */
  final val initialState: Param[String] = new Param[String](
    this,
    "initialState",
    "Directory of a checkpoint that an earlier fit kept (keepCheckpoints), from whose optimizer's state " +
      "training starts: its momenta and numbers of steps. The optimizer must be of the same kind and have " +
      "the same parameters; the weights are initialModel's, and rates and other options those of " +
      "optimizer. When not set, the optimizer begins anew.",
    Check.Text.of("initialState")
  )

  /** Sets `initialState`.
    *
    * @group setParam
    */
  def setInitialState(value: String): this.type = setChecked(initialState, value)

  /** The value of `initialState`; NoSuchElementException where it is not set.
    *
    * @group getParam
    */
  def getInitialState: String = $(initialState)

}

/** Which rows are kept out of training for validation. */
trait HasValidation extends CheckedParams with HasValidationIndicatorCol {

  /** Sets `validationIndicatorCol`.
    *
    * @group setParam
    */
  def setValidationIndicatorCol(value: String): this.type = setChecked(validationIndicatorCol, value)

  /** @group param */
  final val validationFraction: DoubleParam = new DoubleParam(
    this,
    "validationFraction",
    "Fraction of the rows that are kept out of training, by a seeded random choice, and used for " +
      "validation after each epoch. 0 means no validation.",
    Check.Real(0.0, 1.0, openAbove = true).of("validationFraction")
  )

  /** Sets `validationFraction`.
    *
    * @group setParam
    */
  def setValidationFraction(value: Double): this.type = setChecked(validationFraction, value)

  /** The value of `validationFraction`, or its default.
    *
    * @group getParam
    */
  def getValidationFraction: Double = $(validationFraction)

  setDefault(validationFraction -> 0.0)
}

/** How the rows are gone through and the optimizer stepped. */
trait HasTrainingLoop extends CheckedParams with HasSeed {

  /** @group param */
  final val batchSize: IntParam = new IntParam(
    this,
    "batchSize",
    "Number of rows in a batch of one worker. The global batch has batchSize x numWorkers rows.",
    Check.Integer(1, 16777216).of("batchSize")
  )

  /** Sets `batchSize`.
    *
    * @group setParam
    */
  def setBatchSize(value: Int): this.type = setChecked(batchSize, value)

  /** The value of `batchSize`, or its default.
    *
    * @group getParam
    */
  def getBatchSize: Int = $(batchSize)

  /** @group param */
  final val dropLast: BooleanParam = new BooleanParam(
    this,
    "dropLast",
    "Whether the last batch of an epoch is left out where it would be smaller than the others."
  )

  /** Sets `dropLast`.
    *
    * @group setParam
    */
  def setDropLast(value: Boolean): this.type = setChecked(dropLast, value)

  /** The value of `dropLast`, or its default.
    *
    * @group getParam
    */
  def getDropLast: Boolean = $(dropLast)

  /** @group param */
  final val epochs: IntParam = new IntParam(
    this,
    "epochs",
    "Number of passes over the training rows.",
    Check.Integer(1, 1000000).of("epochs")
  )

  /** Sets `epochs`.
    *
    * @group setParam
    */
  def setEpochs(value: Int): this.type = setChecked(epochs, value)

  /** The value of `epochs`, or its default.
    *
    * @group getParam
    */
  def getEpochs: Int = $(epochs)

  /** Sets `seed`.
    *
    * @group setParam
    */
  def setSeed(value: Long): this.type = setChecked(seed, value)

  /** @group param */
  final val shuffle: BooleanParam = new BooleanParam(
    this,
    "shuffle",
    "Whether the rows are shuffled, anew in every epoch. When false they are read in the order of the " +
      "data."
  )

  /** Sets `shuffle`.
    *
    * @group setParam
    */
  def setShuffle(value: Boolean): this.type = setChecked(shuffle, value)

  /** The value of `shuffle`, or its default.
    *
    * @group getParam
    */
  def getShuffle: Boolean = $(shuffle)

  /** @group expertParam */
  final val shuffleWindow: IntParam = new IntParam(
    this,
    "shuffleWindow",
    "Number of rows that are shuffled together in memory by each lane. Larger mixes better and takes " +
      "more memory. When not set, as many as fit in 64 MiB, but at least 4096 and at most 1048576.",
    Check.Integer(1, 1073741824).of("shuffleWindow")
  )

  /** Sets `shuffleWindow`.
    *
    * @group expertSetParam
    */
  def setShuffleWindow(value: Int): this.type = setChecked(shuffleWindow, value)

  /** The value of `shuffleWindow`; NoSuchElementException where it is not set.
    *
    * @group expertGetParam
    */
  def getShuffleWindow: Int = $(shuffleWindow)

  /** @group param */
  final val gradientAccumulationSteps: IntParam = new IntParam(
    this,
    "gradientAccumulationSteps",
    "Number of batches whose gradients are accumulated before each step of the optimizer. The step is " +
      "that of one batch that many times larger.",
    Check.Integer(1, 1000000).of("gradientAccumulationSteps")
  )

  /** Sets `gradientAccumulationSteps`.
    *
    * @group setParam
    */
  def setGradientAccumulationSteps(value: Int): this.type = setChecked(gradientAccumulationSteps, value)

  /** The value of `gradientAccumulationSteps`, or its default.
    *
    * @group getParam
    */
  def getGradientAccumulationSteps: Int = $(gradientAccumulationSteps)

  /** @group param */
  final val gradientClipNorm: DoubleParam = new DoubleParam(
    this,
    "gradientClipNorm",
    "Largest 2-norm of all gradients together; larger gradients are scaled down to it before each step " +
      "of the optimizer. When not set, gradients are not clipped.",
    Check.Real(0.0, openBelow = true).of("gradientClipNorm")
  )

  /** Sets `gradientClipNorm`.
    *
    * @group setParam
    */
  def setGradientClipNorm(value: Double): this.type = setChecked(gradientClipNorm, value)

  /** The value of `gradientClipNorm`; NoSuchElementException where it is not set.
    *
    * @group getParam
    */
  def getGradientClipNorm: Double = $(gradientClipNorm)

  /** @group param */
  final val gradientClipValue: DoubleParam = new DoubleParam(
    this,
    "gradientClipValue",
    "Largest magnitude of each entry of the gradients; larger entries are cut to it before each step of " +
      "the optimizer. Not together with gradientClipNorm, and not on GPUs. When not set, gradients are " +
      "not clipped.",
    Check.Real(0.0, openBelow = true).of("gradientClipValue")
  )

  /** Sets `gradientClipValue`.
    *
    * @group setParam
    */
  def setGradientClipValue(value: Double): this.type = setChecked(gradientClipValue, value)

  /** The value of `gradientClipValue`; NoSuchElementException where it is not set.
    *
    * @group getParam
    */
  def getGradientClipValue: Double = $(gradientClipValue)

  /** @group param */
  final val emaDecay: DoubleParam = new DoubleParam(
    this,
    "emaDecay",
    "Decay of an exponential moving average of the weights: after each step of the optimizer the " +
      "average is emaDecay of itself and the rest of the weights. Validation rows are evaluated with it, " +
      "and the fitted model has it. Not on GPUs. When not set, the weights are those of the optimizer.",
    Check.Real(0.0, 1.0, openAbove = true).of("emaDecay")
  )

  /** Sets `emaDecay`.
    *
    * @group setParam
    */
  def setEmaDecay(value: Double): this.type = setChecked(emaDecay, value)

  /** The value of `emaDecay`; NoSuchElementException where it is not set.
    *
    * @group getParam
    */
  def getEmaDecay: Double = $(emaDecay)

  /** @group expertParam */
  final val syncEvery: IntParam = new IntParam(
    this,
    "syncEvery",
    "Steps of the optimizer between two averages. With 1 the workers average their gradients in each " +
      "step. With more each steps on its own gradients, and after so many steps, before each checkpoint " +
      "and at the end of each epoch the weights and the optimizer's state are averaged (local SGD). Not " +
      "on GPUs, nor with gradientCompression, gradientGroups, emaDecay or precision fp16.",
    Check.Integer(1, 1000000).of("syncEvery")
  )

  /** Sets `syncEvery`.
    *
    * @group expertSetParam
    */
  def setSyncEvery(value: Int): this.type = setChecked(syncEvery, value)

  /** The value of `syncEvery`, or its default.
    *
    * @group expertGetParam
    */
  def getSyncEvery: Int = $(syncEvery)

  /** @group expertParam */
  final val bucketSize: IntParam = new IntParam(
    this,
    "bucketSize",
    "Bytes of gradients that are reduced at once: while backward goes on, a bucket is reduced as soon " +
      "as its gradients are there. The first one is closed at 1 MiB where that is less. Larger ones make " +
      "fewer messages, smaller ones begin earlier.",
    Check.Integer(1, 1073741824).of("bucketSize")
  )

  /** Sets `bucketSize`.
    *
    * @group expertSetParam
    */
  def setBucketSize(value: Int): this.type = setChecked(bucketSize, value)

  /** The value of `bucketSize`, or its default.
    *
    * @group expertGetParam
    */
  def getBucketSize: Int = $(bucketSize)

  /** @group expertParam */
  final val gradientGroups: GroupsParam = new GroupsParam(
    this,
    "gradientGroups",
    "Names of parameters whose gradients are reduced together, as soon as the last of them is there, a " +
      "list for each group, such as [[\"encoder.weight\", \"encoder.bias\"]]: a group is a bucket of its own, " +
      "whatever its bytes, and one for each type where its parameters have several. The others are in " +
      "buckets by bucketSize, as all are when it is not set.",
    Check.Groups.of("gradientGroups")
  )

  /** Sets `gradientGroups`.
    *
    * @group expertSetParam
    */
  def setGradientGroups(value: Array[Array[String]]): this.type = setChecked(gradientGroups, value)

  /** The value of `gradientGroups`; NoSuchElementException where it is not set.
    *
    * @group expertGetParam
    */
  def getGradientGroups: Array[Array[String]] = $(gradientGroups)

  /** @group param */
  final val gradientCompression: Param[String] = new Param[String](
    this,
    "gradientCompression",
    "What float32 gradients travel as between the workers: none, as they are; fp16 or bf16, as 16-bit " +
      "floats, summed in float32 between CPUs, where fp16 has more digits and bf16 the range of float32; " +
      "powersgd, matrices as products of two thin ones; topk, the largest entries alone. With powersgd " +
      "and topk, which GPUs do not have, a worker adds what it has not sent to its next gradients. It " +
      "pays where the network is slow; workers of one host share memory and are slower with it. All " +
      "workers get the same bits.",
    Check.OneOf("none", "fp16", "bf16", "powersgd", "topk").of("gradientCompression")
  )

  /** Sets `gradientCompression`.
    *
    * @group setParam
    */
  def setGradientCompression(value: String): this.type = setChecked(gradientCompression, value)

  /** The value of `gradientCompression`, or its default.
    *
    * @group getParam
    */
  def getGradientCompression: String = $(gradientCompression)

  /** @group expertParam */
  final val powerSgdRank: IntParam = new IntParam(
    this,
    "powerSgdRank",
    "Number of columns of the two matrices that gradientCompression powersgd makes of a gradient: more " +
      "are nearer to it and take longer.",
    Check.Integer(1, 1024).of("powerSgdRank")
  )

  /** Sets `powerSgdRank`.
    *
    * @group expertSetParam
    */
  def setPowerSgdRank(value: Int): this.type = setChecked(powerSgdRank, value)

  /** The value of `powerSgdRank`, or its default.
    *
    * @group expertGetParam
    */
  def getPowerSgdRank: Int = $(powerSgdRank)

  /** @group expertParam */
  final val powerSgdStartStep: LongParam = new LongParam(
    this,
    "powerSgdStartStep",
    "Number of optimizer steps before gradientCompression powersgd begins, while gradients travel as " +
      "they are: the first ones change the most.",
    Check.Integer(0).of("powerSgdStartStep")
  )

  /** Sets `powerSgdStartStep`.
    *
    * @group expertSetParam
    */
  def setPowerSgdStartStep(value: Long): this.type = setChecked(powerSgdStartStep, value)

  /** The value of `powerSgdStartStep`, or its default.
    *
    * @group expertGetParam
    */
  def getPowerSgdStartStep: Long = $(powerSgdStartStep)

  /** @group expertParam */
  final val topKRatio: DoubleParam = new DoubleParam(
    this,
    "topKRatio",
    "Share of the entries of each parameter's gradient that gradientCompression topk sends, rounded up.",
    Check.Real(0.0, 1.0, openBelow = true).of("topKRatio")
  )

  /** Sets `topKRatio`.
    *
    * @group expertSetParam
    */
  def setTopKRatio(value: Double): this.type = setChecked(topKRatio, value)

  /** The value of `topKRatio`, or its default.
    *
    * @group expertGetParam
    */
  def getTopKRatio: Double = $(topKRatio)

  /** @group param */
  final val precision: Param[String] = new Param[String](
    this,
    "precision",
    "Type that forward and loss are computed in: float32, which leaves the module as it is; tf32, which " +
      "is float32 but for the matrix products and convolutions of GPUs, and float32 to the bit on a CPU; " +
      "bf16 or fp16, which run both under torch's autocast to bfloat16 or float16 while weights, " +
      "gradients and optimizer keep their type, fp16 with dynamic loss scaling. bf16 is faster on " +
      "processors with AMX or AVX-512 BF16 instructions, and slower, not wrong, on others; fp16 is meant " +
      "for GPUs. The fitted model predicts in the module's own type.",
    Check.OneOf("float32", "tf32", "bf16", "fp16").of("precision")
  )

  /** Sets `precision`.
    *
    * @group setParam
    */
  def setPrecision(value: String): this.type = setChecked(precision, value)

  /** The value of `precision`, or its default.
    *
    * @group getParam
    */
  def getPrecision: String = $(precision)

  /** @group param */
  final val compile: BooleanParam = new BooleanParam(
    this,
    "compile",
    "Whether the module is compiled by torch.compile for training. Where that fails it trains as it is, " +
      "and a warning says why. The fitted model holds the module as it was given. The native runtime, " +
      "whose programs are compiled already, refuses it."
  )

  /** Sets `compile`.
    *
    * @group setParam
    */
  def setCompile(value: Boolean): this.type = setChecked(compile, value)

  /** The value of `compile`, or its default.
    *
    * @group getParam
    */
  def getCompile: Boolean = $(compile)

  setDefault(
    batchSize -> 32,
    dropLast -> false,
    epochs -> 1,
    seed -> 0L,
    shuffle -> true,
    gradientAccumulationSteps -> 1,
    syncEvery -> 1,
    bucketSize -> 26214400,
    gradientCompression -> "none",
    powerSgdRank -> 1,
    powerSgdStartStep -> 1000L,
    topKRatio -> 0.01,
    precision -> "float32",
    compile -> false
  )
}

/** The learning rate over the training. */
trait HasLearningRate extends CheckedParams {

  /** @group param */
  final val learningRate: DoubleParam = new DoubleParam(
    this,
    "learningRate",
    "Learning rate. When not set, the rate that the optimizer was made with is kept.",
    Check.Real(0.0).of("learningRate")
  )

  /** Sets `learningRate`.
    *
    * @group setParam
    */
  def setLearningRate(value: Double): this.type = setChecked(learningRate, value)

  /** The value of `learningRate`; NoSuchElementException where it is not set.
    *
    * @group getParam
    */
  def getLearningRate: Double = $(learningRate)

  /** @group param */
  final val scaleLearningRate: BooleanParam = new BooleanParam(
    this,
    "scaleLearningRate",
    "Whether the learning rate is multiplied by numWorkers, since the global batch is that many times " +
      "larger than one worker's. With warmupEpochs it grows from the rate of one worker."
  )

  /** Sets `scaleLearningRate`.
    *
    * @group setParam
    */
  def setScaleLearningRate(value: Boolean): this.type = setChecked(scaleLearningRate, value)

  /** The value of `scaleLearningRate`, or its default.
    *
    * @group getParam
    */
  def getScaleLearningRate: Boolean = $(scaleLearningRate)

  /** @group param */
  final val warmupEpochs: DoubleParam = new DoubleParam(
    this,
    "warmupEpochs",
    "Number of epochs, which need not be whole, over which the learning rate grows step by step to its " +
      "full value, at most epochs. 0 begins with that.",
    Check.Real(0.0).of("warmupEpochs")
  )

  /** Sets `warmupEpochs`.
    *
    * @group setParam
    */
  def setWarmupEpochs(value: Double): this.type = setChecked(warmupEpochs, value)

  /** The value of `warmupEpochs`, or its default.
    *
    * @group getParam
    */
  def getWarmupEpochs: Double = $(warmupEpochs)

  /** @group param */
  final val lrSchedule: Param[String] = new Param[String](
    this,
    "lrSchedule",
    "How the learning rate falls after the warm-up: constant, not at all; linear or cosine, step by " +
      "step to lrEndFactor of it at the end of the last epoch; step, to lrDecayRate of what it was after " +
      "every lrDecayEpochs epochs; exponential, by as much, but evenly in each step; plateau, to " +
      "lrDecayRate of what it was whenever monitor has not got better for more than plateauPatience " +
      "epochs. onecycle has a warm-up of its own: the rate rises to its full value and falls to almost " +
      "nothing, by the three params that begin with oneCycle; the momentum stays as it is.",
    Check.OneOf("constant", "linear", "cosine", "step", "exponential", "onecycle", "plateau").of("lrSchedule")
  )

  /** Sets `lrSchedule`.
    *
    * @group setParam
    */
  def setLrSchedule(value: String): this.type = setChecked(lrSchedule, value)

  /** The value of `lrSchedule`, or its default.
    *
    * @group getParam
    */
  def getLrSchedule: String = $(lrSchedule)

  /** @group param */
  final val lrEndFactor: DoubleParam = new DoubleParam(
    this,
    "lrEndFactor",
    "What lrSchedule linear and cosine leave of the learning rate at the end of the last epoch, and the " +
      "least that plateau leaves of it.",
    Check.Real(0.0, 1.0).of("lrEndFactor")
  )

  /** Sets `lrEndFactor`.
    *
    * @group setParam
    */
  def setLrEndFactor(value: Double): this.type = setChecked(lrEndFactor, value)

  /** The value of `lrEndFactor`, or its default.
    *
    * @group getParam
    */
  def getLrEndFactor: Double = $(lrEndFactor)

  /** @group param */
  final val lrDecayRate: DoubleParam = new DoubleParam(
    this,
    "lrDecayRate",
    "What lrSchedule step and exponential multiply the learning rate by in lrDecayEpochs epochs, and " +
      "plateau at a time.",
    Check.Real(0.0, 1.0, openBelow = true).of("lrDecayRate")
  )

  /** Sets `lrDecayRate`.
    *
    * @group setParam
    */
  def setLrDecayRate(value: Double): this.type = setChecked(lrDecayRate, value)

  /** The value of `lrDecayRate`, or its default.
    *
    * @group getParam
    */
  def getLrDecayRate: Double = $(lrDecayRate)

  /** @group param */
  final val lrDecayEpochs: IntParam = new IntParam(
    this,
    "lrDecayEpochs",
    "Number of epochs in which lrSchedule step and exponential multiply the learning rate by " +
      "lrDecayRate.",
    Check.Integer(1, 1000000).of("lrDecayEpochs")
  )

  /** Sets `lrDecayEpochs`.
    *
    * @group setParam
    */
  def setLrDecayEpochs(value: Int): this.type = setChecked(lrDecayEpochs, value)

  /** The value of `lrDecayEpochs`, or its default.
    *
    * @group getParam
    */
  def getLrDecayEpochs: Int = $(lrDecayEpochs)

  /** @group expertParam */
  final val oneCyclePctStart: DoubleParam = new DoubleParam(
    this,
    "oneCyclePctStart",
    "Share of all optimizer steps in which the learning rate rises, with lrSchedule onecycle.",
    Check.Real(0.0, 1.0).of("oneCyclePctStart")
  )

  /** Sets `oneCyclePctStart`.
    *
    * @group expertSetParam
    */
  def setOneCyclePctStart(value: Double): this.type = setChecked(oneCyclePctStart, value)

  /** The value of `oneCyclePctStart`, or its default.
    *
    * @group expertGetParam
    */
  def getOneCyclePctStart: Double = $(oneCyclePctStart)

  /** @group expertParam */
  final val oneCycleDivFactor: DoubleParam = new DoubleParam(
    this,
    "oneCycleDivFactor",
    "What the learning rate is divided by in the first step, with lrSchedule onecycle.",
    Check.Real(1.0).of("oneCycleDivFactor")
  )

  /** Sets `oneCycleDivFactor`.
    *
    * @group expertSetParam
    */
  def setOneCycleDivFactor(value: Double): this.type = setChecked(oneCycleDivFactor, value)

  /** The value of `oneCycleDivFactor`, or its default.
    *
    * @group expertGetParam
    */
  def getOneCycleDivFactor: Double = $(oneCycleDivFactor)

  /** @group expertParam */
  final val oneCycleFinalDivFactor: DoubleParam = new DoubleParam(
    this,
    "oneCycleFinalDivFactor",
    "What the learning rate of the first step is divided by in the last one, with lrSchedule onecycle.",
    Check.Real(1.0).of("oneCycleFinalDivFactor")
  )

  /** Sets `oneCycleFinalDivFactor`.
    *
    * @group expertSetParam
    */
  def setOneCycleFinalDivFactor(value: Double): this.type = setChecked(oneCycleFinalDivFactor, value)

  /** The value of `oneCycleFinalDivFactor`, or its default.
    *
    * @group expertGetParam
    */
  def getOneCycleFinalDivFactor: Double = $(oneCycleFinalDivFactor)

  /** @group param */
  final val plateauPatience: IntParam = new IntParam(
    this,
    "plateauPatience",
    "Number of epochs in a row without a better value of monitor that lrSchedule plateau lets pass; one " +
      "more, and the learning rate falls.",
    Check.Integer(0, 1000000).of("plateauPatience")
  )

  /** Sets `plateauPatience`.
    *
    * @group setParam
    */
  def setPlateauPatience(value: Int): this.type = setChecked(plateauPatience, value)

  /** The value of `plateauPatience`, or its default.
    *
    * @group getParam
    */
  def getPlateauPatience: Int = $(plateauPatience)

  /** @group expertParam */
  final val plateauThreshold: DoubleParam = new DoubleParam(
    this,
    "plateauThreshold",
    "By what share of the best value so far monitor must be better for lrSchedule plateau to count it " +
      "as such.",
    Check.Real(0.0).of("plateauThreshold")
  )

  /** Sets `plateauThreshold`.
    *
    * @group expertSetParam
    */
  def setPlateauThreshold(value: Double): this.type = setChecked(plateauThreshold, value)

  /** The value of `plateauThreshold`, or its default.
    *
    * @group expertGetParam
    */
  def getPlateauThreshold: Double = $(plateauThreshold)

  /** @group expertParam */
  final val plateauCooldown: IntParam = new IntParam(
    this,
    "plateauCooldown",
    "Number of epochs after the learning rate fell in which lrSchedule plateau does not count.",
    Check.Integer(0, 1000000).of("plateauCooldown")
  )

  /** Sets `plateauCooldown`.
    *
    * @group expertSetParam
    */
  def setPlateauCooldown(value: Int): this.type = setChecked(plateauCooldown, value)

  /** The value of `plateauCooldown`, or its default.
    *
    * @group expertGetParam
    */
  def getPlateauCooldown: Int = $(plateauCooldown)

  setDefault(
    scaleLearningRate -> false,
    warmupEpochs -> 0.0,
    lrSchedule -> "constant",
    lrEndFactor -> 0.0,
    lrDecayRate -> 0.1,
    lrDecayEpochs -> 10,
    oneCyclePctStart -> 0.3,
    oneCycleDivFactor -> 25.0,
    oneCycleFinalDivFactor -> 10000.0,
    plateauPatience -> 10,
    plateauThreshold -> 0.0001,
    plateauCooldown -> 0
  )
}

/** Which epoch was the best, whether training ends after it, and whose weights are kept. */
trait HasEarlyStopping extends CheckedParams {

  /** @group param */
  final val monitor: Param[String] = new Param[String](
    this,
    "monitor",
    "Name of the loss or metric in the history that says which epoch was the best, such as val_loss or " +
      "val_accuracy. When not set, val_loss where there are validation rows, else loss.",
    Check.Text.of("monitor")
  )

  /** Sets `monitor`.
    *
    * @group setParam
    */
  def setMonitor(value: String): this.type = setChecked(monitor, value)

  /** The value of `monitor`; NoSuchElementException where it is not set.
    *
    * @group getParam
    */
  def getMonitor: String = $(monitor)

  /** @group param */
  final val monitorMode: Param[String] = new Param[String](
    this,
    "monitorMode",
    "Whether the smaller (min) or the larger (max) value of monitor is better. auto goes by its name, " +
      "for the loss and the named metrics.",
    Check.OneOf("auto", "min", "max").of("monitorMode")
  )

  /** Sets `monitorMode`.
    *
    * @group setParam
    */
  def setMonitorMode(value: String): this.type = setChecked(monitorMode, value)

  /** The value of `monitorMode`, or its default.
    *
    * @group getParam
    */
  def getMonitorMode: String = $(monitorMode)

  /** @group param */
  final val minDelta: DoubleParam = new DoubleParam(
    this,
    "minDelta",
    "By how much more than this an epoch must be better than the best one so far to become the best.",
    Check.Real(0.0).of("minDelta")
  )

  /** Sets `minDelta`.
    *
    * @group setParam
    */
  def setMinDelta(value: Double): this.type = setChecked(minDelta, value)

  /** The value of `minDelta`, or its default.
    *
    * @group getParam
    */
  def getMinDelta: Double = $(minDelta)

  /** @group param */
  final val earlyStoppingPatience: IntParam = new IntParam(
    this,
    "earlyStoppingPatience",
    "Number of epochs in a row without a new best one after which training stops. When not set, it " +
      "takes all epochs.",
    Check.Integer(1, 1000000).of("earlyStoppingPatience")
  )

  /** Sets `earlyStoppingPatience`.
    *
    * @group setParam
    */
  def setEarlyStoppingPatience(value: Int): this.type = setChecked(earlyStoppingPatience, value)

  /** The value of `earlyStoppingPatience`; NoSuchElementException where it is not set.
    *
    * @group getParam
    */
  def getEarlyStoppingPatience: Int = $(earlyStoppingPatience)

  /** @group param */
  final val restoreBestWeights: BooleanParam = new BooleanParam(
    this,
    "restoreBestWeights",
    "Whether the fitted model has the weights of the best epoch, by monitor, rather than of the last."
  )

  /** Sets `restoreBestWeights`.
    *
    * @group setParam
    */
  def setRestoreBestWeights(value: Boolean): this.type = setChecked(restoreBestWeights, value)

  /** The value of `restoreBestWeights`, or its default.
    *
    * @group getParam
    */
  def getRestoreBestWeights: Boolean = $(restoreBestWeights)

  setDefault(monitorMode -> "auto", minDelta -> 0.0, restoreBestWeights -> false)
}

/** Where the module runs. */
trait HasDevice extends CheckedParams {

  /** @group param */
  final val device: Param[String] = new Param[String](
    this,
    "device",
    "Where modules are trained and score: cpu; cuda, on one GPU for each worker, which is the one that " +
      "Spark has assigned to its task, else one of the machine's that no other worker has; auto, on GPUs " +
      "where every worker has one that torch can use, and on the CPU where none has. Fewer GPUs than " +
      "workers and machines of which only some have GPUs are refused unless it is cpu.",
    Check.OneOf("auto", "cpu", "cuda").of("device")
  )

  /** Sets `device`.
    *
    * @group setParam
    */
  def setDevice(value: String): this.type = setChecked(device, value)

  /** The value of `device`, or its default.
    *
    * @group getParam
    */
  def getDevice: String = $(device)

  setDefault(device -> "auto")
}

/** How many workers train, what they may use, and what happens when one is lost. */
trait HasWorkers extends CheckedParams with HasCheckpointInterval {

  /** @group param */
  final val numWorkers: IntParam = new IntParam(
    this,
    "numWorkers",
    "Number of workers that train together. Each is one task of a barrier stage and needs one free task " +
      "slot.",
    Check.Integer(1, 4096).of("numWorkers")
  )

  /** Sets `numWorkers`.
    *
    * @group setParam
    */
  def setNumWorkers(value: Int): this.type = setChecked(numWorkers, value)

  /** The value of `numWorkers`, or its default.
    *
    * @group getParam
    */
  def getNumWorkers: Int = $(numWorkers)

  /** @group expertParam */
  final val dataLanes: IntParam = new IntParam(
    this,
    "dataLanes",
    "Number of lanes that the rows are dealt to. The order of the rows depends on the lanes and not on " +
      "the workers, so runs with the same dataLanes and the same global batch (batchSize x numWorkers) " +
      "see the same batches on any number of workers up to dataLanes. Must divide the global batch. When " +
      "not set, numWorkers.",
    Check.Integer(1, 65536).of("dataLanes")
  )

  /** Sets `dataLanes`.
    *
    * @group expertSetParam
    */
  def setDataLanes(value: Int): this.type = setChecked(dataLanes, value)

  /** The value of `dataLanes`; NoSuchElementException where it is not set.
    *
    * @group expertGetParam
    */
  def getDataLanes: Int = $(dataLanes)

  /** @group expertParam */
  final val numThreads: IntParam = new IntParam(
    this,
    "numThreads",
    "Number of threads that torch computes with in each worker. When not set, the cores of the machine " +
      "are shared evenly among its workers.",
    Check.Integer(1, 4096).of("numThreads")
  )

  /** Sets `numThreads`.
    *
    * @group expertSetParam
    */
  def setNumThreads(value: Int): this.type = setChecked(numThreads, value)

  /** The value of `numThreads`; NoSuchElementException where it is not set.
    *
    * @group expertGetParam
    */
  def getNumThreads: Int = $(numThreads)

  /** @group param */
  final val numGpusPerWorker: IntParam = new IntParam(
    this,
    "numGpusPerWorker",
    "Number of GPUs that Spark is asked for with the task of each worker: 1 schedules the training by a " +
      "resource profile of its own (stage-level scheduling), 0 asks for none. Workers then have the GPUs " +
      "that spark.task.resource.gpu.amount gives them, else those that they find.",
    Check.Integer(0, 1).of("numGpusPerWorker")
  )

  /** Sets `numGpusPerWorker`.
    *
    * @group setParam
    */
  def setNumGpusPerWorker(value: Int): this.type = setChecked(numGpusPerWorker, value)

  /** The value of `numGpusPerWorker`, or its default.
    *
    * @group getParam
    */
  def getNumGpusPerWorker: Int = $(numGpusPerWorker)

  /** @group expertParam */
  final val memoryBudget: LongParam = new LongParam(
    this,
    "memoryBudget",
    "Bytes that each worker may use for decoded rows. A worker whose share of the data fits decodes it " +
      "once and keeps it; otherwise it decodes the rows again in every epoch.",
    Check.Integer(1048576).of("memoryBudget")
  )

  /** Sets `memoryBudget`.
    *
    * @group expertSetParam
    */
  def setMemoryBudget(value: Long): this.type = setChecked(memoryBudget, value)

  /** The value of `memoryBudget`, or its default.
    *
    * @group expertGetParam
    */
  def getMemoryBudget: Long = $(memoryBudget)

  /** Sets `checkpointInterval`.
    *
    * @group setParam
    */
  def setCheckpointInterval(value: Int): this.type = setChecked(checkpointInterval, value)

  /** @group param */
  final val checkpointSteps: LongParam = new LongParam(
    this,
    "checkpointSteps",
    "Number of optimizer steps between further checkpoints, for epochs that take long. When not set, " +
      "there are checkpoints at the end of epochs only.",
    Check.Integer(1).of("checkpointSteps")
  )

  /** Sets `checkpointSteps`.
    *
    * @group setParam
    */
  def setCheckpointSteps(value: Long): this.type = setChecked(checkpointSteps, value)

  /** The value of `checkpointSteps`; NoSuchElementException where it is not set.
    *
    * @group getParam
    */
  def getCheckpointSteps: Long = $(checkpointSteps)

  /** @group param */
  final val keepCheckpoints: IntParam = new IntParam(
    this,
    "keepCheckpoints",
    "Number of checkpoints that a fit which succeeds leaves in the work directory: the newest ones, " +
      "with the weights as a file of their own, the last of them from the end of the training. 0 leaves " +
      "none.",
    Check.Integer(0, 1000000).of("keepCheckpoints")
  )

  /** Sets `keepCheckpoints`.
    *
    * @group setParam
    */
  def setKeepCheckpoints(value: Int): this.type = setChecked(keepCheckpoints, value)

  /** The value of `keepCheckpoints`, or its default.
    *
    * @group getParam
    */
  def getKeepCheckpoints: Int = $(keepCheckpoints)

  /** @group param */
  final val runId: Param[String] = new Param[String](
    this,
    "runId",
    "Name of the run in the work directory, of letters, digits, - and _. A fit that fails or is " +
      "interrupted keeps its checkpoints, and the next one with the same runId goes on from the newest, " +
      "to the same bits. It must be the same job on the same rows, and is refused otherwise. When not " +
      "set, a fit is a run with a name of its own, which is told where it fails.",
    Check.Text.of("runId")
  )

  /** Sets `runId`.
    *
    * @group setParam
    */
  def setRunId(value: String): this.type = setChecked(runId, value)

  /** The value of `runId`; NoSuchElementException where it is not set.
    *
    * @group getParam
    */
  def getRunId: String = $(runId)

  /** @group param */
  final val maxRestarts: IntParam = new IntParam(
    this,
    "maxRestarts",
    "How many times training is started again after a worker was lost. An error of the module, bad data " +
      "or a diverged loss never start it again.",
    Check.Integer(0, 1000).of("maxRestarts")
  )

  /** Sets `maxRestarts`.
    *
    * @group setParam
    */
  def setMaxRestarts(value: Int): this.type = setChecked(maxRestarts, value)

  /** The value of `maxRestarts`, or its default.
    *
    * @group getParam
    */
  def getMaxRestarts: Int = $(maxRestarts)

  /** @group expertParam */
  final val collectiveTimeout: DoubleParam = new DoubleParam(
    this,
    "collectiveTimeout",
    "Seconds that a worker waits for another in one operation before it gives up. A dead worker is " +
      "noticed in seconds; this is for one that is slow.",
    Check.Real(0.0, 31536000.0, openBelow = true).of("collectiveTimeout")
  )

  /** Sets `collectiveTimeout`.
    *
    * @group expertSetParam
    */
  def setCollectiveTimeout(value: Double): this.type = setChecked(collectiveTimeout, value)

  /** The value of `collectiveTimeout`, or its default.
    *
    * @group expertGetParam
    */
  def getCollectiveTimeout: Double = $(collectiveTimeout)

  /** @group expertParam */
  final val heartbeatTimeout: DoubleParam = new DoubleParam(
    this,
    "heartbeatTimeout",
    "Seconds without a sign of life after which a worker counts as lost, though its connections stand: " +
      "one that is stopped, or whose network is gone. A virtual machine may pause for some seconds and is " +
      "not lost.",
    Check.Real(1.0, 31536000.0).of("heartbeatTimeout")
  )

  /** Sets `heartbeatTimeout`.
    *
    * @group expertSetParam
    */
  def setHeartbeatTimeout(value: Double): this.type = setChecked(heartbeatTimeout, value)

  /** The value of `heartbeatTimeout`, or its default.
    *
    * @group expertGetParam
    */
  def getHeartbeatTimeout: Double = $(heartbeatTimeout)

  /** @group expertParam */
  final val slotTimeout: DoubleParam = new DoubleParam(
    this,
    "slotTimeout",
    "Seconds to wait for numWorkers free task slots before training is refused. 0 refuses at once.",
    Check.Real(0.0, 31536000.0).of("slotTimeout")
  )

  /** Sets `slotTimeout`.
    *
    * @group expertSetParam
    */
  def setSlotTimeout(value: Double): this.type = setChecked(slotTimeout, value)

  /** The value of `slotTimeout`, or its default.
    *
    * @group expertGetParam
    */
  def getSlotTimeout: Double = $(slotTimeout)

  /** @group param */
  final val workDir: Param[String] = new Param[String](
    this,
    "workDir",
    "Directory that the driver and all workers can reach, for shards, checkpoints, progress and " +
      "weights: a path, or a URI with the scheme file, dbfs, s3, s3a, abfss or gs. When not set, what the " +
      "session's spark.flambeau.workDir names, else a temporary directory in local mode; one of the two " +
      "is required on a cluster.",
    Check.Text.of("workDir")
  )

  /** Sets `workDir`.
    *
    * @group setParam
    */
  def setWorkDir(value: String): this.type = setChecked(workDir, value)

  /** The value of `workDir`; NoSuchElementException where it is not set.
    *
    * @group getParam
    */
  def getWorkDir: String = $(workDir)

  /** @group param */
  final val inPlace: Param[String] = new Param[String](
    this,
    "inPlace",
    "Whether training reads the rows of a DataFrame in the Parquet files, the Delta or the Iceberg " +
      "table that they come from, and no copy of them in workDir: never, auto (where that is possible and " +
      "a quarter or more of the rows of their row groups are read), always (else the fit is refused). The " +
      "files must stay as they are until the fit has ended.",
    Check.OneOf("never", "auto", "always").of("inPlace")
  )

  /** Sets `inPlace`.
    *
    * @group setParam
    */
  def setInPlace(value: String): this.type = setChecked(inPlace, value)

  /** The value of `inPlace`, or its default.
    *
    * @group getParam
    */
  def getInPlace: String = $(inPlace)

  /** @group param */
  final val verbose: IntParam = new IntParam(
    this,
    "verbose",
    "How much is shown while training: 0 nothing, 1 a progress bar, 2 a line for each epoch.",
    Check.Integer(0, 2).of("verbose")
  )

  /** Sets `verbose`.
    *
    * @group setParam
    */
  def setVerbose(value: Int): this.type = setChecked(verbose, value)

  /** The value of `verbose`, or its default.
    *
    * @group getParam
    */
  def getVerbose: Int = $(verbose)

  /** @group param */
  final val tensorBoardDir: Param[String] = new Param[String](
    this,
    "tensorBoardDir",
    "Directory for TensorBoard's event files, where each fit gets a directory of its own: a path, or a " +
      "URI as workDir's, that the first worker can write. When not set, there are none.",
    Check.Text.of("tensorBoardDir")
  )

  /** Sets `tensorBoardDir`.
    *
    * @group setParam
    */
  def setTensorBoardDir(value: String): this.type = setChecked(tensorBoardDir, value)

  /** The value of `tensorBoardDir`; NoSuchElementException where it is not set.
    *
    * @group getParam
    */
  def getTensorBoardDir: String = $(tensorBoardDir)

  /** @group param */
  final val logEveryNSteps: IntParam = new IntParam(
    this,
    "logEveryNSteps",
    "Number of optimizer steps from one whose loss, learning rate and gradient norm go to TensorBoard " +
      "to the next.",
    Check.Integer(1, 1000000).of("logEveryNSteps")
  )

  /** Sets `logEveryNSteps`.
    *
    * @group setParam
    */
  def setLogEveryNSteps(value: Int): this.type = setChecked(logEveryNSteps, value)

  /** The value of `logEveryNSteps`, or its default.
    *
    * @group getParam
    */
  def getLogEveryNSteps: Int = $(logEveryNSteps)

  /** @group param */
  final val profile: Param[String] = new Param[String](
    this,
    "profile",
    "Steps to record a timeline of on all workers, as \"steps FIRST-LAST\", counted from 0, at most 1000: " +
      "what each worker is in, and each of its collectives. It is one file in the work directory, in the " +
      "Trace Event Format of Chrome and Perfetto, and the model's summary tells its place. On the CPU " +
      "only. When not set, nothing is recorded.",
    Check.Text.of("profile")
  )

  /** Sets `profile`.
    *
    * @group setParam
    */
  def setProfile(value: String): this.type = setChecked(profile, value)

  /** The value of `profile`; NoSuchElementException where it is not set.
    *
    * @group getParam
    */
  def getProfile: String = $(profile)

  /** @group param */
  final val logGradientNorm: BooleanParam = new BooleanParam(
    this,
    "logGradientNorm",
    "Whether the 2-norm of all gradients, before clipping, is computed in each step: for the history, " +
      "which has the mean over an epoch's steps, and for TensorBoard and callbacks. On a GPU it is not " +
      "told, since the worker would have to wait for it. With gradientClipNorm it is told in any case."
  )

  /** Sets `logGradientNorm`.
    *
    * @group setParam
    */
  def setLogGradientNorm(value: Boolean): this.type = setChecked(logGradientNorm, value)

  /** The value of `logGradientNorm`, or its default.
    *
    * @group getParam
    */
  def getLogGradientNorm: Boolean = $(logGradientNorm)

  /** @group expertParam */
  final val verifyReplicas: BooleanParam = new BooleanParam(
    this,
    "verifyReplicas",
    "Whether the workers compare hashes of all parameters, buffers and averaged weights after each " +
      "epoch and fail where they differ in a single bit. For debugging: it reads every tensor once per " +
      "epoch."
  )

  /** Sets `verifyReplicas`.
    *
    * @group expertSetParam
    */
  def setVerifyReplicas(value: Boolean): this.type = setChecked(verifyReplicas, value)

  /** The value of `verifyReplicas`, or its default.
    *
    * @group expertGetParam
    */
  def getVerifyReplicas: Boolean = $(verifyReplicas)

  setDefault(
    numWorkers -> 1,
    numGpusPerWorker -> 0,
    memoryBudget -> 1073741824L,
    checkpointInterval -> 1,
    keepCheckpoints -> 0,
    maxRestarts -> 3,
    collectiveTimeout -> 600.0,
    heartbeatTimeout -> 30.0,
    slotTimeout -> 0.0,
    inPlace -> "auto",
    verbose -> 1,
    logEveryNSteps -> 50,
    logGradientNorm -> false,
    verifyReplicas -> false
  )
}
