package flambeau.jni

import java.nio.file.Path

import flambeau.internal.util.Json
import org.apache.hadoop.conf.Configuration
import org.apache.spark.broadcast.Broadcast
import org.apache.spark.util.SerializableConfiguration

/** What scores rows, and how. It travels from the driver to the tasks.
  *
  * @param form
  *   `scripted` or `exported`
  * @param weights
  *   safetensors; none takes the weights in the program's file
  * @param batchSize
  *   rows that the program sees at once, where they are no more than `batchBytes`
  * @param batchBytes
  *   the most that an input's rows, or the outputs', take at a time, but for a single row that takes more
  * @param classes
  *   none, or how a classifier's output reads: `logits`, `log_probabilities` or `probabilities`
  * @param fields
  *   the wanted ones of `prediction`, `rawPrediction` and `probability`; empty where `classes` is none
  * @param store
  *   the options of the object stores
  * @param device
  *   `auto`, `cpu` or `cuda`
  * @param hadoop
  *   the configuration of Hadoop's file systems, where one of them has the files
  * @param evaluation
  *   what the outputs are held against, where they are
  */
private[flambeau] final case class ScorerSpec(
    form: String,
    program: StoredFile,
    weights: Option[StoredFile],
    inputs: Seq[TensorRows],
    output: Seq[TensorRows],
    batchSize: Int,
    batchBytes: Int,
    classes: Option[String],
    fields: Seq[String],
    store: Map[String, String],
    device: String = "auto",
    hadoop: Option[Broadcast[SerializableConfiguration]] = None,
    evaluation: Option[EvaluationSpec] = None
) {

  /** The tensors of its rows: the inputs, then the labels and the weight, where there are some. */
  private[jni] def tensors: Seq[TensorRows] = inputs ++ evaluation.toSeq.flatMap(_.tensors)

  /** Bytes of one row of the outputs, as the JVM holds them at most: a double an element. */
  private[flambeau] def outputRowBytes: Long = output.map(_.numElements.toLong).sum * 8 * fields.length.max(1)

  /** Rows that are read and scored at a time. */
  private[flambeau] def numRowsAtOnce: Int = {
    val rowBytes = (tensors.map(_.rowBytes) :+ outputRowBytes).max.max(1)
    (batchBytes / rowBytes).max(1).min(batchSize.toLong).toInt
  }

  /** With the names alone of the stores' options, whose values may be secrets. */
  override def toString: String =
    s"ScorerSpec($form, $program, $weights, $inputs, $output, $batchSize, $batchBytes, $classes, $fields, " +
      s"${store.keys.toSeq.sorted.mkString("store(", ", ", ")")}, $device)"

  /** What makes two scorers of one device the same: everything but where the files lie. */
  private[jni] def key: String =
    s"${program.sha256}|${weights.map(_.sha256)}|$form|$inputs|$output|$batchSize|$classes|$fields|$evaluation"

  /** A local copy of one of the files; see [[StoredFile.local]]. */
  private[jni] def local(file: StoredFile, store: => StoreApi): Path =
    file.local(store, storeJson, hadoop.fold(new Configuration)(_.value.value))

  /** The options of the object stores, as [[StoreApi]] takes them. */
  private[jni] def storeJson: String = Json.text(Json.of(store, "store"))

  /** The message to [[TorchApi.openScorer]]. */
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
      "inputs" -> inputs.map(_.json),
      "output" -> output.map(tensor =>
        Map("name" -> tensor.name, "dtype" -> tensor.dtype, "shape" -> tensor.shape)
      ),
      "batchSize" -> batchSize,
      "classes" -> classes,
      "fields" -> fields,
      "judged" -> evaluation.map(_.json),
      "numThreads" -> numThreads,
      "gpu" -> gpu
    )
    Json.text(Json.of(message, "the scorer"))
  }
}

/** What a program's outputs are held against.
  *
  * @param by
  *   JSON `{"loss", "metrics"}`, as a training job's program has them
  */
private[flambeau] final case class EvaluationSpec(
    labels: Seq[TensorRows],
    weight: Option[TensorRows],
    by: String
) {
  private[jni] def tensors: Seq[TensorRows] = labels ++ weight

  private[jni] def json: Map[String, Any] =
    Map("labels" -> labels.map(_.json), "weight" -> weight.map(_.json), "by" -> Json.parse(by))
}
