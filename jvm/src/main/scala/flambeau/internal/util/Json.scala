package flambeau.internal.util

import com.fasterxml.jackson.core.JsonProcessingException
import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.{ArrayNode, JsonNodeFactory, ObjectNode}
import flambeau.{GeneralException, ParamException}

import scala.collection.JavaConverters._

/** JSON as Jackson's trees, the only form of JSON that is the same in all versions of Spark. */
private[flambeau] object Json {
  private val mapper = new ObjectMapper()
  private val nodes = JsonNodeFactory.instance

  /** An empty object. */
  def obj(): ObjectNode = nodes.objectNode()

  /** The tree of a JSON text. Throws FlambeauException, with `what` as the text's name, where it is none. */
  def parse(text: String, what: String = "the text"): JsonNode =
    try mapper.readTree(text)
    catch {
      case error: JsonProcessingException =>
        throw new GeneralException(s"$what is not JSON: ${error.getOriginalMessage}", error)
    }

  /** The tree as text in one line. */
  def text(node: JsonNode): String = mapper.writeValueAsString(node)

  /** An array of strings. */
  def strings(items: Iterable[String]): ArrayNode = array(items.map(nodes.textNode))

  /** An array of these trees. */
  def array(items: Iterable[JsonNode]): ArrayNode = {
    val made = nodes.arrayNode()
    items.foreach(made.add)
    made
  }

  /** The tree of a plain value: null, a boolean, a number, a string, an array, a collection or a map of those.
    *
    * Throws ParamException, with `what` as the value's name, for any other.
    */
  def of(value: Any, what: String): JsonNode = value match {
    case null | None                  => nodes.nullNode()
    case Some(inner)                  => of(inner, what)
    case node: JsonNode               => node
    case flag: Boolean                => nodes.booleanNode(flag)
    case text: String                 => nodes.textNode(text)
    case number: Byte                 => nodes.numberNode(number.toLong)
    case number: Short                => nodes.numberNode(number.toLong)
    case number: Int                  => nodes.numberNode(number)
    case number: Long                 => nodes.numberNode(number)
    case number: Float                => nodes.numberNode(number.toString.toDouble)
    case number: Double               => nodes.numberNode(number)
    case number: BigDecimal           => nodes.numberNode(number.bigDecimal)
    case number: java.math.BigDecimal => nodes.numberNode(number)
    case items: Array[_]              => array(items.toSeq.map(of(_, what)))
    case map: scala.collection.Map[_, _] =>
      val made = obj()
      map.foreach { case (key, item) => made.set[JsonNode](key.toString, of(item, what)) }
      made
    case items: Iterable[_]           => array(items.map(of(_, what)))
    case map: java.util.Map[_, _]     => of(map.asScala, what)
    case items: java.lang.Iterable[_] => array(items.asScala.map(of(_, what)))
    case other =>
      throw new ParamException(
        s"$what holds a ${other.getClass.getName}; give a number, a boolean, a string, or a list of those"
      )
  }

  /** The elements of an array; none where the node is missing or null. */
  def items(node: JsonNode): Seq[JsonNode] = if (node == null) Nil else node.elements().asScala.toList

  /** The fields of an object, in order; none where the node is missing or null. */
  def fields(node: JsonNode): Seq[(String, JsonNode)] =
    if (node == null) Nil else node.fieldNames().asScala.toList.map(name => name -> node.get(name))

  /** The elements of an array of strings. */
  def texts(node: JsonNode): Seq[String] = items(node).map(_.asText)
}
