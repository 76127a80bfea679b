package flambeau

import com.fasterxml.jackson.databind.node.JsonNodeFactory
import org.apache.spark.sql.SparkSession

/** The confs `spark.flambeau.*` of a session, in a form that travels with tasks. */
private[flambeau] final case class Settings(values: Map[String, String]) {

  /** The value of a conf; none where it is not set or empty. */
  def get(name: String): Option[String] = values.get(name).filter(_.nonEmpty)

  /** The options of the object stores, as the training job's `store` holds them. */
  def storeOptions: Map[String, String] = values.collect {
    case (name, value) if name.startsWith(Settings.Store) => name.stripPrefix(Settings.Store) -> value
  }

  /** The same as a JSON object. */
  def storeJson: String = {
    val json = JsonNodeFactory.instance.objectNode()
    storeOptions.foreach { case (name, value) => json.put(name, value) }
    json.toString
  }
}

private[flambeau] object Settings {
  private val Prefix = "spark.flambeau."
  private val Store = Prefix + "store."

  def of(spark: SparkSession): Settings =
    Settings(spark.conf.getAll.collect { case (name, value) if name.startsWith(Prefix) => name -> value })
}
