package flambeau

import java.nio.file.{Files, Path, Paths}

import flambeau.internal.util.Json

/** Programs and rows to train, and what others make of them; see `jvm/src/test/python/training_cases.py`. */
object TrainingCases {

  /** The directory with a directory for each case, made once and removed when the JVM ends. */
  lazy val directory: Path = {
    val directory = Files.createTempDirectory("flambeau-cases-")
    val python = Paths.get(sys.env("VIRTUAL_ENV"), "bin", "python").toString
    val script = Paths.get("jvm/src/test/python/training_cases.py").toAbsolutePath.toString
    val process = new ProcessBuilder(python, script, directory.toString)
      .directory(Paths.get("python").toFile)
      .inheritIO()
      .start()
    assert(process.waitFor() == 0, s"$script failed")
    Runtime.getRuntime.addShutdownHook(new Thread(() => SavedModels.remove(directory)))
    directory
  }

  /** A case's program. */
  def program(name: String): String = directory.resolve(name).resolve("net.pt").toString

  /** The file of a case's rows. */
  def rows(name: String): String = directory.resolve(name).resolve("rows.parquet").toString

  /** An estimator of two workers for the case of many short steps, 40 an epoch. */
  def slow(): TorchRegressor = new TorchRegressor()
    .setModel(program("slow"))
    .setOptimizer("adam")
    .setInputCols(Array("x"))
    .setLabelCol("y")
    .setLearningRate(0.001)
    .setNumWorkers(2)
    .setNumThreads(1)
    .setBatchSize(50)
    .setVerbose(0)

  /** What another made of the training. */
  def numbers(name: String, file: String, key: String): Array[Double] = {
    val json = Json.parse(new String(Files.readAllBytes(directory.resolve(name).resolve(file)), "UTF-8"))
    Json.items(json.get(key)).map(_.asDouble).toArray
  }
}
