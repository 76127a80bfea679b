package flambeau.internal.fit

import java.io.IOException
import java.net.InetAddress
import java.nio.file.Files

import scala.util.{Failure, Success, Try}

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.{DataException, FlambeauException}
import flambeau.jni.{NativeFiles, NativeLibrary, StoredFile}
import flambeau.internal.session.{Settings, TaskGpus}
import flambeau.internal.util.Json
import flambeau.internal.util.Machine.hostName
import org.apache.spark.{BarrierTaskContext, TaskKilledException}

/** What each task of the barrier stage does: it starts a worker, speaks for it with the other tasks, and says how it ended.
  *
  * @param jobJson
  *   the training job
  * @param code
  *   the files of its program to check, by their part in it
  * @param secret
  *   base64 of what proves that ranks belong to the same attempt
  * @param settings
  *   the session's confs
  * @param meetingPlace
  *   the directory where the ranks meet; none where they meet through Spark
  */
private[flambeau] final case class RankTask(
    jobJson: String,
    code: Map[String, StoredFile],
    secret: String,
    settings: Settings,
    meetingPlace: Option[String]
) {
  import RankTask._

  /** Without the secret and the job, which has the options of the stores. */
  override def toString: String = s"RankTask($settings, $meetingPlace)"

  /** Trains one rank. Waits for as long as the training takes; a task that Spark kills ends its worker and throws
    * TaskKilledException or InterruptedException.
    */
  def run(context: BarrierTaskContext): RankOutcome = {
    val dealt = context.getTaskInfos().map(_.address).toSeq
    val tasks = tasksByHost(dealt)
    val rank = tasks.indexOf(context.partitionId())
    val gather = meetingPlace.fold(context.allGather(_: String).toSeq)(new MeetingPlace(_, context).allGather)
    val rendezvous = new StageRendezvous(context, message => tasks.map(gather(message)))
    val outcome =
      try withJob(job =>
          withWorker(rank, TaskGpus.of(context))(
            new Dialogue(context, rendezvous, tasks.map(dealt), rank, job).train
          )
        )
      catch {
        case error @ (_: FlambeauException | _: IOException) =>
          RankOutcome(rank, hostName, kind = RankOutcome.kindOf(error), message = error.getMessage)
      }
    rendezvous.leave()
    outcome
  }

  /** Gives the job with the program's files as copies of this task's own. Throws DataException where one is not what the
    * driver wrote: what is in it is run.
    */
  private[flambeau] def withJob[T](use: JsonNode => T): T = {
    val job = Json.parse(jobJson)
    val folder = Files.createTempDirectory("flambeau-")
    try {
      for ((part, file) <- code) {
        val copy = folder.resolve(part)
        NativeLibrary.store(settings.get).getToFile(settings.storeJson, file.uri, copy.toString)
        if (StoredFile.hash(copy) != file.sha256)
          throw new DataException(s"${file.uri} is not the program that the driver wrote there")
        val program = job.get("program").asInstanceOf[ObjectNode]
        if (part == "loss") program.set[ObjectNode](part, Json.obj().put("script", copy.toString))
        else program.put(part, copy.toString)
      }
      use(job)
    } finally NativeFiles.remove(folder)
  }

  private def withWorker(rank: Int, gpus: Option[Seq[String]])(
      train: WorkerProcess => RankOutcome
  ): RankOutcome = {
    val assigned = gpus.toSeq.flatMap(addresses => Seq("--gpus", addresses.mkString(",")))
    val file = logFile(rank)
    val rankLog = new RankLog(rank, file, NativeLibrary.store(settings.get).put(settings.storeJson, file, _))
    try {
      val command = Seq("train", "--launcher") ++ assigned
      val worker = WorkerProcess.start(settings, command, s"worker $rank", rankLog.add)
      try train(worker)
      finally worker.close()
    } finally rankLog.close()
  }

  private def logFile(rank: Int): String = {
    val attempt = Json.parse(jobJson).get("attempt")
    val workDir = attempt.get("workDir").asText.stripSuffix("/")
    s"$workDir/attempts/${attempt.get("id").asText}/logs/rank-$rank.log"
  }

  /** What is said between the worker, this task and the other tasks. */
  private final class Dialogue(
      context: BarrierTaskContext,
      rendezvous: StageRendezvous,
      addresses: Seq[String],
      rank: Int,
      job: JsonNode
  ) {

    def train(worker: WorkerProcess): RankOutcome = {
      worker.send(Json.obj().set[ObjectNode]("start", start))
      var outcome = Option.empty[RankOutcome]
      while (outcome.isEmpty) outcome = next(worker) match {
        case WorkerProcess.EndOfOutput => Some(ended(worker.exit()))
        case WorkerProcess.Message(line) =>
          Try(Json.parse(line, s"what the worker said ($line)")) match {
            case Success(message) => take(worker, message)
            // Of a process that was killed while it wrote, the last line is half of one: how it died says more.
            case Failure(error) =>
              if (next(worker) == WorkerProcess.EndOfOutput) Some(ended(worker.exit())) else throw error
          }
      }
      outcome.get
    }

    /** The worker's next event. Looks up often enough to end with a task that Spark kills. */
    private def next(worker: WorkerProcess): WorkerProcess.Event = {
      var event = Option.empty[WorkerProcess.Event]
      while (event.isEmpty) {
        if (context.isInterrupted()) throw new TaskKilledException("the training was cancelled")
        event = worker.poll(PollMillis)
      }
      event.get
    }

    private def start: ObjectNode = Json
      .obj()
      .set[ObjectNode]("job", job)
      .put("rank", rank)
      .put("worldSize", addresses.size)
      .put("bindAddress", bindAddress(addresses, rank))
      .put("secret", secret)
      .put("transport", "auto")

    /** Answers a message; gives the outcome where it is the last one. */
    private def take(worker: WorkerProcess, message: JsonNode): Option[RankOutcome] =
      if (message.has("gather")) {
        worker.send(meet(message.get("gather").asText))
        None
      } else if (message.has("result"))
        Some(RankOutcome(rank, hostName, result = Some(message.get("result").toString)))
      else if (message.has("error")) Some(failed(message.get("error")))
      // Progress, which the event files tell too.
      else None

    private def meet(payload: String): JsonNode = rendezvous.allGather(payload) match {
      case Right(payloads) => Json.obj().set[ObjectNode]("gathered", Json.strings(payloads))
      case Left(rank)      => Json.obj().set[ObjectNode]("left", Json.obj().put("rank", rank))
    }

    private def failed(error: JsonNode): RankOutcome = RankOutcome(
      rank,
      text(error, "host").getOrElse(hostName),
      kind = text(error, "kind").getOrElse(""),
      message = text(error, "message").getOrElse(""),
      epoch = number(error, "epoch"),
      step = number(error, "step"),
      isCause = error.path("isCause").asBoolean(true)
    )

    private def ended(exit: WorkerProcess.Exit): RankOutcome = {
      val kind = if (exit.signal.isDefined) "lost" else "environment"
      RankOutcome(rank, hostName, kind = kind, message = s"the worker's process $exit")
    }
  }
}

