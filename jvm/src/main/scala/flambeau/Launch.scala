package flambeau

import java.security.SecureRandom
import java.util.Base64
import java.util.concurrent.{ConcurrentHashMap, TimeoutException}

import scala.collection.JavaConverters._
import scala.collection.mutable
import scala.concurrent.Await
import scala.concurrent.duration._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.jni.StoredFile
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
  * @param watch
  *   makes what shows an attempt's progress, given the attempt's id
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
    watch: String => AutoCloseable
) {
  import Launch._

  private val spark = site.spark
  private val work = site.work

  /** Those of the run's earlier fits, then this one's. */
  private val attempts = mutable.ArrayBuffer.empty[String]

  /** Trains, and returns rank 0's result as `native/train` tells it. Waits for as long as that takes.
    *
    * A lost worker starts the training again from the newest whole checkpoint, up to `maxRestarts` times. Throws what the
    * rank failed with where the failure began.
    */
  def run(): JsonNode = {
    if (ofRun.isNamed) attempts ++= ofRun.attempts()
    val numEarlier = attempts.size
    var result = Option.empty[JsonNode]
    while (result.isEmpty) {
      val resume = if (attempts.isEmpty) None else newestCheckpoint()
      for (uri <- resume if attempts.size == numEarlier) log.info(s"going on from $uri")
      attempts += WorkDirectory.newId()
      if (ofRun.isNamed) ofRun.write(attempts.toSeq)
      val restarts = attempts.size - numEarlier - 1
      try result = Some(attempt(attempts.last, resume, restarts))
      catch {
        case lost: Lost if restarts < maxRestarts =>
          log.warn(
            s"training is started again (${restarts + 1} of at most $maxRestarts restarts): ${lost.reason}"
          )
          awaitSlots(lost.error)
        case lost: Lost => throw lost.error
      }
    }
    result.get
  }

  /** Removes what the attempts left in the work directory, but for the newest `numCheckpoints` with weights, and the run's
    * file; returns those checkpoints, oldest first. A failure to do so is told and no more.
    */
  def clean(numCheckpoints: Int = 0): Seq[Checkpoint] = {
    val question = Site.question("keepCheckpoints").put("num", numCheckpoints)
    question.set[ObjectNode]("attempts", Json.strings(attempts))
    val kept =
      try if (attempts.isEmpty || ofRun.isLost) Nil else Json.items(site.ask(question)).map(Checkpoint.of)
      catch {
        case NonFatal(error) =>
          log.warn(s"the checkpoints in ${work.uri} could not be sorted out: ${firstLine(error)}")
          Nil
      }
    if (attempts.nonEmpty && !ofRun.isLost) ofRun.remove()
    kept
  }

  /** Keeps the checkpoints of a fit that did not succeed for the run's next one, and says so in a warning. Where there are
    * none, nothing is kept.
    */
  def keep(): Unit =
    try {
      val newest = if (attempts.isEmpty) None else newestCheckpoint()
      if (newest.isEmpty) clean()
      for (checkpoint <- newest if !ofRun.isLost) {
        ofRun.write(attempts.toSeq)
        log.warn(
          s"the newest checkpoint is kept in $checkpoint: a fit of the same rows with runId='${ofRun.id}' and the same " +
            "workDir goes on from it"
        )
      }
    } catch {
      case NonFatal(error) =>
        log.warn(s"what the training left in ${work.uri} stays: ${firstLine(error)}")
    }

  private def attempt(id: String, resume: Option[String], restarts: Int): JsonNode = {
    val where = Json.obj().put("id", id).put("workDir", work.uri).put("resume", resume.orNull)
    val whole = job.deepCopy().set[ObjectNode]("attempt", where)
    val progress = watch(id)
    val place = MeetingPlace.of(work, id, Cluster.sharesMachine(spark))
    val outcomes =
      try {
        val task = RankTask(whole.toString, code, newSecret(), work.settings, place)
        runStage(spark, task, numWorkers, numGpus)
      } finally progress.close()
    val verdict = judged(outcomes, restarts)
    outcomes.find(outcome => Option(verdict.get("cause")).exists(_.asInt(-1) == outcome.rank)) match {
      case None => Json.parse(outcomes.find(_.rank == 0).flatMap(_.result).get)
      case Some(failed) if verdict.get("again").asBoolean => throw new Lost(failed.exception)
      case Some(failed)                                   => throw failed.exception
    }
  }

  /** Which failure was the first, and whether it is worth another attempt. */
  private def judged(outcomes: Seq[RankOutcome], restarts: Int): JsonNode = {
    val question = Site.question("judge").put("restarts", restarts).put("maxRestarts", maxRestarts)
    question.set[ObjectNode]("ended", Json.array(outcomes.map(_.json)))
    Json.parse(work.ask(Json.text(question)))
  }

  private def newestCheckpoint(): Option[String] = {
    val question = Site.question("newestCheckpoint")
    question.set[ObjectNode]("attempts", Json.strings(attempts))
    Option(site.ask(question)).filterNot(_.isNull).map(_.asText)
  }

  private def awaitSlots(lost: Throwable): Unit =
    try Cluster.checkSlots(spark, numWorkers, numGpus, math.max(slotTimeout, RecoverySeconds))
    catch {
      case error: ClusterException =>
        error.addSuppressed(lost)
        throw error
    }
}

