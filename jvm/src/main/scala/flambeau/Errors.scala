package flambeau

/** The base of all exceptions that Flambeau raises itself. The message says what was given, what is allowed and what to
  * do, and stack traces name the part of the errors page that says more.
  */
trait FlambeauException extends RuntimeException {

  /** Whether the same fit may go better when it is tried again: a worker was lost or late, task slots were missing, a store
    * could not be reached, or another fit has the run. With `runId` it goes on from the newest checkpoint.
    */
  def isTransient: Boolean = false

  /** Its name in Python, which is also that of the part of the errors page that tells of it. */
  private[flambeau] def pythonName: String = "FlambeauError"

  override def toString: String =
    s"${super.toString} (see $pythonName on the errors page of Flambeau's documentation)"
}

/** What none of the others tells of: a saved model that is damaged, a machine without libtorch. */
class GeneralException(message: String, cause: Throwable)
    extends RuntimeException(message, cause)
    with FlambeauException {
  def this(message: String) = this(message, null)
}

/** A param, or something given as one, that is refused; the message names it, its value and what is allowed. */
class ParamException(message: String, cause: Throwable)
    extends IllegalArgumentException(message, cause)
    with FlambeauException {
  private[flambeau] override def pythonName: String = "ParamError"
  def this(message: String) = this(message, null)
}

/** A `runId` that another fit trains now, which will have ended later. */
class RunInUseException(message: String, cause: Throwable) extends ParamException(message, cause) {
  private[flambeau] override def pythonName: String = "RunInUseError"
  override def isTransient: Boolean = true
  def this(message: String) = this(message, null)
}

/** Data that is refused; the message names the column or tensor and how to mend it. */
class DataException(message: String, cause: Throwable)
    extends RuntimeException(message, cause)
    with FlambeauException {
  private[flambeau] override def pythonName: String = "DataError"
  def this(message: String) = this(message, null)
}

/** A path that could not be read or written, or a file that is not the one that was saved; the message names it. */
class StoreException(message: String, cause: Throwable)
    extends RuntimeException(message, cause)
    with FlambeauException {
  private[flambeau] override def pythonName: String = "StoreError"
  def this(message: String) = this(message, null)
}

/** A store that throttled, timed out or could not be reached: it may answer when asked again. */
class TransientStoreException(message: String, cause: Throwable) extends StoreException(message, cause) {
  override def isTransient: Boolean = true
  def this(message: String) = this(message, null)
}

/** A cluster that cannot run the training: too few task slots, settings that Spark refuses for barrier stages, or a
  * library that is missing. Transient where slots are missing, which may be there later.
  */
class ClusterException(message: String, cause: Throwable, override val isTransient: Boolean = false)
    extends RuntimeException(message, cause)
    with FlambeauException {
  private[flambeau] override def pythonName: String = "ClusterError"
  def this(message: String) = this(message, null)
}

/** A failure on a worker.
  *
  * @param rank
  *   the worker's rank, where it is known
  * @param host
  *   the worker's host, where it is known
  * @param epoch
  *   the epoch, from 0, where there was one
  * @param step
  *   the optimizer's step, from 0 over all epochs, where there was one
  */
class WorkerException(
    message: String,
    val rank: Option[Int],
    val host: Option[String],
    val epoch: Option[Long],
    val step: Option[Long],
    cause: Throwable = null
) extends RuntimeException(message, cause)
    with FlambeauException {
  private[flambeau] override def pythonName: String = "WorkerError"
}

/** A worker that died or stopped answering. */
class WorkerLostException(
    message: String,
    rank: Option[Int],
    host: Option[String],
    epoch: Option[Long],
    step: Option[Long],
    cause: Throwable = null
) extends WorkerException(message, rank, host, epoch, step, cause) {
  private[flambeau] override def pythonName: String = "WorkerLost"
  override def isTransient: Boolean = true
}
