package flambeau.internal.fit

import java.util.concurrent.atomic.AtomicBoolean
import java.util.concurrent.{CountDownLatch, TimeUnit}

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import flambeau.{GeneralException, Training, TrainingListener}
import flambeau.internal.model.History
import flambeau.internal.session.Session
import flambeau.internal.storage.Site
import flambeau.internal.util.{Failures, Json}
import org.slf4j.LoggerFactory

/** Tells the listeners of one fit of its training, through all attempts, by the attempts' event files.
  *
  * Where this process sees the work directory, a thread reads them while an attempt runs; else they are read after it.
  *
  * What a listener throws is kept: nothing more is told, and an attempt that is under way is cancelled.
  *
  * @param listeners
  *   the user's
  * @param logs
  *   whether `EpochLog` is told too
  */
private[flambeau] final class ListenerBus private (
    site: Site,
    listeners: Seq[TrainingListener],
    logs: Boolean
) {
  import ListenerBus._

  private val isStopping = new AtomicBoolean

  // Of the thread that tells, and of none while that one is made and waited for.
  private var training = Training.begin(isStopping)
  private var hasBegun = false
  private var isValidated = false

  /** Whether the last attempt told of its end. */
  private var hasEnd = false

  /** The attempts that are told of when a worker is sure to be had. */
  private var untold = Seq.empty[String]

  /** What a listener has thrown. */
  @volatile private var failure = Option.empty[Throwable]

  /** Whether the fit is given up. */
  @volatile private var isMuted = false

  /** The file that asks an attempt to stop; none where no listener can. */
  def stopFile(attempt: String): Option[String] =
    if (listeners.nonEmpty && site.isVisible) Some(site.work.path("attempts", attempt, "stop")) else None

  /** After how many seconds each worker is to tell again what it uses; none for never. */
  def usageSeconds: Option[Double] = listeners.flatMap(_.usageSeconds).headOption.filter(_ => site.isVisible)

  /** Tells of an attempt while `use` waits for it, and returns once it has told what that left. A listener that is being called
    * is waited for, for as long as it takes, and of an attempt that `endedWell` the last event, for a minute; an interrupt of
    * this thread ends the wait.
    *
    * What a listener throws cancels the Spark jobs of `use` and is thrown here, but for an attempt that ended well: then `end`
    * throws it. After a `use` that throws nothing more is told.
    *
    * Where this process does not see the work directory, an attempt that did not end well is told of before the next one: a
    * worker is needed to read, and may have been lost.
    */
  def during[T](attempt: String, endedWell: T => Boolean)(use: => T): T =
    if (all.isEmpty) use
    else if (site.isVisible) live(attempt, endedWell)(use)
    else {
      untold.foreach(tellLate(_, isWell = false))
      untold = Nil
      failure.foreach(throw _)
      val result = use
      if (endedWell(result)) tellLate(attempt, isWell = true) else untold :+= attempt
      result
    }

  /** Tells that the training has ended well. Throws what a listener has thrown. */
  def end(): Unit = {
    // The log would say that training had stopped early.
    if (hasBegun) call("onTrainEnd", if (hasEnd) all else listeners)(_.onTrainEnd(training))
    failure.foreach(throw _)
  }

  private def live[T](attempt: String, endedWell: T => Boolean)(use: => T): T =
    Session.cancellable(site.spark.sparkContext) { cancel =>
      val (ended, isWell) = (new CountDownLatch(1), new AtomicBoolean)
      val run: Runnable = () => {
        try follow(attempt, ended, isWell)
        catch { case error: Throwable => failure = Some(error) }
        if (failure.isDefined && !isWell.get) cancel()
      }
      val thread = new Thread(run, "flambeau-listeners")
      thread.setDaemon(true)
      thread.start()
      var isDone = false
      try {
        val result = use
        isWell.set(endedWell(result))
        isDone = true
        result
      } finally {
        isMuted = !isDone
        ended.countDown()
        try thread.join()
        catch {
          case error: InterruptedException =>
            isMuted = true
            throw error
        }
        if (!isWell.get) failure.foreach(throw _)
      }
    }

  /** Tells of an attempt until it has ended, and all that it left. */
  private def follow(attempt: String, ended: CountDownLatch, isWell: AtomicBoolean): Unit = {
    val files = new EventFiles(site, attempt)
    val usage = usageSeconds.map(new UsageFiles(site.work, attempt, _))
    val stop = new StopRequest(attempt)
    hasEnd = false
    var reason = Option.empty[String]
    var isOver = false
    while (!isOver && failure.isEmpty) {
      stop.pass()
      isOver = ended.await(PollMillis, TimeUnit.MILLISECONDS)
      reason = tellNew(files, stop.pass)
      if (!isOver) usage.foreach(tellUsage)
    }
    def isAwaited = isWell.get && listeners.nonEmpty && !hasEnd && !isSilent
    val deadline = System.nanoTime + EndMillis * 1000000
    while (isAwaited && System.nanoTime < deadline) {
      Thread.sleep(PollMillis)
      reason = tellNew(files)
    }
    if (!isSilent && (reason.isDefined || isAwaited)) warn(reason)
  }

  /** Tells what an attempt left where only workers see it. */
  private def tellLate(attempt: String, isWell: Boolean): Unit = {
    hasEnd = false
    val reason =
      try {
        val (events, reason) = new EventFiles(site, attempt).readAll()
        events.foreach(take)
        reason
      } catch { case NonFatal(error) => Some(Failures.firstLine(error)) }
    if (failure.isEmpty && (reason.isDefined || isWell && !hasEnd)) warn(reason)
  }

  /** Tells what is new in the files, calls `after` after each event, and returns what kept it from reading all of that. */
  private def tellNew(files: EventFiles, after: () => Unit = () => ()): Option[String] =
    try {
      for (event <- files.readNew()) {
        take(event)
        after()
      }
      None
    } catch {
      case NonFatal(error) =>
        log.debug("the training's events could not be read", error)
        Some(Failures.firstLine(error))
    }

  /** Tells what is new of what workers use. What can't be read is let go: more comes. */
  private def tellUsage(files: UsageFiles): Unit =
    try
      for (sample <- files.readNew()) {
        val values = Json.fields(sample.get("values")).map { case (name, value) => name -> value.asDouble }
        call("onUsage")(_.onUsage(sample.get("rank").asInt, values))
      }
    catch { case NonFatal(error) => log.debug("what the workers use could not be read", error) }

  private def warn(reason: Option[String]): Unit = log.warn(
    "what the driver is told of the training is not all of it, since events could not be read: " +
      reason.getOrElse("the last ones were not found")
  )

  /** Whether nothing more is to be told. */
  private def isSilent: Boolean = failure.isDefined || isMuted

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
          learningRate = double("learningRate"),
          gradientNorm = double("gradientNorm"),
          rowsPerSecond = double("rowsPerSecond"),
          stepLoss = double("stepLoss")
        )
        call("onProgress")(_.onProgress(training))
      case "epoch" =>
        training = training.copy(
          epoch = long("epoch"),
          step = long("steps"),
          metrics = History.metrics(event, isValidated),
          learningRate = double("learningRate"),
          gradientNorm = double("gradientNorm"),
          rowsPerSecond = double("rowsPerSecond")
        )
        if (isValidated) call("onValidationEnd")(_.onValidationEnd(training))
        call("onEpochEnd")(_.onEpochEnd(training))
      case "checkpoint" =>
        training = training.copy(epoch = long("epoch"), step = long("step"), checkpoint = text("uri"))
        call("onCheckpoint")(_.onCheckpoint(training))
      case "stall" => text("message").foreach(log.warn)
      // It is told when all workers have ended well.
      case "end" => hasEnd = true
      case _     => ()
    }
  }

  private def call(method: String, told: Seq[TrainingListener] = all)(tell: TrainingListener => Unit): Unit =
    for (listener <- told if !isSilent)
      try tell(listener)
      catch {
        case error: Throwable =>
          error.addSuppressed(new GeneralException(s"thrown by ${listener.getClass.getName}.$method"))
          failure = Some(error)
      }

  private def all: Seq[TrainingListener] = if (logs) EpochLog +: listeners else listeners

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

  /** NFS may hide a new file for as long as it keeps a directory's attributes, 30 s to 60 s. */
  private val EndMillis = 60000L

  /** What tells a fit's listeners, and with `verbose` the log, where that is not too late. */
  def of(site: Site, listeners: Seq[TrainingListener], verbose: Int): ListenerBus = {
    if (listeners.nonEmpty && !site.isVisible)
      log.warn(
        s"the driver does not see ${site.work.uri}: listeners are told of the training when its workers have ended, and " +
          "cannot stop it"
      )
    new ListenerBus(site, listeners, logs = verbose > 0 && site.isVisible)
  }
}