private[flambeau] object Launch {
  private val log = LoggerFactory.getLogger("flambeau")
  private val random = new SecureRandom

  // An executor that is lost comes back within this time, or Spark's cluster manager does not replace it.
  private val RecoverySeconds = 120.0

  /** For how long ranks may go on after one of them has failed. Those that live notice it in less than a second, or at the
    * end of the forward or backward that they are in. Tests make it shorter.
    */
  @volatile private[flambeau] var grace: FiniteDuration = 30.seconds

  private val PollTime = 100.millis

  // How Spark tells that an executor went away, in its own error texts.
  private val LostTexts =
    Seq("ExecutorLostFailure", "Executor heartbeat timed out", "Lost executor", "worker lost")

  /** A worker was lost, or did not answer in time: worth another attempt. `error` is what the user gets without one. */
  private final class Lost(val error: FlambeauException) extends Exception(error) {
    def reason: String = firstLine(error)
  }

  /** Runs one barrier stage with a task for each rank, each with so many GPUs, and returns how they ended, by rank.
    *
    * Waits for as long as the training takes. Once a rank has failed, the others have `grace` to end as well; then
    * the stage is cancelled, and what came until then is returned, so that a worker that is frozen keeps nobody waiting.
    * An interrupt of this thread cancels the stage. Throws Lost where Spark lost an executor.
    */
  private def runStage(
      spark: SparkSession,
      task: RankTask,
      numWorkers: Int,
      numGpus: Int
  ): Seq[RankOutcome] = {
    val sc = spark.sparkContext
    val ranks = sc.parallelize(0 until numWorkers, numWorkers)
    val stage = (if (numGpus > 0) TaskGpus.oneEach(ranks) else ranks)
      .barrier()
      .mapPartitions(_ => Iterator.single(task.run(BarrierTaskContext.get())))
    val outcomes = new ConcurrentHashMap[Int, RankOutcome]
    def ended: Seq[RankOutcome] = outcomes.values.asScala.toList.sortBy(_.rank)
    try Cluster.interruptible(sc) {
        val job = sc.submitJob[RankOutcome, RankOutcome, Unit](
          stage,
          _.next(),
          0 until numWorkers,
          (task, outcome) => outcomes.put(task, outcome),
          ()
        )
        while (!isReady(job, PollTime) && !ended.exists(_.result.isEmpty)) {}
        if (isReady(job, grace)) Await.result(job, Duration.Inf)
        else {
          val late = (0 until numWorkers).diff(ended.map(_.rank))
          log.warn(
            s"worker ${late.mkString(", ")} did not end within $grace after the failure: cancelling the stage"
          )
          job.cancel()
        }
        ended
      }
    catch {
      case error: SparkException if LostTexts.exists(String.valueOf(error.getMessage).contains(_)) =>
        val text = s"a worker was lost: ${reason(error)}"
        throw new Lost(new WorkerLostException(text, None, None, None, None, error))
    }
  }

  /** Waits for the end of a job, for that time at most, and returns whether it has ended. */
  private def isReady(job: FutureAction[_], atMost: FiniteDuration): Boolean =
    try Await.ready(job, atMost).isCompleted
    catch { case _: TimeoutException => false }

  private def newSecret(): String = {
    val bytes = new Array[Byte](32)
    random.nextBytes(bytes)
    Base64.getEncoder.encodeToString(bytes)
  }

  private[flambeau] def firstLine(error: Throwable): String =
    Option(error.getMessage).flatMap(_.linesIterator.take(1).toSeq.headOption).getOrElse(
      error.getClass.getSimpleName
    )

  /** The part of a Spark error that says how an executor was lost. */
  private def reason(error: Throwable): String =
    "(ExecutorLostFailure.*|Lost executor.*)".r.findFirstIn(error.getMessage).getOrElse(firstLine(error)).trim
}
