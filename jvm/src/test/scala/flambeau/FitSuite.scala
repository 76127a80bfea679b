package flambeau

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Paths}
import java.util.concurrent.{ConcurrentLinkedQueue, Executors}

import scala.concurrent.duration.DurationInt
import scala.concurrent.{Await, ExecutionContext, Future}

import flambeau.internal.model.History
import flambeau.internal.util.Json
import org.apache.spark.ml.evaluation.{MulticlassClassificationEvaluator, RegressionEvaluator}
import org.apache.spark.ml.feature.VectorAssembler
import org.apache.spark.ml.param.ParamMap
import org.apache.spark.ml.tuning
import org.apache.spark.ml.tuning.{ParamGridBuilder, TrainValidationSplit}
import org.apache.spark.ml.{Pipeline, PipelineModel}
import org.apache.spark.scheduler.{SparkListener, SparkListenerJobStart}
import org.apache.spark.sql.DataFrame
import org.apache.spark.sql.functions._
import org.apache.spark.sql.types.DoubleType
import org.scalatest.concurrent.Eventually.{eventually, timeout}
import org.scalatest.time.{Seconds, Span}

class FitSuite extends SparkSuite {
  import spark.implicits._

  private def rows(name: String): DataFrame = spark.read.parquet(TrainingCases.rows(name))

  private def doubles: TorchRegressor = new TorchRegressor()
    .setModel(TrainingCases.program("doubles"))
    .setOptimizer("sgd", Map("momentum" -> 0.9))
    .setLearningRate(0.1)
    .setInputCols(Array("x"))
    .setInputTypes(Array("float64"))
    .setLabelCol("y")
    .setShuffle(false)
    .setEpochs(5)
    .setVerbose(0)

  private def flights: TorchRegressor = new TorchRegressor()
    .setModel(TrainingCases.program("flights"))
    .setLoss("huber")
    .setOptimizer("adam")
    .setInputCols(Array("numbers", "carrier", "dest", "origin"))
    .setLabelCol("delay")
    .setLearningRate(0.002)
    .setNumWorkers(2)
    .setDataLanes(4)
    .setSeed(11)
    .setCheckpointInterval(-1)
    .setVerbose(0)

  private def classes: TorchClassifier = new TorchClassifier()
    .setModel(TrainingCases.program("classes"))
    .setFeaturesCol(Array("a", "b"))
    .setLearningRate(0.05)
    .setEpochs(10)
    .setVerbose(0)

  private def assertClose(found: Array[Double], expected: Array[Double], relative: Double): Unit = {
    assert(found.length == expected.length)
    for ((a, b) <- found.zip(expected)) assert(math.abs(a - b) <= relative * math.abs(b), s"$a is not $b")
  }

  test("what held a fit up, and what to change about it, is told after its epochs") {
    val slow = TrainingCases.slow().setNumWorkers(1).setEpochs(2)
    val (lines, model) = Logged(slow.setVerbose(1).fit(rows("slow")))
    val history = model.history
    val seconds =
      Seq("data", "model", "reduce", "optimizer").map(part => part -> history(s"${part}_seconds").sum)
    val (part, longest) = seconds.maxBy(_._2)
    val Some(found) = model.summary.bottleneck
    assert(part == "model" && found.part == part && found.rank.isEmpty)
    assert(math.abs(found.share - longest / seconds.map(_._2).sum) < 0.01)
    assert(
      found.advice.startsWith(f"forward and backward took ${100 * found.share}%.0f %% of the workers' time")
    )
    val lastEpoch = lines.indexWhere(_.startsWith("epoch 2 of 2"))
    assert(lastEpoch >= 0 && lines.indices.filter(lines(_) == found.advice).forall(_ > lastEpoch))
    assert(lines.count(_ == found.advice) == 1)
    val (silent, _) = Logged(slow.setVerbose(0).fit(rows("slow")))
    assert(!silent.exists(line => line.startsWith("epoch ") || line.contains("of the workers' time")))
  }

  test("a validation loss that is finite in no epoch has its column") {
    val history =
      Json.parse("""{"epochs": [{"epoch": 0, "loss": 1.0, "metrics": [], "validationLoss": null}]}""")
    assert(History.columns(history, numValidationRows = 5)("val_loss").forall(_.isNaN))
    assert(!History.columns(history, numValidationRows = 0).contains("val_loss"))
  }

