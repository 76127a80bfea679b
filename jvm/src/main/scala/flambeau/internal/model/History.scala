package flambeau.internal.model

import java.math.MathContext

import com.fasterxml.jackson.databind.JsonNode
import flambeau.internal.util.Json

import scala.collection.immutable.ListMap

/** The records of a training's epochs as columns. */
private[flambeau] object History {
  private val Columns = Seq(
    "epoch" -> "epoch",
    "steps" -> "steps",
    "numRows" -> "num_rows",
    "seconds" -> "seconds",
    "rowsPerSecond" -> "rows_per_second",
    "learningRate" -> "learning_rate",
    "gradientNorm" -> "gradient_norm",
    "dataSeconds" -> "data_seconds",
    "modelSeconds" -> "model_seconds",
    "reduceSeconds" -> "reduce_seconds",
    "optimizerSeconds" -> "optimizer_seconds",
    "lossScale" -> "loss_scale",
    "skippedSteps" -> "skipped_steps",
    "sentBytes" -> "sent_bytes",
    "uncompressedBytes" -> "uncompressed_bytes",
    "cpuPercent" -> "cpu_percent",
    "peakMemoryBytes" -> "peak_memory_bytes",
    "loss" -> "loss"
  )

  /** One value an epoch, by name; NaN where a value was not a finite number.
    *
    * The columns of validation rows are there where there were any, or a record has their figures: a loss that is not finite is
    * null in JSON, as that of an epoch without validation rows is.
    */
  def columns(history: JsonNode, numValidationRows: Long): Map[String, Array[Double]] = {
    val records = Json.items(history.get("epochs"))
    val known = Columns.filter { case (key, _) => records.isEmpty || records.exists(_.has(key)) }
    val plain = known.map { case (key, name) => name -> records.map(record => number(record.get(key))) }
    val isValidated = numValidationRows > 0 || records.exists { record =>
      record.path("validationLoss").isNumber || record.path("validationMetrics").size > 0
    }
    val found = records.map(metrics(_, isValidated))
    val names = found.flatMap(_.keys).distinct
    val metricColumns = names.map(name => name -> found.map(_.getOrElse(name, Double.NaN)))
    ListMap((plain ++ metricColumns).map { case (name, values) => name -> values.toArray }: _*)
  }

  /** An epoch's loss and metrics by name, in their order, and where there were validation rows theirs too; NaN where a value
    * was not a finite number.
    */
  def metrics(record: JsonNode, isValidated: Boolean): Map[String, Double] = {
    def named(prefix: String, loss: String, others: String): Seq[(String, Double)] =
      (s"${prefix}loss" -> number(record.get(loss))) +: Json.items(record.get(others)).map { pair =>
        s"$prefix${pair.get(0).asText}" -> number(pair.get(1))
      }
    val validation = if (isValidated) named("val_", "validationLoss", "validationMetrics") else Nil
    ListMap(named("", "loss", "metrics") ++ validation: _*)
  }

  /** A figure in four digits; a dash for what is no finite number. */
  def shown(value: Double): String =
    if (value.isNaN) "-"
    else BigDecimal(value).round(new MathContext(4)).bigDecimal.stripTrailingZeros.toPlainString

  private def number(node: JsonNode): Double =
    if (node == null || !node.isNumber) Double.NaN else node.asDouble
}
