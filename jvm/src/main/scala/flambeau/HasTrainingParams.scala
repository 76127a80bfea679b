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

  /** The training job's `params`: every one with a value or a default. */
  private[flambeau] def jobParams: ObjectNode =
    jsonOf(for (param <- params.toSeq if !HasObjects.names.contains(param.name); value <- valueOf(param))
      yield param -> value)
}
