package flambeau

import flambeau.internal.model.{OutputSpec, Trained}
import flambeau.internal.saving.ModelReader
import org.apache.spark.ml.param.ParamMap
import org.apache.spark.ml.util.{MLReadable, MLReader}

/** A trained regression module: `predictionCol` is a double, or an array where the module returns several numbers. */
class TorchRegressionModel private[flambeau] (uid: String, trained: Trained)
    extends TorchModel(uid, trained) {

  private[flambeau] override def kind: ModelKind[_ <: TorchModel] = TorchRegressionModel

  override def copy(extra: ParamMap): TorchRegressionModel =
    copyValues(new TorchRegressionModel(uid, trained), extra).setParent(parent).asInstanceOf[
      TorchRegressionModel
    ]
}

/** Reads models that `write` saved, from Scala or from PySpark. */
object TorchRegressionModel extends ModelKind[TorchRegressionModel] with MLReadable[TorchRegressionModel] {
  override def read: MLReader[TorchRegressionModel] =
    new ModelReader(classOf[TorchRegressionModel], ModelKind.maker)

  private[flambeau] override def labelDtype: Option[String] = Some("float32")

  private[flambeau] override def make(uid: String, trained: Trained): TorchRegressionModel =
    new TorchRegressionModel(uid, trained)

  private[flambeau] override def checkOutput(output: OutputSpec): Unit =
    if (output.single.isEmpty)
      throw new ParamException(
        "model: a regressor's forward returns one tensor; use TorchEstimator for several"
      )
}
