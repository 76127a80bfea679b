package flambeau.internal.fit

import scala.collection.mutable

import org.apache.spark.ExecutorLostFailure
import org.apache.spark.scheduler.{
  SparkListener, SparkListenerJobEnd, SparkListenerJobStart, SparkListenerTaskEnd
}

/** The executors that went away under the tasks of jobs, as Spark's listener bus tells them: a job's own error says so in words
  * alone.
  */
private[flambeau] final class LostExecutors extends SparkListener {
  import LostExecutors._

  private val stages = mutable.Map.empty[Int, Seq[Int]]
  private val reasons = mutable.Map.empty[Int, String]
  private val ended = mutable.Set.empty[Int]

  override def onJobStart(start: SparkListenerJobStart): Unit =
    synchronized(stages(start.jobId) = start.stageIds)

  override def onTaskEnd(end: SparkListenerTaskEnd): Unit = end.reason match {
    case lost: ExecutorLostFailure => synchronized(reasons(end.stageId) = lost.toErrorString)
    case _                         =>
  }

  override def onJobEnd(end: SparkListenerJobEnd): Unit = synchronized {
    ended += end.jobId
    notifyAll()
  }

  /** Why an executor of a job that has failed went away; none where none did. The bus comes after the error: it is waited for,
    * for at most ten seconds.
    */
  def of(job: Int): Option[String] = synchronized {
    val deadline = System.nanoTime + BusMillis * 1000000
    var left = BusMillis
    while (!ended(job) && left > 0) {
      wait(left)
      left = (deadline - System.nanoTime) / 1000000
    }
    stages.getOrElse(job, Nil).flatMap(reasons.get).headOption
  }
}

private object LostExecutors {
  private val BusMillis = 10000L
}