  test("a fit in float64 is that of a plain loop in torch") {
    val df = rows("doubles").coalesce(1)
    val model = doubles.fit(df)
    assertClose(model.history("loss"), TrainingCases.numbers("doubles", "oracle.json", "losses"), 1e-12)
    val predictions = model.transform(df).select("prediction").collect().map(_.getDouble(0))
    assertClose(predictions, TrainingCases.numbers("doubles", "oracle.json", "predictions"), 1e-10)
    assert(model.summary.numRows == 200 && model.summary.totalIterations == 5)
    assert(model.hasParent && model.getLabelCol == "y")
  }

  test("the losses of 100 steps are those of PySpark on the same files") {
    val steps = flights.setBatchSize(1280).setEpochs(100).fitOnParquet(TrainingCases.rows("flights"))
    assertClose(steps.history("loss"), TrainingCases.numbers("flights", "python.json", "steps"), 1e-4)
    val epochs = flights.setBatchSize(64).setEpochs(5).fitOnParquet(TrainingCases.rows("flights"))
    assertClose(epochs.history("loss"), TrainingCases.numbers("flights", "python.json", "epochs"), 1e-4)
  }

  test("inputs go to the arguments of their names") {
    val fits = Seq(flights, flights.setInputCols(Array("origin", "numbers", "dest", "carrier")))
    fits(1).setInputNames(fits(1).getInputCols)
    val models = fits.map(_.setBatchSize(1280).setEpochs(2).fitOnParquet(TrainingCases.rows("flights")))
    assert(models.map(_.history("loss").toSeq).distinct.length == 1)
    val scored = models.map(_.transform(rows("flights")).select("prediction").collect().toSeq)
    assert(scored.head == scored(1))
    val wrong = fits(1).setInputNames(Array("origin", "numbers", "dest", "airline"))
    assert(intercept[ParamException](wrong.fit(rows("flights"))).getMessage ==
      "inputNames is ['origin', 'numbers', 'dest', 'airline'], but must name the first of forward's arguments, in any " +
      "order: numbers, carrier, dest, origin")
  }

  test("a training that stops early has the weights of its best epoch") {
    val df = rows("doubles").coalesce(1)
    def predictions(model: TorchRegressionModel): Seq[Double] =
      model.transform(df).select("prediction").collect().map(_.getDouble(0)).toSeq
    // The loss falls, so that the first epoch stays the one with the largest.
    val stopping = doubles.setMonitorMode("max").setEarlyStoppingPatience(2).setRestoreBestWeights(true)
    val stopped = stopping.setLrSchedule("step").setLrDecayEpochs(1).fit(df)
    assert(stopped.summary.totalIterations == 3 && stopped.summary.bestEpoch.contains(0))
    assertClose(stopped.history("learning_rate"), Array(0.1, 0.01, 0.001), 1e-12)
    assert(predictions(stopped) == predictions(doubles.setEpochs(1).fit(df)))
    assert(predictions(stopped) != predictions(doubles.setEpochs(3).fit(df)))
    val refused = intercept[ParamException](doubles.setMonitor("val_loss").fit(df))
    assert(refused.getMessage.contains("monitor is \"val_loss\", but must be one of loss;"))
  }

  test("half precision comes near what PySpark comes to in float32, and fp16 tells its loss scale") {
    val expected = TrainingCases.numbers("flights", "python.json", "epochs").last
    for (precision <- Seq("bf16", "fp16")) {
      val estimator = flights.setBatchSize(64).setEpochs(5).setPrecision(precision)
      val history = estimator.fitOnParquet(TrainingCases.rows("flights")).history
      assertClose(Array(history("loss").last), Array(expected), 0.02)
      assert(history.contains("loss_scale") == (precision == "fp16"))
      for (scales <- history.get("loss_scale")) {
        val skipped = history("skipped_steps").scanLeft(0.0)(_ + _).tail
        assert(scales.toSeq == skipped.map(steps => math.pow(2, 16 - steps)).toSeq)
      }
    }
  }

