package flambeau

import scala.collection.mutable

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.{DataFrame, SparkSession}
import org.slf4j.LoggerFactory

/** One fit, from an estimator's params and a DataFrame to a fitted model. It has been checked as far as can be without
  * running anything on Spark.
  */
private[flambeau] final class Training private (
    estimator: TorchEstimator,
    spark: SparkSession,
    work: WorkDirectory,
    program: Program
) {
  import Training._

  private val checked = mutable.Map.empty[String, JsonNode]

  /** Whether the program computes in float64. */
  private val isWide = check(Draft).get("parameterDtype").asText == "float64"

  /** What this fit reads from a DataFrame of that schema. Throws DataException and ParamException. */
  def columns(schema: StructType): DataColumns = {
    val columns = Shards.resolve(schema, estimator, estimator.labelDtype, isWide)
    output(columns)
    columns
  }

  /** What the program returns on those columns; empty where an input's shape is known to the data alone. Throws
    * ParamException where the program, its loss or its metrics do not go with them.
    */
  def output(columns: DataColumns): OutputSpec = {
    val output = OutputSpec.of(check(columns.specJson).get("output"))
    if (output.tensors.nonEmpty) estimator.modelKind.checkOutput(output)
    output
  }

  /** Makes sure that the workers share the work directory; returns whether this process sees it too. */
  def prepare(): Boolean = {
    Cluster.checkSlots(
      spark,
      estimator.getNumWorkers,
      estimator.getNumGpusPerWorker,
      estimator.getSlotTimeout
    )
    if (!Cluster.isLocal(spark)) Cluster.probe(spark, work, estimator.getNumWorkers)
    val isVisible = Cluster.isVisible(spark, work)
    if (isVisible && estimator.isSet(estimator.workDir)) Cluster.sweep(work)
    isVisible
  }

  /** Keeps the sweeps of other fits from what `use` has in the work directory. */
  def leased[T](isVisible: Boolean)(use: => T): T =
    if (!estimator.isSet(estimator.workDir)) use
    else {
      // A copy without this object, which does not travel with tasks.
      val directory = work
      directory.leased { act =>
        if (isVisible) act(directory) else Cluster.onWorker(spark)(() => act(directory))
      }(use)
    }

  /** The rows of `df` as shards in the work directory, for as long as `use` runs. */
  def written[T](df: DataFrame, columns: DataColumns, isVisible: Boolean)(use: ShardSet => T): T = {
    val name = WorkDirectory.newId()
    try use(Cluster.interruptible(spark.sparkContext)(Shards.write(df, columns, work.path("shards", name))))
    finally Launch.remove(spark, work, isVisible, "shards", name)
  }

  /** The Parquet files under `path` as this fit's shards. */
  def inPlace(path: String): ShardSet = {
    val shards = Shards.inPlace(spark, path, estimator, estimator.labelDtype, isWide)
    output(shards.columns)
    shards
  }

  /** Trains on the shards and tells what came of it; `inputs` are in terms of the DataFrame's columns.
    *
    * Removes what the training left in the work directory except the model's files.
    */
  def run(shards: ShardSet, inputs: Seq[TensorColumns], isVisible: Boolean): Trained = {
    val numWorkers = estimator.getNumWorkers
    if (shards.numRows < numWorkers)
      throw new DataException(
        s"there are ${shards.numRows} rows to train on, fewer than numWorkers ($numWorkers): lower numWorkers"
      )
    val returned = output(shards.columns)
    val name = WorkDirectory.newId()
    try {
      val everywhere = program.placed(ProgramFiles.place(spark, work, isVisible, name))
      val launch = new Launch(
        spark,
        work,
        job(shards.jobData, everywhere),
        if (Cluster.isLocal(spark)) Map.empty else everywhere.code,
        numWorkers,
        estimator.getNumGpusPerWorker,
        estimator.getMaxRestarts,
        estimator.getSlotTimeout,
        isVisible,
        Progress.of(work, _, isVisible, estimator.getVerbose)
      )
      val result =
        try launch.run()
        finally launch.clean()
      Json.texts(result.get("warnings")).foreach(log.warn)
      val shapes = shards.columns.inputs.map(_.shape)
      trained(result, inputs.zip(shapes).map { case (tensor, shape) => tensor.copy(shape = shape) }, returned)
    } finally
      if (ProgramFiles.isCopied(spark, program)) Launch.remove(spark, work, isVisible, "attempts", name)
  }

  private def trained(result: JsonNode, inputs: Seq[TensorColumns], output: OutputSpec): Trained = {
    val programs = Program.written(result.get("weights"))
    val reasons = Seq(ProgramForms.Scripted, ProgramForms.Exported)
      .filterNot(programs.contains)
      .map(_ -> s"the model was trained as its ${program.form} program")
    Trained(
      programs,
      reasons.toMap,
      Program.stored(result.get("weights")),
      inputs,
      output,
      Trained.outputKind(estimator.valueOf(estimator.loss), output),
      result.get("history"),
      Counts(
        result.get("numRows").asLong,
        result.get("numSteps").asLong,
        result.get("numValidationRows").asLong,
        Some(result.get("seconds").asDouble)
      )
    )
  }

  /** What `JobCheck` says of the program on these tensors, once. Throws ParamException for what it refuses. */
  private def check(spec: JsonNode): JsonNode = checked.getOrElseUpdate(
    Json.text(spec), {
      val data = Json.obj()
      data.replace("train", Json.strings(Seq("draft")))
      data.replace("spec", spec)
      val draft = job(data, program.placed((_, file) => ProgramFiles.onDriver(spark, file)))
      draft.replace("attempt", Json.obj().put("id", "draft").put("workDir", "draft"))
      JobCheck(draft, work.settings)
    }
  )

  /** The training job without its attempt. */
  private def job(data: ObjectNode, program: Program): ObjectNode = {
    val json = Json.obj().put("format", 1)
    json.replace("params", estimator.jobParams)
    json.replace("data", data)
    json.replace("program", program.json)
    json.replace("store", Json.of(work.settings.storeOptions, "store"))
    json
  }
}

private[flambeau] object Training {
  private val log = LoggerFactory.getLogger("flambeau")

  /** Tensors of which nothing is known: the program is loaded for them, and not run. */
  private val Draft = Json.parse(
    """{"inputs": [{"name": "draft", "columns": ["draft"], "dtype": "float32", "shape": null}], "labels": [],
      | "weight": null}""".stripMargin
  )

  /** Throws ParamException where checkpoints are to outlive a fit: those of Scala clean up, well or not. */
  private def refuseRuns(estimator: TorchEstimator): Unit = {
    val asked = Seq("runId").filter(_ => estimator.isSet(estimator.runId)) ++
      Seq("keepCheckpoints").filter(_ => estimator.getKeepCheckpoints > 0)
    asked.headOption.foreach { name =>
      throw new ParamException(
        s"$name is set, but checkpoints outlive a fit in PySpark only: leave it unset, and raise maxRestarts " +
          "where workers are lost often"
      )
    }
  }

  /** Checks the params and what they name. Throws ParamException, and FlambeauException where this machine has no
    * libtorch.
    */
  def of(estimator: TorchEstimator, spark: SparkSession): Training = {
    estimator.checkParams()
    refuseRuns(estimator)
    val work = Cluster.workDirectory(spark, estimator.valueOf(estimator.workDir))
    new Training(estimator, spark, work, Program.of(estimator, spark))
  }
}
