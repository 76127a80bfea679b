package flambeau.internal.fit

import java.nio.charset.StandardCharsets.UTF_8
import java.time.Instant
import java.time.temporal.ChronoUnit
import java.util.concurrent.{CountDownLatch, TimeUnit}

import scala.collection.mutable
import scala.util.control.NonFatal

import flambeau.jni.StoredFile
import org.slf4j.LoggerFactory

/** What a rank's process writes, kept as a file: each line with the time and the rank.
  *
  * It holds the last 256 KiB and is written about once a second where something has come, on an object store every ten
  * seconds, by a thread of its own, and at the end. A store that cannot be written costs the file and nothing else. There is
  * none where nothing came.
  *
  * @param file
  *   its URI
  * @param write
  *   writes it
  */
private[flambeau] final class RankLog(rank: Int, file: String, write: Array[Byte] => Unit)
    extends AutoCloseable {
  import RankLog._

  private val lines = mutable.Queue.empty[String]
  private var numBytes = 0
  private var numDropped = 0L
  private var isNew = false

  private val over = new CountDownLatch(1)
  private val thread = {
    val run: Runnable = () => {
      val interval = TimeUnit.MILLISECONDS.toNanos(if (isStored(file)) StoreMillis else WriteMillis)
      var isOver = false
      var due = System.nanoTime
      while (!isOver) {
        isOver = over.await(WriteMillis, TimeUnit.MILLISECONDS)
        if (isOver || System.nanoTime - due >= 0)
          text().foreach { bytes =>
            due = System.nanoTime + interval
            try write(bytes)
            catch { case NonFatal(error) => failed(error) }
          }
      }
    }
    val thread = new Thread(run, s"flambeau-log $rank")
    thread.setDaemon(true)
    thread.start()
    thread
  }

  /** What could not be written is written with what comes next, or at the end. */
  private def failed(error: Throwable): Unit = synchronized {
    log.debug(s"the log of worker $rank could not be written", error)
    isNew = true
  }

  /** Takes a line. */
  def add(line: String): Unit = synchronized {
    val time = Instant.now.truncatedTo(ChronoUnit.MILLIS)
    val stamped = s"$time rank $rank ${line.take(MostOfLine)}\n"
    lines.enqueue(stamped)
    numBytes += stamped.getBytes(UTF_8).length
    while (numBytes > MostBytes) {
      numBytes -= lines.dequeue().getBytes(UTF_8).length
      numDropped += 1
    }
    isNew = true
  }

  /** Writes what is left, and waits for that for ten seconds at most. */
  override def close(): Unit = {
    over.countDown()
    thread.join(EndMillis)
  }

  /** The lines, the newest last, where there are new ones. */
  private def text(): Option[Array[Byte]] = synchronized {
    val leftOut = if (numDropped > 0) s"($numDropped earlier lines are left out)\n" else ""
    val text = if (isNew) Some((leftOut + lines.mkString).getBytes(UTF_8)) else None
    isNew = false
    text
  }
}

private[flambeau] object RankLog {
  private val log = LoggerFactory.getLogger("flambeau")
  private val MostBytes = 256 << 10
  private val MostOfLine = 8 << 10
  private val WriteMillis = 1000L

  /** On an object store each write is a request, of each rank. */
  private val StoreMillis = 10000L
  private val EndMillis = 10000L

  /** Whether a file lies in an object store, mounted or not. */
  private def isStored(file: String): Boolean =
    StoredFile.localPath(file).forall(path => path.startsWith("/Volumes") || path.startsWith("/dbfs"))
}
