package flambeau.internal.rows

import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.{Check, DataException}
import flambeau.internal.rows.Expressions.quoted
import flambeau.internal.util.Json
import org.apache.spark.sql.DataFrame
import org.apache.spark.sql.functions._
import org.apache.spark.sql.types.BinaryType

/** Parquet files with the rows. `columns` are in terms of the files, all shapes known. */
private[flambeau] final case class ShardSet(
    columns: DataColumns,
    train: Seq[String],
    validation: Seq[String],
    numRows: Long,
    numValidationRows: Long
) {

  /** The training job's `data`. */
  def jobData: ObjectNode = {
    val json = Json.obj()
    json.replace("train", Json.strings(train))
    json.replace("validation", Json.strings(validation))
    json.replace("spec", columns.specJson)
    json
  }
}

private[flambeau] object ShardSet {

  /** The files that `df` reads, their numbers of rows, and the shapes that their first row has.
    *
    * `flag` names the partition column that is true for validation rows.
    */
  def of(df: DataFrame, columns: DataColumns, flag: Option[String]): ShardSet = {
    // Sorted by directory, then by name: Spark names files by the number of the partition that wrote them.
    val files = df.inputFiles.toSeq.sortBy(uri => uri.splitAt(uri.lastIndexOf('/') + 1))
    val (train, validation, numRows, numValidationRows) = flag match {
      case None => (files, Nil, df.count(), 0L)
      case Some(name) =>
        val (flagged, others) = files.partition(uri => isTrue(PartitionPath.value(uri, name).orNull, name))
        val counts = df.groupBy(col(quoted(name)).cast("string")).count().collect()
        val (forValidation, forTraining) = counts.partition(row => isTrue(row.getString(0), name))
        (others, flagged, forTraining.map(_.getLong(1)).sum, forValidation.map(_.getLong(1)).sum)
    }
    if (numRows == 0) {
      val why = if (numValidationRows > 0) "all rows are for validation" else "there are no rows"
      throw new DataException(s"there is nothing to train on: $why")
    }
    ShardSet(withShapes(df, columns), train, validation, numRows, numValidationRows)
  }

  /** The columns with the shapes that were not known, taken from the first row; that others agree is seen in reading. */
  def withShapes(df: DataFrame, columns: DataColumns): DataColumns = {
    val unknown = columns.tensors.map(_._1).filter(_.shape.isEmpty).distinct
    if (unknown.isEmpty) columns
    else {
      val sizes = unknown.map { tensor =>
        val column = col(quoted(tensor.columns.head))
        if (df.schema(tensor.columns.head).dataType == BinaryType) length(column) else size(column)
      }
      df.select(sizes: _*).take(1).headOption.fold(columns) { row =>
        val shapes = unknown.zipWithIndex.map { case (tensor, index) =>
          tensor -> Seq(row.getInt(index))
        }.toMap
        columns.map((tensor, _) => tensor.copy(shape = tensor.shape.orElse(shapes.get(tensor))))
      }
    }
  }

  /** Whether a partition column's value says that its rows are for validation. */
  private def isTrue(value: String, column: String): Boolean = String.valueOf(value).toLowerCase match {
    case "true" | "1"  => true
    case "false" | "0" => false
    case _ =>
      throw new DataException(
        s"column '$column' holds ${Check.show(value)}; validationIndicatorCol names a column of true and false"
      )
  }
}
