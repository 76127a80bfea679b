package flambeau.internal.fit

import java.util.concurrent.{ConcurrentHashMap, TimeoutException}

import scala.annotation.tailrec
import scala.collection.JavaConverters._
import scala.collection.mutable
import scala.concurrent.Await
import scala.concurrent.duration._
import scala.util.{Failure, Success, Try}
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.{Checkpoint, ClusterException, GeneralException, WorkerException, WorkerLostException}
import flambeau.jni.StoredFile
import flambeau.internal.session.{JobLabels, Session, TaskGpus}
import flambeau.internal.storage.Site
import flambeau.internal.util.{Failures, Json}
import org.apache.spark.sql.SparkSession
import org.apache.spark.{BarrierTaskContext, FutureAction, SparkException}
import org.slf4j.LoggerFactory

/** A training that is ready to run: one barrier stage, one task for each rank, started again where a worker was lost.
  *
  * @param job
  *   the training job without its `attempt`
  * @param code
  *   the files of its program that lie where others than the driver may write
  * @param numGpus
  *   GPUs that Spark is asked for with each task, 0 or 1
  * @param slotTimeout
  *   seconds to wait for task slots
  * @param ofRun
  *   the run that this is a fit of
  * @param listeners
  *   who is told of it
  * @param labels
  *   what Spark's UI says of its jobs
  */
