package flambeau.internal.fit

import flambeau.{FlambeauException, ParamException}
import flambeau.internal.rows.{FrameRows, PreparedRows}
import flambeau.internal.session.Session
import flambeau.internal.storage.{Directory, Lease, Site, WorkDirectory}
import org.apache.spark.sql.{Column, DataFrame, SparkSession}

/** Writes the rows of a DataFrame once, for the fits of one estimator or of several. */
private[flambeau] object Prepare {

  /** The rows of `df` that the estimator reads, written under `path`, by default into its work directory.
    *
    * Checks what a fit checks before it starts workers. An interrupt of the thread cancels the Spark jobs. Throws
    * ParamException, DataException and StoreException, and ClusterException as a fit does.
    */
  def apply(estimator: Trainable, df: DataFrame, path: Option[String]): PreparedRows = {
    val (spark, fit) = (df.sparkSession, Fit.of(estimator, df.sparkSession))
    Session.interruptible(spark.sparkContext) {
      val columns = fit.columns(new FrameRows(df))
      val site = path.fold(below(fit.place(), "prepared"))(at(spark, fit, _))
      PreparedRows.write(df, Seq(columns), site)
    }
  }

  /** Has `use` work on the rows that any of the estimators reads, which lie in the work directory of the first for as long as
    * it runs; fits may leave out a `fold`, a whole number of each row. Throws as `apply` does.
    */
  def meanwhile[T](estimators: Seq[Trainable], df: DataFrame, fold: Column)(use: PreparedRows => T): T = {
    val fits = estimators.map(Fit.of(_, df.sparkSession))
    val columns = fits.map(_.columns(new FrameRows(df))).distinct
    val site = fits.head.place()
    Lease.held(site) {
      val rows = PreparedRows.write(df, columns, below(site, "shards"), Some(fold))
      try use(rows)
      finally rows.remove()
    }
  }

  /** A new directory of that kind in the work directory. */
  private def below(site: Site, kind: String): Site =
    site.copy(work = site.work.copy(uri = site.work.path(kind, site.work.newId())))

  /** The site of a directory that a user gives. Throws ParamException where it is there already. */
  private def at(spark: SparkSession, fit: Fit, path: String): Site = {
    val there = WorkDirectory(WorkDirectory.uriOf(spark, "path", path), fit.work.settings)
    if (new Directory(spark, WorkDirectory.sparkPath(there.uri)).exists())
      throw new ParamException(
        s"path: ${there.uri} is there already: give one that is not, or take up what was prepared there with " +
          "PreparedData.open"
      )
    fit.checkSlots()
    try fit.shared(there)
    catch {
      case error: FlambeauException =>
        // The same call may go well later, and then finds it as this one did. Workers have answered, so that there is one
        // for this.
        PreparedRows.removeEmpty(Site(spark, there, isVisible = false))
        throw error
    }
  }
}
