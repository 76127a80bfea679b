package flambeau.jni

import java.nio.file.Path

import com.fasterxml.jackson.databind.ObjectMapper
import com.fasterxml.jackson.databind.node.ObjectNode

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
    store: Map[String, String]
) {

  /** What makes two scorers the same: everything but where the files lie. */
  private[jni] def key: String =
    s"${program.sha256}|${weights.map(_.sha256)}|$form|$inputs|$output|$batchSize|$classes|$fields"

  /** The options of the object stores, as [[NativeApi]] takes them. */
  private[jni] def storeJson: String = {
    val node = ScorerSpec.mapper.createObjectNode()
    store.foreach { case (name, value) => node.put(name, value) }
    node.toString
  }

  /** The message to [[NativeApi.openScorer]]. */
  private[jni] def json(programFile: Path, weightsFile: Option[Path], numThreads: Int): String = {
    val node = ScorerSpec.mapper.createObjectNode()
    node.put("form", form)
    node.put("program", programFile.toString)
    node.put("weights", weightsFile.map(_.toString).orNull)
    tensors(node, "inputs", inputs, named = false)
    tensors(node, "output", output, named = true)
    node.put("batchSize", batchSize)
    node.put("classes", classes.orNull)
    val names = node.putArray("fields")
    fields.foreach(name => names.add(name))
    node.put("numThreads", numThreads)
    node.toString
  }

  private def tensors(node: ObjectNode, field: String, rows: Seq[TensorRows], named: Boolean): Unit = {
    val list = node.putArray(field)
    for (tensor <- rows) {
      val entry = list.addObject()
      if (named) entry.put("name", tensor.name.orNull)
      entry.put("dtype", tensor.dtype)
      val shape = entry.putArray("shape")
      tensor.shape.foreach(size => shape.add(size))
    }
  }
}

object ScorerSpec {
  private val mapper = new ObjectMapper
}
