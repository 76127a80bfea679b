package flambeau.internal.saving

import java.nio.charset.StandardCharsets.UTF_8

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.{Build, CheckedParams, GeneralException}
import flambeau.internal.model.ProgramForms
import flambeau.internal.storage.{Directory, SavedFile}
import flambeau.internal.util.Json
import org.apache.spark.sql.SparkSession

import scala.collection.immutable.ListMap

/** Spark ML's metadata of a saved stage, with an object `flambeau` beside its own fields. */
private[flambeau] final case class Metadata(path: String, json: ObjectNode) {

  /** The class that was saved. */
  def className: String = json.path("class").asText

  /** The stage's uid. */
  def uid: String = json.path("uid").asText

  /** What is Flambeau's own. */
  def ours: JsonNode = json.path("flambeau")

  /** A file of the directory, as it was when it was saved. Throws FlambeauException for one that the metadata lacks. */
  def file(name: String): SavedFile = {
    val entry = ours.path("files").path(name)
    if (entry.isMissingNode)
      throw new GeneralException(s"$path is damaged: its metadata does not tell of $name")
    SavedFile.of(entry)
  }

  /** The forms of the program, by name, with their files' names. */
  def programs: Map[String, String] =
    Json.fields(ours.get("programs")).collect {
      case (form, file) if ProgramForms.fileNames.contains(form) => form -> file.asText
    }.toMap

  /** Why the forms that are missing are. */
  def reasons: Map[String, String] = Metadata.reasonsOf(ours)

  /** Sets an instance's params and defaults to those that were saved. */
  def setParams(instance: CheckedParams): Unit = {
    instance.setFromJson(json.get("defaultParamMap"), asDefault = true)
    instance.setFromJson(json.get("paramMap"), asDefault = false)
  }

  /** Throws FlambeauException for a format that this version does not read. */
  def checkVersion(): Unit = {
    val version = ours.path("formatVersion")
    if (version.asInt != Metadata.FormatVersion)
      throw new GeneralException(
        s"$path has format ${version.asText("none")}, written by Flambeau ${ours.path("flambeauVersion").asText("?")}; " +
          s"this version reads ${Metadata.FormatVersion}"
      )
  }
}

private[flambeau] object Metadata {
  val FormatVersion = 1

  /** The file with the metadata, where no Spark job has written them. */
  val Part = "metadata/part-00000"

  /** The directory of a stage in that of a pipeline. */
  private val InPipeline = """(.+)/stages/\d+_[^/]+""".r

  /** The classes of pipelines, of both languages, with those of Scala. */
  private val Pipelines =
    (for (name <- Seq("Pipeline", "PipelineModel"); from <- Seq("pyspark.ml.pipeline", "org.apache.spark.ml"))
      yield s"$from.$name" -> s"org.apache.spark.ml.$name").toMap

  /** Why forms of a program are missing, in brackets for a message; empty where there are no reasons. */
  def bracketed(reasons: Map[String, String]): String =
    if (reasons.isEmpty) "" else reasons.map { case (form, why) => s"$form: $why" }.mkString(" (", "; ", ")")

  /** The reasons that a saved directory's index gives, by form. */
  def reasonsOf(index: JsonNode): Map[String, String] =
    ListMap(Json.fields(index.get("reasons")).map { case (form, why) => form -> why.asText }: _*)

  /** Reads the metadata of the stage that was saved to a path. */
  def read(spark: SparkSession, path: String): Metadata = {
    val plain = path.replaceAll("/+$", "")
    val directory = new Directory(spark, plain)
    if (!directory.exists("metadata"))
      throw new GeneralException(
        s"$plain has no metadata; it is not a saved stage, or was not written to its end"
      )
    val lines = spark.read.text(s"$plain/metadata").head(1)
    if (lines.isEmpty)
      throw new GeneralException(
        s"$plain has no metadata; it is not a saved stage, or was not written to its end"
      )
    parsed(plain, lines.head.getString(0))
  }

  /** Reads what [[ModelWriter.saveHere]] wrote to a directory, by this process alone. */
  def readHere(spark: SparkSession, path: String): Metadata = {
    val directory = new Directory(spark, path)
    parsed(directory.path, new String(directory.read(Part), UTF_8))
  }

  private def parsed(path: String, text: String): Metadata =
    Json.parse(text, s"the metadata of $path") match {
      case json: ObjectNode => Metadata(path, json)
      case _                => throw new GeneralException(s"the metadata of $path is no JSON object")
    }

  /** Writes the metadata of an instance, with `ours` and the versions as the object `flambeau`. Without the params in
    * `skip`.
    */
  def write(
      spark: SparkSession,
      path: String,
      instance: CheckedParams,
      ours: ObjectNode,
      skip: Seq[String] = Nil
  ): Unit = {
    writeLine(spark, path, of(spark, instance, ours, skip), "error")
    sharePipelines(spark, path)
  }

  /** What `write` writes. */
  def of(
      spark: SparkSession,
      instance: CheckedParams,
      ours: ObjectNode,
      skip: Seq[String] = Nil
  ): ObjectNode = {
    val params = instance.params.toSeq
    val json = Json
      .obj()
      .put("class", instance.getClass.getName)
      .put("timestamp", System.currentTimeMillis())
      .put("sparkVersion", spark.version)
      .put("uid", instance.uid)
    json.replace(
      "paramMap",
      instance.jsonOf(params.filter(param => instance.isSet(param) && !skip.contains(param.name)).map {
        param =>
          param -> instance.getOrDefault(param)
      })
    )
    json.replace(
      "defaultParamMap",
      instance.jsonOf(params.flatMap(param => instance.getDefault(param).map(param -> _)))
    )
    val all = Json
      .obj()
      .put("formatVersion", FormatVersion)
      .put("flambeauVersion", Build.version)
      .put("torchVersion", Build.torch)
    json.replace("flambeau", all.setAll[ObjectNode](ours))
    json
  }

  private def writeLine(spark: SparkSession, path: String, json: ObjectNode, mode: String): Unit = {
    import spark.implicits._
    Seq(Json.text(json)).toDF("value").coalesce(1).write.mode(mode).text(s"$path/metadata")
  }

  /** Lets Spark's own readers of both languages take the pipeline that the stage at a path was saved in, and those around
    * that. Scala's go by the class that the metadata name, and PySpark's by a param `language`.
    */
  private def sharePipelines(spark: SparkSession, path: String): Unit =
    path.replaceAll("/+$", "") match {
      case InPipeline(parent) if new Directory(spark, parent).exists("metadata") =>
        val metadata = read(spark, parent)
        for (name <- Pipelines.get(metadata.className)) {
          val params = metadata.json.path("paramMap").deepCopy[ObjectNode]().put("language", "Python")
          val shared = metadata.json.deepCopy().put("class", name).set[ObjectNode]("paramMap", params)
          if (shared != metadata.json) writeLine(spark, parent, shared, "overwrite")
          sharePipelines(spark, parent)
        }
      case _ => ()
    }
}
