package flambeau.internal.fit

import java.io.IOException

import com.fasterxml.jackson.databind.JsonNode
import flambeau.{FlambeauException, GeneralException, ParamException}
import flambeau.internal.session.Settings
import flambeau.internal.util.Json

/** What is wrong with a job's program, before any worker starts. It is tried in a process of its own, which a program that
  * crashes takes with it.
  */
private[flambeau] object JobCheck {
  private val PollMillis = 1000L

  /** What `flambeau-worker check` says of a job: `output`, `numParameters`, `parameterDtype` and `torch`. Waits for as long
    * as the program takes for two rows; an interrupt of the thread ends the process.
    *
    * Throws ParamException, DataException and StoreException for what the job names, and FlambeauException where this
    * machine has no libtorch.
    */
  def apply(job: JsonNode, settings: Settings): JsonNode = {
    val process =
      try WorkerProcess.start(settings, Seq("check", "--job", "-"), "the check of the job")
      catch {
        case error: IOException =>
          throw new GeneralException(s"flambeau-worker cannot be run: ${error.getMessage}", error)
      }
    try {
      process.send(job)
      Iterator.continually(process.poll(PollMillis)).flatten.next() match {
        case WorkerProcess.Message(line) => answer(Json.parse(line, s"what the check said ($line)"))
        case WorkerProcess.EndOfOutput   => throw ended(process.exit())
      }
    } finally process.close()
  }

  private def answer(message: JsonNode): JsonNode =
    Option(message.get("check")).getOrElse {
      val error = message.get("error")
      val text = error.get("message").asText
      throw RankOutcome.exceptionOf(error.get("kind").asText, text, new GeneralException(text))
    }

  private def ended(exit: WorkerProcess.Exit): FlambeauException =
    if (exit.signal.isDefined) new ParamException(s"model: the process that tried the program $exit")
    else new GeneralException(exit.stderr.mkString("\n").stripPrefix("flambeau-worker: "))
}
