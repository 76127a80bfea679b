package flambeau

import java.nio.file.{Files, Paths}
import java.util.concurrent.ConcurrentHashMap

import flambeau.internal.fit.Prepare
import flambeau.internal.rows.{DataFile, Folds, Reading, ShardSet}
import flambeau.internal.session.Settings
import flambeau.internal.storage.{Site, WorkDirectory}
import org.apache.spark.ml.{Estimator, Pipeline}
import org.apache.spark.ml.evaluation.RegressionEvaluator
import org.apache.spark.ml.param.ParamMap
import org.apache.spark.ml.regression.LinearRegression
import org.apache.spark.ml.tuning
import org.apache.spark.ml.tuning.{CrossValidatorModel, ParamGridBuilder}
import org.apache.spark.mllib.util.MLUtils
import org.apache.spark.sql.{Column, DataFrame}
import org.apache.spark.sql.functions._

/** Cross-validation on one copy of the rows. Spark's own is the oracle. */
class CrossValidatorSuite extends SparkSuite {
  import spark.implicits._

  /** The rows in several partitions. */
  private lazy val rows: DataFrame = {
    spark.read.parquet(TrainingCases.rows("doubles")).withColumn("fold", monotonically_increasing_id() % 3)
      .withColumn("fold", $"fold".cast("int")).repartition(4).write.parquet(path("rows"))
    spark.read.parquet(path("rows"))
  }

  /** In float64; each step trains on all rows. */
  private def doubles: TorchRegressor = new TorchRegressor()
    .setModel(TrainingCases.program("doubles"))
    .setOptimizer("sgd", Map("momentum" -> 0.9))
    .setInputCols(Array("x"))
    .setInputTypes(Array("float64"))
    .setLabelCol("y")
    .setBatchSize(1000)
    .setEpochs(5)
    .setCheckpointInterval(-1)
    .setVerbose(0)

  private def of[V <: tuning.CrossValidator](validator: V, estimator: TorchRegressor = doubles): V = {
    val maps = new ParamGridBuilder().addGrid(estimator.learningRate, Array(0.01, 0.3)).build()
    validator.setEstimator(estimator).setEstimatorParamMaps(maps).setNumFolds(3)
      .setEvaluator(new RegressionEvaluator().setLabelCol("y"))
    validator
  }

  private def assertClose(found: Seq[Double], expected: Seq[Double]): Unit = {
    assert(found.length == expected.length)
    for ((a, b) <- found.zip(expected))
      assert(math.abs(a - b) <= 1e-9 * math.abs(b), s"$found, not $expected")
  }

  private def assertSame(found: CrossValidatorModel, expected: CrossValidatorModel): Unit = {
    assertClose(found.avgMetrics.toSeq, expected.avgMetrics.toSeq)
    val Seq(ours, theirs) = Seq(found, expected).map(
      _.transform(rows).orderBy("y").select("prediction").as[Double].collect().toSeq
    )
    assertClose(ours, theirs)
  }

  test("random folds are Spark's, on rows that are computed and written once", Matrix) {
    val expected = of(new tuning.CrossValidator()).setSeed(11).fit(rows)
    val (computed, cached) = (spark.sparkContext.longAccumulator, spark.sparkContext.getPersistentRDDs.keySet)
    val counted = udf { (y: Double) => computed.add(1); y }.asNondeterministic()
    val copies = ConcurrentHashMap.newKeySet[String]()
    val estimator = doubles.setWorkDir(path("work")).addListener(new TrainingListener {
      override def onTrainBegin(training: Training): Unit =
        Paths.get(path("work"), "shards").toFile.list.foreach(copies.add)
    })
    val ours = of(new CrossValidator(), estimator).setSeed(11).setParallelism(2).setCollectSubModels(true)
    val found = ours.fit(rows.withColumn("y", counted($"y")))
    assertSame(found, expected)
    assert(found.getClass == classOf[CrossValidatorModel] && found.uid == ours.uid && found.parent == ours)
    assert(computed.sum == 200 && copies.size == 1)
    assert(Paths.get(path("work"), "shards").toFile.list.isEmpty)
    assert(found.getNumFolds == 3 && found.getSeed == 11 && !expected.hasSubModels)
    val sizes = MLUtils.kFold(rows.rdd, 3, 11L).map(_._1.count()).toSeq
    val models = found.subModels.toSeq.map(_.toSeq.map(_.asInstanceOf[TorchRegressionModel]))
    assert(models.map(_.map(_.summary.numRows)) == sizes.map(size => Seq(size, size)))
    assert(spark.sparkContext.getPersistentRDDs.keySet == cached)
  }

  test("folds of a column are Spark's") {
    val expected = of(new tuning.CrossValidator()).setFoldCol("fold").fit(rows)
    assertSame(of(new CrossValidator()).setFoldCol("fold").fit(rows), expected)
  }

