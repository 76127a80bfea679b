package flambeau.internal.mlflow

import java.nio.file.{Files, Path}
import java.util.concurrent.TimeUnit

import scala.collection.JavaConverters._
import scala.io.Source
import scala.util.Try
import scala.util.control.NonFatal

import flambeau.{
  Build, CheckedParams, GeneralException, HasObjects, HasTrainingParams, Training, TrainingListener
}
import flambeau.internal.model.{History, Trained}
import flambeau.internal.rows.Rows
import flambeau.internal.storage.WorkDirectory
import flambeau.internal.util.{Failures, Json, Redacted}
import org.apache.spark.SPARK_VERSION
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.types.StructField
import org.slf4j.LoggerFactory

/** One fit as a run of MLflow's. Nothing that it does fails: what keeps it from being logged is a warning.
  *
  * @param logsModel
  *   whether the fitted model is logged
  * @param registered
  *   what the logged model is registered as
  */
private[flambeau] final class FitRun private (
    server: TrackingServer,
    run: TrackedRun,
    logsModel: Boolean,
    registered: Option[Registered]
) extends TrainingListener {
  import FitRun._

  /** How many samples of what it uses there were of each worker. */
  private var numSamples = Map.empty[Int, Long].withDefaultValue(0L)

  override def onProgress(training: Training): Unit = run.addMetrics(
    training.step,
    Seq(
      "train/loss_step" -> training.stepLoss.getOrElse(Double.NaN),
      "train/rows_per_second" -> training.rowsPerSecond.getOrElse(Double.NaN)
    )
  )

  override def onEpochEnd(training: Training): Unit = run.addMetrics(
    training.step,
    training.metrics.toSeq.map { case (name, value) => tag(name) -> value } ++ Seq(
      "train/learning_rate" -> training.learningRate.getOrElse(Double.NaN),
      "train/rows_per_second" -> training.rowsPerSecond.getOrElse(Double.NaN),
      "epoch" -> training.epoch.toDouble
    ) ++ training.gradientNorm.map("train/gradient_norm_epoch" -> _)
  )

  /** As MLflow's own variables ask for system metrics. */
  override private[flambeau] def usageSeconds: Option[Double] = {
    def number(name: String) =
      variable(name).flatMap(value => Try(value.toDouble).toOption).filter(value =>
        value > 0 && !value.isInfinite
      )
    for (
      isOn <- variable("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING") if Set("true", "1").contains(isOn.toLowerCase)
    )
      yield number("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL").getOrElse(SamplingSeconds) *
        number("MLFLOW_SYSTEM_METRICS_SAMPLES_BEFORE_LOGGING").getOrElse(1.0)
  }

  override private[flambeau] def onUsage(rank: Int, values: Seq[(String, Double)]): Unit = {
    run.addMetrics(numSamples(rank), values.map { case (name, value) => s"system/rank_$rank/$name" -> value })
    numSamples += rank -> (numSamples(rank) + 1)
  }

  /** Logs the best epoch and the model, whose output columns these are, and ends the run. Waits up to half a minute for what
    * was told to be written, and for as long as the model takes.
    *
    * @param rows
    *   those that it was trained on, some of which are the model's example
    */
  def onFitEnd(model: CheckedParams, trained: Trained, outputs: Seq[StructField], rows: Rows): Unit = {
    run.addMetrics(trained.counts.numSteps, summary(trained))
    for (id <- run.flush() if logsModel)
      try {
        val place = logModel(id, model, trained, outputs, rows)
        registered.foreach(register(id, place, _))
      } catch {
        case NonFatal(error) =>
          log.warn(s"not all of the fitted model is logged to MLflow: ${Failures.firstLine(error)}")
      }
    run.end("FINISHED")
  }

  /** Ends the run as one that failed, or that was interrupted. */
  def onException(error: Throwable): Unit = {
    val told = Redacted(s"${error.getClass.getSimpleName}: ${Failures.firstLine(error)}")
    val isKilled = Failures.causes(error).exists(_.isInstanceOf[InterruptedException])
    // Else what ended the fit would end the wait here too.
    val wasInterrupted = Thread.interrupted()
    try {
      run.addTags(Seq("flambeau.error" -> told))
      run.end(if (isKilled) "KILLED" else "FAILED")
    } finally if (wasInterrupted) Thread.currentThread.interrupt()
  }

  /** Writes the model as one of MLflow's to the run's artifacts, and returns its URI there. */
  private def logModel(
      id: String,
      model: CheckedParams,
      trained: Trained,
      outputs: Seq[StructField],
      rows: Rows
  ): String = {
    val example =
      try Some(InputExample.of(rows.frame, trained.inputs))
      catch {
        case _: InterruptedException =>
          // The training has ended well: its model is not lost for want of an example.
          Thread.currentThread.interrupt()
          None
        case NonFatal(error) =>
          log.warn(s"the model is logged to MLflow without an example: ${Failures.firstLine(error)}")
          None
      }
    val uri = s"${server.run(id).path("info").get("artifact_uri").asText}/$ModelName"
    val place = server.artifacts(uri)
    val folder = Files.createTempDirectory("flambeau-")
    try {
      val described = ModelFiles.write(folder, id, ModelName, model, trained, outputs, example)
      for (file <- filesOf(folder)) server.put(s"$place/${folder.relativize(file)}", file)
      server.post("runs/log-model", Json.obj().put("run_id", id).put("model_json", Json.text(described)))
    } finally WorkDirectory.removeLocal(folder)
    uri
  }

  /** Makes the model that lies at `place` a version of its registered model. */
  private def register(id: String, place: String, as: Registered): Unit =
    try {
      val registry = new ModelRegistry(server)
      val version = registry.register(as.name, place, id)
      as.alias.foreach(registry.setAlias(as.name, _, version))
    } catch {
      case NonFatal(error) =>
        val alias = as.alias.fold("")(name => s" with the alias '$name'")
        throw new GeneralException(
          s"the model is logged as runs:/$id/$ModelName, and could not be registered as '${as.name}'$alias: " +
            s"${Failures.firstLine(error)}; MLflow's client for Python does that later",
          error
        )
    }
}