  test("a classifier in a pipeline learns, and is itself after save and load") {
    val assembler = new VectorAssembler().setInputCols(Array("a", "b")).setOutputCol("features")
    val pipeline = new Pipeline().setStages(Array(assembler, classes.setInputCols(Array("features"))))
    val fitted = pipeline.fit(rows("classes"))
    val scored = fitted.transform(rows("classes"))
    val accuracy = new MulticlassClassificationEvaluator().setMetricName("accuracy").evaluate(scored)
    assert(accuracy > 0.9)
    fitted.write.overwrite().save(path("pipeline"))
    val loaded = PipelineModel.load(path("pipeline")).transform(rows("classes"))
    assert(loaded.select("probability").collect() sameElements scored.select("probability").collect())

    val model = fitted.stages.last.asInstanceOf[TorchClassificationModel]
    val figures =
      model.evaluate(assembler.transform(rows("classes")), Loss("cross_entropy"), Array("accuracy"))
    val logLoss = new MulticlassClassificationEvaluator().setMetricName("logLoss").evaluate(scored)
    assert(figures.keys.toSeq == Seq("loss", "accuracy") && figures("accuracy") == accuracy)
    assertClose(Array(figures("loss")), Array(logLoss), 1e-5)
  }

  test("a cross validation over learningRate with two fits at a time") {
    val estimator = classes
    val grid = new ParamGridBuilder().addGrid(estimator.learningRate, Array(1e-6, 0.05)).build()
    val evaluator = new MulticlassClassificationEvaluator().setMetricName("accuracy")
    val validator = new tuning.CrossValidator()
      .setEstimator(estimator)
      .setEstimatorParamMaps(grid)
      .setEvaluator(evaluator)
      .setNumFolds(2)
      .setParallelism(2)
    val best = validator.fit(rows("classes"))
    assert(
      best.bestModel.asInstanceOf[TorchClassificationModel].parent.getOrDefault(
        estimator.learningRate
      ) == 0.05
    )
    assert(best.avgMetrics(1) > 0.85 && best.avgMetrics(1) > best.avgMetrics(0) + 0.1)
  }

  test("a split for validation over params, and a fit with a param map") {
    // The split sorts the rows.
    val estimator = doubles.setShuffle(true).setLearningRate(0.01)
    val split = new TrainValidationSplit()
      .setEstimator(estimator)
      .setEstimatorParamMaps(new ParamGridBuilder().addGrid(estimator.epochs, Array(1, 20)).build())
      .setEvaluator(new RegressionEvaluator().setLabelCol("y"))
      .setParallelism(2)
    val best = split.fit(rows("doubles")).bestModel.asInstanceOf[TorchRegressionModel]
    assert(best.summary.totalIterations == 20)
    val model =
      estimator.fit(rows("doubles"), ParamMap(estimator.epochs -> 2, estimator.predictionCol -> "guess"))
    assert(model.summary.totalIterations == 2)
    assert(model.transform(rows("doubles")).columns.contains("guess"))
  }

  test("two fits at once share nothing") {
    val pool = Executors.newFixedThreadPool(2)
    implicit val context: ExecutionContext = ExecutionContext.fromExecutor(pool)
    val alone = Seq(1L, 2L).map(seed => classes.setSeed(seed).fit(rows("classes")))
    val both = Seq(1L, 2L).map(seed => Future(classes.setSeed(seed).fit(rows("classes"))))
    val together = Await.result(Future.sequence(both), 3.minutes)
    pool.shutdown()
    assert(together.map(_.trained.weights.sha256) == alone.map(_.trained.weights.sha256))
    assert(alone.map(_.trained.weights.sha256).distinct.size == 2)
  }

  test("training goes on from a model's weights") {
    val first = doubles.fit(rows("doubles").coalesce(1))
    first.write.overwrite().save(path("first"))
    val more =
      doubles.setInitialModel(path("first")).setLearningRate(0.0).setEpochs(1).fit(rows("doubles").coalesce(
        1
      ))
    val again =
      doubles.setInitialModel(first).setLearningRate(0.0).setEpochs(1).fit(rows("doubles").coalesce(1))
    val whole = doubles.setInitialModel(path("first")).setLearningRate(0.0).setEpochs(1)
    whole.clear(whole.model)
    val expected = first.transform(rows("doubles")).select("prediction").collect()
    for (model <- Seq(more, again, whole.fit(rows("doubles").coalesce(1))))
      assert(model.transform(rows("doubles")).select("prediction").collect() sameElements expected)
  }

