package flambeau.jni

import java.net.URI
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.attribute.{FileTime, PosixFilePermissions}
import java.nio.file.{Files, Path, Paths}
import java.time.{Duration, Instant}

import flambeau.{FlambeauException, Logged, SparkSuite, StoreException}
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.RawLocalFileSystem

class ScorerSuite extends SparkSuite {
  import ScorerSuite.put

  private val none: String => Option[String] = _ => None
  private lazy val api = NativeLibrary.torch(none)
  private lazy val store = NativeLibrary.store(none)

  private def spec(batchSize: Int): ScorerSpec = ScorerSpec(
    form = "scripted",
    program = StoredFile.of(Programs.doubledSum),
    weights = None,
    inputs = Seq(TensorRows(Some("x"), "float32", Seq(3L))),
    output = Seq(TensorRows(None, "float32", Nil)),
    batchSize = batchSize,
    batchBytes = 64 << 20,
    classes = None,
    fields = Nil,
    store = Map.empty
  )

  private def sums(scorer: Scorer, batch: InputBatch): Seq[Double] =
    scorer.score(batch)(0).asInstanceOf[Array[Double]].toSeq

  test("a scorer's description tells of its stores' options by name alone") {
    val told = spec(4).copy(store = Map("azure_storage_account_key" -> "hidden")).toString
    assert(told.contains("azure_storage_account_key") && !told.contains("hidden"), told)
  }

  test("a batch is filled, scored, cleared and filled again") {
    val scorer = Scorer(spec(4), none)
    val batch = scorer.newBatch()
    for (first <- Seq(0f, 10f)) {
      batch.clear()
      for (row <- 0 until 4) {
        assert(!batch.isFull)
        put(batch, first, row.toFloat, 0f)
      }
      assert(batch.isFull && batch.numRows == 4)
      assert(sums(scorer, batch) == (0 until 4).map(row => 2.0 * (first + row) + 1))
    }
    batch.clear()
    put(batch, 1f, 2f, 3f)
    assert(sums(scorer, batch) == Seq(13.0))
    scorer.close()
    scorer.close()
    intercept[IllegalArgumentException](scorer.score(batch))
  }

  test("rows are halved where memory runs out, which is told once") {
    val output = Seq(TensorRows(None, "float32", Seq(3L)))
    val scorer = Scorer(spec(64).copy(program = StoredFile.of(Programs.hungry), output = output), none)
    val (lines, _) =
      try Logged {
          for (_ <- 0 until 2) {
            val batch = scorer.newBatch()
            for (row <- 0 until 50) put(batch, row.toFloat, -row.toFloat, 0.5f)
            assert(scorer.score(batch)(0).asInstanceOf[Array[Float]].toSeq ==
              (0 until 50).flatMap(row => Seq(2f * row, -2f * row, 1f)))
          }
        }
      finally scorer.close()
    assert(lines.length == 1 && lines.head.contains("50 rows at once"), lines)
  }

  test("rows lie one after another, of the width that their input has") {
    val inputs = Seq("float32", "float64", "int64", "uint8").map(TensorRows(None, _, Seq(2L)))
    val batch = new InputBatch(inputs, 3)
    assert(inputs.indices.map(batch.rowBytes) == Seq(8, 16, 16, 2))
    assert(batch.buffers.map(_.capacity).toSeq == Seq(24, 48, 48, 6))
    assert(batch.capacity == 3)
    batch.addRows(2)
    assert(inputs.indices.map(batch.end) == Seq(16, 32, 32, 4))
    assert(batch.numRows == 2 && !batch.isFull)
    batch.clear()
    assert(inputs.indices.map(batch.end) == Seq(0, 0, 0, 0))
  }

  test("images at the default batch size are capped by their bytes") {
    val image = TensorRows(None, "float32", Seq(3L, 224L, 224L))
    val images = spec(4096).copy(inputs = Seq(image, TensorRows(None, "float32", Nil)), output = Seq(image))
    // 64 MiB have room for 111 images of 3 · 224 · 224 · 4 bytes, and for half as many of doubles.
    assert(images.copy(output = Nil).numRowsAtOnce == 111 && images.numRowsAtOnce == 55)
    assert(spec(4096).numRowsAtOnce == 4096)
    val huge = TensorRows(None, "uint8", Seq(100L << 20))
    assert(images.copy(inputs = Seq(huge)).numRowsAtOnce == 1)
    val batch = new InputBatch(images.inputs, images.numRowsAtOnce)
    batch.makeRoom(1)
    assert(batch.buffers.map(_.capacity.toLong).sum <= 2L * images.batchBytes)
  }

  test("a batch grows with its rows, which stay what they are") {
    val batch = new InputBatch(Seq(TensorRows(None, "float32", Seq(2L))), 100000)
    assert(batch.buffer(0).capacity < 1000)
    for (row <- 0 until 5000) put(batch, row.toFloat, -row.toFloat)
    assert((0 until 5000).forall { row =>
      batch.buffer(0).getFloat(row * 8) == row && batch.buffer(0).getFloat(row * 8 + 4) == -row
    })
    batch.makeRoom(95000)
    assert(batch.buffer(0).capacity == 800000 && batch.buffer(0).getFloat(8) == 1)
  }

