package flambeau

import java.nio.file.{Files, Path, Paths}
import java.util.concurrent.atomic.AtomicReference

import scala.collection.JavaConverters._
import scala.concurrent.duration._
import scala.util.{Failure, Success, Try}

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.internal.fit.{Launch, Run}
import flambeau.internal.session.Settings
import flambeau.internal.storage.{Site, WorkDirectory}
import flambeau.internal.util.Json
import org.apache.spark.SparkException

/** What happens to a fit whose workers are disturbed. The oracle is a fit that nothing disturbed. */
class FaultSuite extends SparkSuite {
  private lazy val undisturbed = slow("undisturbed").fit(rows)
  private lazy val rows = spark.read.parquet(TrainingCases.rows("slow"))

  private def slow(name: String): TorchRegressor =
    TrainingCases.slow().setEpochs(6).setCheckpointSteps(10).setWorkDir(path(name))

  /** A fit on a thread of its own. */
  private final class Running(estimator: TorchRegressor, before: => Unit = ()) {
    private val outcome = new AtomicReference[Try[TorchRegressionModel]]
    val thread = new Thread(() => outcome.set(attempt()))
    thread.start()
    Workers.await("a checkpoint")(hasCheckpoint(Paths.get(estimator.getWorkDir)))

    private def attempt(): Try[TorchRegressionModel] =
      try {
        before
        Success(estimator.fit(rows))
      } catch { case error: Throwable => Failure(error) }

    def result(): Try[TorchRegressionModel] = {
      thread.join(180000)
      Option(outcome.get).getOrElse(fail("the fit does not end"))
    }

    def error(): Throwable = result() match {
      case Failure(error) => error
      case _              => fail("the fit went well")
    }
  }

  /** A fit on a thread of its own whose program does not end where it is checked. */
  private final class Checked(name: String) {
    private val outcome = new AtomicReference[Throwable]
    private val endless = slow(name).setModel(TrainingCases.program("endless"))
    val thread = new Thread(() => Try(endless.fit(rows)).failed.foreach(outcome.set))
    // A Try keeps no InterruptedException.
    thread.setUncaughtExceptionHandler((_, error) => outcome.set(error))
    // The process that finds libtorch bears the same name, and ends by itself.
    undisturbed
    thread.start()
    Workers.await("the check")(Workers.pids().nonEmpty)

    def pid: Long = Workers.pids().head

    def error(): Throwable = {
      thread.join(60000)
      outcome.get
    }
  }

  private def hasCheckpoint(work: Path): Boolean = Files.isDirectory(work.resolve("attempts")) && {
    // Files come and go while this looks.
    val files = Try {
      val paths = Files.walk(work.resolve("attempts"))
      try paths.iterator.asScala.exists(_.getFileName.toString == "COMMITTED")
      finally paths.close()
    }
    files.getOrElse(false)
  }

  /** Sends a worker a signal; SIGSEGV until it ends: Rust's own handler lets the first one pass that no instruction
    * caused, and two may arrive as one.
    */
  private def kill(signal: String, worker: Long): Unit = {
    Workers.signal(signal, worker)
    if (signal == "SEGV")
      Workers.await("the end of the worker", 20) {
        val isRunning = Workers.pids().contains(worker)
        if (isRunning) Try(Workers.signal(signal, worker))
        !isRunning
      }
  }

  private def assertNoWorker(): Unit = Workers.await("the end of all workers", 20)(Workers.pids().isEmpty)

  for (signal <- Seq("KILL", "SEGV"))
    test(s"a worker that SIG$signal ends costs nothing but time") {
      val expected = undisturbed.trained.weights.sha256
      val running = new Running(slow(s"restart-$signal"))
      kill(signal, Workers.pids().head)
      assert(running.result().get.trained.weights.sha256 == expected)
      assertNoWorker()
      assert(spark.range(10).count() == 10)
    }

  test("a frozen worker costs nothing but time") {
    val expected = undisturbed.trained.weights.sha256
    Launch.grace = Some(1.second)
    try {
      val running = new Running(slow("frozen").setHeartbeatTimeout(2.0))
      kill("STOP", Workers.pids().head)
      assert(running.result().get.trained.weights.sha256 == expected)
      assertNoWorker()
    } finally Launch.grace = None
  }

  test("a run that failed is gone on with, to the bits of one that nothing stopped") {
    val expected = undisturbed.trained.weights.sha256
    def nightly = slow("run").setRunId("nightly").setMaxRestarts(0)
    def left: Set[String] = Seq("attempts", "runs")
      .filter(kind => directory.resolve("run").resolve(kind).toFile.list.nonEmpty).toSet
    val beat = Run.beatSeconds
    Run.beatSeconds = 0.5
    try {
      val running = new Running(nightly)
      kill("KILL", Workers.pids().head)
      assert(running.error().isInstanceOf[WorkerLostException])
      assertNoWorker()
      assert(left == Set("attempts", "runs"))

      def refusal(fit: => Any): String = intercept[ParamException](fit).getMessage
      val other = refusal(nightly.setBatchSize(25).fit(rows))
      assert(other.contains("run of another job: batchSize was 50 and is 25"), other)
      assert(refusal(nightly.setLoss("mae").fit(rows)).contains("its loss was another"))
      assert(refusal(nightly.fit(rows.orderBy(rows("y").desc))).contains("its rows were others"))

      assert(nightly.fit(rows).trained.weights.sha256 == expected)
      assert(left.isEmpty)
    } finally Run.beatSeconds = beat
  }

