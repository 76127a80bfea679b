package flambeau.internal.fit

import scala.collection.JavaConverters._
import scala.collection.mutable

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.{Bottleneck, Checkpoint, DataException, Lineage, TensorColumns, TrainingListener}
import flambeau.jni.StoredFile
import flambeau.internal.model.{Counts, OutputSpec, ProgramForms, Trained}
import flambeau.internal.rows.{DataColumns, Reading, Rows, ShardSet}
import flambeau.internal.session.{JobLabels, Session}
import flambeau.internal.storage.{Lease, Site, WorkDirectory}
import flambeau.internal.util.Json
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.types.StructType
import org.slf4j.LoggerFactory

/** One fit, from an estimator's params and its rows to what a model holds. It has been checked as far as can be without
  * running anything on Spark.
  */
private[flambeau] final class Fit private (
    estimator: Trainable,
    spark: SparkSession,
    val work: WorkDirectory,
    program: Program,
    isTrial: Boolean,
    rangeTest: Option[ObjectNode]
) {
  import Fit._

  private val checked = mutable.Map.empty[String, JsonNode]

  /** Who is told of the training, once there is one. */
  private var listeners = Option.empty[ListenerBus]

  private val reading = {
    val known = check(Draft)
    val isWide = known.get("parameterDtype").asText == "float64"
    Reading(estimator, estimator.labelDtype, isWide, Json.texts(known.get("arguments")))
  }

  /** Where the directories of TensorBoard's files are, one for each run. */
  private val tensorBoardDir =
    estimator.valueOf(estimator.tensorBoardDir).map(WorkDirectory.uriOf(spark, "tensorBoardDir", _))

  /** The checkpoint from whose optimizer's state training starts. */
  private val initialState =
    estimator.valueOf(estimator.initialState).map(WorkDirectory.uriOf(spark, "initialState", _))

  /** Trains on the rows, tells the listeners, and returns what came of it. Waits for as long as that takes; an interrupt of the thread cancels it. */
  def run(rows: Rows, told: Seq[TrainingListener]): Trained =
    trained(ran(rows, told))

  /** A trial: what came of it, none of which is kept, and the files that it trained on. Waits as `run` does. */
  def tried(rows: Rows): (Trained, ShardSet) = {
    val outcome = ran(rows, Nil)
    (trained(outcome), outcome.shards)
  }

  /** A range test: the result's `rangeTest`. Nothing is kept. Waits as `run` does. */
  def tested(rows: Rows): JsonNode = ran(rows, Nil).result.get("rangeTest")

  private def ran(rows: Rows, told: Seq[TrainingListener]): Outcome = {
    val name = estimator.valueOf(estimator.runId).fold(estimator.uid)(run => s"${estimator.uid} (run $run)")
    JobLabels.of(spark.sparkContext, name) { labels =>
      labels.say("read the rows")
      val columns = this.columns(rows)
      labels.say("check the cluster")
      val site = place()
      labels.say("find or write the rows")
      leased(site) {
        rows.shards(columns, reading, site) { shards =>
          val (inputs, output) = probe(columns, shards)
          val (result, checkpoints) = train(shards, site, labels, told)
          Outcome(shards, inputs, output, result, checkpoints)
        }
      }
    }
  }

  /** The columns that the fit reads of the rows. Throws DataException, and ParamException also where the program, its loss or
    * its metrics do not go with them.
    */
  def columns(rows: Rows): DataColumns = {
    val columns = rows.columns(reading)
    outputOf(columns)
    columns
  }

  /** Tells the listeners that the training has ended well. Throws what one has thrown, there or in what is told after the
    * training's end.
    */
  def end(): Unit = listeners.foreach(_.end())

  /** What a fit on rows of that schema would come to, to tell of a model's columns. Throws DataException and
    * ParamException.
    */
  def untrained(schema: StructType): Trained = {
    val columns = DataColumns.resolve(schema, reading)
    Trained.untrained(columns.inputs, outputOf(columns))
  }

  /** What the program returns on those columns; empty where an input's shape is known to the data alone. Throws
    * ParamException where the program, its loss or its metrics do not go with them.
    */
  private def outputOf(columns: DataColumns): OutputSpec = {
    val output = OutputSpec.of(check(columns.specJson).get("output"))
    if (output.tensors.nonEmpty) estimator.checkOutput(output)
    output
  }

  /** The work directory, as `reach` gives it, without what older fits left there, and with the checkpoint of `initialState` seen
    * from it. Throws ClusterException, StoreException and ParamException.
    */
  def place(): Site = {
    val site = reach(work)
    for (uri <- initialState) site.ask(Site.question("checkInitialState").put("uri", uri))
    if (!work.isTemporary) site.sweep()
    site
  }

  /** Makes sure that there are slots for the workers and that these share a directory; returns how this process reaches it.
    * Throws ClusterException and StoreException.
    */
  private def reach(directory: WorkDirectory): Site = {
    checkSlots()
    shared(directory)
  }

  /** Makes sure that all workers can run at once. Throws ClusterException. */
  def checkSlots(): Unit = Cluster.checkSlots(
    spark,
    estimator.getNumWorkers,
    estimator.getNumGpusPerWorker,
    estimator.getSlotTimeout
  )

  /** Makes sure that the workers, where they run, share a directory; returns how this process reaches it. Throws
    * ClusterException and StoreException.
    */
  def shared(directory: WorkDirectory): Site = {
    if (!Session.isLocal(spark)) Cluster.probe(spark, directory, estimator.getNumWorkers)
    Site.of(spark, directory)
  }

  /** Keeps the sweeps of other fits from what `use` has in the work directory, and other fits from its run. Throws
    * ParamException where another has that.
    */
  private def leased[T](site: Site)(use: => T): T = {
    def held: T = Lease.held(site)(use)
    estimator.valueOf(estimator.runId).fold(held)(Run.claimed(site, _)(held))
  }

  /** The inputs in terms of the rows' columns, with the shapes that the shards tell, and what the program makes of them.
    * Throws DataException for fewer rows than workers.
    */
  private def probe(columns: DataColumns, shards: ShardSet): (Seq[TensorColumns], OutputSpec) = {
    val numWorkers = estimator.getNumWorkers
    if (shards.numRows < numWorkers)
      throw new DataException(
        s"there are ${shards.numRows} rows to train on, fewer than numWorkers ($numWorkers): lower numWorkers"
      )
    val inputs = columns.inputs.zip(shards.columns.inputs).map { case (tensor, found) =>
      tensor.copy(shape = found.shape)
    }
    (inputs, outputOf(shards.columns))
  }

  /** Trains on the shards: rank 0's result, and the checkpoints that stay.
    *
    * Removes what the training left in the work directory except the model's files, what workers wrote and the newest
    * `keepCheckpoints`; where it fails, all of its checkpoints stay for the run's next fit.
    */
  private def train(
      shards: ShardSet,
      site: Site,
      labels: JobLabels,
      told: Seq[TrainingListener]
  ): (JsonNode, Seq[Checkpoint]) = {
    val name = work.newId()
    try {
      val everywhere = program.placed(ProgramFiles.place(site, name))
      val run = runOf(site, shards, name)
      val whole = job(shards.jobData, everywhere)
      for (directory <- tensorBoardDir)
        whole.get("params").asInstanceOf[ObjectNode].put("tensorBoardDir", s"$directory/${run.id}")
      for (uri <- initialState) whole.get("params").asInstanceOf[ObjectNode].put("initialState", uri)
      val bus = ListenerBus.of(site, told, estimator.getVerbose)
      listeners = Some(bus)
      val launch = new Launch(
        site,
        whole,
        if (Session.isLocal(spark)) Map.empty else everywhere.code,
        estimator.getNumWorkers,
        estimator.getNumGpusPerWorker,
        estimator.getMaxRestarts,
        estimator.getSlotTimeout,
        run,
        bus,
        labels
      )
      val result =
        try launch.run()
        catch {
          case error: Throwable =>
            if (isTrial) launch.discard() else launch.keep(error)
            throw error
        }
      labels.say("clean up")
      val checkpoints =
        if (isTrial) launch.discard() else launch.clean(estimator.getKeepCheckpoints)
      Json.texts(result.get("warnings")).foreach(log.warn)
      if (estimator.getVerbose > 0)
        Bottleneck.of(result.get("bottleneck")).foreach(found => log.info(found.advice))
      for (uri <- timelineOf(result))
        log.info(s"the timeline is $uri: open it in ui.perfetto.dev or chrome://tracing")
      (result, checkpoints)
    } finally
      if (ProgramFiles.isCopied(spark, program)) site.remove("programs", name)
  }

  /** The run that a fit is one of: that of `runId`, else one with the name of the fit. */
  private def runOf(site: Site, shards: ShardSet, fit: String): Run = {
    val named = estimator.valueOf(estimator.runId)
    val id = named.getOrElse(fit)
    new Run(site, id, named.isDefined, identity, shards.uris, shards.selectionDigest, shards.inPlace)
  }

  /** What tells the job from others: its params, its program's files and the weights of `initialModel`. Other files that hold
    * weights alone do not count; an archive of TorchScript does with the weights in it.
    */
  private def identity: ObjectNode = {
    val json = estimator.jobParams.deepCopy()
    json.put("runtime", "native")
    json.replace("program", Json.of(program.code.map { case (part, file) => part -> file.sha256 }, "program"))
    json.replace("loss", program.loss.json)
    json.replace("optimizer", program.optimizer.json)
    json.replace("metrics", Json.strings(program.metrics))
    // By its contents, wherever they lie.
    initial.foreach(file => json.put("initialModel", file.sha256))
    json
  }

  /** The weights of `initialModel`, where that is set. */
  private def initial: Option[StoredFile] =
    program.weights.filter(_ => estimator.isSet(estimator.initialModel))

  /** The loss and the metrics, without a loss that is a script, of which a name is but a path. */
  private def judgedBy: JsonNode = {
    val json = Json.obj()
    json.replace("metrics", Json.strings(program.metrics))
    if (program.lossScript.isEmpty) json.replace("loss", program.loss.short)
    json
  }

  /** What the training came to. */
  private def trained(outcome: Outcome): Trained = {
    import outcome.{checkpoints, inputs, output, result}
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
      reading.isWide,
      judgedBy,
      result.get("history"),
      Counts(
        result.get("numRows").asLong,
        result.get("numSteps").asLong,
        result.get("numValidationRows").asLong,
        Some(result.get("seconds").asDouble),
        Bottleneck.of(result.get("bottleneck"))
      ),
      checkpoints,
      lineage(result.get("rowsSha256"), checkpoints),
      timelineOf(result)
    )
  }

  private def lineage(rowsSha256: JsonNode, checkpoints: Seq[Checkpoint]): Lineage = Lineage(
    estimator.valueOf(estimator.runId),
    Option(rowsSha256.textValue),
    initial.map(_.uri),
    initial.map(_.sha256),
    initialState,
    checkpoints.lastOption.map(_.uri)
  )

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
    val params = estimator.jobParams
    json.replace("params", params)
    json.replace("data", data)
    for (test <- rangeTest) {
      json.replace("rangeTest", test)
      // Rows are kept out of the training as ever, and nothing is made of them.
      params.remove(Seq("monitor", "monitorMode", "validationFraction", "validationIndicatorCol").asJava)
      params.replace("learningRate", test.get("minRate"))
      data.remove("validation")
    }
    json.replace("program", program.json)
    json.replace("store", Json.of(work.settings.storeOptions, "store"))
    json
  }
}