/** What a logged model is registered as: the registered model that it is a version of, and the alias that the version gets. */
private[flambeau] final case class Registered(name: String, alias: Option[String])

private[flambeau] object FitRun {
  private val log = LoggerFactory.getLogger("flambeau")

  private val ModelName = "model"

  /** MLflow's own limit. */
  private val MostOfParam = 6000

  private val GitSeconds = 2L

  /** MLflow's own, where its variable is not set. */
  private val SamplingSeconds = 10.0

  /** Begins the run of a fit. Nothing waits for the server.
    *
    * @param existing
    *   the id of the run that the fit is logged into; without one it is a run of its own
    * @param parent
    *   the id of the run that its own run is a child of, and shares the experiment with
    * @param experiment
    *   the name of the experiment of its own run
    * @param name
    *   that of its own run
    */
  def begin(
      server: TrackingServer,
      estimator: HasTrainingParams with HasObjects,
      existing: Option[String],
      parent: Option[String],
      experiment: Option[String],
      name: Option[String],
      logsModel: Boolean,
      registered: Option[Registered]
  ): FitRun = {
    val startTime = System.currentTimeMillis
    def create(): String = {
      val body = Json.obj().put("start_time", startTime)
      body.put(
        "experiment_id",
        parent.fold(experimentId(server, experiment))(server.run(_).path("info").get("experiment_id").asText)
      )
      body.replace("tags", Json.array(ownTags.map { case (name, value) => TrackedRun.pair(name, value) }))
      name.foreach(body.put("run_name", _))
      server.post("runs/create", body).path("run").path("info").get("run_id").asText
    }
    val run = new TrackedRun(server, existing, create _, params(estimator))
    run.addTags(tags(estimator) ++ parent.map("mlflow.parentRunId" -> _))
    new FitRun(server, run, logsModel, registered)
  }

  /** The id of the experiment of that name, which is made where there is none; without a name the one that MLflow's variables
    * name, else its default one.
    */
  private def experimentId(server: TrackingServer, experiment: Option[String]): String =
    experiment.orElse(variable("MLFLOW_EXPERIMENT_NAME")) match {
      case None => variable("MLFLOW_EXPERIMENT_ID").getOrElse("0")
      case Some(name) =>
        try server.get("experiments/get-by-name", "experiment_name" -> name).path("experiment").get(
            "experiment_id"
          ).asText
        catch {
          case error: TrackingException if error.status == 404 =>
            server.post("experiments/create", Json.obj().put("name", name)).get("experiment_id").asText
        }
    }

  /** The value of a variable of the environment; none where it is not set or empty. */
  def variable(name: String): Option[String] = sys.env.get(name).filter(_.nonEmpty)

  /** A metric's name in a run, by that in a history; it is TensorBoard's. */
  private def tag(name: String): String =
    if (name == "loss") "train/loss_epoch"
    else if (name.startsWith("val_")) s"validation/${name.stripPrefix("val_")}"
    else s"train/$name"

  /** What a training came to: the figures of its best epoch, where that is known, and how long it took. */
  private def summary(trained: Trained): Seq[(String, Double)] = {
    val best = trained.history.path("bestEpoch")
    val records = Json.items(trained.history.get("epochs")).filter(_.get("epoch") == best)
    val figures = records.headOption.toSeq.flatMap { record =>
      val metrics = History.metrics(record, trained.counts.numValidationRows > 0)
      metrics.toSeq.map { case (name, value) =>
        s"best/${tag(name)}" -> value
      } :+ ("best/epoch" -> best.asDouble)
    }
    figures ++ trained.counts.trainingSeconds.map("training_seconds" -> _)
  }

  private def tags(estimator: HasTrainingParams): Seq[(String, String)] = Seq(
    "estimator_name" -> estimator.getClass.getSimpleName,
    "estimator_class" -> estimator.getClass.getName,
    "estimator_uid" -> estimator.uid,
    "flambeau.version" -> Build.version,
    "spark.version" -> SPARK_VERSION,
    "torch.version" -> Build.torch,
    "scala.version" -> scala.util.Properties.versionNumberString
  )

  /** What MLflow's clients tell of a run that they make. */
  private def ownTags: Seq[(String, String)] = Seq(
    "mlflow.autologging" -> ModelFiles.Flavor,
    "mlflow.user" -> variable("MLFLOW_TRACKING_USERNAME").getOrElse(System.getProperty("user.name")),
    "mlflow.source.type" -> "LOCAL"
  ) ++ SparkSession.getDefaultSession.map("mlflow.source.name" -> _.sparkContext.appName) ++
    gitCommit.map("mlflow.source.git.commit" -> _)

  /** The newest commit of the git work tree that this process's working directory is in; none where git does not tell one
    * within two seconds.
    */
  private def gitCommit: Option[String] = Try {
    val git = new ProcessBuilder("git", "rev-parse", "HEAD").start()
    try {
      if (git.waitFor(GitSeconds, TimeUnit.SECONDS) && git.exitValue == 0)
        Source.fromInputStream(git.getInputStream).getLines().toList.headOption
      else None
    } finally git.destroyForcibly()
  }.toOption.flatten

  /** The params that are set or have a default, as JSON where they are no text, URIs without what may be secret. */
  private def params(estimator: HasTrainingParams with HasObjects): Seq[(String, String)] = {
    val values = for (
      param <- estimator.params.toSeq if param.name != "listeners"; value <- estimator.valueOf(param)
    )
      yield param -> value
    Json.fields(estimator.jsonOf(values)).map { case (name, json) =>
      name -> Redacted(if (json.isTextual) json.asText else Json.text(json)).take(MostOfParam)
    }
  }

  private def filesOf(folder: Path): Seq[Path] = {
    val paths = Files.walk(folder)
    try paths.iterator.asScala.filter(Files.isRegularFile(_)).toList
    finally paths.close()
  }
}