  test("an optimizer goes on where another ended, and the model tells where it comes from") {
    val data = rows("doubles").coalesce(1)
    def adam = doubles.setOptimizer("adam", Map("lr" -> 0.01)).setShuffle(false).setWorkDir(path("state"))
    val first = adam.setEpochs(2).setKeepCheckpoints(1).setRunId("first").fit(data)
    assert(first.lineage.runId.contains("first") && first.lineage.rowsSha256.isDefined)
    val state = first.lineage.checkpoint.get
    assert(state == first.checkpoints.last.uri)

    val again = adam.setEpochs(1).setInitialModel(first).setInitialState(state).fit(data)
    assert(again.trained.weights.sha256 == adam.setEpochs(3).fit(data).trained.weights.sha256)
    val weights = first.trained.weights
    assert(again.lineage == Lineage(None, None, Some(weights.uri), Some(weights.sha256), Some(state), None))
    again.write.overwrite().save(path("again"))
    assert(TorchRegressionModel.load(path("again")).lineage == again.lineage)

    val other = intercept[ParamException](adam.setOptimizer("sgd").setInitialState(state).fit(data))
    assert(other.getMessage.contains("initialState: the checkpoint holds the state of"), other.getMessage)
    val none = intercept[ParamException](adam.setInitialState(path("none")).fit(data))
    assert(none.getMessage.contains("is no checkpoint to start from: there is none"), none.getMessage)
  }

  for (program <- Seq("widened", "mixed")) test(s"evaluate reads labels as the fit does: $program") {
    // No float32 is that number.
    val far = rows("doubles").withColumn("y", lit(16777217.0)).withColumn("held", abs(hash($"x")) % 4 === 0)
    val model = doubles
      .setModel(TrainingCases.program("doubles").replace("net.pt", s"$program.pt"))
      .setInputTypes(Array("float32"))
      .setLoss("l1")
      .setValidationIndicatorCol("held")
      .setEpochs(1)
      .fit(far)
    model.save(path(program))
    for (one <- Seq(model, TorchModel.load(path(program))))
      assertClose(Array(one.evaluate(far.where("held"))("loss")), model.history("val_loss"), 1e-12)
  }

