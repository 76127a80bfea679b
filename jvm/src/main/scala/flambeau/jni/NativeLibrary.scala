package flambeau.jni

import java.io.IOException
import java.nio.charset.StandardCharsets
import java.nio.file.{Files, Path, Paths}
import java.util.concurrent.TimeUnit

import flambeau.{FlambeauException, GeneralException}
import flambeau.internal.util.Json

/** Loads libtorch and `libflambeau_jni.so` into this JVM, once for each class loader. */
private[flambeau] object NativeLibrary {

  /** The configuration's key for the directory of libtorch. */
  val LibtorchKey = "spark.flambeau.libtorch"

  private val FinderSeconds = 60L

  @volatile private var loaded: Option[NativeApi] = None

  /** The native functions. The first call finds and loads the libraries; it may be made by any thread.
    *
    * @param conf
    *   a Spark configuration: a key's value. `spark.flambeau.libtorch` and `spark.flambeau.nativeDir` are read
    * @throws flambeau.FlambeauException
    *   says what to install or to set where libtorch is missing, is another version, or cannot be loaded
    */
  def api(conf: String => Option[String]): NativeApi =
    loaded.getOrElse(synchronized {
      if (loaded.isEmpty) loaded = Some(load(conf))
      loaded.get
    })

  private def load(conf: String => Option[String]): NativeApi = {
    val libraries = libtorch(NativeFiles.worker(conf), conf(LibtorchKey).filter(_.nonEmpty))
    refuseAnother(libraries)
    libraries.foreach(loadShared)
    loadOne(NativeFiles.library(conf).toString)
    new NativeApi
  }

  /** libtorch's libraries in the order in which they are loaded, as `flambeau-worker libtorch` finds them. */
  private[jni] def libtorch(worker: Path, configured: Option[String]): Seq[String] = {
    val command = Seq(worker.toString, "libtorch") ++ configured.toSeq.flatMap(Seq("--libtorch", _))
    val output = Files.createTempFile("flambeau-", ".out")
    val errors = Files.createTempFile("flambeau-", ".err")
    try {
      val process = new ProcessBuilder(command: _*)
        .redirectOutput(output.toFile)
        .redirectError(errors.toFile)
        .start()
      process.getOutputStream.close()
      if (!process.waitFor(FinderSeconds, TimeUnit.SECONDS)) {
        process.destroyForcibly()
        throw new GeneralException(s"$worker libtorch did not end within $FinderSeconds s")
      }
      if (process.exitValue() != 0)
        throw new GeneralException(text(errors).trim.stripPrefix("flambeau-worker: "))
      Json.texts(Json.parse(text(output)).get("libraries"))
    } catch {
      case error: IOException =>
        throw new GeneralException(s"$worker cannot be run: ${error.getMessage}", error)
    } finally {
      Files.deleteIfExists(output)
      Files.deleteIfExists(errors)
    }
  }

  private def text(file: Path): String = new String(Files.readAllBytes(file), StandardCharsets.UTF_8)

  /** A process has room for one libtorch: two in one would mix their symbols. */
  private def refuseAnother(libraries: Seq[String]): Unit = {
    val names = libraries.map(path => path.substring(path.lastIndexOf('/')) -> path)
    val maps = text(Paths.get("/proc/self/maps")).linesIterator
    val mapped = maps.map(line => line.substring(line.indexOf('/').max(0))).toSet
    for ((name, path) <- names; other <- mapped if other.endsWith(name) && other != path)
      throw new GeneralException(
        s"another libtorch is loaded in this JVM already, $other, so that $path cannot be: remove the library that " +
          s"brought it from the class path, or set $LibtorchKey to its directory if it is torch 2.13"
      )
  }

  /** Loads a library that all class loaders of a JVM share: one that another of them loaded is there. */
  private def loadShared(path: String): Unit =
    try System.load(path)
    catch {
      case error: UnsatisfiedLinkError if String.valueOf(error.getMessage).contains("another classloader") =>
        ()
      case error: UnsatisfiedLinkError => throw refusal(path, error)
    }

  private def loadOne(path: String): Unit =
    try System.load(path)
    catch { case error: UnsatisfiedLinkError => throw refusal(path, error) }

  private def refusal(path: String, error: UnsatisfiedLinkError): FlambeauException = {
    val reason = String.valueOf(error.getMessage).stripPrefix(s"$path: ")
    new GeneralException(
      s"$path cannot be loaded ($reason): a complete libtorch 2.13 is needed on this machine; set $LibtorchKey to its " +
        "directory",
      error
    )
  }
}
