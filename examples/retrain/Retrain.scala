package flambeau.examples

import java.net.{ConnectException, NoRouteToHostException, SocketTimeoutException, UnknownHostException}
import java.time.format.DateTimeFormatter
import java.time.{LocalDateTime, ZoneOffset}

import scala.util.control.NonFatal

import flambeau.{FlambeauException, TorchRegressionModel, TorchRegressor}
import org.apache.hadoop.fs.Path
import org.apache.hadoop.hdfs.server.namenode.SafeModeException
import org.apache.hadoop.ipc.{RemoteException, RetriableException, StandbyException}
import org.apache.spark.ml.evaluation.RegressionEvaluator
import org.apache.spark.sql.{DataFrame, SparkSession}

/** Trains the current model further on a new partition, and promotes the result where it is the better of the two.
  *
  * Arguments: `--models DIR` (the models and the pointer to the current one), `--program FILE` (what the first model is
  * trained from), `--partition DIR` (rows to train on), `--holdout DIR` (rows to judge by), `--epochs N`, 3 by
  * default, `--run-id NIGHT`, its name, which is its date and which a second attempt gives again, `--work-dir DIR`,
  * which a cluster needs, and `--initial-state previous|none`, none for an optimizer with no state of the night before.
  *
  * The exit status is 0 where a model was promoted or kept, and 75 (EX_TEMPFAIL of sysexits.h) where the same command may go
  * better later: with the same run and work directory it goes on where it was. After any other error it is another.
  */
object Retrain {
  private val Features =
    Array("dep_delay", "distance", "scheduled_departure", "scheduled_minutes", "weekday")
  private val Label = "arr_delay"
  private val TryAgain = 75

  /** Whether names sort as nights do: by the date at their beginning. */
  private def isNight(name: String) = name.matches("[0-9]{4}-[0-9]{2}(-[0-9]{2})?([A-Za-z][A-Za-z0-9_-]*)?")

  def main(arguments: Array[String]): Unit =
    try retrain(arguments)
    catch {
      // A JAR task of Databricks runs in the cluster's own process, and its policy says what is tried again.
      case NonFatal(error) if !sys.env.contains("DATABRICKS_RUNTIME_VERSION") && isTransient(error) =>
        System.err.println(s"try again later: $error")
        sys.exit(TryAgain)
    }

  /** Whether the same command may go better later: Flambeau says so of its errors, and in the job's own reads and writes a
    * store or a name node did not answer, or not yet.
    */
  private def isTransient(error: Throwable): Boolean =
    Iterator
      .iterate(error)(_.getCause)
      .takeWhile(_ != null)
      .map {
        case remote: RemoteException => remote.unwrapRemoteException()
        case other                   => other
      }
      .collectFirst {
        case error: FlambeauException => error.isTransient
        case _: ConnectException | _: NoRouteToHostException | _: SocketTimeoutException | _: UnknownHostException |
            _: StandbyException | _: RetriableException | _: SafeModeException =>
          true
      }
      .contains(true)

  /** @param ours
    *   a model that this job trained and compared with another one, which is not in use any more
    */
  private def retrain(arguments: Array[String], ours: Option[Path] = None): Unit = {
    val options = arguments.grouped(2).map(pair => pair.head.stripPrefix("--") -> pair.last).toMap
    for (name <- options.get("run-id"))
      require(
        isNight(name),
        s"--run-id is '$name': a night's name is its date, 2013-02 or 2013-02-28, and what follows begins with a letter, 2013-02-28b"
      )
    val state = options.getOrElse("initial-state", "previous")
    require(Set("previous", "none")(state), s"--initial-state is $state; allowed: previous, none")
    val spark = SparkSession.builder().appName("retrain").getOrCreate()
    val models = new Path(options("models"))
    val pointer = new CurrentModel(models, spark.sparkContext.hadoopConfiguration)
    val inUse = pointer.read()
    // A night that was killed finds what it has saved under its own name.
    val now = LocalDateTime.now(ZoneOffset.UTC).format(DateTimeFormatter.ofPattern("yyyyMMdd-HHmmss"))
    val path = ours.getOrElse(new Path(models, options.getOrElse("run-id", now)))
    val current = inUse.map(path => path -> TorchRegressionModel.load(path.toString))
    val currentNight = current.flatMap { case (_, model) => model.lineage.runId }.filter(isNight)
    if (inUse.contains(path)) println("this run's model is in use")
    else if (currentNight.exists(night => options.get("run-id").exists(_ < night))) {
      ours.foreach(pointer.remove)
      println(s"kept ${inUse.get.getName}, which is a later night's")
    } else {
      val wasSaved = pointer.isSaved(path)
      val candidate =
        if (wasSaved) TorchRegressionModel.load(path.toString)
        else {
          val trained = regressor(options, current, state).fit(spark.read.parquet(options("partition")))
          trained.write.overwrite().save(path.toString)
          trained
        }
      val holdout = spark.read.parquet(options("holdout"))
      val before = current.map { case (_, model) => rmse(model, holdout) }
      val after = rmse(candidate, holdout)
      println(s"current ${before.fold("none")(shown)}, candidate ${shown(after)}")
      // One that was there before may have been in use.
      val isOurs = ours.nonEmpty || !wasSaved
      if (pointer.read() != inUse) {
        println("another model came into use meanwhile")
        retrain(arguments, if (isOurs) Some(path) else None)
      } else if (before.forall(after < _)) {
        pointer.write(path)
        println(s"promoted ${path.getName}")
      } else {
        if (isOurs) pointer.remove(path)
        println(s"kept ${inUse.get.getName}")
      }
    }
    // The session is not stopped: that of a JAR task of Databricks is the cluster's, and spark-submit stops its own.
  }

  private def regressor(
      options: Map[String, String],
      current: Option[(Path, TorchRegressionModel)],
      state: String
  ): TorchRegressor = {
    val regressor = new TorchRegressor()
      .setModel(options("program"))
      .setFeaturesCol(Features)
      .setLabelCol(Label)
      .setLoss("mse")
      .setOptimizer("adamw", Map("lr" -> 1e-2))
      .setNumWorkers(2)
      .setBatchSize(256)
      .setEpochs(options.getOrElse("epochs", "3").toInt)
      .setSeed(1)
    options.get("run-id").foreach(regressor.setRunId)
    // The checkpoint is the next night's initialState; a temporary work directory is gone by then.
    for (path <- options.get("work-dir")) regressor.setWorkDir(path).setKeepCheckpoints(1)
    for ((path, model) <- current) {
      regressor.setInitialModel(path.toString)
      if (state == "previous")
        model.lineage.checkpoint.foreach(regressor.setInitialState)
    }
    regressor
  }

  /** Root mean squared error on the hold-out, in minutes. */
  private def rmse(model: TorchRegressionModel, holdout: DataFrame): Double =
    new RegressionEvaluator().setLabelCol(Label).setMetricName("rmse").evaluate(model.transform(holdout))

  private def shown(error: Double): String = f"$error%.4f"
}
