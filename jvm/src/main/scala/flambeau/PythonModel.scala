package flambeau

import com.fasterxml.jackson.databind.JsonNode
import flambeau.jni.{NativeLibrary, StoredFile}
import flambeau.internal.model.{Counts, OutputSpec, Trained}
import flambeau.internal.session.Settings
import flambeau.internal.util.Json
import org.apache.spark.sql.{DataFrame, SparkSession}

import scala.collection.JavaConverters._

/** Scores with a model that PySpark holds: what its `transform` calls where its runtime is native, or auto in a session that
  * has `FlambeauExtensions`.
  */
object PythonModel {

  /** A model's program of one form, which the session hands out to its executors: for `transform`, as often as it is
    * scored with.
    */
  def program(session: SparkSession, form: String, bytes: Array[Byte]): StoredFile =
    StoredFile.handedOut(session.sparkContext, s"$form program", bytes)

  /** The rows with the outputs' columns.
    *
    * @param message
    *   JSON: `class`, `uid`, `params` and `defaults` of the model; `weights` as `{"uri", "size", "sha256"}`; `inputs`,
    *   `output` and `classes` as a saved model's metadata has them; `libtorch`, the directory where Python's own is, or
    *   null: it counts where no setting names one
    * @param programs
    *   what `program` made, by form
    */
  def transform(message: String, programs: java.util.Map[String, StoredFile], df: DataFrame): DataFrame = {
    val json = Json.parse(message, "the model")
    modelOf(json, programs.asScala.toMap).scored(df, settingsOf(json, df.sparkSession))
  }

  /** Throws where the JVM does not score with the model, or rows one by one alone, which Python does faster: a row of zeros
    * is scored here, on the CPU. The message and the programs are those of `transform`.
    */
  def tryOut(message: String, programs: java.util.Map[String, StoredFile], session: SparkSession): Unit = {
    val json = Json.parse(message, "the model")
    modelOf(json, programs.asScala.toMap).tryScoring(session, settingsOf(json, session))
  }

  /** The session's, with the libtorch of the message where they name none. */
  private def settingsOf(json: JsonNode, session: SparkSession): Settings = {
    val set = Settings.of(session)
    val found = Option(json.get("libtorch")).filterNot(_.isNull).map(_.asText)
    val libtorch = set.get(NativeLibrary.LibtorchKey).orElse(found)
    Settings(set.values ++ libtorch.map(NativeLibrary.LibtorchKey -> _))
  }

  private def modelOf(json: JsonNode, programs: Map[String, StoredFile]): TorchModel = {
    val trained = Trained(
      programs = programs,
      reasons = Map.empty,
      weights = StoredFile.of(json.get("weights")),
      inputs = Json.items(json.get("inputs")).map(TensorColumns.of),
      output = OutputSpec.of(json.get("output")),
      classes = json.path("classes").asText,
      isWide = false,
      judgedBy = Json.obj(),
      history = Json.obj(),
      counts = Counts(0, 0, 0, None)
    )
    val name = json.get("class").asText
    val make =
      ModelKind.maker(name).getOrElse(throw new IllegalArgumentException(s"$name is no model's class"))
    val model = make(json.get("uid").asText, trained)
    model.setFromJson(json.get("defaults"), asDefault = true)
    model.setFromJson(json.get("params"), asDefault = false)
    model
  }
}
