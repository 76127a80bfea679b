package flambeau.internal.mlflow

import com.fasterxml.jackson.databind.JsonNode
import flambeau.{GeneralException, ParamException}
import flambeau.internal.saving.Metadata
import flambeau.internal.storage.{Directory, WorkDirectory}
import flambeau.internal.util.{Json, Redacted}
import org.apache.spark.sql.SparkSession

/** The registered models of a tracking server, and the models that URIs of MLflow's name. Throws as the server does. */
private[flambeau] final class ModelRegistry(server: TrackingServer) {
  import ModelRegistry._

  /** Makes a version of a registered model, which is made where there is none, and returns its number.
    *
    * @param place
    *   the URI of the model among the artifacts of the run
    */
  def register(name: String, place: String, run: String): String = {
    try server.post("registered-models/create", Json.obj().put("name", name))
    catch { case error: TrackingException if error.code == "RESOURCE_ALREADY_EXISTS" => () }
    val asked = Json.obj().put("name", name).put("source", place).put("run_id", run)
    versionOf(server.post("model-versions/create", asked))
  }

  /** Has an alias of a registered model name this version of it. */
  def setAlias(name: String, alias: String, version: String): Unit =
    server.post(
      "registered-models/alias",
      Json.obj().put("name", name).put("alias", alias).put("version", version)
    )

  /** The directory that Flambeau has saved in the model of that URI: where it lies or, where the server keeps it, a copy on
    * this machine that goes with this process. Throws ParamException for what is no model's URI, and FlambeauException for a
    * model that is not Flambeau's.
    */
  def saved(spark: SparkSession, uri: String): String = {
    val place = s"${location(uri)}/${ModelFiles.Data}"
    val path =
      if (!place.startsWith("mlflow-artifacts:")) place
      else {
        val folder = WorkDirectory.newTemporary()
        try server.download(server.artifacts(place), folder)
        catch {
          case error: Throwable =>
            WorkDirectory.removeLocal(folder)
            throw error
        }
        folder.toUri.toString
      }
    if (!new Directory(spark, path).exists(Metadata.Part))
      throw new GeneralException(
        s"$uri holds no model of Flambeau's: ${Redacted(place)} has no ${Metadata.Part}"
      )
    path
  }

  /** The registered model and the number of its version that a URI names. Throws ParamException for a URI of another kind. */
  def version(uri: String): (String, String) = uri match {
    case Numbered(name, number) => name -> number
    case Aliased(name, alias) =>
      name -> versionOf(server.get("registered-models/alias", "name" -> name, "alias" -> alias))
    case _ =>
      throw new ParamException(
        s"'$uri' names no version of a registered model: give models:/<name>@<alias> or models:/<name>/<version>"
      )
  }

  /** The URI of the directory with the file `MLmodel`. */
  private def location(uri: String): String = {
    val (found, below) = uri match {
      case Run(id, path) =>
        server.run(id).path("info") -> s"/${path.split('/').map(TrackingServer.segment).mkString("/")}"
      case Logged(id) =>
        server.get(s"logged-models/${TrackingServer.segment(id)}").path("model").path("info") -> ""
      case _ =>
        val (name, number) = version(uri)
        server.get("model-versions/get-download-uri", "name" -> name, "version" -> number) -> ""
    }
    found.path("artifact_uri").asText match {
      case ""    => throw new GeneralException(s"the tracking server does not tell where $uri lies")
      case place => s"$place$below"
    }
  }
}

private object ModelRegistry {
  private val Run = "runs:/+([^/]+)/(.+)".r
  private val Aliased = "models:/+([^/]+)@([^/@]+)".r
  private val Numbered = "models:/+([^/]+)/([0-9]+)".r
  private val Logged = "models:/+([^/@]+)".r

  private def versionOf(answer: JsonNode): String = answer.path("model_version").get("version").asText
}
