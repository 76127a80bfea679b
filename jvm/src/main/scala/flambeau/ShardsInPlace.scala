package flambeau

import java.net.URLDecoder

import scala.util.Try

import org.apache.spark.sql.{AnalysisException, SparkSession}
import org.apache.spark.sql.types.{ArrayType, DataType}

/** The Parquet files of a directory as shards, used where they lie.
  *
  * Throws DataException for what cannot be read in place, with the way round it: tables that keep removed rows in their
  * directories, Spark vectors, and columns that are in the files' paths only.
  */
private[flambeau] object ShardsInPlace {
  private val TableFormats =
    Seq("Delta" -> "_delta_log", "Iceberg" -> "metadata/*.metadata.json", "Hudi" -> ".hoodie")

  def apply(
      spark: SparkSession,
      path: String,
      params: HasTrainingParams,
      labelDtype: Option[String],
      wide: Boolean
  ): ShardSet = {
    refuseTables(spark, path)
    val df =
      try spark.read.parquet(path)
      catch {
        case error: AnalysisException =>
          throw new DataException(s"$path cannot be read as Parquet: ${error.getMessage}", error)
      }
    val instead = s"""use fit(spark.read.parquet("$path")) instead"""
    val columns = DataColumns.tensors(df.schema, params, labelDtype, wide)
    val inPaths = PartitionPath.columns(df.inputFiles.toSeq, path)
    for ((tensor, role) <- columns.tensors; name <- tensor.columns)
      notInPlace(name, Columns.findField(df.schema, name, role.name).dataType, inPaths)
        .foreach(why => throw new DataException(s"column '$name' $why: $instead"))
    val flag = params.valueOf(params.validationIndicatorCol)
    for (name <- flag if !inPaths.contains(name))
      throw new ParamException(
        s"validationIndicatorCol '$name' is not a partition column, and files in place are split by their paths only: " +
          instead
      )
    if (flag.isEmpty && params.getValidationFraction > 0)
      throw new ParamException(s"validationFraction splits rows, and files in place stay whole: $instead")
    Shards.describe(df, columns, flag)
  }

  private def refuseTables(spark: SparkSession, path: String): Unit =
    // As Spark itself resolves it: a path without a scheme is one of its default file system.
    for ((table, marker) <- TableFormats if exists(spark, s"${path.replaceAll("/+$", "")}/$marker"))
      throw new DataException(
        s"$path is a $table table: its directory holds removed rows too. Read it as a table, for example with " +
          s"""fit(spark.read.format("${table.toLowerCase}").load("$path"))"""
      )

  /** Whether Spark finds something at a path or glob. */
  private def exists(spark: SparkSession, path: String): Boolean =
    // Twice, since Spark looks for a streaming sink's metadata in a single path, and warns with a stack trace where
    // there is no such path.
    try spark.read.text(path, path).schema.nonEmpty
    catch { case _: AnalysisException => false }

  /** Why a column's values cannot be read out of its files as they are; none where they can. */
  private def notInPlace(name: String, dtype: DataType, inPaths: Set[String]): Option[String] = dtype match {
    case vector if Columns.isVector(vector) => Some("holds Spark vectors, which are not read in place")
    case _ if inPaths.contains(name)        => Some("is a partition column, and not in the files")
    case ArrayType(_: ArrayType, _) => Some(s"is ${Columns.typeName(dtype)}, which is not read in place")
    case _                          => None
  }
}

/** The `key=value` directories in files' paths. */
private[flambeau] object PartitionPath {

  /** The names of the partition columns of files below `root`. */
  def columns(files: Seq[String], root: String): Set[String] = {
    val base = root.replaceAll("/+$", "").split('/').lastOption.getOrElse("")
    val directories = files.map(decoded).flatMap { uri =>
      val at = uri.indexOf(s"/$base/")
      if (at < 0) Nil else uri.substring(at + base.length + 2).split('/').dropRight(1).toSeq
    }
    directories.filter(_.contains('=')).map(part => part.substring(0, part.indexOf('='))).toSet
  }

  /** The value of a partition column in a file's path; none where the path has none. */
  def value(uri: String, name: String): Option[String] =
    uri.split('/').collectFirst {
      case part if part.contains('=') && decoded(part.substring(0, part.indexOf('='))) == name =>
        decoded(part.substring(part.indexOf('=') + 1))
    }

  private def decoded(text: String): String =
    Try(URLDecoder.decode(text.replace("+", "%2B"), "UTF-8")).getOrElse(text)
}
