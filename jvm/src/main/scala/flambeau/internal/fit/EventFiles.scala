package flambeau.internal.fit

import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.{Callable, Executors}

import scala.collection.JavaConverters._
import scala.util.{Failure, Success, Try}

import com.fasterxml.jackson.databind.JsonNode
import flambeau.internal.storage.{Site, WorkDirectory}
import flambeau.internal.util.{Failures, Json}

/** The events of an attempt, from the numbered files that rank 0 writes into the work directory. */
private[flambeau] final class EventFiles(site: Site, attempt: String) {
  import EventFiles._

  private val directory = site.work.path("attempts", attempt, "events")
  private var numRead = 0

  /** The events of the files that are new, up to one that is not whole: the next call tries that one again. For a process that
    * sees the directory.
    *
    * Throws StoreException where it can't be read; the next call reads the same files again.
    */
  def readNew(): Seq[JsonNode] = {
    val files = Iterator.from(numRead + 1).map(number => f"$directory/$number%08d.json")
    val texts = files.takeWhile(site.work.has).map(textOf(site.work, _)).toList
    val whole = texts.map(text => Try(eventsOf(text))).takeWhile(_.isSuccess)
    numRead += whole.length
    newest(whole.flatMap(_.get))
  }

  /** The events of all files that can be read, and what one says that can't: where the directory is seen, many at once.
    *
    * Throws StoreException where the files can't be listed.
    */
  def readAll(): (Seq[JsonNode], Option[String]) = {
    val listed = directory
    val (events, reason) = site.whereSeen { work =>
      val read = work.list(listed).map(file => () => Try(eventsOf(textOf(work, file))))
      val found = atOnce(read)
      val reason = found.collectFirst { case Failure(error) => Failures.firstLine(error) }
      (newest(found.collect { case Success(events) => events }.flatten).map(Json.text).toArray, reason)
    }
    (events.toSeq.map(Json.parse(_)), reason)
  }
}

/** What the ranks of an attempt use, from their files, each with its rank's newest sample. */
private[flambeau] final class UsageFiles(work: WorkDirectory, attempt: String, seconds: Double) {
  private val directory = work.path("attempts", attempt, "usage")
  private var due = System.nanoTime

  /** The number of each rank's last sample that was read. */
  private var told = Map.empty[Int, Long]

  /** The samples that are new, by rank; none until so many seconds after they were last looked for. A file that can't be read is
    * passed over: its rank writes the next one soon.
    *
    * Throws where the files can't be listed, or none can be read.
    */
  def readNew(): Seq[JsonNode] =
    if (System.nanoTime < due) Nil
    else {
      due = System.nanoTime + (1e9 * seconds).toLong
      val read = work.list(directory).map(file => () => Try(Json.parse(EventFiles.textOf(work, file))))
      val found = EventFiles.atOnce(read)
      val samples = found.flatMap(_.toOption).map(sample => sample.get("rank").asInt -> sample)
      if (samples.isEmpty) found.headOption.foreach(_.get)
      val fresh = samples.filterNot { case (rank, sample) => told.get(rank).contains(numberOf(sample)) }
      told ++= fresh.map { case (rank, sample) => rank -> numberOf(sample) }
      fresh.sortBy(_._1).map(_._2)
    }

  private def numberOf(sample: JsonNode): Long = sample.get("number").asLong
}

private object EventFiles {
  private val NumReaders = 32

  def textOf(work: WorkDirectory, file: String): String = new String(work.read(file), UTF_8)

  /** A file's events. Throws where it is not whole. */
  private def eventsOf(text: String): Seq[JsonNode] = {
    val events = Json.parse(text)
    require(events.isArray, "a file of events is not whole")
    Json.items(events)
  }

  /** The events without each progress that another one follows on. */
  private def newest(events: Seq[JsonNode]): Seq[JsonNode] = {
    def isProgress(event: JsonNode) = event.path("kind").asText == "progress"
    val following = events.drop(1).map(isProgress) :+ false
    events.zip(following).collect { case (event, isPassed) if !(isProgress(event) && isPassed) => event }
  }

  /** The results, in their order. */
  def atOnce[T](calls: Seq[() => T]): Seq[T] = {
    val pool = Executors.newFixedThreadPool(NumReaders)
    try {
      val tasks = calls.map(read => (() => read()): Callable[T])
      pool.invokeAll(tasks.asJava).asScala.map(_.get).toList
    } finally pool.shutdown()
  }
}
