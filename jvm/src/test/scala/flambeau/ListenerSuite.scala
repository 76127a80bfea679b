package flambeau

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Paths}
import java.util.concurrent.ConcurrentLinkedQueue
import java.util.concurrent.atomic.AtomicBoolean

import scala.collection.JavaConverters._

import flambeau.internal.fit.{ListenerBus, UsageFiles}
import flambeau.internal.session.Settings
import flambeau.internal.storage.{Site, WorkDirectory}
import org.apache.spark.ml.param.ParamMap
import org.apache.spark.scheduler.{SparkListener, SparkListenerJobStart}
import org.scalatest.concurrent.Eventually.{eventually, timeout}
import org.scalatest.time.{Seconds, Span}

/** Who is told of a fit, of what, and what they can do. */
class ListenerSuite extends SparkSuite {
  import ListenerSuite._

  private lazy val rows = spark.read.parquet(TrainingCases.rows("slow"))

  private def slow(listeners: TrainingListener*): TorchRegressor =
    TrainingCases.slow().setEpochs(3).setListeners(listeners)

  test("a fit tells of its training in order") {
    val recorder = new Recorder
    slow(recorder).fit(rows)
    assert(recorder.without("onProgress").map(place) == Seq(
      "onTrainBegin 0 0",
      "onEpochBegin 0 0",
      "onEpochEnd 0 40",
      "onCheckpoint 0 40",
      "onEpochBegin 1 40",
      "onEpochEnd 1 80",
      "onCheckpoint 1 80",
      "onEpochBegin 2 80",
      "onEpochEnd 2 120",
      "onTrainEnd 2 120"
    ))
    val trainings = recorder.all.map(_._2)
    assert(trainings.forall(training => training.epochs == 3 && training.stepsPerEpoch == 40))
    assert(trainings.filter(_.step == 0).forall(_.metrics.isEmpty))
    val progress = recorder.of("onProgress")
    assert(progress.nonEmpty && progress.forall(one => one.metrics.keySet == Set("loss")))
    assert(progress.forall(_.rowsPerSecond.exists(_ > 0)))
    assert(progress.forall(one => one.learningRate.contains(0.001) && one.gradientNorm.isEmpty))
    assert(recorder.of("onCheckpoint").forall(_.checkpoint.exists(_.contains("/checkpoints/"))))
  }

  test("what is told of an epoch is what the model's history has") {
    val recorder = new Recorder
    val model = slow(recorder).setMetrics(Array("rmse", "mae")).setValidationFraction(0.25)
      .setLrSchedule("step").setLrDecayEpochs(1).setLogGradientNorm(true).fit(rows)
    val ended = recorder.of("onEpochEnd")
    val names = Seq("loss", "rmse", "mae", "val_loss", "val_rmse", "val_mae")
    assert(ended.forall(_.metrics.keys.toSeq == names))
    for (name <- names) assert(ended.map(_.metrics(name)) == model.history(name).toSeq, name)
    assert(ended.map(_.learningRate.get) == model.history("learning_rate").toSeq)
    assert(ended.map(_.gradientNorm.get) == model.history("gradient_norm").toSeq)
    assert(ended.map(_.rowsPerSecond.get) == model.history("rows_per_second").toSeq)
    assert(ended.map(_.step.toDouble) == model.history("steps").toSeq)
    assert(recorder.of("onTrainEnd").map(_.metrics) == ended.takeRight(1).map(_.metrics))
    val evaluated = recorder.of("onValidationEnd")
    assert(evaluated.map(one => (one.step, one.metrics)) == ended.map(one => (one.step, one.metrics)))
    val progress = recorder.of("onProgress")
    assert(progress.forall(one =>
      Math.abs(one.learningRate.get - 0.001 * Math.pow(0.1, one.epoch.toDouble)) < 1e-15
    ))
    assert(progress.nonEmpty && progress.forall(_.gradientNorm.exists(_ > 0)))
    val hooks = recorder.without("onProgress").map(_._1)
    assert(hooks.sliding(2).count(_ == Seq("onValidationEnd", "onEpochEnd")) == 3)
  }

  test("a listener stops the training in the middle of an epoch, and there is a model") {
    val recorder = new Recorder
    val stopping = new TrainingListener {
      override def onProgress(training: Training): Unit = training.stop()
    }
    // An epoch of 2,000 steps.
    val model = slow(recorder, stopping).setBatchSize(1).setEpochs(1000).fit(rows)
    val Seq(end) = recorder.of("onTrainEnd")
    assert(end.step == model.summary.numSteps && end.stepsPerEpoch == 2000)
    assert(end.step % 2000 != 0 && model.summary.totalIterations == end.epoch + 1 && end.epoch < 100)
    assert(model.transform(rows).select("prediction").distinct().count() > 1)
  }

