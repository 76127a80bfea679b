package flambeau

import java.util.concurrent.atomic.AtomicBoolean

import flambeau.internal.mlflow.{FitRun, TrackingServer}

/** A listener that makes each fit a run of MLflow's, with its params, its metrics as they come, and its model.
  *
  * {{{
  * estimator.addListener(new MLflow().setTrackingUri("http://tracking:5000").setExperiment("taxi"))
  * }}}
  *
  * It speaks with a tracking server by http or https, with the credentials of MLFLOW_TRACKING_USERNAME and
  * MLFLOW_TRACKING_PASSWORD, or of MLFLOW_TRACKING_TOKEN. A run ends as its fit does: FINISHED, FAILED, or KILLED where the
  * fit was interrupted. Where the server cannot be reached the fit goes on, and a warning says so. A fit throws
  * ParamException before its work where no tracking URI is given, or one that is no server's.
  */
final class MLflow extends TrainingListener {
  private var trackingUri = Option.empty[String]
  private var experiment = Option.empty[String]
  private var runName = Option.empty[String]
  private var runId = Option.empty[String]
  private var logsModel = true

  /** Whether a fit is logged into the run of `runId`. */
  private val isTaken = new AtomicBoolean

  /** Sets the URI of the tracking server; that of MLFLOW_TRACKING_URI where it is not set. Throws ParamException for one that
    * is no server's.
    */
  def setTrackingUri(uri: String): this.type = {
    TrackingServer.of(uri)
    trackingUri = Some(uri)
    this
  }

  /** Sets the name of the experiment that runs are in, which is made where there is none; that of MLFLOW_EXPERIMENT_NAME or
    * MLFLOW_EXPERIMENT_ID where it is not set, else the server's default one.
    */
  def setExperiment(name: String): this.type = {
    Check.Text("experiment", name)
    experiment = Some(name)
    this
  }

  /** Sets the name of the runs; the server makes one up where it is not set. */
  def setRunName(name: String): this.type = {
    Check.Text("runName", name)
    runName = Some(name)
    this
  }

  /** Sets the id of a run that there is. The first fit is logged into it, and does not end it; others, as those of a
    * `CrossValidator`, are its child runs.
    */
  def setRunId(id: String): this.type = {
    Check.Text("runId", id)
    runId = Some(id)
    this
  }

  /** Sets whether the fitted model is logged too, as `model`; it is where this is not set. */
  def setLogModel(value: Boolean): this.type = {
    logsModel = value
    this
  }

  /** What is told of a fit that begins. */
  private[flambeau] def begin(estimator: HasTrainingParams with HasObjects): FitRun = {
    val uri = trackingUri.orElse(FitRun.variable("MLFLOW_TRACKING_URI")).getOrElse(
      throw new ParamException(
        "MLflow has no tracking URI: set it with setTrackingUri, or MLFLOW_TRACKING_URI in the environment"
      )
    )
    val server = TrackingServer.of(uri)
    val existing = runId.filter(_ => isTaken.compareAndSet(false, true))
    FitRun.begin(
      server,
      estimator,
      existing,
      if (existing.isEmpty) runId else None,
      experiment,
      runName,
      logsModel
    )
  }
}
