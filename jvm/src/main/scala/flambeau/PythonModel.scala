package flambeau

import com.fasterxml.jackson.databind.JsonNode
import flambeau.jni.{NativeLibrary, StoredFile}
import flambeau.internal.model.{Counts, OutputSpec, Trained}
import flambeau.internal.session.Settings
import flambeau.internal.util.Json
import org.apache.spark.sql.{DataFrame, SparkSession}

/** Scores with a model that PySpark holds: what its `transform` calls where its runtime is native. */
object PythonModel {

  /** The rows with the outputs' columns.
    *
    * @param message
    *   JSON: `class`, `uid`, `params` and `defaults` of the model; `programs` by form, each as `{"content", "sha256"}` with
    *   its bytes in base64; `weights` as `{"uri", "size", "sha256"}`; `inputs`, `output` and `classes` as a saved model's
    *   metadata has them; `libtorch`, the directory where Python's own is, or null: it counts where no setting names one
    */
  def transform(message: String, df: DataFrame): DataFrame = {
    val json = Json.parse(message, "the model")
    val set = Settings.of(df.sparkSession)
    val found = Option(json.get("libtorch")).filterNot(_.isNull).map(_.asText)
    val libtorch = set.get(NativeLibrary.LibtorchKey).orElse(found)
    val settings = Settings(set.values ++ libtorch.map(NativeLibrary.LibtorchKey -> _))
    modelOf(json, df.sparkSession).scored(df, settings)
  }

  private def modelOf(json: JsonNode, spark: SparkSession): TorchModel = {
    val trained = Trained(
      programs = Json.fields(json.get("programs")).map { case (form, file) =>
        val bytes = file.get("content").binaryValue
        form -> StoredFile.handedOut(spark.sparkContext, s"$form program", bytes, file.get("sha256").asText)
      }.toMap,
      reasons = Map.empty,
      weights = StoredFile.of(json.get("weights")),
      inputs = Json.items(json.get("inputs")).map(TensorColumns.of),
      output = OutputSpec.of(json.get("output")),
      classes = json.path("classes").asText,
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
