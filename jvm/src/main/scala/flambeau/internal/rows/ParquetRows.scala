package flambeau.internal.rows

import flambeau.DataException
import flambeau.internal.storage.Site
import org.apache.spark.sql.{AnalysisException, DataFrame, SparkSession}
import org.apache.spark.sql.types.{BooleanType, StructType}

/** The rows of the Parquet files under a path, a directory or a file, read where they lie. Below `key=value` directories such
  * a column may tell which are for validation.
  *
  * Throws DataException for what cannot be read in place, with the way round it: tables that keep removed rows in their
  * directories, and columns that are in the files' paths only.
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

  private lazy val inPaths = PartitionPath.columns(df.inputFiles.toSeq, path)

  override def frame: DataFrame = df

  override def columns(reading: Reading): DataColumns = {
    val flag = reading.params.valueOf(reading.params.validationIndicatorCol)
    // A partition column is of the type that Spark takes its values for.
    val schema = StructType(df.schema.map { field =>
      if (flag.contains(field.name) && inPaths(field.name)) field.copy(dataType = BooleanType) else field
    })
    val columns = DataColumns.resolve(schema, reading)
    for (name <- columns.names if inPaths(name))
      throw new DataException(s"column '$name' is a partition column, and not in the files: $instead")
    columns
  }

  override def shards[T](columns: DataColumns, reading: Reading, site: Site)(use: ShardSet => T): T =
    Rows.held(site) { directory =>
      val keepsAll = columns.handleInvalid == "keep"
      columns.split match {
        case Some(Split.Indicator(name)) if inPaths(name) && !keepsAll =>
          throw new DataException(
            s"handleInvalid is '${columns.handleInvalid}', and validationIndicatorCol '$name' is a partition column: $instead"
          )
        case Some(Split.Indicator(name)) if inPaths(name) =>
          val (train, validation) = ShardSet.parted(df, Some(name))
          ShardSet.inspected(columns, site, train, validation, inPlace = true)
        case _ =>
          val scan = Scan(columns.valid(df), files = if (keepsAll) Some(df.inputFiles.toSeq) else None)
          try scan.shards(columns, site, s"$directory/bitmaps")
          catch {
            case error: NotInPlace =>
              throw new DataException(s"$path cannot be read in place, ${error.getMessage}: $instead", error)
          }
      }
    }(use)

  private def instead: String = s"""use fit(spark.read.parquet("$path")) instead"""
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
}
