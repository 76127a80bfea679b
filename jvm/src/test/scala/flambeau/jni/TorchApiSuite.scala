package flambeau.jni

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path}
import java.nio.{ByteBuffer, ByteOrder}
import java.util.concurrent.{Callable, CountDownLatch, Executors, TimeUnit}

import flambeau.{DataException, FlambeauException}
import org.scalatest.funsuite.AnyFunSuite

class TorchApiSuite extends AnyFunSuite {
  private lazy val api = NativeLibrary.torch(_ => None)

  private def spec(program: Path, inputs: String, output: String): String =
    s"""{"form":"scripted","program":"$program","weights":null,"inputs":[$inputs],"output":[$output],
       |"batchSize":4,"classes":null,"fields":[],"numThreads":1}""".stripMargin

  private val three = """{"dtype":"float32","shape":[3]}"""
  private val one = """{"name":null,"dtype":"float32","shape":[]}"""

  private def openSum(): Long = api.openScorer(spec(Programs.doubledSum, three, one))

  private def floats(values: Float*): ByteBuffer = {
    val buffer = ByteBuffer.allocateDirect(values.length * 4).order(ByteOrder.nativeOrder())
    values.foreach(buffer.putFloat)
    buffer
  }

  test("null arguments are exceptions") {
    intercept[RuntimeException](api.score(openSum(), 1, null))
  }

  test("rows are scored") {
    val handle = openSum()
    val scores = api.score(handle, 2, Array(floats(1, 2, 3, 0, -1, 0)))
    assert(scores.map(_.getClass).toSeq == Seq(classOf[Array[Double]]))
    assert(scores(0).asInstanceOf[Array[Double]].toSeq == Seq(13.0, -1.0))
    assert(api.score(handle, 0, Array(floats()))(0).asInstanceOf[Array[Double]].isEmpty)
    api.closeScorer(handle)
  }

  test("more rows than the batch size are scored in several batches") {
    val handle = openSum()
    val values = (0 until 33).map(_.toFloat)
    val expected = values.grouped(3).map(row => 2.0 * row.sum + 1).toSeq
    val scores = api.score(handle, 11, Array(floats(values: _*)))
    assert(scores(0).asInstanceOf[Array[Double]].toSeq == expected)
    api.closeScorer(handle)
  }

  test("outputs are arrays of their own types") {
    val inputs = Seq("float32" -> "[2]", "int64" -> "[2]", "bool" -> "[2]", "uint8" -> "[2]").map {
      case (dtype, shape) => s"""{"dtype":"$dtype","shape":$shape}"""
    }
    val outputs =
      Seq("float32", "int64", "bool", "int64", "float64").zipWithIndex.map { case (dtype, index) =>
        s"""{"name":"_${index + 1}","dtype":"$dtype","shape":[2]}"""
      }
    val handle = api.openScorer(spec(Programs.everyType, inputs.mkString(","), outputs.mkString(",")))
    val longs = ByteBuffer.allocateDirect(16).order(ByteOrder.nativeOrder()).putLong(1L << 40).putLong(-3)
    val flags = ByteBuffer.allocateDirect(2).put(1.toByte).put(0.toByte)
    val bytes = ByteBuffer.allocateDirect(2).put(7.toByte).put(-1.toByte)
    val scores = api.score(handle, 1, Array(floats(1.5f, -2), longs, flags, bytes))
    assert(scores(0).asInstanceOf[Array[Float]].toSeq == Seq(3f, -4f))
    assert(scores(1).asInstanceOf[Array[Long]].toSeq == Seq((1L << 40) + 1, -2L))
    assert(scores(2).asInstanceOf[Array[Boolean]].toSeq == Seq(false, true))
    assert(scores(3).asInstanceOf[Array[Long]].toSeq == Seq(7L, 255L))
    assert(scores(4).asInstanceOf[Array[Double]].toSeq == Seq(1.5, -2.0))
    api.closeScorer(handle)
  }