private[flambeau] object Fit {
  private val log = LoggerFactory.getLogger("flambeau")

  /** Tensors of which nothing is known: the program is loaded for them, and not run. */
  private val Draft = Json.parse(
    """{"inputs": [{"name": "draft", "columns": ["draft"], "dtype": "float32", "shape": null}], "labels": [],
      | "weight": null}""".stripMargin
  )

  /** What a training came to: the files that it trained on, what it read and gives, rank 0's result, and the checkpoints that
    * stay.
    */
  private case class Outcome(
      shards: ShardSet,
      inputs: Seq[TensorColumns],
      output: OutputSpec,
      result: JsonNode,
      checkpoints: Seq[Checkpoint]
  )

  private def timelineOf(result: JsonNode): Option[String] =
    Option(result.get("timeline")).filterNot(_.isNull).map(_.asText)

  /** Checks the params and what they name. Throws ParamException, and FlambeauException where this machine has no
    * libtorch.
    */
  def of(estimator: Trainable, spark: SparkSession): Fit = of(estimator, spark, isTrial = false)

  /** The same for a training of which nothing is to be kept. */
  def trial(estimator: Trainable, spark: SparkSession): Fit = of(estimator, spark, isTrial = true)

  /** The same for a learning rate range test, which the job's field of that name asks for. */
  def rangeTest(estimator: Trainable, spark: SparkSession, asked: ObjectNode): Fit =
    of(estimator, spark, isTrial = true, Some(asked))

  private def of(
      estimator: Trainable,
      spark: SparkSession,
      isTrial: Boolean,
      rangeTest: Option[ObjectNode] = None
  ): Fit = {
    estimator.checkParams()
    val work = WorkDirectory.of(spark, estimator.valueOf(estimator.workDir))
    new Fit(estimator, spark, work, Program.of(estimator, spark), isTrial, rangeTest)
  }
}
