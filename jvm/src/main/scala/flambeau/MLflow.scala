package flambeau

import java.io.IOException
import java.util.concurrent.atomic.AtomicBoolean

import flambeau.internal.mlflow.{FitRun, ModelRegistry, Registered, TrackingServer}
import flambeau.internal.saving.ModelReader
import flambeau.internal.util.{Failures, Redacted}
import org.apache.spark.sql.SparkSession

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
  *
  * `MLflow.load` loads what was logged.
  */
final class MLflow extends TrainingListener {
  private var trackingUri = Option.empty[String]
  private var experiment = Option.empty[String]
  private var runName = Option.empty[String]
  private var runId = Option.empty[String]
  private var logsModel = true
  private var registeredModelName = Option.empty[String]
  private var alias = Option.empty[String]

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

  /** Sets whether the fitted model is logged too, as `model`, with five rows of its inputs; it is where this is not set. A
    * `registeredModelName` needs it.
    */
  def setLogModel(value: Boolean): this.type = {
    logsModel = value
    this
  }

  /** Sets the registered model that each logged model becomes a version of; it is made where there is none. Throws
    * ParamException for a name with a slash or a colon, which no registered model has.
    */
  def setRegisteredModelName(name: String): this.type = {
    Check.Text("registeredModelName", name)
    if (name.exists("/:".contains(_)))
      throw new ParamException(s"registeredModelName must have no slash and no colon, got '$name'")
    registeredModelName = Some(name)
    this
  }

  /** Sets the alias that each new version of the registered model gets, from whichever version had it:
    * `models:/<name>@<alias>` is the newest model then.
    */
  def setAlias(alias: String): this.type = {
    Check.Text("alias", alias)
    this.alias = Some(alias)
    this
  }

  /** What is told of a fit that begins. */
  private[flambeau] def begin(estimator: HasTrainingParams with HasObjects): FitRun = {
    val server = TrackingServer.of(trackingUri.getOrElse(MLflow.trackingUri("set it with setTrackingUri")))
    for (given <- alias if registeredModelName.isEmpty)
      throw new ParamException(
        s"alias '$given' is set, and registeredModelName is not: set it with setRegisteredModelName"
      )
    for (name <- registeredModelName if !logsModel)
      throw new ParamException(
        s"registeredModelName is '$name', but the model is left out by setLogModel(false): a model that is not logged " +
          "cannot be registered: leave logModel at true, or registeredModelName unset"
      )
    val existing = runId.filter(_ => isTaken.compareAndSet(false, true))
    FitRun.begin(
      server,
      estimator,
      existing,
      if (existing.isEmpty) runId else None,
      experiment,
      runName,
      logsModel,
      registeredModelName.map(Registered(_, alias))
    )
  }
}

/** Loads models that were logged to MLflow, from Scala or from PySpark. */
object MLflow {

  /** The fitted model that a URI of MLflow's names on the server of MLFLOW_TRACKING_URI: `models:/name@alias`,
    * `models:/name/1`, `models:/<model id>`, and `runs:/<id>/model` of a run whose fit was Scala's: what Python logs does not lie
    * among the artifacts of a run, and goes by its `models:/<model id>`.
    *
    * {{{
    * val champion = MLflow.load("models:/taxi@champion")
    * }}}
    *
    * Where the server keeps it, its files are downloaded to this machine, and executors elsewhere get them from the driver.
    * Otherwise it is read where it lies, by Hadoop's file systems. `spark.flambeau.allowPickle` and
    * `spark.flambeau.allowScripts` hold. Throws ParamException for what is no such URI, StoreException where the server does
    * not answer or refuses, and FlambeauException where the model is not Flambeau's, and where its program may not be read.
    */
  def load(uri: String): TorchModel = load(uri, trackingUri("give it as the last argument"))

  /** The same on the server of that tracking URI. */
  def load(uri: String, trackingUri: String): TorchModel = asking(trackingUri) { registry =>
    new ModelReader(classOf[TorchModel], ModelKind.maker).loadHere(registry.saved(SparkSession.active, uri))
  }

  /** Gives the version of a registered model that a URI names, `models:/name@alias` or `models:/name/1`, an alias, from
    * whichever version had it. Throws as `load` does.
    *
    * {{{
    * MLflow.setRegisteredModelAlias("models:/taxi@challenger", "champion")
    * }}}
    */
  def setRegisteredModelAlias(uri: String, alias: String): Unit =
    setRegisteredModelAlias(uri, alias, trackingUri("give it as the last argument"))

  /** The same on the server of that tracking URI. */
  def setRegisteredModelAlias(uri: String, alias: String, trackingUri: String): Unit =
    asking(trackingUri) { registry =>
      val (name, version) = registry.version(uri)
      registry.setAlias(name, alias, version)
    }

  private def asking[T](trackingUri: String)(action: ModelRegistry => T): T = {
    val server = TrackingServer.of(trackingUri)
    try action(new ModelRegistry(server))
    catch {
      case error: IOException =>
        throw new StoreException(
          s"the tracking server ${Redacted(trackingUri)} does not do what it is asked for: ${Failures.firstLine(error)}",
          error
        )
    }
  }

  private def trackingUri(how: String): String = FitRun.variable("MLFLOW_TRACKING_URI").getOrElse(
    throw new ParamException(
      s"MLflow has no tracking URI: $how, or set MLFLOW_TRACKING_URI in the environment"
    )
  )
}
