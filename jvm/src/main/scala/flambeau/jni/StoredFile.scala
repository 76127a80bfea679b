package flambeau.jni

import java.io.{ByteArrayInputStream, FileInputStream, FileNotFoundException, IOException, InputStream}
import java.net.{URI, URLDecoder}
import java.nio.file.LinkOption.NOFOLLOW_LINKS
import java.nio.file.attribute.{FileTime, PosixFilePermissions}
import java.nio.file.{FileAlreadyExistsException, Files, Path, Paths, StandardCopyOption}
import java.security.MessageDigest
import java.time.{Duration, Instant}
import java.util.concurrent.ConcurrentHashMap

import scala.util.Try

import com.fasterxml.jackson.databind.JsonNode
import flambeau.{GeneralException, StoreException, TransientStoreException}
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{Path => HadoopPath}
import org.apache.hadoop.security.AccessControlException
import org.apache.spark.SparkContext
import org.apache.spark.broadcast.Broadcast

/** A file and what is in it: its URI, its size in bytes, its SHA-256 in lower-case hexadecimal.
  *
  * A URI is what the store takes, or one of Hadoop's other file systems, such as `hdfs:`.
  *
  * @param content
  *   the file's bytes, which Spark hands out, where it lies nowhere: the URI is a name for messages then
  */
private[flambeau] final case class StoredFile(
    uri: String,
    size: Long,
    sha256: String,
    content: Option[Broadcast[Array[Byte]]] = None
) {

  /** A local file with this content, checked against the hash once in each JVM, and again where its size or
    * its time has changed.
    *
    * A file that is local already is used where it lies. Others are fetched once for each machine and user into
    * `flambeau-cache-<user>` under `java.io.tmpdir`, named by their hash; another file of such a name is replaced. Of those, what
    * nobody has asked for in seven days is deleted with the next one that is fetched.
    *
    * @param storeJson
    *   the options of the object stores
    * @param hadoop
    *   the configuration of Hadoop's file systems
    * @throws flambeau.StoreException
    *   where the file is gone or cannot be read
    * @throws flambeau.FlambeauException
    *   where it is another file
    */
  def local(store: => StoreApi, storeJson: String, hadoop: Configuration): Path = {
    lies match {
      case Some(path) if Files.isRegularFile(path) =>
        verifyOnce(path, Files.getLastModifiedTime(path))
        path
      case Some(_) =>
        throw new StoreException(s"the model's file $uri was removed, or this machine does not see it")
      case None => fetched(store, storeJson, hadoop)
    }
  }

  /** Whether a fetched file is the one that its name says. */
  private def isWhole(path: Path): Boolean =
    try {
      verifyOnce(path, StoredFile.Fetched)
      true
    } catch { case _: IOException | _: GeneralException => false }

  /** Where the file is local. */
  private def lies: Option[Path] = if (content.isDefined) None else StoredFile.localPath(uri)

  /** Checks a file that was not seen with this time and size before: another model may have been saved over it. */
  private def verifyOnce(path: Path, modified: FileTime): Unit = {
    val real = path.toRealPath()
    val seen = StoredFile.Seen(sha256, Files.size(real), modified)
    if (StoredFile.verified.get(real) != seen) {
      verify(real)
      StoredFile.verified.put(real, seen)
    }
  }

  /** Whether Hadoop's file systems alone have the file. */
  private[flambeau] def isHadoops: Boolean =
    StoredFile.schemeOf(uri).exists(scheme =>
      StoredFile.localPath(uri).isEmpty && !StoredFile.StoreSchemes(scheme)
    )

  private def fetched(store: => StoreApi, storeJson: String, hadoop: Configuration): Path = {
    val folder = StoredFile.cacheDirectory()
    val path = folder.resolve(sha256)
    if (!(StoredFile.isKept(path) && isWhole(path))) {
      val part = Files.createTempFile(folder, sha256, ".part")
      try {
        content match {
          case Some(bytes)       => Files.write(part, bytes.value)
          case None if isHadoops => copyFromHadoop(hadoop, part)
          case None              => store.getToFile(storeJson, uri, part.toString)
        }
        // What lies under its name stays there as long as it is asked for.
        verify(part)
        Files.move(part, path, StandardCopyOption.ATOMIC_MOVE)
        StoredFile.verified.put(
          path.toRealPath(),
          StoredFile.Seen(sha256, Files.size(path), StoredFile.Fetched)
        )
      } finally Files.deleteIfExists(part)
      StoredFile.evict(folder)
    }
    path
  }

  private def copyFromHadoop(hadoop: Configuration, to: Path): Unit =
    try {
      val from = new HadoopPath(uri)
      val stream = from.getFileSystem(hadoop).open(from)
      try Files.copy(stream, to, StandardCopyOption.REPLACE_EXISTING)
      finally stream.close()
    } catch {
      case error @ (_: FileNotFoundException | _: AccessControlException) =>
        throw new StoreException(s"$uri: ${error.getMessage}", error)
      case error: IOException => throw new TransientStoreException(s"$uri: ${error.getMessage}", error)
    }

  private def verify(path: Path): Unit = {
    val found = StoredFile.hash(path)
    if (found != sha256)
      throw new GeneralException(
        s"$uri is not the file that the model was saved with: its SHA-256 is $found, and should be $sha256"
      )
  }
}

