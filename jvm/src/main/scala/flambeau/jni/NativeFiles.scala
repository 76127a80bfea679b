package flambeau.jni

import java.io.{File, IOException}
import java.nio.file.attribute.PosixFilePermissions
import java.nio.file.{Files, Path, Paths}
import java.util.Locale

import flambeau.GeneralException

/** The native files that the jar `flambeau-natives` carries, extracted for this JVM.
  *
  * They lie in a directory of their own for each class loader, under `spark.flambeau.nativeDir` or else
  * `java.io.tmpdir`, and are removed when the JVM ends.
  */
private[flambeau] object NativeFiles {

  /** The configuration's key for the directory to extract into. */
  val NativeDirKey = "spark.flambeau.nativeDir"

  private val WorkerName = "flambeau-worker"
  private val StoreName = "libflambeau_jni_store.so"
  private val TorchName = "libflambeau_jni_torch.so"

  @volatile private var extracted: Option[Path] = None

  /** The executable `flambeau-worker`. Its library lies beside it.
    *
    * @param conf
    *   a Spark configuration: a key's value
    */
  def worker(conf: String => Option[String]): Path = directory(conf).resolve(WorkerName)

  /** The library that holds [[StoreApi]]'s functions and needs no libtorch; none in the jar of a Python package's natives. */
  private[jni] def storeLibrary(conf: String => Option[String]): Option[Path] =
    Some(directory(conf).resolve(StoreName)).filter(Files.exists(_))

  /** The library that holds [[TorchApi]]'s functions, and [[StoreApi]]'s too. */
  private[jni] def torchLibrary(conf: String => Option[String]): Path = directory(conf).resolve(TorchName)

  /** This machine as that jar's resources name it, such as `linux-x86_64`. */
  private[jni] def platform: String = {
    val os = System.getProperty("os.name").toLowerCase(Locale.ROOT)
    val architecture = System.getProperty("os.arch") match {
      case "amd64" => "x86_64"
      case other   => other
    }
    s"$os-$architecture"
  }

  private def directory(conf: String => Option[String]): Path =
    extracted.getOrElse(synchronized {
      if (extracted.isEmpty) extracted = Some(extract(conf(NativeDirKey).filter(_.nonEmpty)))
      extracted.get
    })

  /** Extracts to a new directory under `configured`, or `java.io.tmpdir`, which is removed at the JVM's end. */
  private[jni] def extract(configured: Option[String]): Path = {
    val parent = Paths.get(configured.getOrElse(System.getProperty("java.io.tmpdir"))).toAbsolutePath
    try {
      Files.createDirectories(parent)
      val owner = PosixFilePermissions.fromString("rwx------")
      val made = Files.createTempDirectory(parent, "flambeau-", PosixFilePermissions.asFileAttribute(owner))
      Runtime.getRuntime.addShutdownHook(new Thread(() => remove(made), "flambeau-native-files"))
      for (name <- Seq(WorkerName, StoreName, TorchName) if name != StoreName || isThere(name)) {
        copy(name, made.resolve(name))
        Files.setPosixFilePermissions(made.resolve(name), owner)
      }
      if (!Files.isExecutable(made.resolve(WorkerName)))
        throw new GeneralException(
          s"$parent is mounted noexec, so that the native files cannot run from there: set $NativeDirKey to a " +
            "directory of each machine that allows it"
        )
      made
    } catch {
      case error: IOException =>
        throw new GeneralException(
          s"the native files cannot be written to $parent ($error): set $NativeDirKey to a directory of each machine " +
            "that can be written to",
          error
        )
    }
  }

  private def resource(name: String): String = s"/native/$platform/$name"

  private def isThere(name: String): Boolean = getClass.getResource(resource(name)) != null

  private def copy(name: String, target: Path): Unit = {
    val stream = getClass.getResourceAsStream(resource(name))
    if (stream == null)
      throw new GeneralException(
        s"there are no native files for $platform (${resource(name)} is missing): give the session the jar " +
          "flambeau-natives too, on Linux x86_64, or build it on the platform that it is to run on"
      )
    try Files.copy(stream, target)
    finally stream.close()
  }

  /** Removes a directory of files; what is gone already is none of its business. */
  private[flambeau] def remove(directory: Path): Unit = {
    Option(directory.toFile.listFiles()).toSeq.flatten.foreach((file: File) => file.delete())
    directory.toFile.delete()
  }
}