  test("validation, metrics and the work directory; evaluate gives what validation gave") {
    val weighted = rows("doubles")
      .withColumn("w", abs(hash($"y")) % 5)
      .withColumn("held", abs(hash($"x")) % 4 === 0)
      .repartition(3)
      .cache()
    val model = doubles
      .setValidationIndicatorCol("held")
      .setWeightCol("w")
      .setMetrics(Array("rmse", "r2"))
      .setWorkDir(path("work"))
      .fit(weighted)
    val history = model.history
    assert(history.keySet.intersect(Set("rmse", "val_loss", "val_rmse")).size == 3)
    assertClose(history("val_rmse").map(value => value * value), history("val_loss"), 1e-9)
    assert(model.summary.numValidationRows > 20)
    for (kind <- Seq("shards", "programs", "attempts")) {
      val left = Option(Paths.get(path("work"), kind).toFile.list).toSeq.flatten
      assert(left.isEmpty || left.forall(name => Paths.get(path("work"), kind, name).toFile.list.isEmpty))
    }
    assert(Files.isRegularFile(Paths.get(model.trained.weights.uri)))

    val names = Array("loss", "rmse", "r2")
    model.write.overwrite().save(path("judged"))
    for (one <- Seq(model, TorchModel.load(path("judged")).setInferenceBatchSize(7))) {
      val figures = one.evaluate(weighted.where("held"))
      assert(figures.keys.toSeq == names.toSeq)
      assertClose(names.map(figures), names.map(name => history(s"val_$name").last), 1e-9)
    }
    for (weight <- Seq(None, Some("w"))) {
      val judged = model.copy(ParamMap.empty)
      val evaluator = new RegressionEvaluator().setLabelCol("y")
      weight.fold[Unit](judged.clear(judged.weightCol))(evaluator.setWeightCol(_))
      val found = judged.evaluate(weighted, Loss("mse"), Array("mae", "r2", "rmse"))
      val scored = model.transform(weighted)
      // Of weights Spark takes its unbiased variance for the total of squares, and so another r2 than its definition's.
      val exact = Array("mse", "mae", "rmse") ++ (if (weight.isEmpty) Seq("r2") else Nil)
      assertClose(
        exact.map(name => found(if (name == "mse") "loss" else name)),
        exact.map(evaluator.setMetricName(_).evaluate(scored)),
        1e-9
      )
      if (weight.isDefined) {
        val triples =
          scored.select($"y", $"prediction", $"w".cast("double")).as[(Double, Double, Double)].collect()
        val mean = triples.map { case (y, _, w) => w * y }.sum / triples.map(_._3).sum
        def squares(of: (Double, Double) => Double) = triples.map { case (y, p, w) =>
          w * math.pow(of(y, p), 2)
        }.sum
        assertClose(Array(found("r2")), Array(1 - squares(_ - _) / squares((y, _) => y - mean)), 1e-9)
      }
    }
    val labels = weighted.withColumn("y", array($"y"))
    assertClose(Array(model.evaluate(labels)("loss")), Array(model.evaluate(weighted)("loss")), 1e-9)
    def refused[T <: Throwable](kind: Class[T])(action: => Any): String = causeOf(kind)(action).getMessage
    val data = classOf[DataException]
    val (one, two) = (array($"y"), array($"y", $"y"))
    for (
      (longer, first, other) <- Seq(
        (spark_partition_id() === 2, 1, 2),
        ($"y" === weighted.head().getAs[Double]("y"), 2, 1)
      )
    )
      assert(
        refused(data)(model.evaluate(weighted.withColumn("y", when(longer, two).otherwise(one)))) ==
          s"column 'y' holds an array of $other, where that of the first row has $first: every row's array must have " +
          "that length"
      )
    assert(refused(data)(model.evaluate(weighted.where("false"))) == "there are no rows to evaluate on")
    assert(refused(data)(model.evaluate(weighted.withColumn("y", lit(Double.NaN)))).startsWith(
      "column 'y' is the label and holds a NaN"
    ))
    assert(refused(data)(model.evaluate(weighted.drop("y"))).startsWith("no column 'y' for the label"))
    val holes = weighted.withColumn("x", when($"held", $"x"))
    assert(refused(data)(model.evaluate(holes)).startsWith("column 'x' holds a null"))
    val skipping = model.copy(ParamMap.empty).setHandleInvalid("skip")
    assertClose(Array(skipping.evaluate(holes)("loss")), Array(history("val_loss").last), 1e-9)
    val param = classOf[ParamException]
    assert(refused(param)(model.evaluate(weighted, Loss("mse"), Array("auc"))).startsWith(
      "metrics: unknown name \"auc\""
    ))
    assert(
      refused(param)(model.evaluate(weighted, Loss("mee"), Array.empty)).startsWith("loss: unknown name")
    )
    assert(refused(param)(model.evaluate(weighted, Loss.script("a.pt"), Array.empty)).contains("is a script"))
    assert(refused(param)(TorchModel.load(SavedModels.model("mlp")).evaluate(weighted)).startsWith(
      "loss: the model has none"
    ))
    weighted.unpersist()
  }

  test("TensorBoard's files lie in a directory of the run") {
    val logging = doubles.setTensorBoardDir(path("board"))
    for (estimator <- Seq(logging.copy(ParamMap.empty).setRunId("nightly"), logging, logging))
      estimator.fit(rows("doubles"))
    val runs = directory.resolve("board").toFile.listFiles.toSeq
    assert(runs.size == 3 && runs.exists(_.getName == "nightly"))
    for (files <- runs.map(_.list.toSeq))
      assert(files.nonEmpty && files.forall(_.matches("""events\.out\.tfevents\.\d{10}\..+\.\d{6}""")), files)
  }

