package flambeau

import scala.util.control.NonFatal

import flambeau.internal.fit.{Fit, Planning, Prepare, RangeTesting, Trainable}
import flambeau.internal.mlflow.FitRun
import flambeau.internal.model.{OutputSpec, Trained}
import flambeau.internal.rows.{FrameRows, ParquetRows, Rows}
import flambeau.internal.saving.{EstimatorReader, EstimatorWriter}
import org.apache.spark.ml.Estimator
import org.apache.spark.ml.param.ParamMap
import org.apache.spark.ml.util.{Identifiable, MLReadable, MLReader, MLWritable, MLWriter}
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.{Dataset, SparkSession}

/** Trains a libtorch program on a DataFrame, data-parallel on `numWorkers` tasks of one barrier stage.
  *
  * `model` and `loss` are needed; `optimizer` is adam where none is given. `explainParams()` tells of all.
  *
  * {{{
  * new TorchEstimator()
  *   .setModel("net.pt")
  *   .setLoss("mse")
  *   .setInputCols(Array("x"))
  *   .setLabelCol("y")
  *   .setNumWorkers(2)
  *   .setEpochs(5)
  *   .fit(df)
  * }}}
  *
  * Fits may run side by side in one driver; they share nothing.
  */
class TorchEstimator(override val uid: String)
    extends Estimator[TorchModel]
    with Trainable
    with MLWritable {

  def this() = this(Identifiable.randomUID("TorchEstimator"))

  private[flambeau] final override def labelDtype: Option[String] = modelKind.labelDtype

  private[flambeau] override def checkOutput(output: OutputSpec): Unit = {
    modelKind.checkOutput(output)
    modelOf(Trained.untrained(Nil, output)).checkNames()
  }

  private[flambeau] def modelKind: ModelKind[_ <: TorchModel] = TorchModel

  /** Sets `initialModel` to the weights of a fitted model. `model` names the program that they are for. */
  def setInitialModel(model: TorchModel): this.type = setInitialModel(model.trained.weights.uri)

  /** Trains on the rows of a DataFrame. Waits for as long as that takes; an interrupt of the thread cancels it.
    *
    * Throws ParamException, DataException and ClusterException for what cannot be trained, WorkerException for what
    * failed on a worker, and WorkerLostException where workers were lost more than `maxRestarts` times. What a listener throws
    * is thrown as it is where it ends the training, and as ListenerException, which has the model, where that had ended well.
    */
  override def fit(dataset: Dataset[_]): TorchModel =
    trained(Fit.of(this, dataset.sparkSession), new FrameRows(dataset.toDF()))

  /** Writes the columns that a fit reads, once: `fit(prepared)` then trains on them as often as you like, also with other
    * params and other estimators.
    *
    * They lie in the work directory and stay until `prepared.delete()`. Validation rows are those of `validationFraction` and
    * `seed`, or of `validationIndicatorCol`, as they are now. Throws as `fit` does before it starts workers.
    *
    * {{{
    * val prepared = estimator.prepare(df)
    * val models = (0L until 5L).map(seed => estimator.copy(ParamMap.empty).setSeed(seed).fit(prepared))
    * prepared.delete()
    * }}}
    */
  def prepare(dataset: Dataset[_]): PreparedData =
    new PreparedData(Prepare(this, dataset.toDF(), path = None))

  /** The same in the directory `path`, which is not there yet, on storage that the driver and all workers reach. */
  def prepare(dataset: Dataset[_], path: String): PreparedData =
    new PreparedData(Prepare(this, dataset.toDF(), Some(path)))

  /** Trains on prepared rows, as `fit` does on a DataFrame's. Throws ParamException and DataException also where they were not
    * prepared as this estimator reads them, and where a file is not the one that was written.
    */
  def fit(prepared: PreparedData): TorchModel =
    trained(Fit.of(this, prepared.rows.site.spark), prepared.rows)

  /** Trains on prepared rows with the params of a map in the place of this estimator's. */
  def fit(prepared: PreparedData, paramMap: ParamMap): TorchModel = copy(paramMap).fit(prepared)

  /** Trains on prepared rows with each of these maps, one after the other. Throws ParamException where several have one
    * `runId`.
    */
  def fit(prepared: PreparedData, paramMaps: Seq[ParamMap]): Seq[TorchModel] =
    copies(paramMaps).map(_.fit(prepared))

  /** Trains on the Parquet files under `path`, a directory or a file, where they lie: nothing is copied.
    *
    * Below `key=value` directories such a column may be the `validationIndicatorCol` too. Delta, Iceberg and Hudi tables, and
    * partition columns as inputs are refused with DataException; `fit` reads those.
    */
  def fitOnParquet(path: String): TorchModel = {
    val spark = TorchEstimator.session
    trained(Fit.of(this, spark), new ParquetRows(spark, path))
  }

  /** A learning rate range test: trains with a rate that grows by the same factor from step to step, from `minRate` (1e-8) to
    * `maxRate` (1) in `numSteps` (100), and tells the losses; its `suggestion` is the rate at which they fall most steeply. It
    * ends early where the loss is no finite number, or four times its least, both smoothed.
    *
    * It trains as `fit` does on these params, but for schedules, listeners, checkpoints, files of TensorBoard's, `profile`,
    * validation, `emaDecay` and `syncEvery`; the estimator stays as it is, and nothing stays in the work directory. Throws what
    * a fit throws, and ParamException for what is no range: 0 < `minRate` < `maxRate`, and two steps or more.
    *
    * {{{
    * val found = estimator.findLearningRate(df, maxRate = 0.1)
    * val model = estimator.setLearningRate(found.suggestion).fit(df)
    * }}}
    */
  def findLearningRate(
      dataset: Dataset[_],
      minRate: Double = 1e-8,
      maxRate: Double = 1.0,
      numSteps: Int = 100
  ): RangeTest =
    RangeTesting.run(this, dataset.sparkSession, new FrameRows(dataset.toDF()), minRate, maxRate, numSteps)

  /** The same on prepared rows. */
  def findLearningRate(prepared: PreparedData, minRate: Double, maxRate: Double, numSteps: Int): RangeTest =
    RangeTesting.run(this, prepared.rows.site.spark, prepared.rows, minRate, maxRate, numSteps)

  /** What a fit on these params would take, and which `batchSize`, `numWorkers` and `numThreads` would be faster: counts the
    * rows, and trains on the first of them in trials of `numSteps` steps, one with the estimator's params and up to five with
    * others.
    *
    * A trial has no schedules, listeners, checkpoints, files of TensorBoard's and `profile`, and a learning rate of 1e-12; the
    * estimator stays as it is, and nothing stays in the work directory. One that fails for want of memory or slots stands in
    * `trials` with its `error`. Throws ParamException for no steps, and as `fit` does ParamException, DataException and
    * ClusterException for what cannot be trained, and WorkerException and WorkerLostException for what fails in the estimator's
    * own trial.
    */
  def plan(dataset: Dataset[_], numSteps: Int): Plan = Planning.plan(this, dataset.toDF(), numSteps)

  /** The same with trials of 20 steps. */
  def plan(dataset: Dataset[_]): Plan = plan(dataset, numSteps = 20)

  /** The schema with the columns that the fitted model adds.
    *
    * The program is tried on columns of those types. Where an input's shape is known to the data alone, as that of an array
    * column, a prediction counts as a double. Throws ParamException and DataException as `fit` does.
    */
  override def transformSchema(schema: StructType): StructType =
    modelOf(Fit.of(this, TorchEstimator.session).untrained(schema)).transformSchema(schema)

  override def copy(extra: ParamMap): TorchEstimator = defaultCopy(extra)

  /** A writer of this estimator, with its program: `estimator.write.overwrite().save(path)`. */
  override def write: MLWriter = new EstimatorWriter(this)

  /** This estimator with each of these maps. Throws ParamException where several have one `runId`. */
  private[flambeau] def copies(paramMaps: Seq[ParamMap]): Seq[TorchEstimator] = {
    val estimators = paramMaps.map(copy(_))
    val runs = estimators.flatMap(one => one.valueOf(one.runId))
    for (run <- runs.diff(runs.distinct).headOption)
      throw new ParamException(
        s"runId '$run' names one run, and ${runs.count(_ == run)} of these param maps have it: leave it unset, as a " +
          "CrossValidator needs it, or give each map its own"
      )
    estimators
  }

  private def trained(fit: Fit, rows: Rows): TorchModel = {
    val listeners = getListeners.map {
      case mlflow: MLflow => mlflow.begin(this)
      case listener       => listener
    }
    val runs = listeners.collect { case run: FitRun => run }
    try {
      val model = modelOf(fit.run(rows, listeners))
      try fit.end()
      catch { case NonFatal(error) => throw new ListenerException(model, error) }
      runs.foreach(_.onFitEnd(model, model.trained, model.outputFields.map(_.field), rows))
      model
    } catch {
      case error: Throwable =>
        for (run <- runs)
          try run.onException(error)
          catch { case NonFatal(other) => error.addSuppressed(other) }
        throw error
    }
  }

  private def modelOf(trained: Trained): TorchModel = {
    val model: TorchModel = modelKind.make(uid, trained)
    copyValues(model.setParent(this))
  }
}

/** Reads estimators that `write` saved, from Scala, or from PySpark where they hold programs and names only. */
object TorchEstimator extends MLReadable[TorchEstimator] {
  override def read: MLReader[TorchEstimator] = new EstimatorReader(classOf[TorchEstimator])

  private def session: SparkSession =
    SparkSession.getActiveSession.getOrElse(SparkSession.builder().getOrCreate())
}