  test("what a listener throws ends the fit, which throws it") {
    val error = new IllegalStateException("no more of this")
    val (before, after) = (new Recorder, new Recorder)
    val throwing = new TrainingListener {
      override def onEpochEnd(training: Training): Unit = throw error
    }
    val thrown = intercept[IllegalStateException](slow(before, throwing, after).setEpochs(100000).fit(rows))
    assert(thrown eq error)
    val name = throwing.getClass.getName
    assert(error.getSuppressed.map(_.getMessage).toSeq == Seq(s"thrown by $name.onEpochEnd"))
    assert(before.without("onProgress").map(place).last == "onEpochEnd 0 40")
    assert(after.of("onEpochEnd").isEmpty && after.of("onTrainEnd").isEmpty)
    Workers.await("the end of all workers", 20)(Workers.pids().isEmpty)
    assert(spark.range(10).count() == 10)
  }

  test("after a worker was lost, epochs that are trained again are told again, in order") {
    val recorder = new Recorder
    val isKilled = new AtomicBoolean
    val killing = new TrainingListener {
      override def onEpochEnd(training: Training): Unit =
        if (training.epoch == 1 && isKilled.compareAndSet(false, true)) {
          val Seq(other) = Workers.pids().filterNot(Workers.hasThread(_, "flambeau-writer"))
          Workers.signal("STOP", other)
          // Rank 0 waits, and writes what it has told.
          Thread.sleep(2500)
          Workers.signal("KILL", other)
        }
    }
    // More epochs than are trained within the two seconds until the end of one of them is told.
    val parts = new ConcurrentLinkedQueue[String]
    val jobs = new SparkListener {
      override def onJobStart(start: SparkListenerJobStart): Unit =
        Option(start.properties.getProperty("spark.job.description")).foreach(parts.add)
    }
    spark.sparkContext.addSparkListener(jobs)
    val model =
      try slow(recorder, killing).setBatchSize(10).setEpochs(12).fit(rows)
      finally spark.sparkContext.removeSparkListener(jobs)
    assert(isKilled.get)
    val told = recorder.without("onProgress").map(place)
    val undisturbed = "onTrainBegin 0 0" +: (0 until 12).flatMap { epoch =>
      val (before, after) = (200 * epoch, 200 * (epoch + 1))
      Seq(s"onEpochBegin $epoch $before", s"onEpochEnd $epoch $after", s"onCheckpoint $epoch $after")
    }.dropRight(1) :+ "onTrainEnd 11 2400"
    // The second attempt begins with the first epoch that has no checkpoint, which had begun.
    val (first, second) = told.splitAt(told.indices.find(at => told.take(at).contains(told(at))).get)
    assert(first == undisturbed.take(first.length))
    val lastWritten = undisturbed.indexOf(first.filter(_.startsWith("onCheckpoint")).last)
    assert(second == undisturbed.drop(lastWritten + 1))
    val next = first.count(_.startsWith("onCheckpoint"))
    eventually(timeout(Span(10, Seconds))) {
      assert(parts.asScala.exists(_.endsWith(s": train from epoch $next, attempt 2")), parts)
    }
    val last = recorder.of("onEpochEnd").map(training => training.epoch -> training).toMap
    assert((0 until 12).map(epoch => last(epoch.toLong).metrics("loss")) == model.history("loss").toSeq)
  }

  test("an estimator's copies have its listeners, and what is saved has none") {
    val (one, other) = (new Recorder, new Recorder)
    val estimator = slow(one).addListener(other)
    assert(estimator.copy(ParamMap(estimator.epochs -> 2)).getListeners == Seq(one, other))
    assert(estimator.copy(ParamMap(estimator.listeners -> Seq(other))).getListeners == Seq(other))
    estimator.write.save(path("saved"))
    assert(TorchRegressor.load(path("saved")).getListeners.isEmpty)
  }

  test("what a listener throws once the training has ended well loses no model") {
    val error = new IllegalStateException("no more of this")
    val (before, after) = (new Recorder, new Recorder)
    val throwing = new TrainingListener {
      override def onTrainEnd(training: Training): Unit = throw error
    }
    val thrown = intercept[ListenerException] {
      slow(before, throwing, after).setEpochs(1).setWorkDir(path("kept")).fit(rows)
    }
    assert((thrown.getCause eq error) && thrown.getMessage.startsWith("no more of this; the model was made"))
    assert(
      error.getSuppressed.map(_.getMessage).toSeq == Seq(s"thrown by ${throwing.getClass.getName}.onTrainEnd")
    )
    assert(before.of("onTrainEnd").size == 1 && after.of("onTrainEnd").isEmpty)
    assert(thrown.model.history("epoch").toSeq == Seq(0))
    assert(thrown.model.transform(rows).select("prediction").distinct().count() > 1)
  }

