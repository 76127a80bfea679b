package flambeau.internal.rows

import flambeau.{DataException, ParamException}
import flambeau.internal.session.Session
import flambeau.internal.storage.Site
import org.apache.spark.sql.{AnalysisException, DataFrame, SparkSession}
import org.apache.spark.sql.types.{ArrayType, DataType}

/** The rows of the Parquet files under a path, a directory or a file, read where they lie. Below `key=value` directories such
  * a column may tell which are for validation.
  *
  * Throws DataException for what cannot be read in place, with the way round it: tables that keep removed rows in their
  * directories, Spark vectors, and columns that are in the files' paths only.
  */
private[flambeau] final class ParquetRows(spark: SparkSession, path: String) extends Rows {
  import ParquetRows._

  private lazy val df: DataFrame = {
    refuseTables(spark, path)
    try spark.read.parquet(path)
    catch {
      case error: AnalysisException =>
        throw new DataException(s"$path cannot be read as Parquet: ${error.getMessage}", error)
    }
  }

  override def columns(reading: Reading): DataColumns = {
    val params = reading.params
    val instead = s"""use fit(spark.read.parquet("$path")) instead"""
    val columns = DataColumns.tensors(df.schema, reading)
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
    ShardSet.withShapes(df, columns).copy(split = flag.map(Split.Indicator(_)))
  }

  override def shards[T](columns: DataColumns, site: Site)(use: ShardSet => T): T = {
    val flag = columns.split.collect { case Split.Indicator(name) => name }
    use(Session.interruptible(spark.sparkContext)(ShardSet.of(df, columns, flag)))
  }
}

private[flambeau] object ParquetRows {
  private val TableFormats =
    Seq("Delta" -> "_delta_log", "Iceberg" -> "metadata/*.metadata.json", "Hudi" -> ".hoodie")

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
