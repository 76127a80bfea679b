package flambeau

import flambeau.internal.saving.Metadata
import flambeau.internal.util.Json
import org.apache.spark.ml.{Pipeline, PipelineModel, PipelineStage}
import org.apache.spark.ml.util.MLReader
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.types.StructType

/** Reads pipelines that were saved from Scala or from PySpark.
  *
  * Spark's own readers refuse a pipeline with a stage that PySpark wrote by itself, since its metadata name Python's
  * classes. Here `pyspark.ml.*` means the class of `org.apache.spark.ml.*`.
  */
object PipelineModels {

  /** A fitted pipeline, with those that are nested in it.
    *
    * @param path
    *   the directory that it was saved to
    */
  def load(path: String): PipelineModel = loadStage(path) match {
    case pipeline: PipelineModel => pipeline
    case other =>
      throw new GeneralException(
        s"$path holds a ${other.getClass.getName}, not a PipelineModel; read it with PipelineModels.loadStage"
      )
  }

  /** A saved stage: a Pipeline, a PipelineModel, or one that stands by itself.
    *
    * A CrossValidatorModel or TrainValidationSplitModel that PySpark wrote by itself is read as its best model, which is
    * what scores in it.
    */
  def loadStage(path: String): PipelineStage = {
    val spark = SparkSession.active
    val metadata = Metadata.read(spark, path)
    metadata.className.replaceFirst("^pyspark\\.ml\\.pipeline\\.", "org.apache.spark.ml.") match {
      case "org.apache.spark.ml.Pipeline"      => new Pipeline(metadata.uid).setStages(stages(metadata))
      case "org.apache.spark.ml.PipelineModel" => fitted(metadata.uid, stages(metadata))
      case "pyspark.ml.tuning.CrossValidatorModel" | "pyspark.ml.tuning.TrainValidationSplitModel" =>
        loadStage(s"${metadata.path}/bestModel")
      case name => read(name.replaceFirst("^pyspark\\.", "org.apache.spark."), metadata.path)
    }
  }

  private def stages(metadata: Metadata): Array[PipelineStage] = {
    val uids = Json.texts(metadata.json.path("paramMap").get("stageUids"))
    val digits = uids.length.toString.length
    uids.zipWithIndex.map { case (uid, index) =>
      val number = index.toString.reverse.padTo(digits, '0').reverse
      loadStage(s"${metadata.path}/stages/${number}_$uid")
    }.toArray
  }

  /** A PipelineModel of these stages, which a Pipeline of nothing but fitted ones gives without looking at rows. */
  private def fitted(uid: String, stages: Array[PipelineStage]): PipelineModel = {
    val pipeline = new Pipeline(uid) {
      override def transformSchema(schema: StructType): StructType = schema
    }
    pipeline.setStages(stages).fit(SparkSession.active.emptyDataFrame)
  }

  /** What the class's own `read` makes of the path. */
  private def read(className: String, path: String): PipelineStage = {
    val cls =
      try Class.forName(className, true, Thread.currentThread.getContextClassLoader)
      catch {
        case error: ClassNotFoundException =>
          throw new GeneralException(s"$path holds a $className, which is not on the class path", error)
      }
    cls.getMethod("read").invoke(null).asInstanceOf[MLReader[_]].load(path).asInstanceOf[PipelineStage]
  }
}
