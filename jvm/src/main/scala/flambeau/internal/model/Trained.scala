package flambeau.internal.model

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.{Bottleneck, Checkpoint, Lineage, Loss, TensorColumns}
import flambeau.jni.StoredFile
import flambeau.internal.util.Json

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
  *   how a classifier's outputs read: `logits`, `probabilities`, `log_probabilities`, and of several labels a row `labels` or
  *   `label_probabilities`
  * @param isWide
  *   whether its parameters are float64, so that labels and weights of floats are too
  * @param judgedBy
  *   the `loss` and the `metrics` of the training, as far as they go by names
  * @param history
  *   the training result's history, `{"epochs": [...]}`
  * @param checkpoints
  *   those that `keepCheckpoints` left, oldest first
  * @param lineage
  *   where it comes from
  * @param timeline
  *   where the timeline of the training lies
  */
private[flambeau] final case class Trained(
    programs: Map[String, StoredFile],
    reasons: Map[String, String],
    weights: StoredFile,
    inputs: Seq[TensorColumns],
    output: OutputSpec,
    classes: String,
    isWide: Boolean,
    judgedBy: JsonNode,
    history: JsonNode,
    counts: Counts,
    checkpoints: Seq[Checkpoint] = Nil,
    lineage: Lineage = Lineage(),
    timeline: Option[String] = None
) {

  /** The same as it was at one of the checkpoints: with those weights, and the history up to it. */
  def at(checkpoint: Checkpoint): Trained = copy(
    weights = checkpoint.weights,
    history = checkpoint.history,
    counts = counts.copy(numSteps = checkpoint.step, trainingSeconds = None, bottleneck = None),
    checkpoints = Nil,
    lineage = lineage.copy(checkpoint = Some(checkpoint.uri))
  )
}

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
      isWide = false,
      Json.obj(),
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
    trainingSeconds: Option[Double],
    bottleneck: Option[Bottleneck] = None
) {
  def json: ObjectNode = {
    val json =
      Json.obj().put("numRows", numRows).put("numSteps", numSteps).put("numValidationRows", numValidationRows)
    json.replace("trainingSeconds", Json.of(trainingSeconds, "trainingSeconds"))
    bottleneck.foreach(found => json.replace("bottleneck", found.json))
    json
  }
}

private[flambeau] object Counts {
  def of(json: JsonNode): Counts = Counts(
    json.path("numRows").asLong,
    json.path("numSteps").asLong,
    json.path("numValidationRows").asLong,
    Option(json.get("trainingSeconds")).filterNot(_.isNull).map(_.asDouble),
    Bottleneck.of(json.get("bottleneck"))
  )
}
