package flambeau.jni

import java.io.IOException
import java.nio.charset.StandardCharsets
import java.nio.file.{Files, Path, Paths}
import java.util.concurrent.TimeUnit

import flambeau.{FlambeauException, GeneralException}
import flambeau.internal.util.Json

/** Loads the native libraries into this JVM, once for each class loader: the store's as it is, torch's over libtorch. */
private[flambeau] object NativeLibrary {

  /** The configuration's key for the directory of libtorch. */
  val LibtorchKey = "spark.flambeau.libtorch"

  private val FinderSeconds = 60L

  /** What must be there for a library to be loaded. */
  private val NeedsSystem = "the jar's native files need a newer system, or another build of the jar"
  private val NeedsLibtorch =
    s"a complete libtorch 2.13 is needed on this machine; set $LibtorchKey to its directory"

  /** A lock of its own: the search for libtorch keeps nobody from files, where they have a library of their own. */
  private val forStore = new Object

  @volatile private var loadedStore: Option[StoreApi] = None
  @volatile private var loadedTorch: Option[TorchApi] = None

  /** Files and the supervisor, for which no libtorch is needed but with the natives of a Python package. The first call
    * loads the library; it may be made by any thread.
    *
    * @param conf
    *   a Spark configuration: a key's value. `spark.flambeau.nativeDir` is read
    * @throws flambeau.FlambeauException
    *   where the library cannot be written or loaded
    */
  def store(conf: String => Option[String]): StoreApi =
    loadedStore.getOrElse(forStore.synchronized {
      if (loadedStore.isEmpty) {
        NativeFiles.storeLibrary(conf) match {
          case Some(library) => load(library.toString, NeedsSystem)
          case None          => torch(conf)
        }
        loadedStore = Some(new StoreApi)
      }
      loadedStore.get
    })

  /** What computes. The first call finds and loads libtorch and the library; it may be made by any thread.
    *
    * @param conf
    *   a Spark configuration: a key's value. `spark.flambeau.libtorch` and `spark.flambeau.nativeDir` are read
    * @throws flambeau.FlambeauException
    *   says what to install or to set where libtorch is missing, is another version, or cannot be loaded
    */
  def torch(conf: String => Option[String]): TorchApi =
    loadedTorch.getOrElse(synchronized {
      if (loadedTorch.isEmpty) {
        val libraries = libtorch(NativeFiles.worker(conf), conf(LibtorchKey).filter(_.nonEmpty))
        refuseAnother(libraries)
        libraries.foreach(loadShared)
        load(NativeFiles.torchLibrary(conf).toString, NeedsLibtorch)
        loadedTorch = Some(new TorchApi)
      }
      loadedTorch.get
    })

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
      case error: UnsatisfiedLinkError => throw refusal(path, error, NeedsLibtorch)
    }

  private def load(path: String, needs: String): Unit =
    try System.load(path)
    catch { case error: UnsatisfiedLinkError => throw refusal(path, error, needs) }

  private def refusal(path: String, error: UnsatisfiedLinkError, needs: String): FlambeauException = {
    val reason = String.valueOf(error.getMessage).stripPrefix(s"$path: ")
    new GeneralException(s"$path cannot be loaded ($reason): $needs", error)
  }
}