private[flambeau] object RankTask {
  private val PollMillis = 50L

  /** The IP address that the other ranks reach this one at; loopback where all executors are on one host.
    *
    * @param addresses
    *   the executors', `host:port`, by rank
    */
  def bindAddress(addresses: Seq[String], rank: Int): String = {
    val hosts = hostsOf(addresses)
    if (hosts.distinct.size == 1) "127.0.0.1" else InetAddress.getByName(hosts(rank)).getHostAddress
  }

  /** The tasks of a barrier stage in the order of their ranks: those of a host one after another, hosts by their first task.
    *
    * Sums are formed from rank to rank, so that each change of host along the ranks is a way over the network; Spark deals
    * tasks to executors in turn.
    *
    * @param addresses
    *   the executors', `host:port`, by task
    */
  def tasksByHost(addresses: Seq[String]): Seq[Int] = {
    val hosts = hostsOf(addresses)
    hosts.indices.sortBy(task => hosts.indexOf(hosts(task)))
  }

  private def hostsOf(addresses: Seq[String]): Seq[String] =
    addresses.map(_.replaceAll(":[^:]*$", "").stripPrefix("[").stripSuffix("]"))

  private def text(node: JsonNode, name: String): Option[String] =
    Option(node.get(name)).filter(_.isTextual).map(_.asText)

  private def number(node: JsonNode, name: String): Option[Long] =
    Option(node.get(name)).filter(_.isIntegralNumber).map(_.asLong)
}

/** The one all-gather of a barrier stage, which a rank that fails before it leaves with a mark for the others.
  *
  * Without the mark they would wait for `spark.barrier.sync.timeout`, a year by default.
  */
private[flambeau] final class StageRendezvous(context: BarrierTaskContext, gather: String => Seq[String]) {
  import StageRendezvous._

  private var isDone = false

  /** Every rank's payload, by rank, or the first rank that left instead. Waits for all ranks. */
  def allGather(payload: String): Either[Int, Seq[String]] = {
    isDone = true
    val replies = gather(Met + payload)
    val left = replies.indexWhere(!_.startsWith(Met))
    if (left >= 0) Left(left) else Right(replies.map(_.stripPrefix(Met)))
  }

  /** Frees the ranks that wait in `allGather`, where this one never called it. A single rank has no one to meet. */
  def leave(): Unit = if (!isDone && context.getTaskInfos().length > 1) {
    isDone = true
    gather(Gone)
  }
}

private[flambeau] object StageRendezvous {
  private val Met = "+"
  private val Gone = "-"
}
