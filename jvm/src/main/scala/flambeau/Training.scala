package flambeau

import scala.collection.mutable

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.jni.StoredFile
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.{DataFrame, SparkSession}
import org.slf4j.LoggerFactory

/** One fit, from an estimator's params and a DataFrame to a fitted model. It has been checked as far as can be without
  * running anything on Spark.
  */
private[flambeau] final class Training private (
    estimator: Trainable,
    spark: SparkSession,
    work: WorkDirectory,
    program: Program
) {
  import Training._

  private val checked = mutable.Map.empty[String, JsonNode]

  /** Whether the program computes in float64. */
  private val isWide = check(Draft).get("parameterDtype").asText == "float64"

  /** The columns with the inputs in the order of forward's arguments. Throws ParamException for `inputNames` that are none
    * of those.
    */
  private def inOrder(columns: DataColumns): DataColumns =
    columns.copy(inputs =
      Columns.inOrder(columns.inputs, estimator, Json.texts(check(Draft).get("arguments")))
    )

  /** What this fit reads from a DataFrame of that schema. Throws DataException and ParamException. */
  def columns(schema: StructType): DataColumns = {
    val columns = inOrder(Shards.resolve(schema, estimator, estimator.labelDtype, isWide))
    output(columns)
    columns
  }

  /** What the program returns on those columns; empty where an input's shape is known to the data alone. Throws
    * ParamException where the program, its loss or its metrics do not go with them.
    */
  def output(columns: DataColumns): OutputSpec = {
    val output = OutputSpec.of(check(columns.specJson).get("output"))
    if (output.tensors.nonEmpty) estimator.checkOutput(output)
    output
  }

  /** Makes sure that the workers share the work directory; returns how this process reaches it. */
  def prepare(): Site = {
    Cluster.checkSlots(
      spark,
      estimator.getNumWorkers,
      estimator.getNumGpusPerWorker,
      estimator.getSlotTimeout
    )
    if (!Session.isLocal(spark)) Cluster.probe(spark, work, estimator.getNumWorkers)
    val site = Site.of(spark, work)
    if (!work.isTemporary) site.sweep()
    site
  }

  /** Keeps the sweeps of other fits from what `use` has in the work directory, and other fits from its run. Throws
    * ParamException where another has that.
    */
  def leased[T](site: Site)(use: => T): T = {
    def held: T = if (work.isTemporary) use else Lease.held(site)(use)
    estimator.valueOf(estimator.runId).fold(held)(Run.claimed(site, _)(held))
  }

  /** The rows of `df` as shards in the work directory, for as long as `use` runs. */
  def written[T](df: DataFrame, columns: DataColumns, site: Site)(use: ShardSet => T): T = {
    val name = WorkDirectory.newId()
    try use(Session.interruptible(spark.sparkContext)(Shards.write(df, columns, work.path("shards", name))))
    finally site.remove("shards", name)
  }

  /** The Parquet files under `path` as this fit's shards. */
  def inPlace(path: String): ShardSet = {
    val found = Shards.inPlace(spark, path, estimator, estimator.labelDtype, isWide)
    val shards = found.copy(columns = inOrder(found.columns))
    output(shards.columns)
    shards
  }

  /** Trains on the shards and tells what came of it; `inputs` are in terms of the DataFrame's columns.
    *
    * Removes what the training left in the work directory except the model's files and the newest `keepCheckpoints`; where
    * it fails, all of its checkpoints stay for the run's next fit.
    */
  def run(shards: ShardSet, inputs: Seq[TensorColumns], site: Site): Trained = {
    val numWorkers = estimator.getNumWorkers
    if (shards.numRows < numWorkers)
      throw new DataException(
        s"there are ${shards.numRows} rows to train on, fewer than numWorkers ($numWorkers): lower numWorkers"
      )
    val returned = output(shards.columns)
    val name = WorkDirectory.newId()
    try {
      val everywhere = program.placed(ProgramFiles.place(site, name))
      val launch = new Launch(
        site,
        job(shards.jobData, everywhere),
        if (Session.isLocal(spark)) Map.empty else everywhere.code,
        numWorkers,
        estimator.getNumGpusPerWorker,
        estimator.getMaxRestarts,
        estimator.getSlotTimeout,
        run(site, shards, name),
        Progress.of(work, _, site.isVisible, estimator.getVerbose)
      )
      val result =
        try launch.run()
        catch {
          case error: Throwable =>
            launch.keep()
            throw error
        }
      val checkpoints = launch.clean(estimator.getKeepCheckpoints)
      Json.texts(result.get("warnings")).foreach(log.warn)
      val shapes = shards.columns.inputs.map(_.shape)
      trained(result, inputs.zip(shapes).map { case (tensor, shape) => tensor.copy(shape = shape) }, returned)
        .copy(checkpoints = checkpoints)
    } finally
      if (ProgramFiles.isCopied(spark, program)) site.remove("attempts", name)
  }

  /** The run that a fit is one of: that of `runId`, else one with the name `id`. */
  private def run(site: Site, shards: ShardSet, id: String): Run = {
    val named = estimator.valueOf(estimator.runId)
    new Run(site, named.getOrElse(id), named.isDefined, identity, shards.train ++ shards.validation)
  }

  /** What tells the job from others: its params and its program's files, without those that hold weights alone. An archive of
    * TorchScript counts with the weights in it.
    */
  private def identity: ObjectNode = {
    val json = estimator.jobParams.deepCopy()
    json.put("runtime", "native")
    json.replace("program", Json.of(program.code.map { case (part, file) => part -> file.sha256 }, "program"))
    json.replace("loss", program.loss.json)
    json.replace("optimizer", program.optimizer.json)
    json.replace("metrics", Json.strings(program.metrics))
    json
  }

  private def trained(result: JsonNode, inputs: Seq[TensorColumns], output: OutputSpec): Trained = {
    val programs = Program.written(result.get("weights"))
    val reasons = Seq(ProgramForms.Scripted, ProgramForms.Exported)
      .filterNot(programs.contains)
      .map(_ -> s"the model was trained as its ${program.form} program")
    Trained(
      programs,
      reasons.toMap,
      StoredFile.of(result.get("weights")),
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

  /** Checks the params and what they name. Throws ParamException, and FlambeauException where this machine has no
    * libtorch.
    */
  def of(estimator: Trainable, spark: SparkSession): Training = {
    estimator.checkParams()
    val work = WorkDirectory.of(spark, estimator.valueOf(estimator.workDir))
    new Training(estimator, spark, work, Program.of(estimator, spark))
  }
}
