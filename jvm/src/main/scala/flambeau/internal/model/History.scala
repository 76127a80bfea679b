package flambeau.internal.model

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
