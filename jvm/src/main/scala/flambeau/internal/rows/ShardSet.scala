package flambeau.internal.rows

import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.{Check, DataException}
import flambeau.internal.rows.Expressions.quoted
import flambeau.internal.storage.Site
import flambeau.internal.util.Json
import org.apache.spark.sql.DataFrame
import org.apache.spark.sql.functions._
import org.apache.spark.sql.types.BinaryType

/** Parquet files with the rows. `columns` are in terms of the files, all shapes known. `bitmapsDigest` is that of the bitmaps
  * that say which rows of the files these are, where they are not all.
  */
private[flambeau] final case class ShardSet(
    columns: DataColumns,
    train: Seq[DataFile],
    validation: Seq[DataFile],
    numRows: Long,
    numValidationRows: Long,
    bitmapsDigest: Option[String] = None
) {

  /** The files that the rows lie in, each once. */
  def uris: Seq[String] = (train ++ validation).map(_.uri).distinct

  /** The training job's `data`. */
  def jobData: ObjectNode = {
    val json = Json.obj()
    json.replace("train", Json.array(train.map(_.json)))
    json.replace("validation", Json.array(validation.map(_.json)))
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
    val (train, validation) = parted(df, flag)
    val (numRows, numValidationRows) = flag match {
      case None => (df.count(), 0L)
      case Some(name) =>
        val counts = df.groupBy(col(quoted(name)).cast("string")).count().collect()
        val (forValidation, forTraining) = counts.partition(row => isTrue(row.getString(0), name))
        (forTraining.map(_.getLong(1)).sum, forValidation.map(_.getLong(1)).sum)
    }
    refuseNone(numRows, numValidationRows)
    ShardSet(withShapes(df, columns), train, validation, numRows, numValidationRows)
  }

  /** The files as a training finds them. Throws DataException and StoreException as it would. */
  def inspected(
      columns: DataColumns,
      site: Site,
      train: Seq[DataFile],
      validation: Seq[DataFile]
  ): ShardSet = {
    val (trained, numRows) = inspect(columns, site, train)
    val (known, numValidationRows) = inspect(trained, site, validation)
    refuseNone(numRows, numValidationRows)
    ShardSet(known, train, validation, numRows, numValidationRows)
  }

  /** The files that `df` reads: those of the rows that are trained on, and those that the partition column `flag` tells to be
    * for validation.
    */
  def parted(df: DataFrame, flag: Option[String]): (Seq[DataFile], Seq[DataFile]) = {
    val (validation, train) = DataFile.of(df).partition { file =>
      flag.exists(name => isTrue(PartitionPath.value(file.uri, name).orNull, name))
    }
    (train, validation)
  }

  /** The columns with all shapes known, and the number of rows. */
  private def inspect(columns: DataColumns, site: Site, files: Seq[DataFile]): (DataColumns, Long) =
    if (files.isEmpty) (columns, 0L)
    else {
      val question = Site.question("inspectRows")
      question.replace("files", Json.array(files.map(_.json)))
      question.replace("spec", columns.specJson)
      val found = site.ask(question)
      if (found.isNull) (columns, 0L)
      else (DataColumns.of(found.get("spec"), columns.split), found.get("numRows").asLong)
    }

  private def refuseNone(numRows: Long, numValidationRows: Long): Unit = if (numRows == 0) {
    val why = if (numValidationRows > 0) "all rows are for validation" else "there are no rows"
    throw new DataException(s"there is nothing to train on: $why")
  }

  /** The columns with the shapes that were not known, taken from the first row; that others agree is seen in reading. */
  private def withShapes(df: DataFrame, columns: DataColumns): DataColumns = {
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
