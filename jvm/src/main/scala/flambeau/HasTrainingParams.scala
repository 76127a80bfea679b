package flambeau

import com.fasterxml.jackson.databind.node.ObjectNode

/** Every param of a training job. */
trait HasTrainingParams
    extends HasInputColumns
    with HasOutputColumns
    with HasClassColumns
    with HasLabelColumns
    with HasInitialModel
    with HasValidation
    with HasTrainingLoop
    with HasLearningRate
    with HasEarlyStopping
    with HasDevice
    with HasWorkers {

  /** Sets `learningRate`, by Spark ML's name. */
  def setStepSize(value: Double): this.type = setLearningRate(value)

  /** The value of `learningRate`, by Spark ML's name; NoSuchElementException where it is not set. */
  def getStepSize: Double = getLearningRate

  /** The training job's `params`: every one with a value or a default. */
  private[flambeau] def jobParams: ObjectNode =
    jsonOf(for (param <- params.toSeq if !HasObjects.names.contains(param.name); value <- valueOf(param))
      yield param -> value)
}
