package flambeau

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.internal.util.Json
import org.apache.spark.ml.param.{Param, Params}

/** Params that refuse a wrong value with ParamException: the param's name, the value and what is allowed.
  *
  * Those of Spark ML's own traits refuse it when it is set by its setter, and where it comes by a ParamMap, when the
  * params are used.
  */
trait CheckedParams extends Params {

  /** A param's name, doc, default and value. */
  override def explainParam(param: Param[_]): String = {
    val text = super.explainParam(param)
    SharedParams.declarations.get(param.name).fold(text) { declared =>
      s"${param.name}: ${declared.doc}${text.stripPrefix(s"${param.name}: ${param.doc}")}"
    }
  }

  /** Sets a param whose value is allowed. */
  private[flambeau] def setChecked[T](param: Param[T], value: T): this.type = {
    SharedParams.declarations.get(param.name).foreach(_.check(param.name, value))
    set(param, value)
  }

  /** Throws ParamException for the first param with a value that is not allowed. */
  private[flambeau] def checkParams(): Unit =
    for (param <- params; declared <- SharedParams.declarations.get(param.name); value <- valueOf(param))
      declared.check(param.name, value)

  /** A param's value or default; none where it has neither. */
  private[flambeau] def valueOf[T](param: Param[T]): Option[T] =
    if (isDefined(param)) Some(getOrDefault(param)) else None

  /** The values that were set, or the defaults, of these params as JSON. */
  private[flambeau] def jsonOf(values: Seq[(Param[_], Any)]): ObjectNode = {
    val json = Json.obj()
    values.foreach { case (param, value) =>
      json.replace(param.name, Json.parse(param.asInstanceOf[Param[Any]].jsonEncode(value), param.name))
    }
    json
  }

  /** Sets the params that a JSON object names, as their setters or as their defaults do; passes over those that only
    * Python has. Throws ParamException for a name that is none.
    */
  private[flambeau] def setFromJson(values: JsonNode, asDefault: Boolean): Unit =
    for ((written, json) <- Json.fields(values) if !CheckedParams.PythonOnly.contains(written)) {
      val name =
        // As PySpark's estimators had several columns, packed.
        if (written == "featuresCol" && json.isArray) "featuresCols"
        else CheckedParams.Renamed.getOrElse(written, written)
      if (!hasParam(name)) throw new ParamException(s"${getClass.getSimpleName} has no param '$name'")
      val param = getParam(name).asInstanceOf[Param[Any]]
      val value = param.jsonDecode(Json.text(json))
      if (asDefault) setDefault(param, value) else set(param, value)
    }
}

private object CheckedParams {

  /** Which runtime trains: in Scala there is one. */
  private val PythonOnly = Set("runtime")

  /** Former names of params, which saved estimators may still say, and their present ones. */
  private val Renamed =
    Map("timeout" -> "collectiveTimeout", "stepSize" -> "learningRate", "monitorMinDelta" -> "minDelta")
}
