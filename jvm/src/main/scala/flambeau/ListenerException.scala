package flambeau

import flambeau.internal.util.Failures

/** A listener threw after a training that went well; the cause is what it threw.
  *
  * @param model
  *   the fitted model
  */
class ListenerException(val model: TorchModel, cause: Throwable)
    extends RuntimeException(
      s"${Failures.firstLine(cause)}; the model was made all the same: it is the model of this exception",
      cause
    )
    with FlambeauException {
  private[flambeau] override def pythonName: String = "CallbackError"
}
