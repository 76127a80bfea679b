package flambeau.internal.rows

import flambeau.internal.storage.Site

/** The rows of a fit: where they come from, and how workers get them as Parquet files. */
private[flambeau] trait Rows {

  /** The columns that a fit reads, with the shapes that are known by now. May run small jobs. Throws DataException and
    * ParamException, with the column's or the param's name.
    */
  def columns(reading: Reading): DataColumns

  /** Has `use` work on the rows as Parquet files, which workers see for as long as it runs. Waits for the jobs that write or
    * count them; an interrupt of the thread cancels these.
    *
    * Throws DataException for a row that is refused, and where no row is left to train on.
    *
    * @param columns
    *   what [[columns]] gave
    */
  def shards[T](columns: DataColumns, site: Site)(use: ShardSet => T): T
}
