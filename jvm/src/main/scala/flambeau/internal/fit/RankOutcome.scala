package flambeau.internal.fit

import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.{
  ClusterException, DataException, FlambeauException, ParamException, StoreException, TransientStoreException,
  WorkerException, WorkerLostException
}
import flambeau.internal.util.Json

/** How a rank ended. Either `result` is there, or the fields from `kind` on say what failed.
  *
  * @param result
  *   the training's result as JSON
  * @param kind
  *   as the worker tells it, `lost` where its process was killed, and `environment` where the machine lacks something
  * @param epoch
  *   counted from 0
  * @param step
  *   counted from 0 over all epochs
  * @param isCause
  *   false where this rank only noticed that another one had failed
  */
private[flambeau] final case class RankOutcome(
    rank: Int,
    host: String,
    result: Option[String] = None,
    kind: String = "",
    message: String = "",
    epoch: Option[Long] = None,
    step: Option[Long] = None,
    isCause: Boolean = true
) {
  import RankOutcome._

  /** What the supervisor judges by. */
  def json: ObjectNode =
    Json.obj().put("kind", if (result.isEmpty) kind else null).put("isCause", isCause)

  /** The exception that tells of this failure. Where its class does not say what worker it was, its cause does. */
  def exception: FlambeauException = {
    val text = s"$message ($where)"
    def place = new WorkerException(text, Some(rank), Some(host), epoch, step)
    kind match {
      case "lost" | "collective" => new WorkerLostException(text, Some(rank), Some(host), epoch, step)
      case _                     => exceptionOf(kind, text, place)
    }
  }

  private def where: String =
    s"on worker $rank ($host)" + epoch.fold("")(n => s", epoch $n") + step.fold("")(n => s", step $n")
}

private[flambeau] object RankOutcome {

  /** The exception for a kind of failure that `flambeau-worker` tells; `other` for those without a class of their own. */
  def exceptionOf(kind: String, text: String, other: => FlambeauException): FlambeauException = kind match {
    case "job"         => new ParamException(text, other)
    case "data"        => new DataException(text, other)
    case "store"       => new TransientStoreException(text, other)
    case "environment" => new ClusterException(text, other)
    case _             => other
  }

  /** The kind of what kept a task from its worker. */
  def kindOf(error: Throwable): String = error match {
    case _: TransientStoreException           => "store"
    case _: StoreException | _: DataException => "data"
    case _: ParamException                    => "job"
    case _                                    => "environment"
  }
}
