package flambeau

import scala.util.control.NonFatal

import flambeau.internal.fit.{Fit, Trainable}
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

  private[flambeau] override def labelDtype: Option[String] = None

  private[flambeau] override def checkOutput(output: OutputSpec): Unit = modelKind.checkOutput(output)

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

  /** Trains on the Parquet files under `path`, a directory or a file, where they lie: nothing is copied.
    *
    * Below `key=value` directories such a column may be the `validationIndicatorCol` too. Delta, Iceberg and Hudi tables, and
    * partition columns as inputs are refused with DataException; `fit` reads those.
    */
  def fitOnParquet(path: String): TorchModel = {
    val spark = TorchEstimator.session
    trained(Fit.of(this, spark), new ParquetRows(spark, path))
  }

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

  private def trained(fit: Fit, rows: Rows): TorchModel = {
    val model = modelOf(fit.run(rows))
    try fit.end()
    catch { case NonFatal(error) => throw new ListenerException(model, error) }
    model
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
