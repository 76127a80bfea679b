package flambeau

import flambeau.jni.{GpuSlots, Scorer, ScorerSpec, TensorRows}
import flambeau.internal.model.{History, OutputColumn, OutputSpec, ProgramForms, Trained}
import flambeau.internal.rows.{Columns, DataColumns, Expressions}
import flambeau.internal.saving.{ModelReader, ModelWriter}
import flambeau.internal.scoring.{Evaluation, RowScoring, ScoreFunction, Scoring}
import flambeau.internal.session.Settings
import flambeau.internal.util.Json
import org.apache.spark.ml.Model
import org.apache.spark.ml.param.ParamMap
import org.apache.spark.ml.util.{Identifiable, MLReadable, MLReader, MLWritable, MLWriter}
import org.apache.spark.sql.{DataFrame, Dataset, SparkSession}
import org.apache.spark.sql.types._
import org.apache.spark.util.SerializableConfiguration

/** A trained module as a Spark ML transformer.
  *
  * `transform` adds `predictionCol`: a double where the module returns one number a row, an array where it returns
  * several, a struct where it returns several tensors (fields `_1`, `_2`, ... of a tuple, the keys of a dict, or
  * `outputNames`). With `outputCols` each tensor is a column of its own instead. An empty name leaves the column out.
  *
  * Models come from an estimator's `fit` or from `load`.
  */
