package flambeau.guide

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Paths}

import flambeau.{
  CrossValidator, Loss, MLflow, PipelineModels, PreparedData, SparkSuite, TorchRegressionModel,
  TorchRegressor, Training, TrainingCases, TrainingListener
}
import org.apache.spark.ml.Pipeline
import org.apache.spark.ml.evaluation.RegressionEvaluator
import org.apache.spark.ml.feature.VectorAssembler
import org.apache.spark.ml.param.ParamMap
import org.apache.spark.ml.tuning.{ParamGridBuilder, TrainValidationSplit}
import org.apache.spark.sql.DataFrame

/** The blocks of Scala in the pages, which are those of this file. */
class GuideSuite extends SparkSuite {
  private lazy val program = TrainingCases.program("guide")
  private lazy val flights = spark.read.parquet(TrainingCases.rows("guide"))

  test("the guide's code runs") {
    val df = new VectorAssembler()
      .setInputCols(Array("dep_delay", "distance"))
      .setOutputCol("features")
      .transform(flights)

    val regressor = new TorchRegressor()
      .setModel(program)
      .setLoss("huber", Map("delta" -> 1.5))
      .setOptimizer("sgd", Map("momentum" -> 0.9, "nesterov" -> true))
      .setLearningRate(0.01)
      .setLabelCol("arr_delay")
      .setMetrics(Array("rmse"))
      .setValidationFraction(0.2)
      .setNumWorkers(2)
      .setBatchSize(128)
      .setEpochs(2)

    val model: TorchRegressionModel = regressor.fit(df)
    model.transform(df).select("arr_delay", "prediction").show(3)
    println(model.history("val_rmse").mkString(", "))

    println(model.evaluate(df)("rmse"))
    println(model.evaluate(df, Loss("l1"), Array("mse", "r2")))

    model.udf("delay")
    df.createOrReplaceTempView("flights")
    spark.sql("SELECT avg(delay(features)) FROM flights WHERE arr_delay > 0").show()

    val score = model.udf()
    df.select(score(df("features"))).show(3)

    val watched = regressor.copy(ParamMap.empty).addListener(new TrainingListener {
      override def onEpochEnd(training: Training): Unit = {
        println(s"epoch ${training.epoch} of ${training.epochs}: ${training.metrics("val_rmse")}")
        if (training.metrics("val_loss") < 1.0) training.stop()
      }
    })
    watched.fit(df)

    val mlflow = new MLflow()
      .setTrackingUri("http://tracking:5000")
      .setExperiment("flights")
      .setRegisteredModelName("flights")
      .setAlias("champion")
    val tracked = regressor.copy(ParamMap.empty).addListener(mlflow)

    def nightly(flights: DataFrame): DataFrame = MLflow.load("models:/flights@champion").transform(flights)
    // No server has it here.
    intercept[RuntimeException](nightly(flights))

    val plan = regressor.plan(df, numSteps = 5)
    println(plan)
    val faster =
      plan.suggestions("batchSize").fold(regressor)(regressor.copy(ParamMap.empty).setBatchSize(_))

    val found = regressor.findLearningRate(df, minRate = 1e-6, maxRate = 0.1, numSteps = 30)
    println(found.rates.zip(found.smoothed).mkString("\n"))
    val suited = regressor.copy(ParamMap.empty).setLearningRate(found.suggestion)

    val search = new TrainValidationSplit()
      .setEstimator(regressor)
      .setEstimatorParamMaps(new ParamGridBuilder().addGrid(
        regressor.learningRate,
        Array(0.001, 0.01)
      ).build())
      .setEvaluator(new RegressionEvaluator().setLabelCol("arr_delay"))
      .setParallelism(2)
    val best = search.fit(df).bestModel

    val assembler =
      new VectorAssembler().setInputCols(Array("dep_delay", "distance")).setOutputCol("features")
    val pipeline = new Pipeline().setStages(Array(assembler, regressor)).fit(flights)

    pipeline.write.overwrite().save(path("pipeline"))
    val loaded = PipelineModels.load(path("pipeline"))
    loaded.transform(flights).select("prediction").show(3)

    model.write.overwrite().save(path("model"))
    val again = TorchRegressionModel.load(path("model"))

    val tuned = new TorchRegressor()
      .setInitialModel(path("model"))
      .setLoss("huber", Map("delta" -> 1.5))
      .setOptimizer("adam")
      .setLearningRate(0.0001)
      .setLabelCol("arr_delay")
      .fit(df)

    val prepared = regressor.prepare(df, path("prepared"))
    println(prepared)
    val models = (0L until 2L).map(seed => regressor.copy(ParamMap.empty).setSeed(seed).fit(prepared))

    val taken = PreparedData.open(spark, path("prepared"))
    val maps = new ParamGridBuilder().addGrid(regressor.learningRate, Array(0.001, 0.01)).build()
    for (model <- regressor.fit(taken, maps.toSeq)) println(model.history("val_loss").min)
    taken.delete()

    val validator = new CrossValidator()
      .setEstimator(regressor)
      .setEstimatorParamMaps(maps)
      .setEvaluator(new RegressionEvaluator().setLabelCol("arr_delay"))
      .setNumFolds(2)
    println(validator.fit(df).avgMetrics.mkString(", "))

    assert(models.map(_.summary.numRows).distinct.size == 1)
    assert(best.uid == regressor.uid && faster.uid == regressor.uid)
    assert(suited.getLearningRate > 1e-6 && suited.getLearningRate < 0.1)
    assert(tracked.getListeners.size == 1 && regressor.getListeners.isEmpty)
    assert(again.history("rmse") sameElements model.history("rmse"))
    assert(tuned.summary.objectiveHistory.forall(_ < 1e6))
  }

