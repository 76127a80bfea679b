package flambeau.jni

import java.nio.channels.{FileChannel, FileLock, OverlappingFileLockException}
import java.nio.file.StandardOpenOption.{CREATE, WRITE}
import java.nio.file.{Files, Path}

import scala.collection.mutable

import flambeau.ParamException
import org.apache.spark.{TaskContext, TaskKilledException}
import org.apache.spark.util.TaskCompletionListener

/** How many tasks of this machine's executors use a GPU at a time: what they compute lies in its memory.
  *
  * A slot is a file. Who has it holds a lock on the file, which the kernel gives back when a process ends, however it ends.
  * A task has one slot however many programs it scores with, which feed one another. Python's tasks have slots of their
  * own, since its locks (flock) are none to the JVM's (fcntl).
  */
private[flambeau] object GpuSlots {

  /** The configuration's key for the number. */
  val Key = "spark.flambeau.gpuTasks"

  private val Default = 2
  private val PollMillis = 100L

  /** The slots that tasks of this JVM have, by the GPU's UUID and the task's attempt. */
  private val held = mutable.Map.empty[(String, Long), FileLock]

  /** The slots' files. They stay open: to close one is to give back all locks that the process has on it. */
  private val files = mutable.Map.empty[Path, FileChannel]

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
    val user = (gpu, task.taskAttemptId())
    if (!held.contains(user)) {
      var slot = free(gpu, numSlots)
      while (slot.isEmpty) {
        wait(PollMillis)
        if (task.isInterrupted()) throw new TaskKilledException("the scoring was cancelled")
        slot = free(gpu, numSlots)
      }
      held(user) = slot.get
      task.addTaskCompletionListener(new TaskCompletionListener {
        override def onTaskCompletion(context: TaskContext): Unit = release(user)
      })
    }
  }

  private def release(user: (String, Long)): Unit = synchronized {
    held.remove(user).foreach(_.release())
    notifyAll()
  }

  /** A lock on one of a GPU's slots; none where others have them all. */
  private def free(gpu: String, numSlots: Int): Option[FileLock] =
    (0 until numSlots).iterator.map(slot => lock(file(gpu, slot))).collectFirst { case Some(lock) => lock }

  private def lock(file: Path): Option[FileLock] =
    try Option(files.getOrElseUpdate(file, FileChannel.open(file, CREATE, WRITE)).tryLock())
    // Another task of this JVM has it.
    catch { case _: OverlappingFileLockException => None }

  /** A slot's file, where Python's would lie too: executors need not have one `java.io.tmpdir`. */
  private[jni] def file(gpu: String, slot: Int): Path = {
    val temporary = sys.env.getOrElse("TMPDIR", "/tmp")
    val folder = PrivateDirectory(temporary, "flambeau-jvm-gpus", "TMPDIR").resolve(gpu)
    Files.createDirectories(folder).resolve(s"slot-$slot")
  }
}
