package flambeau

import flambeau.internal.rows.PreparedRows
import org.apache.spark.sql.SparkSession

/** Rows that an estimator's `prepare` has written as Parquet files, to be fitted on any number of times.
  *
  * It is given to `fit` in a DataFrame's place, of that estimator and of others that read the same columns. The files stay
  * until `delete` removes them, which `close` does too; those of a temporary work directory go with this process.
  * `PreparedData.open` takes them up again, in another process too, and what PySpark has prepared.
  */
final class PreparedData private[flambeau] (private[flambeau] val rows: PreparedRows) extends AutoCloseable {

  /** The directory. */
  def path: String = rows.path

  /** The number of training rows. */
  def numRows: Long = rows.manifest.get("numRows").asLong

  /** The number of validation rows, 0 where there are none. */
  def numValidationRows: Long = rows.manifest.get("numValidationRows").asLong

  /** What the files take on disk, in bytes. */
  def numBytes: Long = rows.manifest.get("numBytes").asLong

  /** How long writing them took, in seconds. */
  def seconds: Double = rows.manifest.get("seconds").asDouble

  /** Removes the directory. Throws StoreException. */
  def delete(): Unit = rows.delete()

  /** Removes the directory, as `delete` does. */
  override def close(): Unit = delete()

  override def toString: String = {
    val ofValidation = if (numValidationRows > 0) s" and $numValidationRows for validation" else ""
    f"PreparedData($numRows rows$ofValidation, ${numBytes / 1e6}%.1f MB in $path, written in $seconds%.1f s)"
  }
}

/** Takes up what was prepared. */
object PreparedData {

  /** What was prepared in a directory, by this or another process, from Scala or from PySpark, for fits of this session.
    *
    * Throws DataException where there is nothing, or what was not written to its end. Runs no code that it finds there.
    */
  def open(spark: SparkSession, path: String): PreparedData = new PreparedData(PreparedRows.open(spark, path))
}
