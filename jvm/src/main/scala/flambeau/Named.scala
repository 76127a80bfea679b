package flambeau

import scala.collection.JavaConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.internal.util.Json

/** A loss of torch's by name with its options, or a scripted module.
  *
  * Options have the names and the defaults of torch's constructor keywords: `Loss("huber", Map("delta" -> 1.5))`.
  */
sealed trait Loss extends Serializable {

  /** As the training job's `program.loss` has it. */
  private[flambeau] def json: ObjectNode

  /** As saved estimators and params have it: a bare name where there are no options. */
  private[flambeau] def short: JsonNode
}

object Loss {

  /** A loss that torch has. */
  final case class Named private[flambeau] (name: String, options: Map[String, Any]) extends Loss {
    private[flambeau] override def json: ObjectNode = NamedJson(name, options)
    private[flambeau] override def short: JsonNode = NamedJson.short(name, options)
    override def toString: String = NamedJson.show(name, options)
  }

  /** A TorchScript archive with `forward(output, label)`, which returns the mean over the rows or one value for each row.
    */
  final case class Scripted private[flambeau] (path: String) extends Loss {
    private[flambeau] override def json: ObjectNode = Json.obj().put("script", path)
    private[flambeau] override def short: JsonNode = json
    override def toString: String = path
  }

  /** A loss that torch has, with its options' defaults. */
  def apply(name: String): Loss = Loss(name, Map.empty[String, Any])

  /** A loss that torch has. */
  def apply(name: String, options: Map[String, Any]): Loss =
    Named(NamedJson.name("loss", name), NamedJson.plain("loss", options))

  /** The scripted module at that path. */
  def script(path: String): Loss = {
    Check.Text("loss", path)
    Scripted(path)
  }

  private[flambeau] def of(json: JsonNode): Loss =
    if (json.has("script")) script(json.get("script").asText)
    else {
      val (name, options) = NamedJson.of(json)
      Loss(name, options)
    }
}

/** An optimizer of torch's by name, `sgd`, `adam`, `adamw` or `rmsprop`, with its options.
  *
  * Options have the names and the defaults of torch's constructor keywords: `Optimizer("sgd", Map("momentum" -> 0.9))`.
  */
final case class Optimizer private (name: String, options: Map[String, Any]) {

  /** As the training job's `program.optimizer` has it. */
  private[flambeau] def json: ObjectNode = NamedJson(name, options)

  /** As saved estimators and params have it: a bare name where there are no options. */
  private[flambeau] def short: JsonNode = NamedJson.short(name, options)

  override def toString: String = NamedJson.show(name, options)
}

object Optimizer {

  /** An optimizer with its options' defaults. */
  def apply(name: String): Optimizer = Optimizer(name, Map.empty[String, Any])

  /** An optimizer with options. */
  def apply(name: String, options: Map[String, Any]): Optimizer =
    new Optimizer(NamedJson.name("optimizer", name), NamedJson.plain("optimizer", options))

  private[flambeau] def of(json: JsonNode): Optimizer = {
    val (name, options) = NamedJson.of(json)
    Optimizer(name, options)
  }
}

/** `{"name", "options"}`, the JSON of what torch has by name. */
private[flambeau] object NamedJson {
  def apply(name: String, options: Map[String, Any]): ObjectNode = {
    val json = Json.obj().put("name", name)
    json.set[ObjectNode]("options", Json.of(options, name))
    json
  }

  def short(name: String, options: Map[String, Any]): JsonNode =
    if (options.isEmpty) Json.of(name, "name") else NamedJson(name, options)

  def of(json: JsonNode): (String, Map[String, Any]) =
    if (json.isTextual) (json.asText, Map.empty)
    else (
      json.get("name").asText,
      Json.fields(json.get("options")).map { case (key, value) => key -> plain(value) }.toMap
    )

  def show(name: String, options: Map[String, Any]): String =
    if (options.isEmpty) name else s"$name ${Json.text(Json.of(options, name))}"

  /** A name that is not empty. */
  def name(what: String, name: String): String = {
    Check.Text(what, name)
    name
  }

  /** Options as values that compare: numbers, booleans, strings and sequences of them. */
  def plain(what: String, options: Map[String, Any]): Map[String, Any] =
    options.map { case (key, value) => key -> plain(Json.of(value, s"$what: option '$key'")) }

  private def plain(json: JsonNode): Any =
    if (json.isNull) null
    else if (json.isBoolean) json.booleanValue
    else if (json.isIntegralNumber) json.longValue
    else if (json.isNumber) json.doubleValue
    else if (json.isArray) json.elements().asScala.map(plain).toVector
    else if (json.isObject) Json.fields(json).map { case (key, value) => key -> plain(value) }.toMap
    else json.asText
}
