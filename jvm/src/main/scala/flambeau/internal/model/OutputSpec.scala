package flambeau.internal.model

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ArrayNode
import flambeau.internal.util.Json
import org.apache.spark.sql.types._

/** One tensor that a program returns.
  *
  * @param name
  *   none where it is the only one
  * @param dtype
  *   as torch names it
  * @param shape
  *   that of one row
  */
private[flambeau] final case class OutputTensor(name: Option[String], dtype: String, shape: Seq[Int]) {

  /** Whether a row is one number: shape () or (1,). */
  def isScalar: Boolean = shape.isEmpty || shape == Seq(1)

  /** Spark's type of a column with this output: double for one number a row, (nested) arrays otherwise. */
  def columnType: DataType =
    if (isScalar) DoubleType
    else shape.foldLeft(elementType)((inner, _) => ArrayType(inner, containsNull = false))

  /** The type of the innermost elements of such a column. */
  def elementType: DataType = dtype match {
    case "float64"                      => DoubleType
    case "bool"                         => BooleanType
    case name if name.contains("float") => FloatType
    case _                              => LongType
  }
}

/** What a program returns: one tensor, or several with the keys of a dict or `_1`, `_2`, ... of a tuple as names. */
private[flambeau] final case class OutputSpec(tensors: Seq[OutputTensor]) {

  /** The only tensor, none where there are several. */
  def single: Option[OutputTensor] =
    tensors.headOption.filter(tensor => tensors.length == 1 && tensor.name.isEmpty)

  /** How many classes a classifier with this output tells of: two where it has one number a row. */
  def numClasses: Int = if (tensors.head.isScalar) 2 else tensors.head.shape.head

  /** A list of {name, dtype, shape}. */
  def json: ArrayNode = Json.array(tensors.map { tensor =>
    val json = Json.obj()
    json.replace("name", Json.of(tensor.name, "name"))
    json.put("dtype", tensor.dtype)
    json.replace("shape", Json.of(tensor.shape, "shape"))
    json
  })
}

/** A column that a model adds.
  *
  * @param param
  *   the param that names it
  * @param tensor
  *   the place of the tensor that it holds among those that the program returns; none for a struct of them all, and for
  *   a classifier's columns
  */
private[flambeau] final case class OutputColumn(param: String, field: StructField, tensor: Option[Int] = None)

private[flambeau] object OutputSpec {

  /** The inverse of `json`. The nameless tensors of a tuple get the names of their places. */
  def of(json: JsonNode): OutputSpec = {
    val items = Json.items(json)
    OutputSpec(items.zipWithIndex.map { case (item, index) =>
      val name = Option(item.get("name")).filterNot(_.isNull).map(_.asText)
      val place = if (items.length > 1) Some(s"_${index + 1}") else None
      OutputTensor(name.orElse(place), item.get("dtype").asText, Json.items(item.get("shape")).map(_.asInt))
    })
  }
}
