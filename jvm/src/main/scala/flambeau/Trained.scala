package flambeau

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.jni.StoredFile

import scala.collection.immutable.ListMap

/** What a training left: all that a fitted model holds beside its params.
  *
  * @param programs
  *   by form: `scripted`, `exported`, and `exportedTrain`, the exported program's other mode
  * @param reasons
  *   why a form is missing, for those that are
  * @param weights
  *   the trained weights, as safetensors
  * @param inputs
  *   the tensors it was trained on, in terms of the DataFrame's columns, with their shapes
  * @param classes
  *   how a classifier's outputs read: `logits`, `probabilities` or `log_probabilities`
  * @param history
  *   the training result's history, `{"epochs": [...]}`
  * @param checkpoints
  *   those that `keepCheckpoints` left, oldest first
  */
private[flambeau] final case class Trained(
    programs: Map[String, StoredFile],
    reasons: Map[String, String],
    weights: StoredFile,
    inputs: Seq[TensorColumns],
    output: OutputSpec,
    classes: String,
    history: JsonNode,
    counts: Counts,
    checkpoints: Seq[Checkpoint] = Nil
)

private[flambeau] object Trained {

  /** What stands for a training that is yet to come, to tell of a model's columns. An output that is not known yet counts
    * as one number a row.
    */
  def untrained(inputs: Seq[TensorColumns], output: OutputSpec): Trained = {
    val known = if (output.tensors.isEmpty) OutputSpec(Seq(OutputTensor(None, "float32", Nil))) else output
    Trained(
      Map.empty,
      Map.empty,
      StoredFile("", 0, ""),
      inputs,
      known,
      "logits",
      Json.obj(),
      Counts(0, 0, 0, None)
    )
  }

  /** How a classifier's output reads under its loss: of one number a row, and of several. */
  def outputKind(loss: Option[Loss], output: OutputSpec): String = loss match {
    case Some(Loss.Named("bce", _)) =>
      if (output.tensors.head.isScalar) "probabilities" else "label_probabilities"
    case Some(Loss.Named("bce_with_logits", _)) if !output.tensors.head.isScalar => "labels"
    case Some(Loss.Named("nll", _))                                              => "log_probabilities"
    case _                                                                       => "logits"
  }
}

/** How much was trained. */
private[flambeau] final case class Counts(
    numRows: Long,
    numSteps: Long,
    numValidationRows: Long,
    trainingSeconds: Option[Double]
) {
  def json: ObjectNode = {
    val json =
      Json.obj().put("numRows", numRows).put("numSteps", numSteps).put("numValidationRows", numValidationRows)
    json.replace("trainingSeconds", Json.of(trainingSeconds, "trainingSeconds"))
    json
  }
}

private[flambeau] object Counts {
  def of(json: JsonNode): Counts = Counts(
    json.path("numRows").asLong,
    json.path("numSteps").asLong,
    json.path("numValidationRows").asLong,
    Option(json.get("trainingSeconds")).filterNot(_.isNull).map(_.asDouble)
  )
}

/** What a training came to, with the names that Spark ML's summaries have.
  *
  * @param objectiveHistory
  *   the mean training loss of each epoch
  * @param totalIterations
  *   the number of epochs
  * @param bestEpoch
  *   the epoch, counted from 0, in which `monitor` was best, none where that is not known
  * @param numSteps
  *   the number of optimizer steps
  * @param trainingSeconds
  *   seconds that the training took on the workers, none where it is not known
  */
final class TrainingSummary private[flambeau] (
    val objectiveHistory: Array[Double],
    val totalIterations: Int,
    val bestEpoch: Option[Int],
    val numSteps: Long,
    val numRows: Long,
    val numValidationRows: Long,
    val trainingSeconds: Option[Double]
) extends Serializable

/** The records of a training's epochs as columns. */
private[flambeau] object History {
  private val Columns = Seq(
    "epoch" -> "epoch",
    "steps" -> "steps",
    "numRows" -> "num_rows",
    "seconds" -> "seconds",
    "rowsPerSecond" -> "rows_per_second",
    "learningRate" -> "learning_rate",
    "dataSeconds" -> "data_seconds",
    "modelSeconds" -> "model_seconds",
    "reduceSeconds" -> "reduce_seconds",
    "optimizerSeconds" -> "optimizer_seconds",
    "lossScale" -> "loss_scale",
    "skippedSteps" -> "skipped_steps",
    "sentBytes" -> "sent_bytes",
    "uncompressedBytes" -> "uncompressed_bytes",
    "loss" -> "loss"
  )

  /** One value an epoch, by name; NaN where a value was not a finite number. */
  def columns(history: JsonNode): Map[String, Array[Double]] = {
    val records = Json.items(history.get("epochs"))
    val known = Columns.filter { case (key, _) => records.isEmpty || records.exists(_.has(key)) }
    val plain = known.map { case (key, name) => name -> records.map(record => number(record.get(key))) }
    val metrics = metricColumns(records, "metrics", "")
    val validated = records.exists { record =>
      !record.path("validationLoss").isMissingNode && !record.get("validationLoss").isNull ||
      record.path("validationMetrics").size > 0
    }
    val validation =
      if (validated)
        Seq("val_loss" -> records.map(record => number(record.get("validationLoss")))) ++
          metricColumns(records, "validationMetrics", "val_")
      else Nil
    ListMap((plain ++ metrics ++ validation).map { case (name, values) => name -> values.toArray }: _*)
  }

  private def metricColumns(
      records: Seq[JsonNode],
      key: String,
      prefix: String
  ): Seq[(String, Seq[Double])] = {
    val pairs =
      records.map(record => Json.items(record.get(key)).map(pair => pair.get(0).asText -> pair.get(1)).toMap)
    val names = records.flatMap(record => Json.items(record.get(key)).map(_.get(0).asText)).distinct
    names.map(name => s"$prefix$name" -> pairs.map(found => number(found.getOrElse(name, null))))
  }

  private def number(node: JsonNode): Double =
    if (node == null || !node.isNumber) Double.NaN else node.asDouble
}