  test("the README's code runs") {
    val assembler =
      new VectorAssembler().setInputCols(Array("dep_delay", "distance")).setOutputCol("features")
    val train = flights
    val path = this.path("delays")

    val regressor = new flambeau.TorchRegressor()
      .setModel(program) // a path: torch.jit.script(net).save(program), once, anywhere
      .setLabelCol("arr_delay")
      .setNumWorkers(2)
      .setBatchSize(256)
      .setEpochs(3)

    val model = new Pipeline().setStages(Array(assembler, regressor)).fit(train)
    model.write.overwrite().save(path) // PySpark's load_pipeline reads it, and the other way round

    assert(PipelineModels.load(path).transform(train).count() == train.count())
  }

  test("the code of the page about MLflow runs as far as it does without a server") {
    val estimator = new TorchRegressor()
    estimator.addListener(new MLflow().setTrackingUri("http://tracking:5000").setExperiment("taxi"))
    assert(estimator.getListeners.size == 1)

    def load(df: DataFrame): DataFrame = {
      val champion = MLflow.load("models:/taxi@champion")
      val scored = champion.transform(df)

      MLflow.setRegisteredModelAlias("models:/taxi@challenger", "champion")
      scored
    }
    intercept[RuntimeException](load(flights))
  }

  test("the pages' blocks are this file's") {
    val source = compact("jvm/src/test/scala/flambeau/guide/GuideSuite.scala")
    val pages = Seq("README" -> 1, "docs/scala" -> 16, "docs/prepared-data" -> 3, "docs/mlflow" -> 2)
    for ((page, number) <- pages) {
      val guide = new String(Files.readAllBytes(Paths.get(s"$page.md")), UTF_8)
      val blocks = "(?s)```scala\n(.*?)```".r.findAllMatchIn(guide).map(_.group(1)).toList
      assert(blocks.size == number)
      for (block <- blocks if !block.startsWith("import")) assert(source.contains(squeezed(block)), block)
    }
  }

  private def compact(path: String): String = squeezed(new String(Files.readAllBytes(Paths.get(path)), UTF_8))

  private def squeezed(text: String): String = text.replaceAll("\\s+", "")
}
