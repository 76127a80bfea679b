package flambeau

import java.nio.file.{Files, Path}

import scala.collection.JavaConverters._

import org.apache.spark.sql.DataFrame

/** A plan against what it is a plan of: the rows, shards and steps of a fit. */
class PlanSuite extends SparkSuite {
  private lazy val rows: DataFrame = spark.read.parquet(TrainingCases.rows("slow"))

  /** The files under a directory. */
  private def filesIn(directory: Path): Seq[Path] =
    Files.walk(directory).iterator.asScala.filter(Files.isRegularFile(_)).toSeq

  test("rows, steps and bytes are those of the fit, and nothing stays of the trials") {
    val work = Files.createDirectory(directory.resolve("work"))
    var numTold = 0
    val listener = new TrainingListener {
      override def onTrainBegin(training: Training): Unit = numTold += 1
    }
    val estimator = TrainingCases.slow()
      .setValidationFraction(0.25)
      .setEpochs(2)
      .setKeepCheckpoints(2)
      .setLearningRate(1e30)
      .setWorkDir(work.toString)
      .addListener(listener)
    // Other suites may have left some.
    val persistent = spark.sparkContext.getPersistentRDDs.keySet
    val before = estimator.extractParamMap().toSeq.toSet
    val plan = estimator.plan(rows, numSteps = 4)
    assert(filesIn(work).isEmpty && numTold == 0)
    assert(
      estimator.extractParamMap().toSeq.toSet == before && spark.sparkContext.getPersistentRDDs.keySet == persistent
    )

    val prepared = estimator.prepare(rows)
    val summary = estimator.setLearningRate(0.001).fit(prepared).summary
    assert((plan.numRows, plan.numValidationRows) == (summary.numRows, summary.numValidationRows))
    assert(plan.epochs * plan.stepsPerEpoch == summary.numSteps)
    assert(math.abs(plan.numBytes.toDouble / prepared.numBytes - 1) < 0.25, (plan, prepared))
    assert(plan.validationSeconds > 0 && plan.peakMemoryBytes > (1 << 20))
    val parts = Seq(plan.dataSeconds, plan.modelSeconds, plan.reduceSeconds, plan.optimizerSeconds)
    assert(parts.sum <= plan.secondsPerStep && plan.expectedSeconds > 2 * plan.stepsPerEpoch * parts.sum)
    // Of twice the batch, of one worker, and of no number of threads.
    assert(plan.trials.map(trial => (trial.batchSize > 50, trial.numWorkers, trial.numThreads)).distinct ==
      Seq((false, 2, Some(1)), (true, 2, Some(1)), (false, 1, Some(1)), (false, 2, None)))
    assert(plan.toString.contains("rows: 3,001, and 999 for validation"))
    assert(plan.toString.contains(plan.bottleneck.get.advice))
    prepared.delete()
  }

  test("the smallest value within a tenth of the fastest is suggested") {
    def plan(trials: Trial*): Plan =
      Plan(64, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, bottleneck = None, trials = trials)
    val own = Trial(2, Some(2), 16, Some(100))
    val found = plan(
      own,
      own.copy(batchSize = 32, rowsPerSecond = Some(150)),
      own.copy(batchSize = 64, rowsPerSecond = Some(160)),
      own.copy(numWorkers = 4, rowsPerSecond = None, error = Some("out of memory")),
      own.copy(numThreads = None, rowsPerSecond = Some(111))
    )
    // 160 are less than a tenth more than 150, and the trial with four workers failed.
    assert(found.suggestions == Map("batchSize" -> Some(32), "numWorkers" -> Some(2), "numThreads" -> None))
    assert(found.toString.contains(
      "suggestion: numThreads not set, 111 rows a second in place of 100 with numThreads 2"
    ))
    assert(found.toString.endsWith("failed: out of memory"))
    assert(
      plan(own, own.copy(numThreads = Some(1), rowsPerSecond = Some(95))).suggestions("numThreads") == Some(1)
    )
  }

  test("memory ends the search for a batch size") {
    val plan = TrainingCases.slow()
      .setModel(TrainingCases.directory.resolve("hungry").resolve("net.pt").toString)
      .setBatchSize(2)
      .plan(rows, numSteps = 4)
    val failed = plan.trials.filter(_.rowsPerSecond.isEmpty)
    assert(failed.map(_.batchSize) == Seq(4) && failed.head.error.exists(_.contains("allocate memory")), plan)
    assert(plan.suggestions("batchSize") == Some(2))
  }

  test("what cannot be planned is refused before rows are counted") {
    assert(intercept[ParamException](TrainingCases.slow().plan(rows, numSteps = 0)).getMessage ==
      "numSteps is 0, but must be at least 1")
    intercept[DataException](TrainingCases.slow().setLabelCol("none").plan(rows))
  }
}
