package flambeau.internal.session

import java.util.UUID

import scala.reflect.ClassTag

import flambeau.internal.util.Failures
import org.apache.spark.SparkContext
import org.apache.spark.sql.SparkSession
import org.slf4j.LoggerFactory

/** Where a session runs its tasks, and jobs of it. */
private[flambeau] object Session {
  private val log = LoggerFactory.getLogger("flambeau")

  /** The master of a session whose driver and workers are one JVM, and its number of threads. */
  val Local = """local(?:\[(\d+|\*)(?:,.*)?\])?""".r

  /** Whether driver and workers are one JVM: `local`, `local[n]`. */
  def isLocal(spark: SparkSession): Boolean = Local.pattern.matcher(spark.sparkContext.master).matches

  /** Whether workers run on this machine, in one JVM or several. */
  def sharesMachine(spark: SparkSession): Boolean = spark.sparkContext.master.startsWith("local")

  /** Runs `function` in one Spark task and returns its result: for what only workers can reach. */
  def onWorker[T: ClassTag](spark: SparkSession)(function: () => T): T =
    spark.sparkContext.parallelize(Seq(0), 1).map(_ => function()).collect().head

  /** Runs `action`, which is given what cancels the Spark jobs that it runs on this thread. */
  def cancellable[T](sc: SparkContext)(action: (() => Unit) => T): T = {
    val tag = s"flambeau-${UUID.randomUUID}"
    sc.addJobTag(tag)
    try action(() => sc.cancelJobsWithTag(tag))
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
}
