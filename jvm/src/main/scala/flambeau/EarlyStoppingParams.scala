package flambeau

import org.apache.spark.ml.param.{BooleanParam, DoubleParam, IntParam, Param}

/** Which epoch was the best, whether training ends after it, and whose weights are kept. */
trait HasEarlyStopping extends CheckedParams {

  final val monitor: Param[String] = new Param[String](
    this,
    "monitor",
    "Name of the loss or metric in the history that says which epoch was the best, such as val_loss or " +
      "val_accuracy. When not set, val_loss where there are validation rows, else loss.",
    Check.Text.of("monitor")
  )

  /** Sets `monitor`. */
  def setMonitor(value: String): this.type = setChecked(monitor, value)

  /** The value of `monitor`; NoSuchElementException where it is not set. */
  def getMonitor: String = $(monitor)

  final val monitorMode: Param[String] = new Param[String](
    this,
    "monitorMode",
    "Whether the smaller (min) or the larger (max) value of monitor is better. auto goes by its name, " +
      "for the loss and the named metrics.",
    Check.OneOf("auto", "min", "max").of("monitorMode")
  )

  /** Sets `monitorMode`. */
  def setMonitorMode(value: String): this.type = setChecked(monitorMode, value)

  /** The value of `monitorMode`, or its default. */
  def getMonitorMode: String = $(monitorMode)

  final val monitorMinDelta: DoubleParam = new DoubleParam(
    this,
    "monitorMinDelta",
    "By how much more than this an epoch must be better than the best one so far to become the best.",
    Check.Real(0.0).of("monitorMinDelta")
  )

  /** Sets `monitorMinDelta`. */
  def setMonitorMinDelta(value: Double): this.type = setChecked(monitorMinDelta, value)

  /** The value of `monitorMinDelta`, or its default. */
  def getMonitorMinDelta: Double = $(monitorMinDelta)

  final val earlyStoppingPatience: IntParam = new IntParam(
    this,
    "earlyStoppingPatience",
    "Number of epochs in a row without a new best one after which training stops. When not set, it " +
      "takes all epochs.",
    Check.Integer(1, 1000000).of("earlyStoppingPatience")
  )

  /** Sets `earlyStoppingPatience`. */
  def setEarlyStoppingPatience(value: Int): this.type = setChecked(earlyStoppingPatience, value)

  /** The value of `earlyStoppingPatience`; NoSuchElementException where it is not set. */
  def getEarlyStoppingPatience: Int = $(earlyStoppingPatience)

  final val restoreBestWeights: BooleanParam = new BooleanParam(
    this,
    "restoreBestWeights",
    "Whether the fitted model has the weights of the best epoch, by monitor, rather than of the last."
  )

  /** Sets `restoreBestWeights`. */
  def setRestoreBestWeights(value: Boolean): this.type = setChecked(restoreBestWeights, value)

  /** The value of `restoreBestWeights`, or its default. */
  def getRestoreBestWeights: Boolean = $(restoreBestWeights)

  setDefault(
    monitorMode -> "auto",
    monitorMinDelta -> 0.0,
    restoreBestWeights -> false
  )
}
