package flambeau.internal.fit

import flambeau.{HasObjects, HasTrainingParams}
import flambeau.internal.model.OutputSpec

/** What a fit asks of an estimator: its params, and these. */
private[flambeau] trait Trainable extends HasTrainingParams with HasObjects {

  /** The type that labels are read as; none follows their columns. */
  private[flambeau] def labelDtype: Option[String]

  /** Throws ParamException where the program's output is not what the estimator's model gives. */
  private[flambeau] def checkOutput(output: OutputSpec): Unit
}
