package flambeau.internal.fit

import java.io.{BufferedReader, IOException, InputStream, InputStreamReader}
import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.{LinkedBlockingQueue, TimeUnit}

import scala.collection.mutable
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import flambeau.jni.{NativeFiles, NativeLibrary}
import flambeau.internal.session.Settings
import org.slf4j.LoggerFactory

/** A child process that speaks JSON lines on its standard input and output.
  *
  * Three daemon threads serve its pipes, so that the one who waits for a message can always look up and see that it is no
  * longer wanted. The process ends when its standard input is closed, which the operating system does where this JVM
  * dies; `close` makes sure of it.
  */
private[flambeau] final class WorkerProcess private (process: Process, name: String, heard: String => Unit)
    extends AutoCloseable {
  import WorkerProcess._

  private val events = new LinkedBlockingQueue[Event]
  private val outgoing = new LinkedBlockingQueue[Option[JsonNode]]
  private val lastLines = mutable.Queue.empty[String]

  daemon("stdin")(write())
  daemon("stdout") {
    try eachLine(process.getInputStream)(line => events.put(Message(line)))
    finally events.put(EndOfOutput)
  }
  private val stderr = daemon("stderr")(eachLine(process.getErrorStream)(keep))

  /** Sends a message. Does not wait; one that the process no longer reads is dropped. */
  def send(message: JsonNode): Unit = outgoing.put(Some(message))

  /** The next event, or none where there was none for that long. Throws InterruptedException. */
  def poll(millis: Long): Option[Event] = Option(events.poll(millis, TimeUnit.MILLISECONDS))

  /** How the process ended. Waits up to five seconds for one that has closed its output, and then ends it. */
  def exit(): Exit = {
    if (!process.waitFor(GraceSeconds, TimeUnit.SECONDS)) process.destroyForcibly().waitFor()
    // The last words may still be in the pipe; a grandchild that holds it open is not waited for.
    stderr.join(1000)
    val status = process.exitValue
    // The JVM tells of a process that signal n ended as the shell does: 128 + n.
    Exit(status, if (status > 128) Some(status - 128) else None, lastLines.synchronized(lastLines.toList))
  }

  /** Ends the process: closes its input, and kills it where that is not enough. Waits a moment and no more. */
  override def close(): Unit = {
    outgoing.put(None)
    // The writer may be stuck in a full pipe of a process that is stuck itself.
    if (!waited(GraceMillis)) process.destroyForcibly()
    if (!waited(KillMillis)) log.warn("{} does not end", name)
  }

  /** Waits for the end of the process even where this thread is interrupted, which stays so. */
  private def waited(millis: Long): Boolean = {
    val wasInterrupted = Thread.interrupted()
    try process.waitFor(millis, TimeUnit.MILLISECONDS)
    catch {
      case _: InterruptedException =>
        Thread.currentThread.interrupt()
        !process.isAlive
    } finally if (wasInterrupted) Thread.currentThread.interrupt()
  }

  private def write(): Unit = {
    val pipe = process.getOutputStream
    try
      Iterator.continually(outgoing.take()).takeWhile(_.isDefined).flatten.foreach { message =>
        pipe.write((message.toString + "\n").getBytes(UTF_8))
        pipe.flush()
      }
    finally pipe.close()
  }

  private def keep(line: String): Unit = {
    log.info("{}: {}", name: Any, line: Any)
    heard(line)
    lastLines.synchronized {
      lastLines.enqueue(line)
      if (lastLines.size > KeptLines) lastLines.dequeue()
    }
  }

  private def eachLine(stream: InputStream)(take: String => Unit): Unit = {
    val reader = new BufferedReader(new InputStreamReader(stream, UTF_8))
    Iterator.continually(reader.readLine()).takeWhile(_ != null).foreach(take)
  }

  private def daemon(pipe: String)(body: => Unit): Thread = {
    val run: Runnable = () =>
      try body
      catch {
        // The process is gone, and its end says why.
        case error: IOException => log.debug(s"$pipe of $name", error)
        case NonFatal(error)    => log.warn(s"$pipe of $name", error)
      }
    val thread = new Thread(run, s"$name $pipe")
    thread.setDaemon(true)
    thread.start()
    thread
  }
}

private[flambeau] object WorkerProcess {
  private val log = LoggerFactory.getLogger("flambeau")

  /** How many of the last lines of its standard error tell why a process ended. */
  val KeptLines = 20

  private val GraceSeconds = 5L
  private val GraceMillis = 500L
  private val KillMillis = 2000L

  // PySpark and some clusters set the first to spark.task.cpus, where threads come from the job; a preloaded allocator is
  // meant for the JVM.
  private val NotInherited = Seq("OMP_NUM_THREADS", "LD_PRELOAD")

  /** What a process says. */
  sealed trait Event

  /** A line of its standard output. */
  final case class Message(line: String) extends Event

  /** It closed its standard output: it has ended, or is about to. */
  case object EndOfOutput extends Event

  /** The end of a process: its status, the signal that ended it, and its last lines on standard error. */
  final case class Exit(status: Int, signal: Option[Int], stderr: Seq[String]) {

    /** How the process ended, as messages tell it after its name. */
    override def toString: String = {
      val said = stderr.map("\n  " + _).mkString
      val last =
        if (said.isEmpty) "it wrote nothing to its standard error" else s"its last lines were:$said\n"
      s"${signal.fold(s"ended with status $status")(killed)}; $last"
    }
  }

  private def killed(signal: Int): String = s"was killed by signal $signal" + (signal match {
    case 6  => " (SIGABRT)"
    case 7  => " (SIGBUS)"
    case 9  => " (SIGKILL; the machine or its container may be out of memory)"
    case 11 => " (SIGSEGV)"
    case 15 => " (SIGTERM)"
    case _  => ""
  })

  /** Starts `flambeau-worker` with a command. `heard` gets the lines of its standard error. Throws IOException, and
    * FlambeauException where the program is not there.
    */
  def start(
      settings: Settings,
      command: Seq[String],
      name: String,
      heard: String => Unit = _ => ()
  ): WorkerProcess = {
    val libtorch = settings.get(NativeLibrary.LibtorchKey).toSeq.flatMap(Seq("--libtorch", _))
    started(Seq(NativeFiles.worker(settings.get).toString) ++ command ++ libtorch, name, heard)
  }

  /** Starts a program. `name` is for logs. Throws IOException where it cannot be started. */
  def start(command: Seq[String], name: String): WorkerProcess = started(command, name, _ => ())

  private def started(command: Seq[String], name: String, heard: String => Unit): WorkerProcess = {
    val builder = new ProcessBuilder(command: _*)
    NotInherited.foreach(variable => builder.environment.remove(variable))
    new WorkerProcess(builder.start(), name, heard)
  }
}
