package flambeau

import scala.annotation.varargs

import com.fasterxml.jackson.databind.JsonNode
import org.apache.spark.ml.param.{Param, Params}

/** What the features are: one column, or several columns of numbers that are packed into one tensor. */
final case class Features private (columns: Seq[String], packed: Boolean) {
  private[flambeau] def json: JsonNode =
    if (packed) Json.strings(columns) else Json.of(columns.head, "featuresCol")

  override def toString: String = if (packed) columns.mkString("[", ", ", "]") else columns.head
}

object Features {

  /** One column: a vector, an array or a number. */
  def apply(column: String): Features = new Features(Seq(column), packed = false)

  /** Columns of numbers, packed into one tensor in this order. */
  @varargs def packed(columns: String*): Features = new Features(columns.toVector, packed = true)

  private[flambeau] def of(json: JsonNode): Features =
    if (json.isArray) packed(Json.texts(json): _*) else Features(json.asText)
}

/** A param that holds [[Features]]; as JSON a string or a list of strings. */
final class FeaturesParam(parent: Params, name: String, doc: String, isValid: Features => Boolean)
    extends Param[Features](parent, name, doc, isValid) {
  override def jsonEncode(value: Features): String = Json.text(value.json)
  override def jsonDecode(json: String): Features = Features.of(Json.parse(json, name))
}

/** A param that holds a shape for each input; as JSON a list of lists of whole numbers. */
final class ShapesParam(parent: Params, name: String, doc: String, isValid: Array[Array[Int]] => Boolean)
    extends Param[Array[Array[Int]]](parent, name, doc, isValid) {
  override def jsonEncode(value: Array[Array[Int]]): String = Json.text(Json.of(value, name))
  override def jsonDecode(json: String): Array[Array[Int]] =
    Json.items(Json.parse(json, name)).map(shape => Json.items(shape).map(_.asInt).toArray).toArray
}

/** A param that holds a [[Loss]]; as JSON its name, `{"name", "options"}`, or `{"script"}`. */
final class LossParam(parent: Params, name: String, doc: String) extends Param[Loss](parent, name, doc) {
  override def jsonEncode(value: Loss): String = Json.text(value.short)
  override def jsonDecode(json: String): Loss = Loss.of(Json.parse(json, name))
}

/** A param that holds an [[Optimizer]]; as JSON its name, or `{"name", "options"}`. */
final class OptimizerParam(parent: Params, name: String, doc: String)
    extends Param[Optimizer](parent, name, doc) {
  override def jsonEncode(value: Optimizer): String = Json.text(value.short)
  override def jsonDecode(json: String): Optimizer = Optimizer.of(Json.parse(json, name))
}
