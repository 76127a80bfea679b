package flambeau.internal.fit

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import flambeau.internal.storage.WorkDirectory
import flambeau.internal.util.Json
import org.slf4j.LoggerFactory

/** Logs each epoch of an attempt, from the event files that rank 0 writes into the work directory.
  *
  * A thread polls the files until `close`. The logger is `flambeau`, the level INFO.
  */
private[flambeau] final class Progress private (work: WorkDirectory, attempt: String) extends AutoCloseable {
  import Progress._

  private val directory = work.path("attempts", attempt, "events")
  @volatile private var isEnding = false
  private var nextFile = 1
  private var numEpochs = 0L
  private var lastEpoch = 0L

  private val thread = new Thread(() => poll(), "flambeau-progress")
  thread.setDaemon(true)
  thread.start()

  /** Shows what came in before the end. Waits for one poll at most, which the store's own deadlines bound. */
  override def close(): Unit = {
    isEnding = true
    thread.interrupt()
    thread.join(JoinMillis)
  }

  private def poll(): Unit = {
    var isLast = false
    while (!isLast) {
      try Thread.sleep(PollMillis)
      catch { case _: InterruptedException => () }
      isLast = isEnding
      try readNew()
      catch { case NonFatal(error) => log.debug("progress could not be read", error) }
    }
  }

  private def readNew(): Unit = {
    var file = f"$directory/$nextFile%08d.json"
    while (work.sees(file)) {
      nextFile += 1
      Json.parse(new String(work.read(file), "UTF-8")).forEach(show(_))
      file = f"$directory/$nextFile%08d.json"
    }
  }

  private def show(event: JsonNode): Unit = event.path("kind").asText match {
    case "start" => numEpochs = event.path("epochs").asLong
    case "epoch" =>
      lastEpoch = event.path("epoch").asLong + 1
      log.info(Progress.line(event, numEpochs))
    case "end" if lastEpoch < numEpochs =>
      log.info("training stopped early after epoch {} of {}", lastEpoch, numEpochs)
    case _ => ()
  }
}

private[flambeau] object Progress {
  private val log = LoggerFactory.getLogger("flambeau")
  private val PollMillis = 500L
  private val JoinMillis = 30000L
  private object nothing extends AutoCloseable { override def close(): Unit = () }

  /** What shows an attempt's progress; silent where `verbose` is 0 or this process does not see the work directory. */
  def of(work: WorkDirectory, attempt: String, isVisible: Boolean, verbose: Int): AutoCloseable =
    if (verbose == 0 || !isVisible) nothing else new Progress(work, attempt)

  /** A finished epoch in one line. */
  def line(event: JsonNode, numEpochs: Long): String = {
    def value(node: JsonNode): String = if (node.isNumber) f"${node.asDouble}%.4g" else "-"
    val rows = f"${event.path("rowsPerSecond").asDouble}%,.0f rows/s"
    val parts = scala.collection.mutable.ArrayBuffer(
      s"epoch ${event.path("epoch").asLong + 1} of $numEpochs: loss ${value(event.path("loss"))}"
    )
    event.path("metrics").forEach(pair => parts += s"${pair.get(0).asText} ${value(pair.get(1))}")
    if (event.path("validationLoss").isNumber)
      parts += s"validation loss ${value(event.path("validationLoss"))}"
    event.path("validationMetrics").forEach { pair =>
      parts += s"validation ${pair.get(0).asText} ${value(pair.get(1))}"
    }
    (parts += rows).mkString(", ")
  }
}
