package flambeau

import java.nio.file.{Files, Paths}

import scala.collection.JavaConverters._
import scala.util.Try

/** The worker processes that this JVM has started. */
object Workers {
  private val own = Paths.get("/proc/self").toRealPath().getFileName.toString

  /** The ids of those that run. */
  def pids(): Seq[Long] = {
    val processes = Files.newDirectoryStream(Paths.get("/proc"), "[0-9]*")
    try processes.iterator.asScala.map(_.getFileName.toString).filter(isWorker).map(_.toLong).toList.sorted
    finally processes.close()
  }

  /** Whether a process has a thread of that name. */
  def hasThread(pid: Long, name: String): Boolean = {
    val threads = Files.newDirectoryStream(Paths.get("/proc", pid.toString, "task"))
    try threads.iterator.asScala.exists(one => Files.readAllLines(one.resolve("comm")).get(0) == name)
    finally threads.close()
  }

  /** Sends a signal to a process. */
  def signal(name: String, pid: Long): Unit = run("kill", s"-$name", pid.toString)

  /** Runs a program that must succeed. */
  def run(command: String*): Unit =
    assert(new ProcessBuilder(command: _*).inheritIO().start().waitFor() == 0, command.mkString(" "))

  /** Waits until something is so, for at most that many seconds. */
  def await(what: String, seconds: Int = 120)(isSo: => Boolean): Unit = {
    val deadline = System.nanoTime + seconds * 1000000000L
    while (!isSo) {
      assert(System.nanoTime < deadline, s"$what did not come within $seconds s")
      Thread.sleep(20)
    }
  }

  /** Whether a process is a worker of ours; the fields of its `stat` after the name are its state and its parent. */
  private def isWorker(pid: String): Boolean = Try {
    val stat = new String(Files.readAllBytes(Paths.get("/proc", pid, "stat")), "UTF-8")
    val after = stat.substring(stat.lastIndexOf(')') + 2).split(' ')
    stat.contains("(flambeau-worker)") && after(0) != "Z" && after(1) == own
  }.getOrElse(false)
}