  test("one fit at a time has a run") {
    val site = Site(spark, WorkDirectory(path("claimed"), Settings.of(spark)), isVisible = true)
    val owner = directory.resolve("claimed").resolve("runs").resolve("nightly.owner")
    Run.claimed(site, "nightly") {
      assert(Files.exists(owner))
      val error = intercept[RunInUseException](Run.claimed(site, "nightly")(fail("two have it")))
      assert(error.isTransient && error.getMessage.contains("by another fit of this process"), error)
    }
    assert(!Files.exists(owner))

    def step(claim: JsonNode): JsonNode = {
      val question = Site.question("advanceClaim").put("id", "nightly").set[ObjectNode]("claim", claim)
      Json.parse(site.work.ask(Json.text(question)))
    }
    Files.write(owner, "another 4".getBytes)
    val watching = step(Json.obj().put("own", "this").put("beatSeconds", 10.0))
    Files.write(owner, "another 5".getBytes)
    val error = intercept[RunInUseException](step(watching))
    assert(error.isTransient && error.getMessage.contains("by another driver"), error)
  }

  test("the newest checkpoints are models") {
    def quick(name: String, epochs: Int) = slow(name).setCheckpointSteps(100000).setEpochs(epochs)
    val model = quick("kept", 3).setKeepCheckpoints(1).fit(rows)
    val Seq(checkpoint) = model.checkpoints
    val same = quick("same", 3).fit(rows)
    assert(checkpoint.epoch == 3 && checkpoint.step == same.summary.numSteps)
    val resumed = model.at(checkpoint)
    assert(resumed.isInstanceOf[TorchRegressionModel])
    assert(resumed.summary.objectiveHistory.toSeq == same.summary.objectiveHistory.toSeq)
    assert(resumed.transform(rows).collect().toSeq == same.transform(rows).collect().toSeq)
  }

  test("without restarts the error says which worker was killed, how, and its last words") {
    val running = new Running(slow("no-restart").setMaxRestarts(0))
    kill("SEGV", Workers.pids().head)
    val error = running.error()
    assert(error.isInstanceOf[WorkerLostException], error)
    val lost = error.asInstanceOf[WorkerLostException]
    assert(lost.rank.exists(rank => rank == 0 || rank == 1) && lost.host.isDefined)
    assert(lost.getMessage.contains("signal 11 (SIGSEGV)"), lost.getMessage)
    assert(
      lost.getMessage.contains("standard error") || lost.getMessage.contains("last lines"),
      lost.getMessage
    )
    assertNoWorker()
  }

  test("a worker that asks for more memory than there is fails the fit, and the executor lives") {
    val hungry = slow("hungry").setModel(TrainingCases.program("hungry"))
    val error = intercept[WorkerException](hungry.fit(rows))
    assert(!error.isInstanceOf[WorkerLostException])
    assert(error.rank.isDefined && error.getMessage.contains("memory"), error)
    assertNoWorker()
    assert(spark.range(10).count() == 10)
  }

  test("a program whose process dies in the check is refused, and this JVM lives") {
    val checked = new Checked("dies")
    kill("SEGV", checked.pid)
    val error = checked.error()
    assert(error.isInstanceOf[ParamException] && error.getMessage.contains("signal 11 (SIGSEGV)"), error)
  }

  test("an interrupt ends the check of a program that does not end") {
    val checked = new Checked("waits")
    checked.thread.interrupt()
    assertNoWorker()
    assert(checked.error().isInstanceOf[InterruptedException])
  }

  for (isInterrupting <- Seq(false, true))
    test(s"a cancelled job group ends every worker in seconds (interruptOnCancel = $isInterrupting)") {
      val group = s"fit-$isInterrupting"
      val sc = spark.sparkContext
      val running = new Running(
        slow(group).setEpochs(100000),
        sc.setJobGroup(group, "a fit", isInterrupting)
      )
      assert(Workers.pids().size == 2)
      sc.cancelJobGroup(group)
      assertNoWorker()
      assert(running.error().isInstanceOf[SparkException])
    }

  test("an interrupt of the fit's thread ends every worker in seconds") {
    val running = new Running(slow("interrupt").setEpochs(100000))
    running.thread.interrupt()
    assertNoWorker()
    assert(running.error().isInstanceOf[InterruptedException])
  }
}