  private def site(name: String, isVisible: Boolean = true): Site =
    Site(spark, WorkDirectory(path(name), Settings.of(spark)), isVisible)

  private def write(site: Site, attempt: String, number: Int, events: String): Unit = site.work.write(
    site.work.path("attempts", attempt, "events", f"$number%08d.json"),
    events.getBytes(UTF_8)
  )

  /** An attempt that ends well or not. */
  private def during(bus: ListenerBus, attempt: String, isWell: Boolean = false)(use: => Unit): Unit =
    bus.during(attempt, (_: Unit) => isWell)(use)

  private def start(epoch: Int): String =
    s"""{"kind": "start", "epoch": $epoch, "step": 0, "epochs": 3, "stepsPerEpoch": 1, "numValidationRows": 1}"""

  private def progress(step: Int): String =
    s"""{"kind": "progress", "epoch": 0, "step": $step, "rowsPerSecond": 1.0, "loss": 0.5}"""

  private val end = """{"kind": "end"}"""

  private def epoch(epoch: Int): String =
    s"""{"kind": "epoch", "epoch": $epoch, "steps": ${epoch + 1}, "loss": 0.5, "metrics": [], "validationLoss": null}"""

  test("a file that is not whole is read again") {
    val at = site("part")
    val recorder = new Recorder
    val bus = ListenerBus.of(at, Seq(recorder), verbose = 0)
    val whole = s"[${epoch(1)}]"
    during(bus, "a") {
      write(at, "a", 1, s"[${start(0)}, ${epoch(0)}]")
      write(at, "a", 2, whole.take(20))
      Workers.await("the first file")(recorder.of("onEpochEnd").size == 1)
      // More than one look at half of a file.
      Thread.sleep(1200)
      write(at, "a", 2, whole)
      write(at, "a", 3, s"[${epoch(2)}]")
    }
    bus.end()
    val epochs = (0 to 2).flatMap(epoch =>
      Seq("onValidationEnd", "onEpochEnd").map(hook => s"$hook $epoch ${epoch + 1}")
    )
    assert(recorder.all.map(place) == "onTrainBegin 0 0" +: epochs :+ "onTrainEnd 2 3")
    assert(recorder.of("onEpochEnd").forall(_.metrics("val_loss").isNaN))
  }

  test("a sample that can't be read loses no other") {
    val at = site("usage")
    val files = new UsageFiles(at.work, "a", seconds = 0)
    def sample(rank: Int, text: String): Unit =
      at.work.write(at.work.path("attempts", "a", "usage", s"$rank.json"), text.getBytes(UTF_8))
    assert(files.readNew().isEmpty)
    sample(0, """{"kind": "us""")
    assert(intercept[Exception](files.readNew()).getMessage.contains("end-of-input"))
    sample(1, """{"kind": "usage", "rank": 1, "number": 0, "values": {}}""")
    assert(files.readNew().map(_.get("rank").asInt) == Seq(1))
    assert(files.readNew().isEmpty)
  }

  test("a stop is asked of each attempt") {
    val at = site("stops")
    val stopping = new TrainingListener {
      override def onEpochEnd(training: Training): Unit = training.stop()
    }
    val bus = ListenerBus.of(at, Seq(stopping), verbose = 0)
    def isAsked(attempt: String): Boolean = Files.exists(Paths.get(at.work.path("attempts", attempt, "stop")))
    assert(bus.stopFile("a").contains(at.work.path("attempts", "a", "stop")))
    during(bus, "a") {
      write(at, "a", 1, s"[${start(0)}]")
      Thread.sleep(1200)
      assert(!isAsked("a"))
      write(at, "a", 2, s"[${epoch(0)}]")
      Workers.await("the request", 20)(isAsked("a"))
    }
    during(bus, "b")(Workers.await("the request", 20)(isAsked("b")))
    assert(ListenerBus.of(at, Nil, verbose = 1).stopFile("c").isEmpty)
  }