  test("memory at any address will do") {
    val handle = openSum()
    val unaligned = ByteBuffer.allocateDirect(64)
    unaligned.position(5)
    val slice = unaligned.slice().order(ByteOrder.nativeOrder())
    Seq(1f, 2f, 3f).foreach(slice.putFloat)
    assert(api.score(handle, 1, Array(slice))(0).asInstanceOf[Array[Double]].toSeq == Seq(13.0))
    api.closeScorer(handle)
  }

  test("buffers that cannot be read are refused") {
    val handle = openSum()
    def refused(numRows: Int, buffers: ByteBuffer*): String =
      intercept[FlambeauException](api.score(handle, numRows, buffers.toArray)).getMessage
    assert(refused(1, ByteBuffer.allocate(12)).contains("no direct buffer"))
    assert(refused(1, null).contains("is null"))
    assert(refused(2, floats(1, 2, 3)).contains("12 bytes where the rows take 24"))
    assert(refused(1).contains("0 input buffers were given where the program takes 1"))
    assert(refused(-1, floats(1, 2, 3)).contains("-1 rows"))
    api.closeScorer(handle)
  }

  test("a closed scorer is an exception, not a crash") {
    val handle = openSum()
    api.closeScorer(handle)
    assert(intercept[FlambeauException](api.closeScorer(handle)).getMessage.contains("closed"))
    val error = intercept[FlambeauException](api.score(handle, 1, Array(floats(1, 2, 3))))
    assert(error.getMessage.contains(s"no open scorer $handle"))
    intercept[FlambeauException](api.score(0, 1, Array(floats(1, 2, 3))))
  }

  test("a file that is no program is refused by name") {
    val file = Files.createTempFile("flambeau-test-", ".pt")
    Files.write(file, "no archive".getBytes(UTF_8))
    val error = intercept[FlambeauException](api.openScorer(spec(file, three, one)))
    assert(error.getMessage.contains(file.toString))
    Files.delete(file)
    intercept[FlambeauException](api.openScorer("""{"form":"scripted"}"""))
  }

  test("an exception of the program is a FlambeauException, and the scorer goes on") {
    val handle = api.openScorer(spec(Programs.picky, three, three.replace("{", """{"name":null,""")))
    val error = intercept[FlambeauException](api.score(handle, 1, Array(floats(1, -2, 3))))
    assert(error.getMessage.contains("a negative number"))
    assert(!error.isInstanceOf[DataException])
    val scores = api.score(handle, 1, Array(floats(1, 2, 3)))
    assert(scores(0).asInstanceOf[Array[Float]].toSeq == Seq(1f, 2f, 3f))
    api.closeScorer(handle)
  }

  test("many threads score with one scorer while it is closed under them") {
    val handle = openSum()
    val threads = Executors.newFixedThreadPool(8)
    val begun = new CountDownLatch(8)
    try {
      val results = (0 until 8).map { thread =>
        threads.submit(new Callable[(Int, Int)] {
          override def call(): (Int, Int) = {
            var scored, refused = 0
            while (refused == 0) {
              val x = (thread * 1000 + scored % 1000).toFloat
              try {
                val scores = api.score(handle, 1, Array(floats(x, 0, 0)))
                assert(scores(0).asInstanceOf[Array[Double]].toSeq == Seq(2.0 * x + 1))
                scored += 1
                if (scored == 1) begun.countDown()
              } catch { case error: FlambeauException if error.getMessage.contains("closed") => refused += 1 }
            }
            (scored, refused)
          }
        })
      }
      assert(begun.await(60, TimeUnit.SECONDS))
      api.closeScorer(handle)
      val counts = results.map(_.get(30, TimeUnit.SECONDS))
      assert(counts.forall { case (scored, refused) => scored > 0 && refused == 1 })
    } finally threads.shutdownNow()
  }
}
