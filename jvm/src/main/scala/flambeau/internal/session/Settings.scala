package flambeau.internal.session

import java.util.concurrent.ConcurrentHashMap

import com.fasterxml.jackson.databind.node.JsonNodeFactory
import org.apache.spark.sql.SparkSession
import org.slf4j.LoggerFactory

/** The confs `spark.flambeau.*` of a session, in a form that travels with tasks. */
private[flambeau] final case class Settings(values: Map[String, String]) {

  /** The value of a conf; none where it is not set or empty. */
  def get(name: String): Option[String] = values.get(name).filter(_.nonEmpty)

  /** The options of the object stores, as the training job's `store` holds them. */
  def storeOptions: Map[String, String] = values.collect {
    case (name, value) if name.startsWith(Settings.Store) =>
      name.stripPrefix(Settings.Store).stripPrefix(Settings.Secret) -> value
  }

  /** The same as a JSON object. */
  def storeJson: String = {
    val json = JsonNodeFactory.instance.objectNode()
    storeOptions.foreach { case (name, value) => json.put(name, value) }
    json.toString
  }

  /** The names alone: values may be secrets. */
  override def toString: String = s"Settings(${values.keys.toSeq.sorted.mkString(", ")})"
}

private[flambeau] object Settings {
  private val log = LoggerFactory.getLogger("flambeau")

  private val Prefix = "spark.flambeau."
  private val Store = Prefix + "store."

  /** What `spark.redaction.regex` matches by default, so that Spark shows no value whose name begins with it. */
  private val Secret = "secret."

  /** Names of options that are secrets, as object_store has them: account keys, service account keys, signatures. */
  private val SecretOption = "(?i)key$|sas|credential|secret|password|token".r

  def of(spark: SparkSession): Settings = {
    val settings =
      Settings(spark.conf.getAll.collect { case (name, value) if name.startsWith(Prefix) => name -> value })
    val redacted = spark.conf.get("spark.redaction.regex", DefaultRedaction).r
    for (name <- settings.values.keys.toSeq.sorted if name.startsWith(Store) && !warned.contains(name)) {
      val option = name.stripPrefix(Store)
      if (
        SecretOption.findFirstIn(option).isDefined && redacted.findFirstIn(name).isEmpty && warned.add(name)
      )
        log.warn(s"Spark's UI and logs show the value of $name: call it $Store$Secret$option")
    }
    settings
  }

  // org.apache.spark.internal.config.SECRET_REDACTION_PATTERN
  private val DefaultRedaction = "(?i)secret|password|token|access[.]?key"

  /** The names that were told of, once in each process. */
  private val warned = ConcurrentHashMap.newKeySet[String]()
}
