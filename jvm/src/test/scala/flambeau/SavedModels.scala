package flambeau

import java.nio.file.{Files, Path, Paths}

/** Saved models of PySpark's format with rows and what torch makes of them; see `jvm/src/test/python/saved_models.py`. */
object SavedModels {

  /** The directory with a directory for each case, made once and removed when the JVM ends. */
  lazy val directory: Path = {
    val directory = Files.createTempDirectory("flambeau-models-")
    val python = Paths.get(sys.env("VIRTUAL_ENV"), "bin", "python").toString
    val script = Paths.get("jvm/src/test/python/saved_models.py").toAbsolutePath.toString
    val process = new ProcessBuilder(python, script, directory.toString)
      .directory(Paths.get("python").toFile)
      .inheritIO()
      .start()
    assert(process.waitFor() == 0, s"$script failed")
    Runtime.getRuntime.addShutdownHook(new Thread(() => remove(directory)))
    directory
  }

  /** The directory of a case's model. */
  def model(name: String): String = directory.resolve(name).resolve("model").toString

  /** The file of a case's rows. */
  def rows(name: String): String = directory.resolve(name).resolve("rows.parquet").toString

  /** Removes a directory with all that is in it. */
  def remove(directory: Path): Unit = {
    val paths = Files.walk(directory)
    try paths.sorted(java.util.Comparator.reverseOrder[Path]()).forEach(path => Files.deleteIfExists(path))
    finally paths.close()
  }

  /** Copies a directory. */
  def copy(from: Path, to: Path): Unit = {
    val paths = Files.walk(from)
    try paths.forEach(path => Files.copy(path, to.resolve(from.relativize(path).toString)))
    finally paths.close()
  }
}