class TorchModel private[flambeau] (override val uid: String, private[flambeau] val trained: Trained)
    extends Model[TorchModel]
    with HasInputColumns
    with HasOutputColumns
    with HasLabelColumns
    with HasDevice
    with MLWritable {

  /** What each epoch came to: one value an epoch, by name.
    *
    * `epoch` (from 0), `steps`, `num_rows`, `seconds`, `rows_per_second`, `loss`, each metric by its name, and with
    * validation rows `val_loss` and `val_<metric>`. NaN stands where a value was not a finite number.
    * `learning_rate` is that of the epoch's last step and of the optimizer's first parameter group. With
    * `logGradientNorm` or `gradientClipNorm`, on the CPU, `gradient_norm` is the mean over the epoch's steps of the 2-norm of all
    * gradients before clipping, of the steps that have a finite one. `data_seconds`,
    * `model_seconds` (forward, loss and backward), `reduce_seconds` (waiting for slower workers included) and
    * `optimizer_seconds` tell where the first worker's `seconds` went. `sent_bytes` are the gradients that each worker
    * sent, `uncompressed_bytes` what they would have been without gradientCompression. `cpu_percent` is how many
    * cores a worker kept busy on average, 100 being one, and `peak_memory_bytes` the most that a worker's process has had.
    * Models of older versions have none of these. With precision fp16, `loss_scale` is what the loss was multiplied by at the end of the epoch, and
    * `skipped_steps` how many of its steps overflowed and were skipped.
    */
  def history: Map[String, Array[Double]] = History.columns(trained.history, trained.counts.numValidationRows)

  /** Whether there is a summary; there always is one, in loaded models too. */
  def hasSummary: Boolean = true

  /** What the training came to. */
  def summary: TrainingSummary = {
    val losses = history("loss")
    val counts = trained.counts
    new TrainingSummary(
      losses,
      losses.length,
      Option(trained.history.get("bestEpoch")).filterNot(_.isNull).map(_.asInt),
      counts.numSteps,
      counts.numRows,
      counts.numValidationRows,
      counts.trainingSeconds,
      counts.bottleneck,
      trained.timeline
    )
  }

  /** The checkpoints that `keepCheckpoints` left in the work directory, oldest first; none for a model that was loaded. */
  def checkpoints: Seq[Checkpoint] = trained.checkpoints

  /** The model as it was at one of its `checkpoints`: with those weights and the history up to it. */
  def at(checkpoint: Checkpoint): TorchModel =
    copyValues(kind.make(uid, trained.at(checkpoint)).setParent(parent))

  /** Where the model comes from: run, rows, and what training started from. A saved model has it. */
  def lineage: Lineage = trained.lineage

  /** What the module was trained on, in the order of forward's arguments. */
  def inputs: Seq[TensorColumns] =
    trained.inputs.map(tensor => tensor.copy(shape = Some(tensor.shape.getOrElse(Nil))))

  /** What `transform` adds to a DataFrame. Throws ParamException for params that do not fit the module's outputs. */
  def outputs: Seq[Output] = {
    checkScored()
    val kind = classes.getOrElse("number")
    outputFields.map(_.field).flatMap { column =>
      column.dataType match {
        case StructType(fields) =>
          fields.toSeq.map(field => Output(s"${column.name}.${field.name}", kind, field.dataType))
        case other => Seq(Output(column.name, kind, other))
      }
    }
  }

  /** The model in a line: inputs, outputs, and the validation loss, else the loss, of its best epoch, else its last. */
  override def toString: String = {
    val read = inputs.map(one => s"${one.name}: ${one.dtype}[${one.shape.toSeq.flatten.mkString(", ")}]")
    val written =
      try outputs.map(one => s"${one.name}: ${one.columnType.simpleString}")
      catch { case error: ParamException => Seq(error.getMessage) }
    val (epochs, table) = (history.getOrElse("epoch", Array.empty[Double]), history)
    val reached = epochs.lastOption.map { last =>
      val best = summary.bestEpoch.map(_.toDouble).filter(epochs.contains(_))
      val epoch = best.getOrElse(last)
      val column = if (table.contains("val_loss")) "val_loss" else "loss"
      val value = History.shown(table(column)(epochs.indexOf(epoch)))
      s"$column=$value in the ${if (best.isEmpty) "last" else "best"} epoch, ${epoch.toLong}"
    }
    val parts = Seq(s"uid=$uid", s"inputs=[${read.mkString(", ")}]", s"outputs=[${written.mkString(", ")}]")
    s"${getClass.getSimpleName}: ${(parts ++ reached).mkString(", ")}"
  }

  /** What kind of model it is. */
  private[flambeau] def kind: ModelKind[_ <: TorchModel] = TorchModel

  /** The DataFrame with the outputs' columns.
    *
    * Rows are scored in batches of `inferenceBatchSize`, when the result is computed. A null or an array of another
    * length than was trained on fails the query with DataException, which names the column. Throws ParamException where
    * an output's column is there already, DataException where an input's column is missing or of a wrong type.
    */
  override def transform(dataset: Dataset[_]): DataFrame =
    scored(dataset.toDF(), Settings.of(dataset.sparkSession))

  /** What `transform` gives, with these settings. */
  private[flambeau] def scored(df: DataFrame, settings: Settings): DataFrame = {
    val outputs = outputFields
    transformSchema(df.schema, logging = false)
    if (outputs.isEmpty) df
    else {
      GpuSlots.number(settings.get)
      val tensors = inputsOf(df.schema)
      val spec = scorerSpec(tensors, outputs.map(_.param), settings, df.sparkSession)
      val rows = Expressions.validRows(df, tensors, getHandleInvalid)
      if (RowScoring.isChosen(settings)) RowScoring(tensors, outputs, trained.output, spec, rows, settings)
      else Scoring(tensors, outputs, trained.output, spec, rows, settings)
    }
  }

  /** Scores a row of zeros in this process, on the CPU; throws where that can't be, and where `transform` would use Spark's
    * public interfaces alone.
    */
  private[flambeau] def tryScoring(session: SparkSession, settings: Settings): Unit = {
    checkScored()
    if (RowScoring.isChosen(settings, warns = false))
      throw new ParamException("rows are scored by Spark's public interfaces alone here")
    val spec = scorerSpec(trained.inputs, outputFields.map(_.param), settings, session).copy(device = "cpu")
    val scorer = Scorer(spec, settings.get)
    try {
      val batch = scorer.newBatch()
      batch.addRows(1)
      scorer.score(batch)
    } finally scorer.close()
  }

  /** The schema with the outputs' columns; throws as `transform` does. */
  override def transformSchema(schema: StructType): StructType = {
    checkParams()
    checkScored()
    for (
      OutputColumn(param, field, _) <- outputFields;
      taken <- schema.fieldNames.find(Columns.isSame(_, field.name))
    )
      throw new ParamException(
        s"$param: the DataFrame has a column '$taken' already" +
          (if (taken == field.name) ""
           else s", which is '${field.name}' to Spark (spark.sql.caseSensitive is false)") +
          s"; drop it or set another $param"
      )
    for (
      Seq(OutputColumn(one, first, _), OutputColumn(other, second, _)) <- outputFields.combinations(2)
      if Columns.isSame(first.name, second.name)
    )
      throw new ParamException(
        s"$one is '${first.name}' and $other '${second.name}', which are one column: give each its own name, or leave " +
          "one out with an empty name"
      )
    if (outputFields.nonEmpty) inputsOf(schema)
    StructType(schema.fields ++ outputFields.map(_.field))
  }

  /** The model as a function of columns, for the active session: `val score = model.udf()`, then `score($"x1", $"x2")`.
    *
    * It takes the columns of `inputs` in their order, of any type that can be what was trained on, and gives what `transform`
    * writes as `predictionCol`, or a struct of several `outputCols`; that of a classifier gives a struct of `rawPrediction`, `probability` and `prediction`, with
    * arrays in place of vectors. Rows are scored in batches, by the operator of `transform`.
    *
    * Throws ParamException for params that `transform` refuses, and where this Spark, or `spark.flambeau.scoring`, has rows scored
    * by Spark's public interfaces alone, which have no functions. A query throws DataException, which names the column, for
    * another number of columns and for types that no input is made of as it is analyzed, and for a null and an array of another
    * length than was trained on as it runs; ParamException for a call in a join's condition that takes columns of both sides.
    */
  def udf(): ModelFunction = udf(Identifiable.randomUID("flambeau"))

  /** The same as a function of SQL too, which the session knows by that name: `SELECT score(x1, x2) FROM t`. Takes the place of
    * another function of that name. Throws as `udf()` does.
    */
  def udf(name: String): ModelFunction = {
    checkParams()
    checkScored()
    val spark = SparkSession.active
    val settings = Settings.of(spark)
    if (RowScoring.isChosen(settings))
      throw new ParamException(
        "udf: rows are scored by Spark's public interfaces alone, which have no function for it: use transform"
      )
    for (what <- ScoreFunction.missing)
      throw new ParamException(
        s"udf: this Spark has other internals than Flambeau was built for ($what), and no functions: use transform"
      )
    GpuSlots.number(settings.get)
    // An output that outputCols leaves out is of no column that a function could give.
    val columns = if (isDefined(outputCols)) outputFields else allFields
    val spec = scorerSpec(trained.inputs, columns.map(_.param), settings, spark)
    ScoreFunction(name, trained.inputs, columns, trained.output, spec, settings).register(spark)
    new ModelFunction(name)
  }

  /** The loss and the metrics of the model on a DataFrame, by their names in `history`, computed on the executors.
    *
    * They are those of the training, and what its validation gives on the same rows: weighted by `weightCol` where that is set,
    * and NaN where no finite number comes out. Labels that are arrays have the length of the first row's.
    *
    * Throws ParamException where the training's have no name that the JVM knows, and for params that do not fit; DataException
    * for columns that are missing or of wrong types, for rows that are refused, and where there are none. Weights that cannot be
    * read fail the Spark job.
    */
  def evaluate(dataset: Dataset[_]): Map[String, Double] = {
    val loss = Option(trained.judgedBy.get("loss")).getOrElse(throw new ParamException(
      "loss: the model has none: that of its training has no name, and is a script or Python's: give one as " +
        "evaluate(df, loss, metrics)"
    ))
    val metrics = trained.judgedBy.path("metrics")
    if (metrics.isObject)
      throw new ParamException(
        s"metrics: ${Json.text(metrics)} are PySpark's: give names of others as evaluate(df, loss, metrics)"
      )
    evaluate(dataset, Loss.of(loss), Json.texts(metrics).toArray)
  }

  /** The same with a loss and with names of metrics in place of those of the training. Throws ParamException also for unknown
    * names, and for a loss that is a script.
    */
  def evaluate(dataset: Dataset[_], loss: Loss, metrics: Array[String]): Map[String, Double] = {
    checkParams()
    if (loss.isInstanceOf[Loss.Scripted])
      throw new ParamException(
        s"loss: $loss is a script, by which no model is evaluated: give a loss by its name"
      )
    val df = dataset.toDF()
    val settings = Settings.of(df.sparkSession)
    GpuSlots.number(settings.get)
    val inputs = inputsOf(df.schema)
    val spec = scorerSpec(inputs, Nil, settings, df.sparkSession).copy(classes = None)
    val (labels, weight) = DataColumns.targets(df.schema, this, kind.labelDtype, trained.isWide)
    val columns = DataColumns(inputs, labels, weight, None, getHandleInvalid)
    val by = Json.obj()
    by.replace("loss", loss.json)
    by.replace("metrics", Json.strings(metrics))
    Evaluation(columns, Json.text(by), spec, df, settings)
  }

  override def copy(extra: ParamMap): TorchModel =
    copyValues(new TorchModel(uid, trained), extra).setParent(parent)

  /** A writer of this model: `model.write.overwrite().save(path)`. */
  override def write: MLWriter = new ModelWriter(this, trained)

  /** The outputs' columns; those with an empty name are left out. */
  private[flambeau] final def outputFields: Seq[OutputColumn] = allFields.filter(_.field.name.nonEmpty)

  /** The same with those that are left out. */
  private[flambeau] def allFields: Seq[OutputColumn] = {
    def fields(names: Seq[String]) =
      names.zip(trained.output.tensors).map { case (name, tensor) => StructField(name, tensor.columnType) }
    def columns(param: String, names: Seq[String]) =
      fields(names).zipWithIndex.map { case (field, place) => OutputColumn(param, field, Some(place)) }
    valueOf(outputCols) match {
      case Some(names)                             => columns("outputCols", names.toSeq)
      case None if trained.output.single.isDefined => columns("predictionCol", Seq(getPredictionCol))
      case None =>
        val names = valueOf(outputNames).fold(trained.output.tensors.map(_.name.get))(_.toSeq)
        Seq(OutputColumn("predictionCol", StructField(getPredictionCol, StructType(fields(names)))))
    }
  }

  /** Throws ParamException for names and kinds that are not one for each output. */
  private[flambeau] def checkNames(): Unit = {
    val outputs = trained.output.tensors.length
    if (isDefined(outputCols) && isDefined(outputNames))
      throw new ParamException(
        "outputCols and outputNames are both set: set outputCols for columns, or outputNames for the fields of " +
          "predictionCol"
      )
    for (
      param <- Seq(outputCols, outputNames, outputKinds); given <- valueOf(param) if given.length != outputs
    )
      throw new ParamException(
        s"${param.name} has ${given.length} entries, ${given.mkString(", ")}, and the module returns $outputs tensors: " +
          "give one entry for each"
      )
  }

  /** Throws ParamException for params that only PySpark scores by, and for names and kinds that do not fit the outputs. */
  private[flambeau] def checkScored(): Unit = {
    checkNames()
    for (param <- Seq(threshold, thresholds) if isDefined(param))
      throw new ParamException(
        s"${param.name} is not scored by in the JVM: clear it and cut probabilityCol yourself, or score in PySpark " +
          "with runtime='python'"
      )
    val others = valueOf(outputKinds).toSeq.flatten.filterNot(scoredKinds.contains)
    if (others.nonEmpty)
      throw new ParamException(
        s"outputKinds: the JVM scores ${scoredKinds.mkString(", ")} of such a model, and no ${others.mkString(", ")}: " +
          "score in PySpark with runtime='python'"
      )
  }

  /** The kinds of outputs that are scored here. */
  private[flambeau] def scoredKinds: Seq[String] = Seq("number")

  /** How a classifier's outputs read; none for a model that writes the outputs themselves. */
  private[flambeau] def classes: Option[String] = None

  /** What scores these inputs, given the params that name the wanted outputs' columns. */
  private[flambeau] def scorerSpec(
      tensors: Seq[TensorColumns],
      wanted: Seq[String],
      settings: Settings,
      spark: SparkSession
  ): ScorerSpec = {
    val form = ProgramForms.chosen(trained.programs.keys).get
    val program = trained.programs(form)
    val hadoop =
      if (Seq(program, trained.weights).exists(_.isHadoops))
        Some(
          spark.sparkContext.broadcast(new SerializableConfiguration(spark.sparkContext.hadoopConfiguration))
        )
      else None
    new ScorerSpec(
      form = form,
      program = program,
      weights = Some(trained.weights),
      inputs = tensors.map(tensor =>
        TensorRows(Some(tensor.name), tensor.dtype, tensor.shape.getOrElse(Nil).map(_.toLong))
      ),
      output = trained.output.tensors.map(tensor =>
        TensorRows(tensor.name, tensor.dtype, tensor.shape.map(_.toLong))
      ),
      batchSize = getInferenceBatchSize,
      batchBytes = getInferenceBatchBytes,
      classes = classes,
      fields = if (classes.isDefined) wanted.map(_.stripSuffix("Col")) else Nil,
      store = settings.storeOptions,
      device = getDevice,
      hadoop = hadoop
    )
  }

  /** The schema's columns for the module: the tensors that they make, of the types and shapes that were trained on. */
  private[flambeau] def inputsOf(schema: StructType): Seq[TensorColumns] = {
    val resolved = Columns.resolveInputs(schema, this)
    if (resolved.length != trained.inputs.length)
      throw new ParamException(
        s"the params name ${resolved.length} inputs, and the model was trained on ${trained.inputs.length}: " +
          trained.inputs.map(_.name).mkString(", ")
      )
    val found = Columns.inOrder(resolved, this, trained.inputs.map(_.name))
    for ((now, before) <- found.zip(trained.inputs))
      yield Columns.asTrained(schema, before.copy(name = now.name, columns = now.columns))
  }
}

