package flambeau

import flambeau.internal.model.{OutputColumn, OutputSpec, Trained}
import flambeau.internal.saving.ModelReader
import org.apache.spark.ml.linalg.SQLDataTypes.VectorType
import org.apache.spark.ml.param.ParamMap
import org.apache.spark.ml.util.{MLReadable, MLReader}
import org.apache.spark.sql.types.{DoubleType, StructField}

/** A trained classification module.
  *
  * `transform` adds `rawPredictionCol` (the module's outputs, a vector), `probabilityCol` (a vector that sums to 1) and
  * `predictionCol` (the class with the largest, a double). A module with one logit a row is a binary classifier: its raw
  * prediction is [-logit, logit], as Spark's LogisticRegression has it, and the probability its sigmoid. Where the loss
  * takes probabilities (bce) or their logarithms (nll), the outputs are read as such. An empty name leaves a column out.
  */
class TorchClassificationModel private[flambeau] (uid: String, trained: Trained)
    extends TorchModel(uid, trained)
    with HasClassColumns {

  /** The number of classes: the module's outputs a row, 2 where it has one. */
  def numClasses: Int = trained.output.numClasses

  /** The number of numbers in a row of the inputs. */
  def numFeatures: Int = trained.inputs.map(_.numElements).sum

  private[flambeau] override def kind: ModelKind[_ <: TorchModel] = TorchClassificationModel

  override def copy(extra: ParamMap): TorchClassificationModel =
    copyValues(new TorchClassificationModel(uid, trained), extra)
      .setParent(parent)
      .asInstanceOf[TorchClassificationModel]

  private[flambeau] override def classes: Option[String] = Some(valueOf(outputKinds).map(_.head) match {
    case Some("logit")       => "logits"
    case Some("probability") => "probabilities"
    case given               => given.getOrElse(trained.classes)
  })

  private[flambeau] override def scoredKinds: Seq[String] =
    if (trained.output.tensors.head.isScalar)
      Seq("logit", "logits", "probability", "probabilities", "log_probabilities")
    else Seq("logits", "probabilities", "log_probabilities")

  private[flambeau] override def checkNames(): Unit = {
    if (isDefined(outputCols))
      throw new ParamException(
        "outputCols: a classifier's columns are rawPredictionCol, probabilityCol and predictionCol; use " +
          "TorchEstimator for others"
      )
    super.checkNames()
  }

  private[flambeau] override def checkScored(): Unit = {
    super.checkScored()
    for (kind <- classes if kind.startsWith("label"))
      throw new ParamException(
        "the model has several labels a row, which the JVM does not score: score in PySpark with runtime='python'"
      )
  }

  private[flambeau] override def allFields: Seq[OutputColumn] = Seq(
    OutputColumn("rawPredictionCol", StructField(getRawPredictionCol, VectorType)),
    OutputColumn("probabilityCol", StructField(getProbabilityCol, VectorType)),
    OutputColumn("predictionCol", StructField(getPredictionCol, DoubleType))
  )
}

/** Reads models that `write` saved, from Scala or from PySpark. */
object TorchClassificationModel extends ModelKind[TorchClassificationModel]
    with MLReadable[TorchClassificationModel] {
  override def read: MLReader[TorchClassificationModel] =
    new ModelReader(classOf[TorchClassificationModel], ModelKind.maker)

  private[flambeau] override def labelDtype: Option[String] = Some("int64")

  private[flambeau] override def make(uid: String, trained: Trained): TorchClassificationModel =
    new TorchClassificationModel(uid, trained)

  private[flambeau] override def checkOutput(output: OutputSpec): Unit =
    if (!output.single.exists(_.shape.length <= 1)) {
      val shapes =
        output.tensors.map(tensor => ("rows" +: tensor.shape.map(_.toString)).mkString("[", ", ", "]"))
      throw new ParamException(
        "model: a classifier's forward returns one tensor: [rows, classes], or [rows] or [rows, 1] for two classes; " +
          s"it returns ${shapes.mkString("[", ", ", "]")}: use TorchEstimator"
      )
    }
}
