package flambeau.internal.rows

import flambeau.internal.session.Session
import flambeau.internal.storage.Site
import org.apache.spark.sql.DataFrame

/** The rows of a fit: where they come from, and how workers get them as Parquet files. */
private[flambeau] trait Rows {

  /** The rows with the columns that they came with; nothing of them is computed. */
  def frame: DataFrame

  /** The columns that a fit reads, with the shapes that are known by now. May run small jobs. Throws DataException and
    * ParamException, with the column's or the param's name.
    */
  def columns(reading: Reading): DataColumns

  /** Has `use` work on the rows as Parquet files, which workers see for as long as it runs. Waits for the jobs that write or
    * find them; an interrupt of the thread cancels these.
    *
    * Throws DataException for a row that is refused, and where no row is left to train on.
    *
    * @param columns
    *   what [[columns]] gave
    */
  def shards[T](columns: DataColumns, reading: Reading, site: Site)(use: ShardSet => T): T
}

private[rows] object Rows {

  /** Has `use` work on what `find` gives, which may write into a directory of the work directory that is removed at the end.
    * An interrupt of the thread cancels the Spark jobs of `find`.
    */
  def held[T](site: Site)(find: String => ShardSet)(use: ShardSet => T): T = {
    val name = site.work.newId()
    try use(Session.interruptible(site.spark.sparkContext)(find(site.work.path("shards", name))))
    finally site.remove("shards", name)
  }
}
