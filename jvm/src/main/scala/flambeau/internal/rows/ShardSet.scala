package flambeau.internal.rows

import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.{Check, DataException}
import flambeau.internal.storage.Site
import flambeau.internal.util.Json
import org.apache.spark.sql.DataFrame

/** Parquet files with the rows. `columns` are in terms of the files, all shapes known.
  *
  * @param objection
  *   why they had better be written anew than be read where they lie
  * @param inPlace
  *   whether the files are the user's, and no copy
  * @param numBytes
  *   what the files take, 0 where that was not looked at
  * @param selectionDigest
  *   of what says which rows of the files these are, where they are not all
  */
private[flambeau] final case class ShardSet(
    columns: DataColumns,
    train: Seq[DataFile],
    validation: Seq[DataFile],
    numRows: Long,
    numValidationRows: Long,
    objection: Option[String] = None,
    inPlace: Boolean = false,
    numBytes: Long = 0,
    selectionDigest: Option[String] = None
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

  /** Files, with the rows and shapes that a training finds there. Throws DataException and StoreException as it would. */
  def inspected(
      columns: DataColumns,
      site: Site,
      train: Seq[DataFile],
      validation: Seq[DataFile],
      inPlace: Boolean
  ): ShardSet = {
    val question = Site.question("inspectRows")
    question.replace("train", Json.array(train.map(_.json)))
    question.replace("validation", Json.array(validation.map(_.json)))
    question.replace("spec", columns.specJson)
    val found = site.ask(question)
    val (numRows, numValidationRows) = (found.get("numRows").asLong, found.get("numValidationRows").asLong)
    refuseNone(numRows, numValidationRows)
    val known = DataColumns.of(found.get("spec"), columns.split)
    val objection = Option(found.get("objection").textValue)
    val numBytes = found.get("numBytes").asLong
    ShardSet(known, train, validation, numRows, numValidationRows, objection, inPlace, numBytes)
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

  /** Throws DataException where there are no rows to train on. */
  def refuseNone(numRows: Long, numValidationRows: Long): Unit = if (numRows == 0) {
    val why = if (numValidationRows > 0) "all rows are for validation" else "there are no rows"
    throw new DataException(s"there is nothing to train on: $why")
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
