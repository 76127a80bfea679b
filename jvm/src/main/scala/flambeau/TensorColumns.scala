package flambeau

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.internal.util.Json

/** One tensor and the columns that it is made of.
  *
  * @param dtype
  *   one of `float32`, `float64`, `int64`, `bool` and `uint8`
  * @param shape
  *   that of one row: empty for a single number, `Seq(n)` for n packed columns or an array of n, none while it is not
  *   known, as for an array whose rows have not been seen
  */
final case class TensorColumns(name: String, columns: Seq[String], dtype: String, shape: Option[Seq[Int]]) {

  /** How many numbers a row has; 1 while the shape is not known. */
  def numElements: Int = shape.getOrElse(Nil).product

  /** The tensor as the training job names it. */
  private[flambeau] def json: ObjectNode = {
    val json = Json.obj().put("name", name)
    json.replace("columns", Json.strings(columns))
    json.put("dtype", dtype)
    json.replace("shape", Json.of(shape, "shape"))
    json
  }
}

private[flambeau] object TensorColumns {

  /** The inverse of `json`. */
  def of(json: JsonNode): TensorColumns = TensorColumns(
    json.get("name").asText,
    Json.texts(json.get("columns")),
    json.get("dtype").asText,
    Option(json.get("shape")).filterNot(_.isNull).map(Json.items(_).map(_.asInt))
  )
}