private[flambeau] object StoredFile {

  private val SweepAge = Duration.ofDays(7)

  /** In the place of a fetched file's time, which says when it was asked for: nobody else writes there. */
  private val Fetched = FileTime.fromMillis(0)

  private final case class Seen(sha256: String, size: Long, modified: FileTime)

  /** The files that this JVM has read, as it found them. */
  private val verified = new ConcurrentHashMap[Path, Seen]

  /** The reference to a local file that is complete. */
  def of(path: Path): StoredFile = StoredFile(path.toString, Files.size(path), hash(path))

  /** The reference that `{"uri", "size", "sha256"}` is. */
  def of(json: JsonNode): StoredFile =
    StoredFile(json.get("uri").asText, json.get("size").asLong, json.get("sha256").asText)

  /** A file of this process's memory, which Spark hands out to its executors. */
  def handedOut(context: SparkContext, name: String, bytes: Array[Byte]): StoredFile = {
    StoredFile(name, bytes.length, hash(bytes), Some(context.broadcast(bytes)))
  }

  /** The schemes of the object stores that the native store reads. */
  private[flambeau] val StoreSchemes = Set("s3", "s3a", "abfs", "abfss", "gs")

  /** A URI's scheme in lower case; none for a plain path. */
  private[flambeau] def schemeOf(uri: String): Option[String] =
    "^([A-Za-z][A-Za-z0-9+.-]*):".r.findFirstMatchIn(uri).map(_.group(1).toLowerCase)

  /** The local path that a URI means; none for an object store. */
  private[flambeau] def localPath(uri: String): Option[Path] = schemeOf(uri) match {
    case None         => Some(Paths.get(uri))
    case Some("file") => Some(Paths.get(new URI(uri).getPath))
    case Some("dbfs") =>
      // Hadoop writes spaces as they are. What is escaped is read as the native store does.
      val escaped = uri.substring("dbfs:".length).replaceFirst("^//[^/]*", "")
      val path =
        URLDecoder.decode(escaped.replace("+", "%2B").replaceAll("%(?![0-9A-Fa-f]{2})", "%25"), "UTF-8")
      Some(Paths.get(if (path.startsWith("/Volumes/")) path else "/dbfs" + path))
    case Some(_) => None
  }

  /** Lower-case hexadecimal SHA-256 of a file. */
  private[flambeau] def hash(path: Path): String = {
    val stream = new FileInputStream(path.toFile)
    try hash(stream)._1
    finally stream.close()
  }

  private[flambeau] def hash(bytes: Array[Byte]): String = hash(new ByteArrayInputStream(bytes))._1

  /** A stream's SHA-256 and its bytes, read to the end. */
  private[flambeau] def hash(stream: InputStream): (String, Long) = {
    val digest = MessageDigest.getInstance("SHA-256")
    val chunk = new Array[Byte](1 << 20)
    var size = 0L
    Iterator.continually(stream.read(chunk)).takeWhile(_ >= 0).foreach { count =>
      digest.update(chunk, 0, count)
      size += count
    }
    (digest.digest().map(byte => f"${byte & 0xff}%02x").mkString, size)
  }

  /** Whether a fetched file is there; then it counts as asked for now. */
  private def isKept(path: Path): Boolean = Files.isRegularFile(path, NOFOLLOW_LINKS) &&
    // Another process may delete it meanwhile.
    Try(Files.setLastModifiedTime(path, FileTime.from(Instant.now()))).isSuccess

  /** Deletes what nobody has asked for in `SweepAge`; whoever has it open keeps what it has. */
  private[jni] def evict(folder: Path): Unit = {
    val oldest = Instant.now().minus(SweepAge)
    // Another process was faster, or it is nothing of ours.
    for (file <- Option(folder.toFile.listFiles()).toSeq.flatten)
      if (Instant.ofEpochMilli(file.lastModified()).isBefore(oldest)) file.delete()
  }

  /** Where fetched files are kept on this machine, for this user alone. */
  private[jni] def cacheDirectory(): Path = {
    val user = System.getProperty("user.name")
    val folder = Paths.get(System.getProperty("java.io.tmpdir"), s"flambeau-cache-$user")
    val owner = PosixFilePermissions.fromString("rwx------")
    try
      if (!Files.isDirectory(folder, NOFOLLOW_LINKS))
        Files.createDirectory(folder, PosixFilePermissions.asFileAttribute(owner))
    catch {
      // Another process made it meanwhile, or it is no directory, as is seen below.
      case _: FileAlreadyExistsException => ()
      case error: IOException =>
        throw new GeneralException(
          s"$folder cannot be made ($error): set java.io.tmpdir to a writable directory",
          error
        )
    }
    // Whoever else may write there could put a program in the place of one that was checked.
    val isOwn = Files.isDirectory(folder, NOFOLLOW_LINKS) &&
      Files.getOwner(folder, NOFOLLOW_LINKS).getName == user &&
      Files.getPosixFilePermissions(folder, NOFOLLOW_LINKS) == owner
    if (!isOwn)
      throw new GeneralException(
        s"$folder is not a directory of $user's own that nobody else may open (a link is none): remove it, or set " +
          "java.io.tmpdir to a directory of your own"
      )
    folder
  }
}
