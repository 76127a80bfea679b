package flambeau

import flambeau.internal.saving.EstimatorReader
import org.apache.spark.ml.param.ParamMap
import org.apache.spark.ml.util.{Identifiable, MLReadable, MLReader}
import org.apache.spark.sql.Dataset

/** Trains a module that gives the logits of classes: labels are class numbers from 0 in any numeric column.
  *
  * The loss is `cross_entropy` where none is set. The fitted model writes `rawPrediction`, `probability` and `prediction`.
  */
class TorchClassifier(uid: String) extends TorchEstimator(uid) {

  def this() = this(Identifiable.randomUID("TorchClassifier"))

  setDefault(loss -> Loss("cross_entropy"))

  override def fit(dataset: Dataset[_]): TorchClassificationModel =
    super.fit(dataset).asInstanceOf[TorchClassificationModel]

  override def fit(prepared: PreparedData): TorchClassificationModel =
    super.fit(prepared).asInstanceOf[TorchClassificationModel]

  override def fitOnParquet(path: String): TorchClassificationModel =
    super.fitOnParquet(path).asInstanceOf[TorchClassificationModel]

  override def copy(extra: ParamMap): TorchClassifier = defaultCopy(extra)

  private[flambeau] override def modelKind: ModelKind[_ <: TorchModel] = TorchClassificationModel
}

/** Reads estimators that `write` saved, from Scala, or from PySpark where they hold programs and names only. */
object TorchClassifier extends MLReadable[TorchClassifier] {
  override def read: MLReader[TorchClassifier] = new EstimatorReader(classOf[TorchClassifier])
}
