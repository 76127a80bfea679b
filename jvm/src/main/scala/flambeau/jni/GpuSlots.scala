package flambeau.jni

import scala.collection.mutable

import flambeau.ParamException
import org.apache.spark.{TaskContext, TaskKilledException}
import org.apache.spark.util.TaskCompletionListener

/** How many tasks of this JVM use a GPU at a time: what they compute lies in its memory.
  *
  * A task has one slot however many programs it scores with, which feed one another.
  */
private[flambeau] object GpuSlots {

  /** The configuration's key for the number. */
  val Key = "spark.flambeau.gpuTasks"

  private val Default = 2
  private val PollMillis = 100L

  /** The attempts of tasks that use each GPU, by its UUID. */
  private val users = mutable.Map.empty[String, Set[Long]].withDefaultValue(Set.empty)

  /** The number that a configuration, a key's value, has. Throws ParamException where it is none from 1. */
  def number(conf: String => Option[String]): Int = conf(Key).filter(_.nonEmpty).fold(Default) { text =>
    val number = if (text.forall(_.isDigit)) text.toInt else 0
    if (number < 1) throw new ParamException(s"$Key is '$text': give a whole number of tasks, from 1")
    number
  }

  /** Gives a task a slot of a GPU until its end. Waits for one; throws TaskKilledException where Spark kills the task
    * meanwhile.
    */
  def hold(gpu: String, numSlots: Int, task: TaskContext): Unit = synchronized {
    val attempt = task.taskAttemptId()
    if (!users(gpu)(attempt)) {
      while (users(gpu).size >= numSlots) {
        wait(PollMillis)
        if (task.isInterrupted()) throw new TaskKilledException("the scoring was cancelled")
      }
      users(gpu) += attempt
      task.addTaskCompletionListener(new TaskCompletionListener {
        override def onTaskCompletion(context: TaskContext): Unit = release(gpu, attempt)
      })
    }
  }

  private def release(gpu: String, attempt: Long): Unit = synchronized {
    users(gpu) -= attempt
    notifyAll()
  }
}
