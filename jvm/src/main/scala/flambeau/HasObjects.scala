package flambeau

import scala.collection.JavaConverters._

import org.apache.spark.ml.param.{Param, StringArrayParam}

/** What is trained, how it is judged and who is told. All but the listeners are saved beside the params of the training job. */
trait HasObjects extends CheckedParams {

  final val model: Param[String] = new Param[String](
    this,
    "model",
    "Path of the program to train: a TorchScript archive, an archive of torch.export, a directory that " +
      "flambeau.save_program wrote, or a saved model.",
    Check.Text.of("model")
  )

  final val loss: LossParam = new LossParam(
    this,
    "loss",
    "The loss: a name such as mse, with the options of torch's loss, or a TorchScript archive whose forward takes " +
      "the outputs and the labels and returns the mean over the rows or one value for each row."
  )

  final val optimizer: OptimizerParam = new OptimizerParam(
    this,
    "optimizer",
    "The optimizer: sgd, adam, adamw or rmsprop, with the options of torch's optimizer."
  )

  final val metrics: StringArrayParam = new StringArrayParam(
    this,
    "metrics",
    "Names of the metrics of each epoch beside the loss.",
    Check.Names.of("metrics")
  )

  final val listeners: Param[Seq[TrainingListener]] = new Param[Seq[TrainingListener]](
    this,
    "listeners",
    "What is told of a training while it runs, in this order. Not saved with the estimator."
  )

  setDefault(optimizer -> Optimizer("adam"))

  /** Sets `model`, the path of the program to train. */
  def setModel(path: String): this.type = setChecked(model, path)

  /** The value of `model`; NoSuchElementException where it is not set. */
  def getModel: String = $(model)

  /** Sets `loss` to one that torch has, with its options' defaults. */
  def setLoss(name: String): this.type = setLoss(Loss(name))

  /** Sets `loss` to one that torch has, with options: `setLoss("huber", Map("delta" -> 1.5))`. */
  def setLoss(name: String, options: Map[String, Any]): this.type = setLoss(Loss(name, options))

  /** Sets `loss` to one that torch has, with options. */
  def setLoss(name: String, options: java.util.Map[String, Any]): this.type =
    setLoss(name, options.asScala.toMap)

  /** Sets `loss`. */
  def setLoss(value: Loss): this.type = setChecked(loss, value)

  /** Sets `loss` to the TorchScript archive at that path. */
  def setLossScript(path: String): this.type = setLoss(Loss.script(path))

  /** The value of `loss`, or its default; NoSuchElementException where there is neither. */
  def getLoss: Loss = $(loss)

  /** Sets `optimizer`, with its options' defaults. */
  def setOptimizer(name: String): this.type = setOptimizer(Optimizer(name))

  /** Sets `optimizer` with options: `setOptimizer("sgd", Map("momentum" -> 0.9, "nesterov" -> true))`. */
  def setOptimizer(name: String, options: Map[String, Any]): this.type =
    setOptimizer(Optimizer(name, options))

  /** Sets `optimizer` with options. */
  def setOptimizer(name: String, options: java.util.Map[String, Any]): this.type =
    setOptimizer(name, options.asScala.toMap)

  /** Sets `optimizer`. */
  def setOptimizer(value: Optimizer): this.type = setChecked(optimizer, value)

  /** The value of `optimizer`, or its default. */
  def getOptimizer: Optimizer = $(optimizer)

  /** Sets `metrics`. */
  def setMetrics(names: Array[String]): this.type = setChecked(metrics, names)

  /** The value of `metrics`; none where it is not set. */
  def getMetrics: Array[String] = valueOf(metrics).getOrElse(Array.empty)

  /** Sets `listeners`. */
  def setListeners(values: Seq[TrainingListener]): this.type = set(listeners, values)

  /** The value of `listeners`; none where it is not set. */
  def getListeners: Seq[TrainingListener] = valueOf(listeners).getOrElse(Nil)

  /** Adds one to `listeners`. */
  def addListener(listener: TrainingListener): this.type = setListeners(getListeners :+ listener)
}

private[flambeau] object HasObjects {

  /** The params that are no part of the training job's. */
  val names: Seq[String] = Seq("model", "loss", "optimizer", "metrics", "listeners")
}
