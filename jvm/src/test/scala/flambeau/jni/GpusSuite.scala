package flambeau.jni

import java.util.concurrent.atomic.AtomicInteger

import flambeau.{ParamException, SavedModels, SparkSuite, TorchModel, Workers}
import org.apache.spark.TaskContext

/** Which GPU a task scores on, and how many tasks use one at a time. */
class GpusSuite extends SparkSuite {
  private val two = Gpus(Seq("GPU-0a", "GPU-1b"), None)
  private val none = Gpus(Nil, Some("no NVIDIA driver is installed"))

  test("the assigned GPU is taken, else one by the task's number") {
    for (device <- Seq("auto", "cuda")) {
      assert((0 to 3).map(two.choose(device, None, _)) == Seq(Some(0), Some(1), Some(0), Some(1)))
      assert(two.choose(device, Some(Seq("1", "0")), 0).contains(1))
      for (address <- Seq("GPU-1b", "1B", "gpu-1b"))
        assert(two.choose(device, Some(Seq(address)), 0).contains(1), address)
    }
    assert(two.choose("cpu", Some(Seq("1")), 0).isEmpty)
  }

  test("an assigned GPU that is not there is refused with those that are") {
    for ((address, seen) <- Seq("2" -> "0, 1", "GPU-2c" -> "GPU-0a, GPU-1b")) {
      val error = intercept[ParamException](two.choose("auto", Some(Seq(address)), 0))
      assert(
        error.getMessage.contains(s"assigned the GPU $address") && error.getMessage.contains(s"sees $seen")
      )
    }
  }

  test("without a GPU auto is the CPU, and cuda says why there is none") {
    assert(none.choose("auto", None, 0).isEmpty)
    assert(none.choose("auto", Some(Seq("0")), 0).isEmpty)
    assert(Gpus(Seq("GPU-0a"), Some("libtorch is built without CUDA")).choose("auto", None, 0).isEmpty)
    val error = intercept[ParamException](none.choose("cuda", None, 0))
    assert(error.getMessage.contains("device is 'cuda'") && error.getMessage.contains("no NVIDIA driver"))
  }

  test("the number of tasks of a GPU is a whole one from 1") {
    def number(text: String): Int = GpuSlots.number(key => if (key == GpuSlots.Key) Some(text) else None)
    assert(number("") == 2 && number("5") == 5 && GpuSlots.number(_ => None) == 2)
    for (wrong <- Seq("0", "-1", "two", "1.5")) {
      val error = intercept[ParamException](number(wrong))
      assert(error.getMessage == s"spark.flambeau.gpuTasks is '$wrong': give a whole number of tasks, from 1")
    }
  }

  for (numSlots <- Seq(1, 2))
    test(s"at most $numSlots tasks hold a GPU at a time, each once, until they end") {
      GpusSuite.most.set(0)
      val gpu = s"GPU-$numSlots"
      val held = spark.sparkContext.parallelize(0 until 6, 6).mapPartitions { rows =>
        // As two programs of one query do.
        for (_ <- 0 until 2) GpuSlots.hold(gpu, numSlots, TaskContext.get())
        val present = GpusSuite.present.incrementAndGet()
        GpusSuite.most.accumulateAndGet(present, (a, b) => math.max(a, b))
        Workers.await("as many tasks at a time", 60)(GpusSuite.most.get >= numSlots)
        Thread.sleep(100)
        GpusSuite.present.decrementAndGet()
        rows
      }
      assert(held.count() == 6)
      assert(GpusSuite.most.get == numSlots)
    }

  test("a model that is to score on a GPU does, or says why it cannot") {
    val model = TorchModel.load(SavedModels.model("mlp")).setDevice("cuda")
    val rows = spark.read.parquet(SavedModels.rows("mlp"))
    val gpus = Gpus.visible(NativeLibrary.torch(_ => None))
    gpus.obstacle match {
      case None =>
        val apart = model.transform(rows).where("abs(prediction - expected) >= 1e-4")
        assert(apart.isEmpty)
      case Some(reason) =>
        val error = causeOf(classOf[ParamException])(model.transform(rows).collect())
        assert(error.getMessage.contains(reason))
        println(s"SKIPPED on a GPU: $reason")
    }
    for (device <- Seq("auto", "cpu")) {
      val apart = model.setDevice(device).transform(rows).where("abs(prediction - expected) >= 1e-4")
      assert(apart.isEmpty, device)
    }
  }

  test("a wrong number of tasks is refused before anything runs") {
    val model = TorchModel.load(SavedModels.model("mlp"))
    spark.conf.set(GpuSlots.Key, "none")
    try
      intercept[ParamException](model.transform(spark.read.parquet(SavedModels.rows("mlp"))))
    finally spark.conf.unset(GpuSlots.Key)
  }
}

private object GpusSuite {
  val present = new AtomicInteger
  val most = new AtomicInteger
}
