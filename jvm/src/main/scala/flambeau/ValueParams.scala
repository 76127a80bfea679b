package flambeau

import flambeau.internal.util.Json
import org.apache.spark.ml.param.{Param, Params}

/** A param that holds a shape for each input; as JSON a list of lists of whole numbers. */
final class ShapesParam(parent: Params, name: String, doc: String, isValid: Array[Array[Int]] => Boolean)
    extends Param[Array[Array[Int]]](parent, name, doc, isValid) {
  override def jsonEncode(value: Array[Array[Int]]): String = Json.text(Json.of(value, name))
  override def jsonDecode(json: String): Array[Array[Int]] =
    Json.items(Json.parse(json, name)).map(shape => Json.items(shape).map(_.asInt).toArray).toArray
}

/** A param that holds groups of names; as JSON a list of lists of strings. */
final class GroupsParam(parent: Params, name: String, doc: String, isValid: Array[Array[String]] => Boolean)
    extends Param[Array[Array[String]]](parent, name, doc, isValid) {
  override def jsonEncode(value: Array[Array[String]]): String = Json.text(Json.of(value, name))
  override def jsonDecode(json: String): Array[Array[String]] =
    Json.items(Json.parse(json, name)).map(Json.texts(_).toArray).toArray
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
