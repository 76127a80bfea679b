package flambeau.internal.session

import java.util.UUID
import java.util.concurrent.TimeoutException

import scala.util.control.NonFatal

import flambeau.FlambeauException
import flambeau.internal.util.Failures
import org.apache.spark.{JobExecutionStatus, SparkContext}
import org.apache.spark.sql.SparkSession
import org.slf4j.LoggerFactory

/** Where a session runs its tasks, and jobs of it. */
private[flambeau] object Session {
  private val log = LoggerFactory.getLogger("flambeau")

  private val LateTaskSeconds = 30L
  private val LateTaskPollMillis = 50L

  /** The master of a session whose driver and workers are one JVM, and its number of threads. */
  val Local = """local(?:\[(\d+|\*)(?:,.*)?\])?""".r

  /** Whether driver and workers are one JVM: `local`, `local[n]`. */
  def isLocal(spark: SparkSession): Boolean = Local.pattern.matcher(spark.sparkContext.master).matches

  /** Whether workers run on this machine, in one JVM or several. */
  def sharesMachine(spark: SparkSession): Boolean = spark.sparkContext.master.startsWith("local")

  /** Runs `function` in one Spark task and returns its result: for what only workers can reach. Throws the
    * FlambeauException that it throws there.
    */
  def onWorker[T](spark: SparkSession)(function: () => T): T = {
    val answers = spark.sparkContext.parallelize(Seq(0), 1).map(_ => answerOf(function())).collect()
    answers.head.fold(throw _, identity)
  }

  /** What `act` returns, or the FlambeauException that it throws, for a task to give: Spark would make an exception of its
    * own of that.
    */
  def answerOf[T](act: => T): Either[FlambeauException, T] =
    try Right(act)
    catch { case error: FlambeauException => Left(error) }

  /** Runs `action`, which is given what cancels the Spark jobs that it runs on this thread. */
  def cancellable[T](sc: SparkContext)(action: (() => Unit) => T): T =
    tagged(sc)(tag => action(() => sc.cancelJobsWithTag(tag)))

  /** Runs `action`, whose Spark jobs on this thread have the tag that it is given. */
  private def tagged[T](sc: SparkContext)(action: String => T): T = {
    val tag = s"flambeau-${UUID.randomUUID}"
    sc.addJobTag(tag)
    try action(tag)
    finally sc.removeJobTag(tag)
  }

  /** Runs `action`, which runs Spark jobs on this thread, so that an interrupt of the thread cancels them. */
  def interruptible[T](sc: SparkContext)(action: => T): T = cancellable(sc) { cancel =>
    try action
    catch {
      case error: Throwable if Failures.causes(error).exists(_.isInstanceOf[InterruptedException]) =>
        log.warn("cancelling the training's Spark jobs")
        cancel()
        throw error
    }
  }

  /** Runs `action`, which runs Spark jobs on this thread. Where it fails or is interrupted, cancels them, and waits until their
    * tasks have ended too, so that none of them writes any more; up to `LateTaskSeconds`, after which a warning is logged.
    *
    * Spark fails a job with its first task that fails, and tells the others to end, which they do at their next row.
    */
  def untilTasksEnd[T](sc: SparkContext)(action: => T): T = tagged(sc) { tag =>
    try action
    catch {
      case error: Throwable =>
        try {
          sc.cancelJobsWithTag(tag)
          awaitTasks(sc, tag)
        } catch {
          case late: InterruptedException =>
            error.addSuppressed(late)
            Thread.currentThread.interrupt()
          case NonFatal(late) =>
            log.warn(s"tasks of a failed Spark job may still write: ${Failures.firstLine(late)}")
        }
        throw error
    }
  }

  /** Waits until no task of the jobs with this tag, which have failed or ended, runs any more. Throws TimeoutException. */
  private def awaitTasks(sc: SparkContext, tag: String): Unit = {
    val tracker = sc.statusTracker
    // The tracker is told of jobs late, and in their order: once it knows of this one, which has no tasks, it knows of all.
    val last = tagged(sc) { last =>
      sc.emptyRDD[Int].count()
      last
    }
    def runs: Boolean = {
      val jobs = tracker.getJobIdsForTag(tag).toSeq.flatMap(tracker.getJobInfo(_))
      val stages = jobs.flatMap(_.stageIds.toSeq).flatMap(tracker.getStageInfo(_))
      jobs.exists(_.status == JobExecutionStatus.RUNNING) || stages.exists(_.numActiveTasks > 0)
    }
    val deadline = System.nanoTime + LateTaskSeconds * 1000000000L
    while (tracker.getJobIdsForTag(last).isEmpty || runs) {
      if (System.nanoTime > deadline)
        throw new TimeoutException(s"they have not ended $LateTaskSeconds s after it")
      Thread.sleep(LateTaskPollMillis)
    }
  }
}
