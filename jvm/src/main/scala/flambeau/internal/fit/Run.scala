package flambeau.internal.fit

import java.nio.file.Files
import java.security.SecureRandom
import java.util.concurrent.ConcurrentHashMap

import scala.util.Try
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.RunInUseException
import flambeau.jni.StoredFile
import flambeau.internal.session.Session
import flambeau.internal.storage.{Site, WorkDirectory}
import flambeau.internal.util.{Beating, Json}
import org.slf4j.LoggerFactory

/** A run of one job on some rows: what a fit that did not succeed leaves in the work directory for the next one of its `id`
  * to go on from.
  *
  * @param isNamed
  *   whether the user named it
  * @param job
  *   what tells its job from others, by name; asked for where that is needed
  * @param files
  *   those that its rows lie in
  * @param selectionDigest
  *   of what says which rows of them these are, where they are not all
  * @param inPlace
  *   whether the files are the user's own
  */
private[flambeau] final class Run(
    site: Site,
    val id: String,
    val isNamed: Boolean,
    job: => ObjectNode,
    files: Seq[String],
    selectionDigest: Option[String] = None,
    inPlace: Boolean = false
) {
  import Run._

  private lazy val told = job
  private lazy val allRows = digests(ends = false)
  private lazy val endsOfRows = digests(ends = true)

  /** The attempts that earlier fits of the run made, oldest first; none for a run that is new.
    *
    * Throws ParamException where they were of another job or on other rows, or the run's file can't be read.
    */
  def attempts(): Seq[String] = {
    val before = site.ask(question("readRun"))
    if (before.isNull) Nil
    else {
      val comparison = question("compareRun")
      comparison.set[ObjectNode]("run", before.get("run"))
      // Rows that were copied then are others than those of the user's files.
      comparison.set[ObjectNode]("what", identity(before.get("readsAll").asBoolean && !inPlace))
      // On this machine: it needs nothing of the directory.
      Json.texts(Json.parse(site.work.ask(Json.text(comparison))))
    }
  }

  /** Notes the attempts. The first time it reads all rows that were written for a run that is named. Of the user's files,
    * which may be many times as large, and of other runs, which only a failure notes, it reads no more than the ends.
    */
  def write(attempts: Seq[String]): Unit = note.foreach { note =>
    val question = Site.question("writeRun")
    question.setAll[ObjectNode](note)
    question.set[ObjectNode]("attempts", Json.strings(attempts))
    site.ask(question)
  }

  /** What the supervisor writes of the run beside its attempts; none where another driver has it. */
  def note: Option[ObjectNode] =
    if (isLost) None
    else Some(Json.obj().put("id", id).set[ObjectNode]("what", identity(isNamed && !inPlace)))

  /** Whether another driver has taken it, whose checkpoints and file are left alone. Looks there, since this process may
    * have stood still after its last beat.
    */
  def isLost: Boolean = isNamed && {
    val claim = Option(held.get(site.work.path("runs", s"$id.owner"))).filter(_.isTaken)
    // What can't be read is no other driver.
    claim.foreach(one => Try(beat(site.work, id, one)))
    claim.exists(_.isIn("lost"))
  }

  /** Removes the run's file; a failure is told and no more. */
  def remove(): Unit = site.remove("runs", s"$id.json")

  private def question(ask: String): ObjectNode = Site.question(ask).put("id", id)

  private def identity(readsAll: Boolean): ObjectNode = {
    val identity = Json.obj().put("readsAll", readsAll)
    identity.set[ObjectNode]("job", told)
    val rows = (if (readsAll) allRows else endsOfRows) ++ selectionDigest
    identity.set[ObjectNode]("rows", Json.strings(rows))
    identity
  }

  /** What tells the files from others, in their order: here where workers are this machine's and have the rows as files, or
    * little of them is read, else in tasks, which share the reading.
    */
  private def digests(ends: Boolean): Seq[String] = {
    def isHere =
      Session.isLocal(site.spark) && files.forall(StoredFile.localPath(_).exists(Files.isRegularFile(_)))
    // Copies without this object, which does not travel with tasks.
    val (work, all) = (site.work, files.toArray)
    if (ends || isHere) site.whereSeen(digestsOf(_, all, ends)).toSeq
    else {
      val tasks = site.spark.sparkContext.parallelize(files, math.min(files.length, MaxTasks))
      val answers =
        tasks.mapPartitions(part => Iterator(Session.answerOf(digestsOf(work, part.toArray, ends)))).collect()
      answers.toSeq.flatMap(_.fold(throw _, _.toSeq))
    }
  }
}

