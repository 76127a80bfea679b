package flambeau.jni

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Paths}

import flambeau.{FlambeauException, SparkSuite, StoreException}

class ScorerSuite extends SparkSuite {
  private val none: String => Option[String] = _ => None
  private lazy val api = NativeLibrary.api(none)

  private def spec(batchSize: Int): ScorerSpec = ScorerSpec(
    form = "scripted",
    program = StoredFile.of(Programs.doubledSum),
    weights = None,
    inputs = Seq(TensorRows(Some("x"), "float32", Seq(3L))),
    output = Seq(TensorRows(None, "float32", Nil)),
    batchSize = batchSize,
    classes = None,
    fields = Nil,
    store = Map.empty
  )

  private def sums(scorer: Scorer, batch: InputBatch): Seq[Double] =
    scorer.score(batch)(0).asInstanceOf[Array[Double]].toSeq

  test("a batch is filled, scored, cleared and filled again") {
    val scorer = Scorer(spec(4), none)
    val batch = scorer.newBatch()
    for (first <- Seq(0f, 10f)) {
      batch.clear()
      for (row <- 0 until 4) {
        assert(!batch.isFull)
        batch.putFloats(0, Array(first, row.toFloat, 0f))
        batch.endRow()
      }
      assert(batch.isFull && batch.numRows == 4)
      assert(sums(scorer, batch) == (0 until 4).map(row => 2.0 * (first + row) + 1))
    }
    batch.clear()
    batch.buffer(0).putFloat(1f).putFloat(2f).putFloat(3f)
    batch.endRow()
    assert(sums(scorer, batch) == Seq(13.0))
    scorer.close()
    scorer.close()
    intercept[IllegalArgumentException](scorer.score(batch))
  }

  test("every element type is put as its dtype") {
    val inputs = Seq("float32", "float64", "int64", "uint8").map(TensorRows(None, _, Seq(2L)))
    val batch = new InputBatch(inputs, 1)
    batch.putFloats(0, Array(1.5f, -2f))
    batch.putDoubles(1, Array(0.1, 3))
    batch.putLongs(2, Array(1L << 40, -1L))
    batch.putBytes(3, Array[Byte](7, -1))
    batch.buffers.foreach(buffer => assert(!buffer.hasRemaining))
    batch.clear()
    assert(batch.buffer(0).getFloat(4) == -2f)
    assert(batch.buffer(1).getDouble(0) == 0.1)
    assert(batch.buffer(2).getLong(0) == (1L << 40))
    assert(batch.buffer(3).get(1) == -1)
  }

  test("the last four programs stay loaded, and those in use") {
    def isOpen(program: LoadedProgram): Boolean = {
      val batch = new InputBatch(spec(1).inputs, 1)
      try api.score(program.handle, 0, batch.buffers) != null
      catch { case error: FlambeauException if error.getMessage.contains("closed") => false }
    }
    val used = LoadedPrograms.borrow(api, spec(100), 1)
    val others = (101 to 105).map { batchSize =>
      val program = LoadedPrograms.borrow(api, spec(batchSize), 1)
      LoadedPrograms.release(api, program)
      program
    }
    assert(isOpen(used))
    assert(others.map(isOpen) == Seq(false, false, true, true, true))
    val again = LoadedPrograms.borrow(api, spec(103), 1)
    assert(again eq others(2))
    LoadedPrograms.release(api, again)
    LoadedPrograms.release(api, used)
    assert(isOpen(used))
  }

  test("a program that cannot be loaded is tried anew by the next task") {
    val missing = spec(1).copy(program = StoredFile("/nowhere/program.pt", 1, "0" * 64))
    for (_ <- 0 until 2) intercept[StoreException](Scorer(missing, none))
  }

  test("a file is what its hash says, or refused") {
    val file = Files.createTempFile("flambeau-test-", "")
    Files.write(file, "abc".getBytes(UTF_8))
    val stored = StoredFile.of(file)
    // FIPS 180-2, appendix B.1.
    assert(stored.sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    assert(stored.size == 3)
    assert(stored.local(api, "{}") == file)
    assert(stored.copy(uri = file.toUri.toString).local(api, "{}") == file)
    val error = intercept[FlambeauException](stored.copy(sha256 = "0" * 64).local(api, "{}"))
    assert(error.getMessage.contains(file.toString))
    Files.delete(file)
    intercept[StoreException](stored.local(api, "{}"))
  }

  test("URIs that mean local paths are told from object stores") {
    assert(StoredFile.localPath("/a/b c") == Some(Paths.get("/a/b c")))
    assert(StoredFile.localPath("file:/a/b%20c") == Some(Paths.get("/a/b c")))
    assert(StoredFile.localPath("dbfs:/a") == Some(Paths.get("/dbfs/a")))
    assert(StoredFile.localPath("dbfs:/Volumes/a/b") == Some(Paths.get("/Volumes/a/b")))
    assert(StoredFile.localPath("s3://bucket/key") == None)
  }

  test("the tasks of an executor share a program, and give it back") {
    import spark.implicits._
    val shared = spec(7)
    val scored = spark
      .range(0, 100, 1, 4)
      .mapPartitions { ids =>
        val scorer = Scorer(shared, _ => None)
        val batch = scorer.newBatch()
        ids.grouped(7).flatMap { group =>
          batch.clear()
          group.foreach { id =>
            batch.putFloats(0, Array(id.toFloat, 0f, 0f))
            batch.endRow()
          }
          scorer.score(batch)(0).asInstanceOf[Array[Double]]
        }
      }
      .collect()
    assert(scored.toSeq == (0 until 100).map(2.0 * _ + 1))
    val program = LoadedPrograms.borrow(api, shared, 1)
    assert(program.borrowers == 1)
    LoadedPrograms.release(api, program)
  }
}