  test("a fit tells of its timeline, and Spark of the fit") {
    val sc = spark.sparkContext
    val told = new ConcurrentLinkedQueue[String]
    val listener = new SparkListener {
      override def onJobStart(start: SparkListenerJobStart): Unit =
        Seq("spark.jobGroup.id", "spark.job.description")
          .map(start.properties.getProperty(_, "none"))
          .foreach(told.add)
    }
    // Rows in place take no job.
    val estimator = doubles.setNumWorkers(2).setWorkDir(path("seen")).setInPlace("never")
    sc.setLocalProperty("spark.job.description", "nightly")
    sc.addSparkListener(listener)
    try {
      val model = estimator.setProfile("steps 1-2").fit(rows("doubles"))
      val trace = Json.parse(new String(Files.readAllBytes(Paths.get(model.summary.timeline.get)), UTF_8))
      val events = Json.items(trace.get("traceEvents"))
      val steps = for (event <- events if event.path("cat").asText == "step")
        yield (event.get("pid").asInt, event.path("args").get("step").asInt)
      assert(steps.toSet == Set((0, 1), (0, 2), (1, 1), (1, 2)))
      assert(sc.getLocalProperty("spark.job.description") == "nightly")
      assert(sc.getLocalProperty("spark.jobGroup.id") == null)
      val jobs = sc.statusTracker.getJobIdsForGroup(estimator.uid)
      assert(jobs.nonEmpty)
      eventually(timeout(Span(10, Seconds))) {
        for (part <- Seq("find or write the rows", "train, attempt 1"))
          assert(told.contains(s"nightly: ${estimator.uid}: $part"), told)
      }
      assert(told.contains(estimator.uid))
    } finally {
      sc.removeSparkListener(listener)
      sc.setLocalProperty("spark.job.description", null)
    }
    val wrong = causeOf(classOf[ParamException])(estimator.setProfile("steps 2-1").fit(rows("doubles")))
    assert(wrong.getMessage.contains("profile") && wrong.getMessage.contains("steps 100-120"))
  }

  test("the schema of the fitted model is known before the fit") {
    val schema = doubles.transformSchema(rows("doubles").schema)
    assert(schema("prediction").dataType == DoubleType)
    val scored = classes.transformSchema(rows("classes").schema)
    val model = classes.setEpochs(1).fit(rows("classes"))
    assert(scored == model.transformSchema(rows("classes").schema))
  }

  test("what cannot be trained is refused before any Spark job") {
    def refused[T <: Throwable](kind: Class[T])(estimator: => TorchEstimator, words: String*): Unit = {
      val error = causeOf(kind)(estimator.fit(rows("doubles")))
      words.foreach(word => assert(error.getMessage.contains(word), error.getMessage))
    }
    val param = classOf[ParamException]
    refused(param)(new TorchRegressor().setLabelCol("y"), "model must be set")
    refused(param)(new TorchEstimator().setModel(TrainingCases.program("doubles")), "loss must be set")
    refused(param)(doubles.setModel(path("nothing.pt")), "nothing.pt")
    refused(param)(doubles.setLoss("msee"), "msee")
    refused(param)(doubles.setMetrics(Array("precisely")), "precisely")
    refused(param)(doubles.setDataLanes(7), "dataLanes", "7")
    refused(param)(doubles.setTensorBoardDir("hdfs://name/a"), "tensorBoardDir: the scheme `hdfs`")
    refused(param)(doubles.setCompile(true), "compile is true", "compiled already")
    refused(classOf[DataException])(doubles.setInputCols(Array("z")), "'z'")
    refused(classOf[ClusterException])(doubles.setNumWorkers(3), "numWorkers is 3", "2 task slots")
  }

  test("an error on a worker is told with its place, and not tried again") {
    val df =
      spark.read.parquet(Paths.get(TrainingCases.rows("classes")).resolveSibling("broken.parquet").toString)
    val error = intercept[DataException](classes.fit(df))
    assert(error.getMessage.contains("7") && error.getMessage.contains("on worker 0"), error.getMessage)
    val place = error.getCause.asInstanceOf[WorkerException]
    assert(place.rank.contains(0) && place.epoch.contains(0L) && place.step.isDefined)
  }

  test("a save of an estimator holds its program") {
    val estimator = doubles
    estimator.write.overwrite().save(path("estimator"))
    val loaded = TorchRegressor.load(path("estimator"))
    val df = rows("doubles").coalesce(1)
    assert(loaded.fit(df).trained.weights.sha256 == estimator.fit(df).trained.weights.sha256)
  }

  test("a fit, a transform, a save and a load", Matrix) {
    val model = classes.fit(rows("classes"))
    model.write.overwrite().save(path("model"))
    val scored = model.transform(rows("classes")).select("prediction").collect()
    val loaded =
      TorchClassificationModel.load(path("model")).transform(rows("classes")).select("prediction").collect()
    assert(loaded sameElements scored)
  }
}
