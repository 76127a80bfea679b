package flambeau

import java.nio.file.{Files, Path}

import scala.collection.JavaConverters._

import org.apache.spark.sql.DataFrame

/** Learning rate range tests against a plain loop of torch's. */
class RangeTestSuite extends SparkSuite {
  private lazy val rows: DataFrame = spark.read.parquet(TrainingCases.rows("doubles"))

  private def estimator: TorchRegressor = new TorchRegressor()
    .setModel(TrainingCases.program("doubles"))
    .setOptimizer("sgd", Map("momentum" -> 0.9))
    .setInputCols(Array("x"))
    .setInputTypes(Array("float64"))
    .setLabelCol("y")
    .setNumWorkers(2)
    .setBatchSize(100)
    .setVerbose(0)

  private def near(found: Seq[Double], expected: Seq[Double], tolerance: Double): Unit = {
    assert(found.size == expected.size)
    for ((one, other) <- found.zip(expected)) assert(math.abs(one / other - 1) < tolerance, (found, expected))
  }

  test("a range test is torch's loop with a growing rate, and nothing stays of it") {
    val work = Files.createDirectory(directory.resolve("work"))
    var numTold = 0
    val listener = new TrainingListener {
      override def onTrainBegin(training: Training): Unit = numTold += 1
    }
    val own = estimator
      .setWorkDir(work.toString)
      .setRunId("kept")
      .setKeepCheckpoints(2)
      .setLrSchedule("cosine")
      .setEmaDecay(0.9)
      .setLearningRate(1e30)
      .addListener(listener)
    val before = own.extractParamMap().toSeq.toSet
    val found = own.findLearningRate(rows, 1e-4, 1.0, 25)
    val losses = TrainingCases.numbers("doubles", "oracle.json", "rangeLosses").toSeq
    near(found.rates, (0 until 25).map(step => math.pow(10, -4 + 4 * step / 24.0)), 1e-9)
    near(found.losses, losses, 1e-9)
    // The mean of the losses so far, each counting 0.98 of the next.
    val smoothed = losses.indices.map { last =>
      val shares = (0 to last).map(step => math.pow(0.98, last - step))
      shares.zip(losses).map { case (share, loss) => share * loss }.sum / shares.sum
    }
    near(found.smoothed, smoothed, 1e-9)
    assert(found.rates.slice(10, 24).contains(found.suggestion))
    assert(Files.walk(work).iterator.asScala.filter(Files.isRegularFile(_: Path)).isEmpty && numTold == 0)
    assert(own.extractParamMap().toSeq.toSet == before)
  }

  test("prepared rows are tested too, without those for validation") {
    val own = estimator.setValidationFraction(0.2).setMonitor("val_loss").setEarlyStoppingPatience(1)
    val prepared = own.prepare(rows)
    try {
      val found = own.findLearningRate(prepared, 1e-3, 1e-2, 3)
      near(found.rates, Seq(1e-3, math.sqrt(1e-5), 1e-2), 1e-9)
      assert(
        intercept[ParamException](found.suggestion).getMessage ==
          "a test of 3 steps suggests no rate: take more numSteps, or a smaller maxRate where the loss diverged before"
      )
    } finally prepared.delete()
  }

  test("what is no range is refused before anything runs") {
    def refused(minRate: Double, maxRate: Double, numSteps: Int = 100): String =
      intercept[ParamException](estimator.findLearningRate(rows, minRate, maxRate, numSteps)).getMessage
    for (
      (minRate, maxRate, said) <- Seq(
        (1.0, 0.1, "1.0 and maxRate 0.1"),
        (-1.0, 0.1, "-1.0 and maxRate 0.1"),
        (0.1, Double.PositiveInfinity, "0.1 and maxRate inf"),
        (Double.NaN, 0.1, "NaN and maxRate 0.1")
      )
    ) assert(refused(minRate, maxRate) == s"minRate is $said, but must be above 0, the latter the larger")
    for (numSteps <- Seq(1, -1))
      assert(refused(1e-8, 1.0, numSteps) == s"numSteps is $numSteps, but must be at least 2")
  }
}
