package flambeau.internal.fit

import java.util.concurrent.atomic.AtomicBoolean
import java.util.concurrent.{CountDownLatch, TimeUnit}

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import flambeau.{GeneralException, Training, TrainingListener}
import flambeau.internal.model.History
import flambeau.internal.session.Session
import flambeau.internal.storage.Site
import flambeau.internal.util.Failures
import org.slf4j.LoggerFactory

/** Tells the listeners of one fit of its training, through all attempts, by the attempts' event files.
  *
  * Where this process sees the work directory, a thread reads them while an attempt runs; else they are read after it.
  *
  * @param canStop
  *   whether a listener can stop the training
  */
private[flambeau] final class ListenerBus private (
    site: Site,
    listeners: Seq[TrainingListener],
    canStop: Boolean
) {
  import ListenerBus._

  private val isStopping = new AtomicBoolean

  // Of the thread that tells, and of none while that one is made and waited for.
  private var training = Training.begin(isStopping)
  private var hasBegun = false
  private var isValidated = false

  /** What a listener has thrown. */
  @volatile private var failure = Option.empty[Throwable]

  /** Whether nothing more is told. */
  @volatile private var isMuted = false

  /** The file that asks an attempt to stop; none where no listener can. */
  def stopFile(attempt: String): Option[String] =
    if (canStop) Some(site.work.path("attempts", attempt, "stop")) else None

  /** Tells of an attempt while `use` waits for it, and returns after a last look at what it left. A listener that is being
    * called is waited for, for as long as it takes; an interrupt of this thread ends the wait.
    *
    * What a listener throws cancels the Spark jobs of `use` and is thrown here. After a `use` that throws nothing more is told.
    */
  def during[T](attempt: String)(use: => T): T =
    if (listeners.isEmpty) use
    else if (site.isVisible) live(attempt)(use)
    else {
      val result = use
      tell(new EventFiles(site, attempt), isLast = true)
      failure.foreach(throw _)
      result
    }

  /** Tells that the training has ended well. Throws what a listener throws. */
  def end(): Unit = {
    if (hasBegun) call("onTrainEnd")(_.onTrainEnd(training))
    failure.foreach(throw _)
  }

  private def live[T](attempt: String)(use: => T): T =
    Session.cancellable(site.spark.sparkContext) { cancel =>
      val ended = new CountDownLatch(1)
      val run: Runnable = () => {
        try follow(attempt, ended)
        catch { case error: Throwable => failure = Some(error) }
        if (failure.isDefined) cancel()
      }
      val thread = new Thread(run, "flambeau-listeners")
      thread.setDaemon(true)
      thread.start()
      var isWell = false
      try {
        val result = use
        isWell = true
        result
      } finally {
        isMuted = !isWell
        ended.countDown()
        try thread.join()
        catch {
          case error: InterruptedException =>
            isMuted = true
            throw error
        }
        failure.foreach(throw _)
      }
    }

  /** Tells of an attempt until it has ended. */
  private def follow(attempt: String, ended: CountDownLatch): Unit = {
    val files = new EventFiles(site, attempt)
    val stop = new StopRequest(attempt)
    var isLast = false
    var isOver = false
    while (!isOver) {
      stop.pass()
      tell(files, isLast, stop.pass)
      isOver = isLast || failure.isDefined
      if (!isOver) isLast = ended.await(PollMillis, TimeUnit.MILLISECONDS)
    }
  }

  /** Tells what is new in the files, and calls `after` after each event. */
  private def tell(files: EventFiles, isLast: Boolean, after: () => Unit = () => ()): Unit = {
    val events =
      try files.readNew()
      catch {
        case NonFatal(error) =>
          if (isLast)
            log.warn(s"the last events of the training could not be read: ${Failures.firstLine(error)}")
          else log.debug("events could not be read", error)
          Nil
      }
    for (event <- events) {
      take(event)
      after()
    }
  }

  private def take(event: JsonNode): Unit = {
    def long(name: String): Long = event.path(name).asLong
    def text(name: String): Option[String] = Option(event.get(name)).map(_.asText)
    def double(name: String): Option[Double] = Option(event.get(name)).filter(_.isNumber).map(_.asDouble)
    event.path("kind").asText match {
      case "start" =>
        isValidated = long("numValidationRows") > 0
        training = training.copy(
          epoch = long("epoch"),
          step = long("step"),
          epochs = long("epochs"),
          stepsPerEpoch = long("stepsPerEpoch"),
          metrics = Map.empty
        )
        if (!hasBegun) call("onTrainBegin")(_.onTrainBegin(training))
        hasBegun = true
      case "epochBegin" =>
        training = training.copy(epoch = long("epoch"), step = long("step"), metrics = Map.empty)
        call("onEpochBegin")(_.onEpochBegin(training))
      case "progress" =>
        training = training.copy(
          epoch = long("epoch"),
          step = long("step"),
          metrics = Map("loss" -> double("loss").getOrElse(Double.NaN)),
          rowsPerSecond = double("rowsPerSecond")
        )
        call("onProgress")(_.onProgress(training))
      case "epoch" =>
        training = training.copy(
          epoch = long("epoch"),
          step = long("steps"),
          metrics = History.metrics(event, isValidated),
          learningRate = double("learningRate"),
          rowsPerSecond = double("rowsPerSecond")
        )
        call("onEpochEnd")(_.onEpochEnd(training))
      case "checkpoint" =>
        training = training.copy(epoch = long("epoch"), step = long("step"), checkpoint = text("uri"))
        call("onCheckpoint")(_.onCheckpoint(training))
      // The end is told when all workers have ended well.
      case _ => ()
    }
  }

  private def call(method: String)(tell: TrainingListener => Unit): Unit =
    for (listener <- listeners if failure.isEmpty && !isMuted)
      try tell(listener)
      catch {
        case error: Throwable =>
          error.addSuppressed(new GeneralException(s"${listener.getClass.getName}.$method has ended the fit"))
          failure = Some(error)
      }

  /** Asks an attempt to stop once a listener has asked for it. */
  private final class StopRequest(attempt: String) {
    private var isWritten = false

    /** A file that can't be written is tried again the next time. */
    def pass(): Unit =
      for (file <- stopFile(attempt) if isStopping.get && !isWritten)
        try {
          site.work.write(file, Array.emptyByteArray)
          isWritten = true
        } catch { case NonFatal(error) => log.debug(s"$file could not be written", error) }
  }
}

private[flambeau] object ListenerBus {
  private val log = LoggerFactory.getLogger("flambeau")
  private val PollMillis = 500L

  /** What tells a fit's listeners, and with `verbose` the log, where that is not too late. */
  def of(site: Site, listeners: Seq[TrainingListener], verbose: Int): ListenerBus = {
    if (listeners.nonEmpty && !site.isVisible)
      log.warn(
        s"the driver does not see ${site.work.uri}: listeners are told of the training when its workers have ended, and " +
          "cannot stop it"
      )
    val lines = if (verbose > 0 && site.isVisible) Seq(EpochLog) else Nil
    new ListenerBus(site, lines ++ listeners, canStop = listeners.nonEmpty && site.isVisible)
  }
}
