package flambeau.internal.rows

import flambeau.{DataException, StoreException}
import flambeau.internal.storage.Site
import flambeau.internal.util.Failures
import org.apache.spark.sql.DataFrame
import org.slf4j.LoggerFactory

/** The rows of a DataFrame: in the files that it is read from, as the param `inPlace` says, else written into the work
  * directory as Parquet shards, in one job.
  */
private[flambeau] final class FrameRows(df: DataFrame) extends Rows {
  import FrameRows._

  override def frame: DataFrame = df

  override def columns(reading: Reading): DataColumns = DataColumns.resolve(df.schema, reading)

  /** Throws DataException also where the rows are to be read in place and can't be. */
  override def shards[T](columns: DataColumns, reading: Reading, site: Site)(use: ShardSet => T): T =
    Rows.held(site) { directory =>
      inPlace(columns, reading, site, s"$directory/bitmaps").getOrElse(
        write(columns, site, s"$directory/data")
      )
    }(use)

  /** The rows in the files that they are read from; none where they are not to be read there. */
  private def inPlace(
      columns: DataColumns,
      reading: Reading,
      site: Site,
      bitmaps: String
  ): Option[ShardSet] = {
    val how = reading.params.getInPlace
    if (how == "never") None
    else
      try {
        val scan = Scan.of(columns.valid(df), columns, keepsOrder = !reading.params.getShuffle)
        if (how == "auto" && !scan.isReachable(site.work))
          throw new NotInPlace("its store is not that of workDir, and no spark.flambeau.store option is set")
        val shards = scan.shards(columns, site, bitmaps)
        if (how == "auto") shards.objection.foreach(reason => throw new NotInPlace(reason))
        Some(shards)
      } catch {
        case error @ (_: NotInPlace | _: DataException | _: StoreException) if how == "always" =>
          throw new DataException(
            s"inPlace is always, and the rows can't be read in place: ${error.getMessage}",
            error
          )
        case error: NotInPlace if !error.isNotable => None
        case error @ (_: NotInPlace | _: DataException | _: StoreException) =>
          log.info(s"the rows are written as shards, and not read in place: ${Failures.firstLine(error)}")
          None
      }
  }

  /** Writes the columns' valid rows under `directory`, computing `df` once, and returns what was written. Before that the first rows
    * of `df` are computed where nested arrays are given no shape.
    *
    * Throws DataException, with the column's name, at the first row that is refused, and where no row is left to train
    * on.
    */
  def write(asked: DataColumns, site: Site, directory: String): ShardSet = {
    val selection = new Selection(asked.valid(df))
    val inFiles = selection.place(asked)
    val flag = inFiles.split.map(Split.Flag -> _.flag)
    val (train, validation) = ShardSet.parted(selection.save(flag.toSeq, directory), flag.map(_._1))
    ShardSet.inspected(inFiles, site, train, validation, inPlace = false)
  }
}

private[flambeau] object FrameRows {
  private val log = LoggerFactory.getLogger("flambeau")
}