  test("a row is trained on in all folds but its own, and each fold has its share of validation rows") {
    val df = spark.range(0, 600, 1, 4).select($"id", ($"id" % 7 / 7).as("a"), rand(1).as("label"))
    // One seed for the folds and for the validation rows.
    val estimator = new TorchRegressor().setModel(TrainingCases.program("guide")).setSeed(7)
      .setFeaturesCol(Array("id", "a")).setValidationFraction(0.3).setVerbose(0).setWorkDir(path("folds"))
    val numbered = Folds.drawn(df, "number", 3, 7)
    val folds = MLUtils.kFold(df.rdd, 3, 7L).toSeq.map(_._2.map(_.getLong(0)).collect().toSet)
    assert(folds.map(_.size).sum == 600)
    val site = Site(spark, WorkDirectory(path("folds"), Settings.of(spark)), isVisible = true)
    val reading = Reading(estimator, Some("float32"), isWide = false, arguments = Nil)
    def ids(files: Seq[DataFile]): Set[Long] =
      spark.read.parquet(files.map(_.uri): _*).select($"id".cast("long")).as[Long].collect().toSet
    Prepare.meanwhile(Seq(estimator), numbered, col("number")) { all =>
      for ((out, fold) <- folds.zipWithIndex) {
        val some = all.without(fold)
        val shards = some.shards(some.columns(reading), reading, site)(identity[ShardSet])
        val (train, validation) = (ids(shards.train), ids(shards.validation))
        assert(numbered.where($"number" === fold).select("id").as[Long].collect().toSet == out)
        assert((train | validation) == (0L until 600L).toSet -- out && (train & validation).isEmpty)
        assert(shards.numRows == train.size && shards.numValidationRows == validation.size)
        for (other <- folds if other != out) {
          val share = (validation & other).size.toDouble / other.size
          assert(share > 0.2 && share < 0.4)
        }
      }
    }
    assert(Paths.get(path("folds"), "shards").toFile.list.isEmpty)
  }

  test("what cannot be is refused before a fit") {
    val allowed = "foldCol names a column of whole numbers from 0 to 2 (numFolds is 3)"
    def refused(fold: Column, estimator: TorchRegressor = doubles): String = {
      val validator = of(new CrossValidator(), estimator.setWorkDir(path("refused"))).setFoldCol("fold")
      val df = rows.withColumn("held", $"fold" === 1).withColumn("fold", fold)
      intercept[DataException](validator.fit(df)).getMessage
    }
    val (fold, isFirst) = ($"fold", $"y" === rows.agg(min("y")).head().getDouble(0))
    assert(refused(when(isFirst, 3).otherwise(fold)) == s"column 'fold' holds 3: $allowed")
    assert(refused(when(isFirst, lit(null)).otherwise(fold)) == s"column 'fold' holds a null: $allowed")
    assert(refused(fold.cast("string")) == s"column 'fold' is string; $allowed: cast it")
    assert(refused(fold % 2) == "fold 2 has no rows: give it some, or lower numFolds")
    assert(refused(fold, doubles.setValidationIndicatorCol("held")).startsWith(
      "fold 1 has all of the validation rows, so that a training without it has none"
    ))
    // No attempt was made, and nothing is left.
    assert(!Files.exists(Paths.get(path("refused"), "attempts")))
    assert(Option(Paths.get(path("refused"), "shards").toFile.list).forall(_.isEmpty))

    def wrong(change: CrossValidator => Any): String = {
      val validator = of(new CrossValidator())
      change(validator)
      intercept[ParamException](validator.fit(rows)).getMessage
    }
    assert(wrong(_.setEstimator(new LinearRegression())).startsWith(
      "estimator is a LinearRegression, and this CrossValidator takes Flambeau's own"
    ))
    assert(wrong(_.setEstimatorParamMaps(Array())).startsWith("estimatorParamMaps is empty"))
    def maps(values: Double*)(estimator: TorchRegressor): Array[ParamMap] =
      new ParamGridBuilder().addGrid(estimator.validationFraction, values.toArray).build()
    assert(wrong(validator =>
      validator.setEstimatorParamMaps(maps(0.1, 0.2)(validator.getEstimator.asInstanceOf[TorchRegressor]))
    ).startsWith("validationFraction and validationIndicatorCol are the same"))
    assert(wrong { validator =>
      val estimator = validator.getEstimator.asInstanceOf[TorchRegressor]
      validator.setEstimatorParamMaps(Array(ParamMap.empty, ParamMap(estimator.handleInvalid -> "skip")))
    } == "handleInvalid is the same for all that is fitted on one copy of the rows, and here fits are asked for 'keep' and " +
      "'skip': set one of them for all, or fit them apart")
    assert(wrong(validator => validator.setEstimator(doubles.setRunId("nightly"))).startsWith(
      "runId 'nightly' names one run, and 2 of these param maps have it"
    ))
  }

  test("a fit that fails ends those beside it") {
    val estimator = doubles.setEpochs(1000000).setWorkDir(path("failing"))
    // The first diverges.
    val maps = new ParamGridBuilder().addGrid(estimator.learningRate, Array(1e300, 1e-9)).build()
    val validator = of(new CrossValidator(), estimator).setEstimatorParamMaps(maps).setParallelism(2)
    val error = intercept[FlambeauException](validator.fit(rows))
    assert(error.getMessage.contains("loss"), error.getMessage)
    Workers.await("the end of all workers", 30)(Workers.pids().isEmpty)
    assert(Paths.get(path("failing"), "shards").toFile.list.isEmpty)
  }

  test("a validator is read as it was, by itself and in a pipeline", Matrix) {
    val ours = of(new CrossValidator()).setSeed(11).setParallelism(2)
    ours.write.save(path("validator"))
    new Pipeline().setStages(Array(ours)).write.save(path("pipeline"))
    val read = Pipeline.load(path("pipeline")).getStages.head.asInstanceOf[CrossValidator]
    for (found <- Seq(CrossValidator.load(path("validator")), read, ours.copy(ParamMap.empty))) {
      assert(
        found.uid == ours.uid && found.getNumFolds == 3 && found.getSeed == 11 && found.getParallelism == 2
      )
      val estimator: Estimator[_] = found.getEstimator
      assert(estimator.uid == ours.getEstimator.uid && estimator.isInstanceOf[TorchRegressor])
      val params = found.getEstimatorParamMaps.toSeq.map(_.toSeq.map(pair => pair.param.name -> pair.value))
      assert(params == Seq(0.01, 0.3).map(rate => Seq("learningRate" -> rate)))
    }
    assert(new CrossValidator().getSeed == new tuning.CrossValidator().getSeed)
  }
}
