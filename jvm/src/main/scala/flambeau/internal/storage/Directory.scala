package flambeau.internal.storage

import java.io.{ByteArrayOutputStream, IOException, InputStream}
import java.nio.file.{Files, Path => LocalPath, Paths, StandardCopyOption}

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.StoreException
import flambeau.jni.{NativeLibrary, StoredFile}
import flambeau.internal.session.Settings
import flambeau.internal.util.Json
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileSystem, Path}
import org.apache.spark.sql.SparkSession
import org.apache.spark.util.SerializableConfiguration

/** The directory of a saved model, through Hadoop's file systems, as Spark's own readers and writers see it.
  *
  * Throws StoreException for what cannot be read or written.
  */
private[flambeau] final class Directory(spark: SparkSession, location: String) {
  import Directory._

  private val settings = Settings.of(spark)
  private val configuration = spark.sparkContext.hadoopConfiguration
  private val root = qualified(spark, location)

  /** The directory as messages name it. */
  val path: String = location.replaceAll("/+$", "")

  /** Whether there is a directory or file of that name; the directory itself where the name is empty. */
  def exists(name: String = ""): Boolean = guarded(fileSystem(configuration, location).exists(at(name)))

  /** Whether the path is that of a file. */
  def isFile: Boolean = exists() && guarded(fileSystem(configuration, location).getFileStatus(root).isFile)

  /** Whether that file lies in the directory. */
  def holds(file: StoredFile): Boolean =
    (localPath(file.uri).map(_.toString), localRoot) match {
      case (Some(local), Some(directory)) => local.startsWith(s"$directory/")
      case _                              => file.uri.startsWith(s"$root/")
    }

  /** Writes a file, and returns what it is. */
  def write(name: String, bytes: Array[Byte]): SavedFile = {
    val local = Files.createTempFile("flambeau-", ".part")
    try {
      Files.write(local, bytes)
      guarded(upload(configuration, local, at(name).toString))
    } finally Files.deleteIfExists(local)
    SavedFile(bytes.length.toLong, StoredFile.hash(bytes))
  }

  /** Copies a file into the directory, by whoever sees it: this process, or an executor. */
  def copy(name: String, file: StoredFile): SavedFile = {
    val target = at(name).toString
    localPath(file.uri) match {
      case Some(local) if Files.isRegularFile(local) => guarded(upload(configuration, local, target))
      case Some(local)                               => uploadFromExecutor(local.toString, target)
      case None =>
        val local = file.local(NativeLibrary.store(settings.get), settings.storeJson, configuration)
        guarded(upload(configuration, local, target))
    }
    SavedFile(file.size, file.sha256)
  }

  /** A file's bytes, checked against their hash where one is location. */
  def read(name: String, saved: Option[SavedFile] = None): Array[Byte] = {
    val bytes = guarded(withStream(fileSystem(configuration, location).open(at(name)))(allBytes))
    for (expected <- saved if StoredFile.hash(bytes) != expected.sha256)
      throw new StoreException(
        s"${at(name)} is not the file that was saved: its SHA-256 differs from the metadata's"
      )
    bytes
  }

  /** A reference to a file that executors can follow. */
  def reference(name: String, saved: SavedFile): StoredFile = {
    val uri = localRoot.fold(at(name).toString)(_.resolve(name).toString)
    StoredFile(uri, saved.size, saved.sha256)
  }

  /** A reference to the file that the path itself is. */
  def asFile: StoredFile = localRoot.fold {
    val (sha256, size) = guarded(withStream(fileSystem(configuration, location).open(root))(StoredFile.hash))
    StoredFile(root.toString, size, sha256)
  }(StoredFile.of)

  private def at(name: String): Path = if (name.isEmpty) root else new Path(root, name)

  /** The directory as this machine's, where it is on it. */
  private def localRoot: Option[LocalPath] =
    if (root.toUri.getScheme == "file") Some(Paths.get(root.toUri.getPath)) else None

  private def uploadFromExecutor(local: String, target: String): Unit = {
    val shared = new SerializableConfiguration(configuration)
    spark.sparkContext.parallelize(Seq(local), 1).foreach { name =>
      val file = Paths.get(name)
      if (!Files.isRegularFile(file))
        throw new StoreException(
          s"$name is not there: the file was removed, or neither driver nor executors see it"
        )
      upload(shared.value, file, target)
    }
  }

  private def guarded[T](action: => T): T =
    try action
    catch { case error: IOException => throw new StoreException(s"$location: ${error.getMessage}", error) }
}

/** What a file of a saved directory is: its size in bytes and its SHA-256. */
private[flambeau] final case class SavedFile(size: Long, sha256: String) {

  /** As metadata have it: `{"size", "sha256"}`. */
  def json: ObjectNode = Json.obj().put("size", size).put("sha256", sha256)
}

private[flambeau] object SavedFile {

  /** The inverse of `json`. */
  def of(json: JsonNode): SavedFile = SavedFile(json.path("size").asLong, json.path("sha256").asText)
}

private[flambeau] object Directory {

  /** The path as Spark's readers and writers understand it: one without a scheme lies on Spark's default file system. */
  def qualified(spark: SparkSession, path: String): Path =
    fileSystem(spark.sparkContext.hadoopConfiguration, path).makeQualified(new Path(path))

  private def fileSystem(configuration: Configuration, path: String): FileSystem =
    new Path(path).getFileSystem(configuration)

  /** Writes a file, which is whole or not there. */
  private def upload(configuration: Configuration, local: LocalPath, target: String): Unit = {
    val path = new Path(target)
    if (path.toUri.getScheme == "file") {
      // Hadoop's own local file system would put a file with a checksum beside it.
      val file = Paths.get(path.toUri.getPath)
      Files.createDirectories(file.getParent)
      val part = file.resolveSibling(s".${file.getFileName}.part")
      Files.copy(local, part, StandardCopyOption.REPLACE_EXISTING)
      Files.move(part, file, StandardCopyOption.ATOMIC_MOVE)
    } else {
      val stream = path.getFileSystem(configuration).create(path, true)
      try Files.copy(local, stream)
      finally stream.close()
    }
  }

  private def localPath(uri: String): Option[LocalPath] = StoredFile.localPath(uri)

  private def withStream[T](stream: InputStream)(action: InputStream => T): T =
    try action(stream)
    finally stream.close()

  private def allBytes(stream: InputStream): Array[Byte] = {
    val bytes = new ByteArrayOutputStream
    val chunk = new Array[Byte](1 << 16)
    Iterator.continually(stream.read(chunk)).takeWhile(_ >= 0).foreach(bytes.write(chunk, 0, _))
    bytes.toByteArray
  }
}
