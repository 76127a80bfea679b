package flambeau

import org.apache.spark.ml.param.{BooleanParam, DoubleParam, IntParam, Param}
import org.apache.spark.ml.param.shared.HasStepSize

/** The learning rate over the training. */
trait HasLearningRate extends CheckedParams with HasStepSize {

  final override val stepSize: DoubleParam = new DoubleParam(
    this,
    "stepSize",
    "Learning rate. When not set, the rate that the optimizer was made with is kept.",
    Check.Real(0.0).of("stepSize")
  )

  /** Sets `stepSize`. */
  def setStepSize(value: Double): this.type = setChecked(stepSize, value)

  final val scaleLearningRate: BooleanParam = new BooleanParam(
    this,
    "scaleLearningRate",
    "Whether the learning rate is multiplied by numWorkers, since the global batch is that many times " +
      "larger than one worker's. With warmupEpochs it grows from the rate of one worker."
  )

  /** Sets `scaleLearningRate`. */
  def setScaleLearningRate(value: Boolean): this.type = setChecked(scaleLearningRate, value)

  /** The value of `scaleLearningRate`, or its default. */
  def getScaleLearningRate: Boolean = $(scaleLearningRate)

  final val warmupEpochs: DoubleParam = new DoubleParam(
    this,
    "warmupEpochs",
    "Number of epochs, which need not be whole, over which the learning rate grows step by step to its " +
      "full value, at most epochs. 0 begins with that.",
    Check.Real(0.0).of("warmupEpochs")
  )

  /** Sets `warmupEpochs`. */
  def setWarmupEpochs(value: Double): this.type = setChecked(warmupEpochs, value)

  /** The value of `warmupEpochs`, or its default. */
  def getWarmupEpochs: Double = $(warmupEpochs)

  final val lrSchedule: Param[String] = new Param[String](
    this,
    "lrSchedule",
    "How the learning rate falls after the warm-up: constant, not at all; linear or cosine, step by " +
      "step to lrEndFactor of it at the end of the last epoch; step, to lrDecayRate of what it was after " +
      "every lrDecayEpochs epochs; exponential, by as much, but evenly in each step.",
    Check.OneOf("constant", "linear", "cosine", "step", "exponential").of("lrSchedule")
  )

  /** Sets `lrSchedule`. */
  def setLrSchedule(value: String): this.type = setChecked(lrSchedule, value)

  /** The value of `lrSchedule`, or its default. */
  def getLrSchedule: String = $(lrSchedule)

  final val lrEndFactor: DoubleParam = new DoubleParam(
    this,
    "lrEndFactor",
    "What lrSchedule linear and cosine leave of the learning rate at the end of the last epoch.",
    Check.Real(0.0, 1.0).of("lrEndFactor")
  )

  /** Sets `lrEndFactor`. */
  def setLrEndFactor(value: Double): this.type = setChecked(lrEndFactor, value)

  /** The value of `lrEndFactor`, or its default. */
  def getLrEndFactor: Double = $(lrEndFactor)

  final val lrDecayRate: DoubleParam = new DoubleParam(
    this,
    "lrDecayRate",
    "What lrSchedule step and exponential multiply the learning rate by in lrDecayEpochs epochs.",
    Check.Real(0.0, 1.0, openBelow = true).of("lrDecayRate")
  )

  /** Sets `lrDecayRate`. */
  def setLrDecayRate(value: Double): this.type = setChecked(lrDecayRate, value)

  /** The value of `lrDecayRate`, or its default. */
  def getLrDecayRate: Double = $(lrDecayRate)

  final val lrDecayEpochs: IntParam = new IntParam(
    this,
    "lrDecayEpochs",
    "Number of epochs in which lrSchedule step and exponential multiply the learning rate by " +
      "lrDecayRate.",
    Check.Integer(1, 1000000).of("lrDecayEpochs")
  )

  /** Sets `lrDecayEpochs`. */
  def setLrDecayEpochs(value: Int): this.type = setChecked(lrDecayEpochs, value)

  /** The value of `lrDecayEpochs`, or its default. */
  def getLrDecayEpochs: Int = $(lrDecayEpochs)

  setDefault(
    scaleLearningRate -> false,
    warmupEpochs -> 0.0,
    lrSchedule -> "constant",
    lrEndFactor -> 0.0,
    lrDecayRate -> 0.1,
    lrDecayEpochs -> 10
  )
}
