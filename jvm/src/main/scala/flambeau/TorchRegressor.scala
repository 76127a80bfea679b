package flambeau

import flambeau.internal.saving.EstimatorReader
import org.apache.spark.ml.param.ParamMap
import org.apache.spark.ml.util.{Identifiable, MLReadable, MLReader}
import org.apache.spark.sql.Dataset

/** Trains a module that predicts numbers: labels become floats, and the loss is `mse` where none is set. */
class TorchRegressor(uid: String) extends TorchEstimator(uid) {

  def this() = this(Identifiable.randomUID("TorchRegressor"))

  setDefault(loss -> Loss("mse"))

  override def fit(dataset: Dataset[_]): TorchRegressionModel =
    super.fit(dataset).asInstanceOf[TorchRegressionModel]

  override def fit(prepared: PreparedData): TorchRegressionModel =
    super.fit(prepared).asInstanceOf[TorchRegressionModel]

  override def fitOnParquet(path: String): TorchRegressionModel =
    super.fitOnParquet(path).asInstanceOf[TorchRegressionModel]

  override def copy(extra: ParamMap): TorchRegressor = defaultCopy(extra)

  private[flambeau] override def modelKind: ModelKind[_ <: TorchModel] = TorchRegressionModel
}

/** Reads estimators that `write` saved, from Scala, or from PySpark where they hold programs and names only. */
object TorchRegressor extends MLReadable[TorchRegressor] {
  override def read: MLReader[TorchRegressor] = new EstimatorReader(classOf[TorchRegressor])
}
