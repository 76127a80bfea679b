package flambeau

import java.io.IOException
import java.nio.file.{Files, Path, Paths}
import java.security.SecureRandom
import java.time.format.DateTimeFormatter
import java.time.{Duration, Instant, LocalDateTime, ZoneOffset}
import java.util.{Comparator, Timer, TimerTask}

import scala.util.Try
import scala.util.control.NonFatal

import flambeau.jni.{NativeApi, NativeLibrary}
import org.slf4j.LoggerFactory

/** The work directory of fits: shards, attempts and models, as this process and as Spark see it.
  *
  * `shards/<id>` and `attempts/<id>` live for one fit; `models/<id>` outlives it. Ids begin with the time they were made
  * at, so that what a crash left behind is known by its age. A fit that runs holds a lease, a file that it writes anew
  * every hour: nothing that was made since it began is removed, by fits from Scala or from PySpark.
  */
private[flambeau] final case class WorkDirectory(uri: String, settings: Settings) {
  import WorkDirectory._

  /** A path in the directory, for the native store. */
  def path(parts: String*): String = (uri.replaceAll("/+$", "") +: parts).mkString("/")

  /** Whether this process can read that file. */
  def sees(file: String): Boolean = Try(native.storeSize(settings.storeJson, file) >= 0).getOrElse(false)

  /** A file's bytes. */
  def read(file: String): Array[Byte] = native.storeGet(settings.storeJson, file)

  /** Writes a file whole. */
  def write(file: String, bytes: Array[Byte]): Unit = native.storePut(settings.storeJson, file, bytes)

  /** Deletes what lies under a path of the directory, as seen from this process. */
  def delete(parts: String*): Unit = native.storeDeletePrefix(settings.storeJson, path(parts: _*))

  /** The newest whole checkpoint of those attempts, as seen from this process. */
  def newestCheckpoint(attempts: Seq[String]): Option[String] = {
    val found = native.newestCheckpoint(uri, Json.strings(attempts).toString, settings.storeJson)
    Option(found).map(Json.parse(_).get("uri").asText)
  }

  /** Runs `use` while `act` holds a lease for it, which is dropped after a `use` that went well. What `act` does to the
    * lease is done where the directory is seen. A failure to do so is told and no more.
    */
  def leased[T](act: (WorkDirectory => Unit) => Unit)(use: => T): T = {
    val lease = path(Leases, newId())
    def tell(action: WorkDirectory => Unit): Unit =
      try act(action)
      catch {
        case NonFatal(error) => log.warn("the lease of a fit could not be written: {}", error.getMessage)
      }
    def beat(): Unit = tell(_.write(lease, newId().getBytes))
    beat()
    val timer = new Timer("flambeau-lease", true)
    val task = new TimerTask { override def run(): Unit = beat() }
    timer.schedule(task, BeatTime.toMillis, BeatTime.toMillis)
    val result =
      try use
      finally timer.cancel()
    tell(_.deleteFile(lease))
    result
  }

  /** Deletes what fits left behind that is older than `SweepAge` and than each fit that holds a lease. A lease counts until
    * `SweepAge` after it was last written. Checkpoints that PySpark's `keepCheckpoints` kept stay.
    */
  def sweep(): Unit = {
    // Ids have whole seconds, and the clocks of two drivers may part.
    val oldest = (SweepAge +: leases()).max.plusMinutes(1)
    for (kind <- Swept) {
      val files = list(kind)
      val kept = files.filter(_.endsWith(s"/$Kept")).flatMap(firstBelow(kind, _)).toSet
      for (
        name <- files.flatMap(firstBelow(kind, _)).distinct;
        age <- ageOf(name) if age.compareTo(oldest) > 0 && !kept(name)
      ) {
        log.info("removing {}/{}, left behind {} days ago", path(kind), name, age.toDays.toString)
        delete(kind, name)
      }
    }
  }

  /** How long ago the fits began that hold leases. Deletes leases that no longer count. */
  private def leases(): Seq[Duration] = list(Leases).flatMap { uri =>
    val began = ageOf(uri.split('/').last)
    val isHeld = ageOf(new String(read(uri))).exists(_.compareTo(SweepAge) <= 0)
    if (!isHeld) deleteFile(uri)
    began.filter(_ => isHeld)
  }

  private def list(kind: String): Seq[String] = native.storeList(settings.storeJson, path(kind)).toSeq

  private def deleteFile(file: String): Unit = native.storeDelete(settings.storeJson, file)

  private def native: NativeApi = NativeLibrary.api(settings.get)
}

private[flambeau] object WorkDirectory {
  private val log = LoggerFactory.getLogger("flambeau")

  val SweepAge: Duration = Duration.ofDays(7)

  private val Swept = Seq("shards", "attempts", "probes", "runs")
  private val Leases = "leases"
  private val Kept = "KEPT"
  private val BeatTime = Duration.ofHours(1)
  private val Stamp = DateTimeFormatter.ofPattern("yyyyMMdd'T'HHmmss'Z'")
  private val Id = """(\d{8}T\d{6}Z)-[0-9a-f]{12}(?:\.json)?""".r
  private val random = new SecureRandom

  /** The work directory of this process's fits in local mode: made once, removed when the process ends. */
  lazy val temporary: String = {
    val directory = Files.createTempDirectory("flambeau-")
    Runtime.getRuntime.addShutdownHook(new Thread(() => removeLocal(directory), "flambeau-clean-up"))
    directory.toString
  }

  /** A name for a shard set or an attempt: the time in UTC and a random part, so that no two are alike. */
  def newId(): String = {
    val bytes = new Array[Byte](6)
    random.nextBytes(bytes)
    s"${Stamp.format(LocalDateTime.now(ZoneOffset.UTC))}-${bytes.map(byte => f"$byte%02x").mkString}"
  }

  /** How long ago an id was made; none for a name that is not one. */
  def ageOf(name: String): Option[Duration] = name match {
    case Id(stamp) =>
      Try(
        Duration.between(LocalDateTime.parse(stamp, Stamp).toInstant(ZoneOffset.UTC), Instant.now())
      ).toOption
    case _ => None
  }

  /** Whether a path has a scheme, as in `s3://bucket/name`. */
  def hasScheme(path: String): Boolean = path.matches("[a-zA-Z][a-zA-Z0-9+.-]*:.*")

  /** A given path as the native store takes it: absolute, without a slash at its end. */
  def absolute(path: String): String =
    if (hasScheme(path)) path.replaceAll("/+$", "") else Paths.get(path).toAbsolutePath.normalize.toString

  /** The path as Spark's readers and writers take it. One without a scheme means a file that the workers' processes
    * see, whatever Spark's default file system is.
    */
  def sparkPath(path: String): String =
    if (path.startsWith("/dbfs/")) "dbfs:" + path.stripPrefix("/dbfs")
    else if (path.startsWith("/Volumes/") || hasScheme(path)) path
    else "file://" + path

  /** The name of the directory below `kind` that a listed file lies in. */
  private def firstBelow(kind: String, file: String): Option[String] = {
    val at = file.indexOf(s"/$kind/")
    if (at < 0) None else file.substring(at + kind.length + 2).split('/').headOption
  }

  private def removeLocal(directory: Path): Unit =
    try {
      val paths = Files.walk(directory)
      try paths.sorted(Comparator.reverseOrder[Path]()).forEach(path => Files.deleteIfExists(path))
      finally paths.close()
    } catch {
      case error: IOException => log.debug("{} could not be removed", directory: Any, error: Any)
    }
}
