package flambeau

import org.apache.spark.ml.param.{DoubleParam, IntParam, StringArrayParam}
import org.apache.spark.ml.param.shared.{
  HasInputCols, HasLabelCol, HasPredictionCol, HasProbabilityCol, HasRawPredictionCol, HasThreshold,
  HasThresholds, HasValidationIndicatorCol, HasWeightCol
}

/** What the module reads: `featuresCol`, or `inputCols` with a tensor for each argument of `forward`. */
trait HasInputColumns extends CheckedParams with HasInputCols {

  final val featuresCol: FeaturesParam = new FeaturesParam(
    this,
    "featuresCol",
    "Name of the features column: a vector, an array or a number; or a list of numeric columns, which " +
      "are packed into one tensor. Used when inputCols is not set.",
    Check.FeatureColumns.of("featuresCol")
  )

  /** Sets `featuresCol` to one column. */
  def setFeaturesCol(value: String): this.type = setFeaturesCol(Features(value))

  /** Sets `featuresCol` to columns that are packed into one tensor. */
  def setFeaturesCol(value: Array[String]): this.type = setFeaturesCol(Features.packed(value.toSeq: _*))

  /** Sets `featuresCol`. */
  def setFeaturesCol(value: Features): this.type = setChecked(featuresCol, value)

  /** The value of `featuresCol`, or its default. */
  def getFeaturesCol: Features = $(featuresCol)

  /** Sets `inputCols`. */
  def setInputCols(value: Array[String]): this.type = setChecked(inputCols, value)

  final val inputShapes: ShapesParam = new ShapesParam(
    this,
    "inputShapes",
    "Shape of one row of each input, in the order of inputCols, for columns that hold flattened " +
      "arrays, such as [3, 32, 32] for an image. An empty list leaves that input as its column has it. " +
      "When not set, all are left.",
    Check.Shapes.of("inputShapes")
  )

  /** Sets `inputShapes`. */
  def setInputShapes(value: Array[Array[Int]]): this.type = setChecked(inputShapes, value)

  /** The value of `inputShapes`; NoSuchElementException where it is not set. */
  def getInputShapes: Array[Array[Int]] = $(inputShapes)

  final val inputTypes: StringArrayParam = new StringArrayParam(
    this,
    "inputTypes",
    "Type of the tensor of each input, in the order of inputCols: auto, float32, float64, int64, bool " +
      "or uint8. auto follows the column: float, double and decimal give float32; byte, short, int and " +
      "long give int64; boolean gives bool; binary gives uint8. When not set, all are auto.",
    Check.InputTypes.of("inputTypes")
  )

  /** Sets `inputTypes`. */
  def setInputTypes(value: Array[String]): this.type = setChecked(inputTypes, value)

  /** The value of `inputTypes`; NoSuchElementException where it is not set. */
  def getInputTypes: Array[String] = $(inputTypes)

  setDefault(featuresCol -> Features("features"))
}

/** What a fitted model writes, and how many rows it scores at once. */
trait HasOutputColumns extends CheckedParams with HasPredictionCol with HasThreshold with HasThresholds {

  /** Sets `predictionCol`. */
  def setPredictionCol(value: String): this.type = setChecked(predictionCol, value)

  final val outputNames: StringArrayParam = new StringArrayParam(
    this,
    "outputNames",
    "Names of the fields that predictionCol has where the module returns several tensors, in their " +
      "order. When not set, the keys of a dict, the fields of a named tuple, or _1, _2, ...",
    Check.Columns.of("outputNames")
  )

  /** Sets `outputNames`. */
  def setOutputNames(value: Array[String]): this.type = setChecked(outputNames, value)

  /** The value of `outputNames`; NoSuchElementException where it is not set. */
  def getOutputNames: Array[String] = $(outputNames)

  final val outputKinds: StringArrayParam = new StringArrayParam(
    this,
    "outputKinds",
    "What each tensor that the module returns is, in their order: number, which is written as it is; " +
      "logits, probabilities or log_probabilities of classes; logit or probability of class 1 of two; " +
      "labels or label_probabilities, the logits or probabilities of labels of which a row may have " +
      "several. When not set, a classifier's follows from loss and module, and all others are number.",
    Check.OutputKinds.of("outputKinds")
  )

  /** Sets `outputKinds`. */
  def setOutputKinds(value: Array[String]): this.type = setChecked(outputKinds, value)

  /** The value of `outputKinds`; NoSuchElementException where it is not set. */
  def getOutputKinds: Array[String] = $(outputKinds)

  /** Sets `threshold`. */
  def setThreshold(value: Double): this.type = setChecked(threshold, value)

  /** Sets `thresholds`. */
  def setThresholds(value: Array[Double]): this.type = setChecked(thresholds, value)

  final val inferenceBatchSize: IntParam = new IntParam(
    this,
    "inferenceBatchSize",
    "Number of rows given to the module at once when the fitted model transforms a DataFrame.",
    Check.Integer(1, 16777216).of("inferenceBatchSize")
  )

  /** Sets `inferenceBatchSize`. */
  def setInferenceBatchSize(value: Int): this.type = setChecked(inferenceBatchSize, value)

  /** The value of `inferenceBatchSize`, or its default. */
  def getInferenceBatchSize: Int = $(inferenceBatchSize)

  setDefault(predictionCol -> "prediction", inferenceBatchSize -> 4096)
}

/** The further columns that a fitted classifier writes. */
trait HasClassColumns extends CheckedParams with HasRawPredictionCol with HasProbabilityCol {

  /** Sets `rawPredictionCol`. */
  def setRawPredictionCol(value: String): this.type = setChecked(rawPredictionCol, value)

  /** Sets `probabilityCol`. */
  def setProbabilityCol(value: String): this.type = setChecked(probabilityCol, value)

  setDefault(rawPredictionCol -> "rawPrediction", probabilityCol -> "probability")
}

/** What the loss compares with: labels, and the weight of each row. */
trait HasLabelColumns extends CheckedParams with HasLabelCol with HasWeightCol {

  /** Sets `labelCol`. */
  def setLabelCol(value: String): this.type = setChecked(labelCol, value)

  final val labelCols: StringArrayParam = new StringArrayParam(
    this,
    "labelCols",
    "Names of several label columns, given to the loss as one tuple of tensors in this order. When " +
      "not set, labelCol is the only label.",
    Check.Columns.of("labelCols")
  )

  /** Sets `labelCols`. */
  def setLabelCols(value: Array[String]): this.type = setChecked(labelCols, value)

  /** The value of `labelCols`; NoSuchElementException where it is not set. */
  def getLabelCols: Array[String] = $(labelCols)

  /** Sets `weightCol`. */
  def setWeightCol(value: String): this.type = setChecked(weightCol, value)

  setDefault(labelCol -> "label")
}

/** Which rows are kept out of training for validation. */
trait HasValidation extends CheckedParams with HasValidationIndicatorCol {

  /** Sets `validationIndicatorCol`. */
  def setValidationIndicatorCol(value: String): this.type = setChecked(validationIndicatorCol, value)

  final val validationFraction: DoubleParam = new DoubleParam(
    this,
    "validationFraction",
    "Fraction of the rows that are kept out of training, by a seeded random choice, and used for " +
      "validation after each epoch. 0 means no validation.",
    Check.Real(0.0, 1.0, openAbove = true).of("validationFraction")
  )

  /** Sets `validationFraction`. */
  def setValidationFraction(value: Double): this.type = setChecked(validationFraction, value)

  /** The value of `validationFraction`, or its default. */
  def getValidationFraction: Double = $(validationFraction)

  setDefault(validationFraction -> 0.0)
}