  test("the last four programs stay loaded, and those in use") {
    def isOpen(program: LoadedProgram): Boolean = {
      val batch = new InputBatch(spec(1).inputs, 1)
      try api.score(program.handle, 0, batch.buffers) != null
      catch { case error: FlambeauException if error.getMessage.contains("closed") => false }
    }
    val used = LoadedPrograms.borrow(api, store, spec(100), 1)
    val others = (101 to 105).map { batchSize =>
      val program = LoadedPrograms.borrow(api, store, spec(batchSize), 1)
      LoadedPrograms.release(api, program)
      program
    }
    assert(isOpen(used))
    assert(others.map(isOpen) == Seq(false, false, true, true, true))
    val again = LoadedPrograms.borrow(api, store, spec(103), 1)
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
    assert(stored.local(store, "{}", new Configuration) == file)
    assert(stored.copy(uri = file.toUri.toString).local(store, "{}", new Configuration) == file)
    val error =
      intercept[FlambeauException](stored.copy(sha256 = "0" * 64).local(store, "{}", new Configuration))
    assert(error.getMessage.contains(file.toString))
    // As another model that is saved over this one.
    Files.write(file, "abd".getBytes(UTF_8))
    Files.setLastModifiedTime(file, FileTime.fromMillis(System.currentTimeMillis + 10000))
    val replaced = intercept[FlambeauException](stored.local(store, "{}", new Configuration))
    assert(replaced.getMessage.contains("is not the file that the model was saved with"))
    Files.delete(file)
    intercept[StoreException](stored.local(store, "{}", new Configuration))
  }

  test("fetched files are kept in a directory of the user's own, and in no link or one that others open") {
    val temporary = System.getProperty("java.io.tmpdir")
    val name = s"flambeau-cache-${System.getProperty("user.name")}"
    val folders = Seq("own", "link", "open").map(folder => Files.createDirectories(directory.resolve(folder)))
    Files.createSymbolicLink(folders(1).resolve(name), folders.head)
    Files.setPosixFilePermissions(
      Files.createDirectory(folders(2).resolve(name)),
      PosixFilePermissions.fromString("rwxrwxrwx")
    )
    try {
      System.setProperty("java.io.tmpdir", folders.head.toString)
      assert(StoredFile.cacheDirectory() == folders.head.resolve(name))
      assert(StoredFile.cacheDirectory() == folders.head.resolve(name))
      keepsWhatIsAskedFor(folders.head.resolve(name))
      for (folder <- folders.tail) {
        System.setProperty("java.io.tmpdir", folder.toString)
        assert(intercept[FlambeauException](StoredFile.cacheDirectory()).getMessage.contains(
          "nobody else may open"
        ))
      }
    } finally System.setProperty("java.io.tmpdir", temporary)
  }

  /** Of the files that were fetched into the folder. */
  private def keepsWhatIsAskedFor(folder: Path): Unit = {
    val hadoop = new Configuration
    hadoop.set("fs.elsewhere.impl", classOf[ElsewhereFileSystem].getName)
    def fetch(name: String): Path = {
      val file = StoredFile.of(Files.write(directory.resolve(name), name.getBytes))
      file.copy(uri = s"elsewhere:${file.uri}").local(store, "{}", hadoop)
    }
    def age(path: Path, days: Long): Unit =
      Files.setLastModifiedTime(path, FileTime.from(Instant.now().minus(Duration.ofDays(days))))
    val (asked, old, recent) = (fetch("asked"), fetch("old"), fetch("recent"))
    assert(Seq(asked, old, recent).forall(_.getParent == folder))
    age(asked, 8)
    age(old, 8)
    age(recent, 6)
    assert(fetch("asked") == asked)
    fetch("another")
    assert(Seq(asked, old, recent).map(Files.exists(_)) == Seq(true, false, true))
    assert(new String(Files.readAllBytes(fetch("old")), UTF_8) == "old")
    Files.write(asked, "another file".getBytes)
    assert(new String(Files.readAllBytes(fetch("asked")), UTF_8) == "asked")
    val wrong = StoredFile(s"elsewhere:${directory.resolve("old")}", 3, "0" * 64)
    intercept[FlambeauException](wrong.local(store, "{}", hadoop))
    assert(!Files.exists(folder.resolve(wrong.sha256)))
  }

  test("URIs that mean local paths are told from object stores") {
    assert(StoredFile.localPath("/a/b c") == Some(Paths.get("/a/b c")))
    assert(StoredFile.localPath("file:/a/b%20c") == Some(Paths.get("/a/b c")))
    for (same <- Seq("dbfs:/a b+/%c", "dbfs:///a b+/%c", "dbfs:/a%20b%2B/%c"))
      assert(StoredFile.localPath(same) == Some(Paths.get("/dbfs/a b+/%c")))
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
            put(batch, id.toFloat, 0f, 0f)
          }
          scorer.score(batch)(0).asInstanceOf[Array[Double]]
        }
      }
      .collect()
    assert(scored.toSeq == (0 until 100).map(2.0 * _ + 1))
    val program = LoadedPrograms.borrow(api, store, shared, 1)
    assert(program.borrowers == 1)
    LoadedPrograms.release(api, program)
  }
}

private object ScorerSuite {

  /** Appends a row to a batch of one input. */
  def put(batch: InputBatch, values: Float*): Unit = {
    batch.makeRoom(1)
    for ((value, index) <- values.zipWithIndex) batch.buffer(0).putFloat(batch.end(0) + index * 4, value)
    batch.addRows(1)
  }
}

/** The local file system by another name. */
class ElsewhereFileSystem extends RawLocalFileSystem {
  override def getUri: URI = URI.create("elsewhere:///")
}