private[flambeau] final class Launch(
    site: Site,
    job: ObjectNode,
    code: Map[String, StoredFile],
    numWorkers: Int,
    numGpus: Int,
    maxRestarts: Int,
    slotTimeout: Double,
    ofRun: Run,
    listeners: ListenerBus,
    labels: JobLabels
) {
  import Launch._

  private val spark = site.spark
  private val work = site.work

  /** Those of the run's earlier fits, then this one's. */
  private val attempts = mutable.ArrayBuffer.empty[String]

  private var numEarlier = 0

  /** The digest of the rows that a run is compared by. */
  private var rows = Option.empty[String]

  /** Those of this fit that came to nothing. */
  private var failed = Seq.empty[String]

  /** Trains, and returns rank 0's result as `native/train` tells it, with the digest of a run's rows as `rowsSha256`. Waits for as
    * long as that takes.
    *
    * A lost worker starts the training again from the newest whole checkpoint, up to `maxRestarts` times. Throws what the
    * rank failed with where the failure began, and what a listener has thrown before the training's end.
    */
  def run(): JsonNode = {
    if (ofRun.isNamed) attempts ++= ofRun.attempts()
    numEarlier = attempts.size
    train(restarts = 0)
  }

  /** `before` is what the attempt before this one failed with. */
  @tailrec
  private def train(restarts: Int, before: Option[Throwable] = None): JsonNode = {
    val ended: Ended = Try(begin(restarts)) match {
      case Success(begun) =>
        val begins = Option(begun.get("epoch")).filterNot(_.isNull).fold("")(epoch => s" from epoch $epoch")
        labels.say(s"train$begins, attempt ${restarts + 1}")
        attempt(begun, restarts)
      case Failure(error) => Left(error)
    }
    val verdict = judged(ended.fold(error => Seq(endedBy(error)), _.map(_.json)), restarts)
    if (verdict.get("cause").isNull) ended.fold(throw _, resultOf)
    else {
      failed = attempts.toSeq.drop(numEarlier)
      val error = ended.fold(identity, outcomes => outcomes(verdict.get("cause").asInt).exception)
      if (!verdict.get("again").asBoolean) {
        before.foreach(error.addSuppressed)
        throw error
      }
      log.warn(
        s"training is started again (${restarts + 1} of at most $maxRestarts restarts): ${Failures.firstLine(error)}"
      )
      Thread.sleep(1000 * verdict.get("backOffSeconds").asLong)
      awaitSlots(error, atLeast = verdict.get("slotSeconds").asDouble)
      train(restarts + 1, Some(error))
    }
  }

  /** Removes what the attempts left in the work directory, but for the newest `numCheckpoints` with weights and what ranks
    * wrote, and the run's file; returns those checkpoints, oldest first. A failure to do so is told and no more.
    */
  def clean(numCheckpoints: Int = 0): Seq[Checkpoint] = {
    val question = Site.question("keepCheckpoints").put("num", numCheckpoints)
    question.set[ObjectNode]("attempts", Json.strings(attempts))
    question.set[ObjectNode]("failed", Json.strings(failed))
    // It looks into the work directory.
    val isOurs = attempts.nonEmpty && !ofRun.isLost
    val kept =
      try if (isOurs) Json.items(site.ask(question)).map(Checkpoint.of) else Nil
      catch {
        case NonFatal(error) =>
          log.warn(s"the checkpoints in ${work.uri} could not be sorted out: ${Failures.firstLine(error)}")
          Nil
      }
    if (isOurs) ofRun.remove()
    kept
  }

  /** Removes all that the attempts left in the work directory, their weights too; returns that no checkpoint is left. */
  def discard(): Seq[Checkpoint] = {
    failed = attempts.toSeq
    val kept = clean()
    failed.foreach(site.remove("attempts", _))
    kept
  }

  /** Keeps the checkpoints of a fit that did not succeed for the run's next one, and says so in a warning. Where there are
    * none, no more is kept than what the ranks wrote, whose ends the error gets.
    */
  def keep(error: Throwable): Unit = {
    tellLogs(error)
    try {
      val newest = if (attempts.isEmpty) None else newestCheckpoint()
      failed = attempts.toSeq.drop(numEarlier)
      if (newest.isEmpty) clean()
      for (checkpoint <- newest if !ofRun.isLost) {
        // Weights of a training that ended before the fit failed.
        failed.foreach(site.remove("models", _))
        ofRun.write(attempts.toSeq)
        log.warn(
          s"the newest checkpoint is kept in $checkpoint: a fit of the same rows with runId='${ofRun.id}' and the same " +
            "workDir goes on from it"
        )
      }
    } catch {
      case NonFatal(error) =>
        log.warn(s"what the training left in ${work.uri} stays: ${Failures.firstLine(error)}")
    }
  }

  /** Tells in a suppressed exception of the error what the ranks of the last attempt wrote last: the one that it names, else
    * all.
    */
  private def tellLogs(error: Throwable): Unit =
    try
      if (attempts.size > numEarlier && !ofRun.isLost) {
        val ends = Json.items(site.ask(Site.question("logEnds").put("attempt", attempts.last)))
        val rank = Failures.causes(error).collectFirst { case told: WorkerException => told.rank }.flatten
        val ofRank = ends.filter(end => rank.contains(end.get("rank").asInt))
        for (end <- if (ofRank.isEmpty) ends.take(NumLogs) else ofRank) {
          val lines = Json.texts(end.get("lines")).mkString("\n")
          val uri = end.get("uri").asText
          error.addSuppressed(
            new GeneralException(s"the end of the log of worker ${end.get("rank").asInt}, $uri:\n$lines")
          )
        }
        for (end <- ends.headOption)
          log.warn(s"what the workers wrote is kept in ${end.get("uri").asText.replaceFirst("/[^/]*$", "")}")
      }
    catch { case NonFatal(other) => log.debug("the logs of the workers could not be read", other) }

  /** Rank 0's result, with the warnings of all ranks and the digest of the rows. */
  private def resultOf(outcomes: Seq[RankOutcome]): JsonNode = {
    val results = outcomes.map(outcome => Json.parse(outcome.result.get))
    val warnings = results.flatMap(result => Json.texts(result.get("warnings"))).distinct
    val result = results.head.deepCopy[ObjectNode]().set[ObjectNode]("warnings", Json.strings(warnings))
    result.put("rowsSha256", rows.orNull)
  }

  /** The next attempt as the supervisor begins it: `id`, `resume`, `epoch`, `rows`, `secret` and `graceSeconds`. */
  private def begin(restarts: Int): JsonNode = {
    val question = Site.question("beginAttempt").put("id", work.newId())
    question.set[ObjectNode]("attempts", Json.strings(attempts))
    if (ofRun.isNamed) ofRun.note.foreach(question.set[ObjectNode]("run", _))
    // The first one of a run that has no name needs nothing of the directory.
    val isHere = attempts.isEmpty && !ofRun.isNamed
    val attempt = if (isHere) Json.parse(work.ask(Json.text(question))) else site.ask(question)
    for (uri <- Option(attempt.get("resume")).filterNot(_.isNull) if restarts == 0)
      log.info(s"going on from ${uri.asText}")
    attempts += attempt.get("id").asText
    rows = Option(attempt.get("rows").textValue)
    attempt
  }

  /** How the ranks of an attempt ended, or the executor that Spark lost. */
  private def attempt(begun: JsonNode, restarts: Int): Ended = {
    val id = begun.get("id").asText
    val where =
      Json.obj().put("id", id).put("workDir", work.uri).set[ObjectNode]("resume", begun.get("resume"))
    where.put("restarts", restarts)
    for (stopFile <- listeners.stopFile(id)) where.put("stopFile", stopFile).put("callbacks", true)
    listeners.usageSeconds.foreach(where.put("usageSeconds", _))
    val whole = job.deepCopy().set[ObjectNode]("attempt", where)
    val place = MeetingPlace.of(work, id, Session.sharesMachine(spark))
    val task = RankTask(whole.toString, code, begun.get("secret").asText, work.settings, place)
    val limit = grace.getOrElse(begun.get("graceSeconds").asLong.seconds)
    val endedWell = (ended: Ended) => ended.exists(_.forall(_.result.isDefined))
    listeners.during(id, endedWell) {
      try Right(runStage(spark, task, numWorkers, numGpus, limit))
      catch { case lost: WorkerLostException => Left(lost) }
    }
  }

  /** Which failure was the first, and whether it is worth another attempt. */
  private def judged(ended: Seq[JsonNode], restarts: Int): JsonNode = {
    val question = Site.question("judge").put("restarts", restarts).put("maxRestarts", maxRestarts)
    question.set[ObjectNode]("ended", Json.array(ended))
    Json.parse(work.ask(Json.text(question)))
  }

  private def newestCheckpoint(): Option[String] = {
    val question = Site.question("newestCheckpoint")
    question.set[ObjectNode]("attempts", Json.strings(attempts))
    Option(site.ask(question)).filterNot(_.isNull).map(_.asText)
  }

  private def awaitSlots(lost: Throwable, atLeast: Double): Unit =
    try Cluster.checkSlots(spark, numWorkers, numGpus, math.max(slotTimeout, atLeast))
    catch {
      case error: ClusterException =>
        error.addSuppressed(lost)
        throw error
    }
}

