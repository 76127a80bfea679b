package flambeau.internal.storage

import java.io.IOException
import java.nio.file.{Files, Path, Paths}
import java.util.Comparator

import scala.util.Try

import flambeau.ParamException
import flambeau.jni.{NativeLibrary, StoreApi, StoredFile}
import flambeau.internal.session.{Session, Settings}
import flambeau.internal.util.Json
import org.apache.spark.sql.SparkSession
import org.slf4j.LoggerFactory

/** The work directory of fits: shards, attempts and models, as this process and as Spark see it.
  *
  * What lies where, and how long, native/supervisor says.
  *
  * @param isTemporary
  *   whether it is this process's own, and goes with it
  */
private[flambeau] final case class WorkDirectory(
    uri: String,
    settings: Settings,
    isTemporary: Boolean = false
) {

  /** A path in the directory, for the native store. */
  def path(parts: String*): String = (uri.replaceAll("/+$", "") +: parts).mkString("/")

  /** Whether this process can read that file. */
  def sees(file: String): Boolean = Try(has(file)).getOrElse(false)

  /** Whether there is a file. Throws StoreException where that can't be told. */
  def has(file: String): Boolean = native.size(settings.storeJson, file) >= 0

  /** The URIs of all files below a directory, sorted. */
  def list(directory: String): Seq[String] =
    Json.texts(Json.parse(native.list(settings.storeJson, directory)))

  /** A file's bytes. */
  def read(file: String): Array[Byte] = native.get(settings.storeJson, file)

  /** Writes a file whole. */
  def write(file: String, bytes: Array[Byte]): Unit = native.put(settings.storeJson, file, bytes)

  /** Deletes what lies under a path of the directory, as seen from this process. */
  def delete(parts: String*): Unit = native.deletePrefix(settings.storeJson, path(parts: _*))

  /** The supervisor's answer to a question about this directory, as seen from this process; both are JSON. */
  def ask(question: String): String = native.supervise(settings.storeJson, uri, question)

  /** A name for what a fit makes in the directory: the time in UTC and a random part, so that no two are alike. */
  def newId(): String = Json.parse(ask(Json.text(Json.obj().put("ask", "newId")))).asText

  private def native: StoreApi = NativeLibrary.store(settings.get)
}

private[flambeau] object WorkDirectory {
  private val log = LoggerFactory.getLogger("flambeau")

  /** The directory below it in which a fit tries who sees what. */
  val Probes = "probes"

  /** The setting that names the work directory of fits whose `workDir` is not set. */
  val Key = "spark.flambeau.workDir"

  // Those of the native store, as it names them where it refuses another.
  private val Schemes = Seq("file", "dbfs", "s3", "s3a", "abfs", "abfss", "gs")

  /** The work directory of a fit: the given one, that of `spark.flambeau.workDir`, or a temporary one in local mode. */
  def of(spark: SparkSession, workDir: Option[String]): WorkDirectory =
    workDir.orElse(spark.conf.getOption(Key).filter(_.nonEmpty)) match {
      case Some(location) => WorkDirectory(uriOf(spark, "workDir", location), Settings.of(spark))
      case None if Session.isLocal(spark) => WorkDirectory(temporary, Settings.of(spark), isTemporary = true)
      case None =>
        throw new ParamException(
          s"workDir must be given on a cluster, or $Key be set: a directory that the driver and all workers reach, " +
            "such as a path on shared storage or an s3, abfss or gs URI"
        )
    }

  /** The directory that a param of that name gives, as the native store takes it: one without a scheme lies on Spark's default
    * file system. Throws ParamException for a scheme that the store does not know.
    */
  def uriOf(spark: SparkSession, param: String, location: String): String = {
    // Databricks mounts these, whatever its default file system is.
    val stays = hasScheme(location) || location.matches("/(dbfs|Volumes|Workspace)/.*")
    val qualified = if (stays) None else Some(Directory.qualified(spark, location))
    val uri = qualified.fold(location)(_.toString)
    for (scheme <- StoredFile.schemeOf(uri) if !Schemes.contains(scheme)) {
      val wayOut =
        if (stays) ""
        else s"; $location lies there by fs.defaultFS, a path that all machines see is file:///..."
      throw new ParamException(
        s"$param: the scheme `$scheme` of $uri is not supported; supported: local paths, ${Schemes.mkString(", ")}$wayOut"
      )
    }
    absolute(qualified.map(_.toUri).filter(_.getScheme == "file").fold(uri)(_.getPath))
  }

  /** The work directory of this process's fits in local mode: made once, removed when the process ends. */
  private lazy val temporary: String = newTemporary().toString

  /** A new directory of this machine, which is removed when the process ends. */
  def newTemporary(): Path = {
    val directory = Files.createTempDirectory("flambeau-")
    Runtime.getRuntime.addShutdownHook(new Thread(() => removeLocal(directory), "flambeau-clean-up"))
    directory
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

  /** Removes a directory of this machine. A failure is told and no more. */
  def removeLocal(directory: Path): Unit =
    try {
      val paths = Files.walk(directory)
      try paths.sorted(Comparator.reverseOrder[Path]()).forEach(path => Files.deleteIfExists(path))
      finally paths.close()
    } catch {
      case error: IOException => log.debug("{} could not be removed", directory: Any, error: Any)
    }
}