/** Reads models that `write` saved, from Scala or from PySpark. */
object TorchModel extends ModelKind[TorchModel] with MLReadable[TorchModel] {
  override def read: MLReader[TorchModel] = new ModelReader(classOf[TorchModel], ModelKind.maker)

  private[flambeau] override def make(uid: String, trained: Trained): TorchModel =
    new TorchModel(uid, trained)
}

/** A kind of model: how one is made, which outputs it takes and what its labels are. */
private[flambeau] trait ModelKind[M <: TorchModel] {

  /** The type that labels are read as, by a fit and by `evaluate`; none follows their columns. */
  private[flambeau] def labelDtype: Option[String] = None

  /** A model without params of its own. */
  private[flambeau] def make(uid: String, trained: Trained): M

  /** Throws ParamException where the module's output is not what this kind of model gives. */
  private[flambeau] def checkOutput(output: OutputSpec): Unit = ()
}

private[flambeau] object ModelKind {

  /** How a model of the class of that name is made; none for another class. */
  def maker(className: String): Option[(String, Trained) => TorchModel] =
    Kinds.get(className).map(kind => kind.make(_, _))

  /** By the names of their classes, which are the same in both languages. */
  private val Kinds: Map[String, ModelKind[_ <: TorchModel]] = Map(
    classOf[TorchModel].getName -> TorchModel,
    classOf[TorchRegressionModel].getName -> TorchRegressionModel,
    classOf[TorchClassificationModel].getName -> TorchClassificationModel
  )
}
