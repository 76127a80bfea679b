package flambeau.jni

import java.nio.file.Path

import flambeau.Json

/** A tensor's rows: its name where it has one, its dtype (`float32`, `float64`, `int64`, `bool`, `uint8`; outputs may have
  * others of torch's) and the shape of one row.
  */
final case class TensorRows(name: Option[String], dtype: String, shape: Seq[Long]) {

  /** Elements of one row. */
  def numElements: Int = Math.toIntExact(shape.product)
}

/** What scores rows, and how. It travels from the driver to the tasks.
  *
  * @param form
  *   `scripted` or `exported`
  * @param weights
  *   safetensors; none takes the weights in the program's file
  * @param batchSize
  *   rows that the program sees at once
  * @param classes
  *   none, or how a classifier's output reads: `logits`, `log_probabilities` or `probabilities`
  * @param fields
  *   the wanted ones of `prediction`, `rawPrediction` and `probability`; empty where `classes` is none
  * @param store
  *   the options of the object stores
  * @param device
  *   `auto`, `cpu` or `cuda`
  */
final case class ScorerSpec(
    form: String,
    program: StoredFile,
    weights: Option[StoredFile],
    inputs: Seq[TensorRows],
    output: Seq[TensorRows],
    batchSize: Int,
    classes: Option[String],
    fields: Seq[String],
    store: Map[String, String],
    device: String = "auto"
) {

  /** With the names alone of the stores' options, whose values may be secrets. */
  override def toString: String =
    s"ScorerSpec($form, $program, $weights, $inputs, $output, $batchSize, $classes, $fields, " +
      s"${store.keys.toSeq.sorted.mkString("store(", ", ", ")")}, $device)"

  /** What makes two scorers of one device the same: everything but where the files lie. */
  private[jni] def key: String =
    s"${program.sha256}|${weights.map(_.sha256)}|$form|$inputs|$output|$batchSize|$classes|$fields"

  /** The options of the object stores, as [[NativeApi]] takes them. */
  private[jni] def storeJson: String = Json.text(Json.of(store, "store"))

  /** The message to [[NativeApi.openScorer]]. */
  private[jni] def json(
      programFile: Path,
      weightsFile: Option[Path],
      numThreads: Int,
      gpu: Option[Int]
  ): String = {
    val message = Map(
      "form" -> form,
      "program" -> programFile.toString,
      "weights" -> weightsFile.map(_.toString),
      "inputs" -> inputs.map(tensor => Map("dtype" -> tensor.dtype, "shape" -> tensor.shape)),
      "output" -> output.map(tensor =>
        Map("name" -> tensor.name, "dtype" -> tensor.dtype, "shape" -> tensor.shape)
      ),
      "batchSize" -> batchSize,
      "classes" -> classes,
      "fields" -> fields,
      "numThreads" -> numThreads,
      "gpu" -> gpu
    )
    Json.text(Json.of(message, "the scorer"))
  }
}