private[flambeau] object Run {
  private val log = LoggerFactory.getLogger("flambeau")
  private val random = new SecureRandom
  private val MaxTasks = 64

  /** Between two signs of life of the driver that has a run. Tests make it shorter. */
  @volatile private[flambeau] var beatSeconds: Double = 10.0

  private def digestsOf(work: WorkDirectory, files: Array[String], ends: Boolean): Array[String] = {
    val question = Site.question("digestFiles").put("ends", ends)
    question.set[ObjectNode]("files", Json.strings(files))
    Json.texts(Json.parse(work.ask(Json.text(question)))).toArray
  }

  /** A claim as the supervisor told it last; before that, what it begins with. */
  private final class Claim(@volatile var state: JsonNode) {
    def isTaken: Boolean = state.has("phase")

    def own: String = state.get("own").asText

    def isIn(phase: String): Boolean = {
      val now = state.path("phase")
      now.asText == phase || now.has(phase)
    }
  }

  /** The claims of the fits of this process, by the runs' files. */
  private val held = new ConcurrentHashMap[String, Claim]

  /** Holds the run of that name while `use` runs: one fit at a time writes its checkpoints and goes on from them.
    *
    * Where this process sees the work directory, what another driver left there is watched for up to 70 s. Throws
    * RunInUseException where another fit of this process has the run, or another driver still writes.
    */
  def claimed[T](site: Site, id: String)(use: => T): T = {
    val uri = site.work.path("runs", s"$id.owner")
    val claim = new Claim(Json.obj().put("own", newName()).put("beatSeconds", beatSeconds))
    if (held.putIfAbsent(uri, claim) != null)
      throw new RunInUseException(
        s"runId '$id' in ${site.work.uri} is being trained by another fit of this process: wait until that fit has ended, " +
          "interrupt it, or take another runId"
      )
    try if (site.isVisible) beating(site.work, id, claim)(use) else use
    finally held.remove(uri)
  }

  private def newName(): String = {
    val bytes = new Array[Byte](8)
    random.nextBytes(bytes)
    bytes.map(byte => f"${byte & 0xff}%02x").mkString
  }

  private def advance(work: WorkDirectory, id: String, claim: Claim): Unit = claim.synchronized {
    val question = Site.question("advanceClaim").put("id", id)
    question.set[ObjectNode]("claim", claim.state)
    claim.state = Json.parse(work.ask(Json.text(question)))
  }

  private def beat(work: WorkDirectory, id: String, claim: Claim): Unit = {
    val wasLost = claim.isIn("lost")
    advance(work, id, claim)
    if (claim.isIn("lost") && !wasLost)
      log.warn(
        s"runId '$id' in ${work.uri} is being trained by another driver too, whose run it is now: this fit goes " +
          "on and leaves the run's checkpoints alone"
      )
  }

  private def beating[T](work: WorkDirectory, id: String, claim: Claim)(use: => T): T = {
    def release(): Unit =
      try work.ask(Json.text(Site.question("releaseClaim").put("id", id).put("own", claim.own)))
      catch {
        case NonFatal(error) => log.warn(s"the claim of run $id could not be removed: ${error.getMessage}")
      }

    try {
      advance(work, id, claim)
      if (claim.isIn("watching"))
        log.info(s"run $id has an owner: waiting whether another driver still writes")
      while (!claim.isIn("held")) {
        Thread.sleep((claim.state.get("waitSeconds").asDouble * 1000).toLong)
        advance(work, id, claim)
      }
    } catch {
      case error: Throwable =>
        release()
        throw error
    }
    var isToldOfFailure = false
    def beaten(): Unit =
      try beat(work, id, claim)
      catch {
        case NonFatal(error) =>
          if (!isToldOfFailure) log.warn(s"the claim of run $id could not be written: ${error.getMessage}")
          isToldOfFailure = true
      }
    Beating("flambeau-claim", beatSeconds)(beaten(), _ => release())(use)
  }
}