  test("where the driver does not see the work directory, listeners are told after attempts") {
    val at = site("unseen", isVisible = false)
    val recorder = new Recorder
    val bus = ListenerBus.of(at, Seq(recorder), verbose = 1)
    assert(bus.stopFile("a").isEmpty)
    during(bus, "a") {
      write(at, "a", 1, s"[${start(0)}, ${progress(1)}]")
      write(at, "a", 2, s"[${progress(2)}]")
      write(at, "a", 3, s"[${progress(3)}, ${epoch(0)}]")
      write(at, "a", 4, s"[${epoch(1)}]")
    }
    // What reads them may be lost with a worker.
    assert(recorder.all.isEmpty)
    during(bus, "b", isWell = true) {
      assert(recorder.of("onEpochEnd").size == 2)
      write(at, "b", 1, s"[${start(1)}, ${epoch(1)}, ${epoch(2)}, $end]")
    }
    bus.end()
    assert(recorder.all.map(place) == Seq(
      "onTrainBegin 0 0",
      "onProgress 0 3",
      "onValidationEnd 0 1",
      "onEpochEnd 0 1",
      "onValidationEnd 1 2",
      "onEpochEnd 1 2",
      "onValidationEnd 1 2",
      "onEpochEnd 1 2",
      "onValidationEnd 2 3",
      "onEpochEnd 2 3",
      "onTrainEnd 2 3"
    ))
  }

  for (isVisible <- Seq(true, false))
    test(
      s"what is thrown of an attempt that ended well is thrown at the end, where it is seen ($isVisible) or not"
    ) {
      val at = site(s"well-$isVisible", isVisible)
      val error = new IllegalStateException("no more of this")
      val throwing = new TrainingListener {
        override def onEpochEnd(training: Training): Unit = throw error
      }
      val bus = ListenerBus.of(at, Seq(throwing), verbose = 0)
      during(bus, "a", isWell = true)(write(at, "a", 1, s"[${start(0)}, ${epoch(0)}, $end]"))
      assert(intercept[IllegalStateException](bus.end()) eq error)
    }

  test("the last events of a training that ended well are waited for, where a file system shows them late") {
    val at = site("late")
    val recorder = new Recorder
    val bus = ListenerBus.of(at, Seq(recorder), verbose = 0)
    val late = new Thread(() => {
      Thread.sleep(2000)
      write(at, "a", 2, s"[${epoch(1)}, ${epoch(2)}, $end]")
    })
    during(bus, "a", isWell = true) {
      write(at, "a", 1, s"[${start(0)}, ${epoch(0)}]")
      late.start()
    }
    bus.end()
    assert(recorder.of("onEpochEnd").map(_.epoch) == Seq(0, 1, 2) && recorder.of("onTrainEnd").map(
      _.epoch
    ) == Seq(2))
  }

  test("a listener that takes its time is waited for, and a fatal error of one is not kept") {
    val at = site("ends")
    val recorder = new Recorder
    val late = new TrainingListener {
      override def onEpochEnd(training: Training): Unit = {
        Thread.sleep(1500)
        if (training.epoch == 1) throw new InterruptedException("of the listener's own")
      }
    }
    val bus = ListenerBus.of(at, Seq(late, recorder), verbose = 0)
    during(bus, "a")(write(at, "a", 1, s"[${start(0)}, ${epoch(0)}]"))
    assert(recorder.of("onEpochEnd").size == 1)
    intercept[InterruptedException](during(bus, "b")(write(at, "b", 1, s"[${start(1)}, ${epoch(1)}]")))
    assert(recorder.of("onEpochEnd").size == 1)
  }
}

object ListenerSuite {

  /** A call by its method, the epoch and the steps. */
  private def place(call: (String, Training)): String = s"${call._1} ${call._2.epoch} ${call._2.step}"

  /** Notes what it is told. */
  private final class Recorder extends TrainingListener {
    private val calls = new ConcurrentLinkedQueue[(String, Training)]

    def all: Seq[(String, Training)] = calls.asScala.toList
    def of(method: String): Seq[Training] = all.filter(_._1 == method).map(_._2)
    def without(method: String): Seq[(String, Training)] = all.filter(_._1 != method)

    override def onTrainBegin(training: Training): Unit = calls.add("onTrainBegin" -> training)
    override def onEpochBegin(training: Training): Unit = calls.add("onEpochBegin" -> training)
    override def onProgress(training: Training): Unit = calls.add("onProgress" -> training)
    override def onValidationEnd(training: Training): Unit = calls.add("onValidationEnd" -> training)
    override def onEpochEnd(training: Training): Unit = calls.add("onEpochEnd" -> training)
    override def onCheckpoint(training: Training): Unit = calls.add("onCheckpoint" -> training)
    override def onTrainEnd(training: Training): Unit = calls.add("onTrainEnd" -> training)
  }
}