private[flambeau] object Launch {
  private val log = LoggerFactory.getLogger("flambeau")

  /** What tests put in place of the supervisor's grace. */
  @volatile private[flambeau] var grace: Option[FiniteDuration] = None

  private val PollTime = 100.millis

  /** An error tells the ends of so many logs where it names no worker. */
  private val NumLogs = 3

  /** What an attempt came to: its ranks by rank, or what kept it from beginning or ended them all. */
  private type Ended = Either[Throwable, Seq[RankOutcome]]

  /** What the supervisor is told of an attempt without ranks. */
  private def endedBy(error: Throwable): ObjectNode = {
    val kind = error match {
      case _: WorkerLostException => "lost"
      case other                  => RankOutcome.kindOf(other)
    }
    Json.obj().put("kind", kind).put("isCause", true)
  }

  /** Runs one barrier stage with a task for each rank, each with so many GPUs, and returns how they ended, by rank.
    *
    * Waits for as long as the training takes. Once a rank has failed, the others have `grace` to end as well; then
    * the stage is cancelled, and what came until then is returned, so that a worker that is frozen keeps nobody waiting.
    * An interrupt of this thread cancels the stage. Throws WorkerLostException where Spark lost an executor.
    */
  private def runStage(
      spark: SparkSession,
      task: RankTask,
      numWorkers: Int,
      numGpus: Int,
      grace: FiniteDuration
  ): Seq[RankOutcome] = {
    val sc = spark.sparkContext
    val ranks = sc.parallelize(0 until numWorkers, numWorkers)
    val stage = (if (numGpus > 0) TaskGpus.oneEach(ranks) else ranks)
      .barrier()
      .mapPartitions(_ => Iterator.single(task.run(BarrierTaskContext.get())))
    val outcomes = new ConcurrentHashMap[Int, RankOutcome]
    def ended: Seq[RankOutcome] = outcomes.values.asScala.toList.sortBy(_.rank)
    val lost = new LostExecutors
    sc.addSparkListener(lost)
    try Session.interruptible(sc) {
        val job = sc.submitJob[RankOutcome, RankOutcome, Unit](
          stage,
          _.next(),
          0 until numWorkers,
          (task, outcome) => outcomes.put(task, outcome),
          ()
        )
        while (!isReady(job, PollTime) && !ended.exists(_.result.isEmpty)) {}
        if (isReady(job, grace))
          try Await.result(job, Duration.Inf)
          catch {
            case error: SparkException =>
              // A bus that is full drops what the listener is to hear.
              val told = "ExecutorLostFailure.*".r.findFirstIn(String.valueOf(error.getMessage))
              val reason = job.jobIds.flatMap(lost.of(_)).headOption.orElse(told)
              throw reason.fold[Throwable](error) { reason =>
                new WorkerLostException(s"a worker was lost: $reason", None, None, None, None, error)
              }
          }
        else {
          val late = (0 until numWorkers).diff(ended.map(_.rank))
          log.warn(
            s"worker ${late.mkString(", ")} did not end within $grace after the failure: cancelling the stage"
          )
          job.cancel()
        }
        ended
      }
    finally sc.removeSparkListener(lost)
  }

  /** Waits for the end of a job, for that time at most, and returns whether it has ended. */
  private def isReady(job: FutureAction[_], atMost: FiniteDuration): Boolean =
    try Await.ready(job, atMost).isCompleted
    catch { case _: TimeoutException => false }
}
