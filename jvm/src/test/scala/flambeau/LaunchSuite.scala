package flambeau

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Paths}
import java.time.format.DateTimeFormatter
import java.time.{LocalDateTime, ZoneOffset}
import java.util.concurrent.ConcurrentLinkedQueue
import java.util.concurrent.atomic.AtomicBoolean

import scala.collection.JavaConverters._
import scala.collection.immutable.ListMap

import flambeau.internal.fit.{
  Cluster, EpochLog, MeetingPlace, RankLog, RankOutcome, RankTask, StageRendezvous, WorkerProcess
}
import flambeau.jni.StoredFile
import flambeau.internal.session.{Settings, TaskGpus}
import flambeau.internal.storage.{Lease, Site, WorkDirectory}
import flambeau.internal.util.Json
import org.apache.spark.{BarrierTaskContext, SparkConf}

/** The parts of a launch by themselves. */
class LaunchSuite extends SparkSuite {
  private def failed(rank: Int, kind: String, isCause: Boolean = true): RankOutcome =
    RankOutcome(
      rank,
      "host-a",
      kind = kind,
      message = "it broke",
      epoch = Some(1),
      step = Some(7),
      isCause = isCause
    )

  /** A process that runs a line of shell. */
  private def shell(line: String)(use: WorkerProcess => Unit): Unit = {
    val process = WorkerProcess.start(Seq("/bin/bash", "-c", line), "test")
    try use(process)
    finally process.close()
  }

  private def next(process: WorkerProcess): WorkerProcess.Event =
    process.poll(10000).getOrElse(fail("no event"))

  test("a process hears what it is told, and says what it has to say") {
    shell("read line; echo \"heard $line\"; echo $OMP_NUM_THREADS.$LD_PRELOAD.") { process =>
      process.send(Json.obj().put("a", 1))
      assert(next(process) == WorkerProcess.Message("""heard {"a":1}"""))
      assert(next(process) == WorkerProcess.Message(".."))
      assert(next(process) == WorkerProcess.EndOfOutput)
      assert(process.exit().status == 0)
    }
  }

  test("what a rank writes is kept with time and rank, the last of it") {
    @volatile var written = ""
    val log = new RankLog(3, "/work/rank-3.log", bytes => written = new String(bytes, UTF_8))
    (1 to 20000).foreach(n => log.add(s"line $n of very many"))
    log.add("x" * 100000)
    log.close()
    val lines = written.split('\n')
    assert(written.length <= (256 << 10) + 100 && lines.head.contains("earlier lines are left out"))
    assert(lines.last.length < 9000)
    assert(lines(lines.length - 2).matches("\\d{4}-\\d\\d-\\d\\dT.*Z rank 3 line 20000 of very many"))
  }

  test("a log on an object store is written every ten seconds, and at the end") {
    val stores =
      Seq("s3://bucket/work", "abfss://files@account/work", "/Volumes/main/default/work", "dbfs:/work")
    val places = Seq("/work", "file:///work") ++ stores
    val logs = places.map { place =>
      val written = new ConcurrentLinkedQueue[String]
      (new RankLog(0, s"$place/rank-0.log", bytes => written.add(new String(bytes, UTF_8))), written)
    }
    val began = System.nanoTime
    var line = 0
    def areWritten: Boolean = logs.forall(_._2.size >= 1) && logs.take(2).forall(_._2.size >= 2)
    // Where the machine is busy writes come late.
    while (line < 4 || (!areWritten && line < 60)) {
      line += 1
      logs.foreach(_._1.add(s"line $line"))
      Thread.sleep(1000)
    }
    val counts = logs.map(_._2.size)
    val most = 1 + (System.nanoTime - began) / 10000000000L
    assert(areWritten && counts.drop(2).forall(_ <= most), counts)
    logs.foreach(_._1.close())
    for ((_, written) <- logs) assert(written.asScala.last.contains(s"line $line"))
  }

  test("what could not be written of a log is written at the end") {
    @volatile var (numCalls, written) = (0, "")
    val log = new RankLog(
      0,
      "s3://bucket/rank-0.log",
      bytes => {
        numCalls += 1
        if (numCalls == 1) throw new StoreException("the store is down")
        written = new String(bytes, UTF_8)
      }
    )
    log.add("a line")
    Workers.await("the first write")(numCalls == 1)
    log.close()
    assert(numCalls == 2 && written.contains("a line"))
  }

  test("the end of a process is told with its status or signal and its last twenty lines") {
    shell("for n in $(seq 30); do echo line $n >&2; done; exit 3") { process =>
      assert(next(process) == WorkerProcess.EndOfOutput)
      assert(process.exit() == WorkerProcess.Exit(3, None, (11 to 30).map(n => s"line $n")))
    }
    shell("kill -SEGV $$") { process =>
      assert(next(process) == WorkerProcess.EndOfOutput)
      assert(process.exit().signal.contains(11))
    }
  }

  test("a process that does not listen is ended all the same") {
    val process =
      WorkerProcess.start(Seq("/bin/bash", "-c", "trap '' TERM; echo $$; exec sleep 1000"), "test")
    val pid = next(process) match {
      case WorkerProcess.Message(line) => line
      case other                       => fail(other.toString)
    }
    // More than a pipe holds.
    process.send(Json.obj().put("a", "x" * 1000000))
    process.close()
    assert(!Files.exists(Paths.get("/proc", pid)))
  }

  test("outcomes become exceptions that say where it was") {
    val kinds =
      Seq("job", "data", "store", "environment", "lost", "collective", "model").map(failed(2, _).exception)
    val expected = Seq(
      classOf[ParamException],
      classOf[DataException],
      classOf[TransientStoreException],
      classOf[ClusterException],
      classOf[WorkerLostException],
      classOf[WorkerLostException],
      classOf[WorkerException]
    )
    assert(kinds.map(_.getClass) == expected)
    assert(kinds.forall(_.getMessage == "it broke (on worker 2 (host-a), epoch 1, step 7)"))
  }

  private def meet(place: Option[String])(
      say: (Int, StageRendezvous) => Either[Int, Seq[String]]
  ): Seq[Either[Int, Seq[String]]] = spark.sparkContext
    .parallelize(0 until 2, 2)
    .barrier()
    .mapPartitions { _ =>
      val context = BarrierTaskContext.get()
      val gather = place.fold(context.allGather(_: String).toSeq)(new MeetingPlace(_, context).allGather)
      val rendezvous = new StageRendezvous(context, gather)
      val said = say(context.partitionId(), rendezvous)
      rendezvous.leave()
      Iterator.single(said)
    }
    .collect()
    .toSeq

  for ((where, name) <- Seq("through Spark" -> None, "in a directory" -> Some("meeting"))) {
    test(s"ranks meet $where") {
      val said = meet(name.map(path))((rank, rendezvous) => rendezvous.allGather(s"of $rank"))
      assert(said == Seq.fill(2)(Right(Seq("of 0", "of 1"))))
    }

    test(s"a rank that leaves before the meeting $where frees the others") {
      val said = meet(name.map(name => path(s"$name left"))) { (rank, rendezvous) =>
        if (rank == 1) Right(Nil) else rendezvous.allGather("0")
      }
      assert(said == Seq(Left(1), Right(Nil)))
    }
  }

  test("a work directory of a scheme that the store does not know is refused in the store's own words") {
    val uri = "hdfs://name:8020/work"
    val error = intercept[ParamException](WorkDirectory.of(spark, Some(uri)))
    val native = intercept[FlambeauException](WorkDirectory(uri, Settings.of(spark)).read(uri))
    assert(error.getMessage == s"workDir: ${native.getMessage}")
  }

  test("a work directory without a scheme lies on Spark's default file system, but for Databricks' mounts") {
    def uri(path: String): String = WorkDirectory.of(spark, Some(path)).uri
    assert(uri("/a/b c/") == "/a/b c")
    assert(uri("work") == java.nio.file.Paths.get("work").toAbsolutePath.toString)
    val hadoop = spark.sparkContext.hadoopConfiguration
    hadoop.set("fs.elsewhere.impl", classOf[flambeau.jni.ElsewhereFileSystem].getName)
    hadoop.set("fs.defaultFS", "elsewhere:///")
    try {
      val error = intercept[ParamException](uri("/a/b"))
      assert(
        error.getMessage.startsWith("workDir: the scheme `elsewhere` of elsewhere:/a/b is not supported")
      )
      assert(error.getMessage.endsWith(
        "; /a/b lies there by fs.defaultFS, a path that all machines see is file:///..."
      ))
      for (stays <- Seq("/dbfs/a", "/Volumes/a/b", "/Workspace/a", "s3://bucket/a"))
        assert(uri(stays) == stays)
      assert(uri("file:/a/b") == "file:/a/b")
    } finally {
      hadoop.unset("fs.defaultFS")
      hadoop.unset("fs.elsewhere.impl")
    }
  }

  test("a session names the work directory of its fits") {
    assert(WorkDirectory.of(spark, None).isTemporary)
    spark.conf.set(WorkDirectory.Key, path("all"))
    try {
      val work = WorkDirectory.of(spark, None)
      assert(work.uri == path("all") && !work.isTemporary)
      assert(WorkDirectory.of(spark, Some(path("own"))).uri == path("own"))
    } finally spark.conf.unset(WorkDirectory.Key)
  }

  test("a program is trained where it is the one that the driver placed") {
    val files = Seq("eval", "train", "loss").map(part =>
      part -> Files.write(Paths.get(path(part)), part.getBytes)
    ).toMap
    val code = files.map { case (part, file) => part -> StoredFile.of(file) }
    val task = RankTask("""{"program": {"eval": "", "train": ""}}""", code, "", Settings(Map.empty), None)
    val copies = task.withJob { job =>
      val program = job.get("program")
      val copies =
        Seq(program.get("eval"), program.get("train"), program.get("loss").get("script")).map(_.asText)
      assert(copies.map(copy => new String(Files.readAllBytes(Paths.get(copy)))) == Seq(
        "eval",
        "train",
        "loss"
      ))
      copies
    }
    assert(!copies.exists(copy => Files.exists(Paths.get(copy))))
    Files.write(files("train"), "other".getBytes)
    def outcome(): RankOutcome = spark.sparkContext.parallelize(Seq(0), 1).barrier()
      .mapPartitions(_ => Iterator.single(task.run(BarrierTaskContext.get()))).collect().head
    val other = outcome()
    assert(other.kind == "data")
    assert(other.message == s"${files("train")} is not the program that the driver wrote there")
    // What is not there is not there in the next attempt either; a store that does not answer may do so later.
    Files.delete(files("train"))
    assert(outcome().kind == "data")
    assert(RankOutcome.kindOf(new TransientStoreException("it throttles")) == "store")
  }

  test("what tasks get tells of no secret, and Spark redacts options that are called one") {
    val confs = Map(
      "spark.flambeau.store.secret.azure_storage_account_key" -> "hidden-1",
      "spark.flambeau.store.aws_region" -> "eu-west-1"
    )
    confs.foreach { case (name, value) => spark.conf.set(name, value) }
    try {
      val settings = Settings.of(spark)
      assert(settings.storeOptions == Map(
        "azure_storage_account_key" -> "hidden-1",
        "aws_region" -> "eu-west-1"
      ))
      val task = RankTask("""{"store": "hidden-2"}""", Map.empty, "hidden-3", settings, None)
      for (text <- Seq(settings.toString, task.toString))
        assert(!text.contains("hidden") && text.contains("azure_storage_account_key"), text)
      // What Spark itself redacts, here and in its UI.
      val shown = spark.sql("SET").collect().map(row => row.getString(0) -> row.getString(1)).toMap
      assert(confs.keys.map(shown).toSeq == Seq("*********(redacted)", "eu-west-1"))
    } finally confs.keys.foreach(spark.conf.unset)
  }

  test("ranks meet in a directory where they share this machine's files") {
    val work = WorkDirectory("/work", Settings.of(spark))
    assert(MeetingPlace.of(work, "a1", sharesMachine = true).contains("/work/attempts/a1/meeting"))
    assert(MeetingPlace.of(work, "a1", sharesMachine = false).isEmpty)
    assert(MeetingPlace.of(work.copy(uri = "s3://bucket"), "a1", sharesMachine = true).isEmpty)
  }

  test("ranks on one host meet on loopback, others at their own address") {
    assert(RankTask.bindAddress(Seq("10.0.0.1:5", "10.0.0.1:6"), 1) == "127.0.0.1")
    assert(RankTask.bindAddress(Seq("10.0.0.1:5", "10.0.0.2:6"), 1) == "10.0.0.2")
    assert(RankTask.bindAddress(Seq("[::1]:5", "10.0.0.2:6"), 0) == "0:0:0:0:0:0:0:1")
  }

  test("ranks are numbered by host") {
    val dealt = Seq("b:1", "[::1]:1", "c:1", "b:2", "[::1]:2", "c:2", "b:3")
    val tasks = RankTask.tasksByHost(dealt)
    assert(tasks.map(dealt) == Seq("b:1", "b:2", "b:3", "[::1]:1", "[::1]:2", "c:1", "c:2"))
    assert(RankTask.tasksByHost(tasks.map(dealt)) == dealt.indices)
  }

  test("slots are counted, and waited for") {
    assert(Cluster.countSlots(spark, 0) == 2)
    Cluster.checkSlots(spark, 2, 0, 0)
    val start = System.nanoTime
    val error = intercept[ClusterException](Cluster.checkSlots(spark, 3, 0, 1.5))
    assert(System.nanoTime - start > 1400000000L)
    assert(
      error.getMessage.contains("after 1.5 s") && error.getMessage.contains("2 task slots"),
      error.getMessage
    )
  }

  test("GPUs bound the slots of an executor, as Spark counts them") {
    def slots(ofExecutor: Int, ofTask: Double, numGpus: Int): Option[Int] = TaskGpus.slots(
      new SparkConf(false)
        .set("spark.executor.resource.gpu.amount", ofExecutor.toString)
        .set("spark.task.resource.gpu.amount", ofTask.toString),
      numGpus
    )
    assert(slots(4, 0, 1).contains(4))
    assert(slots(4, 2, 0).contains(2))
    // ResourceUtils.calculateAmountAndPartsForFraction: 0.3 of a GPU is a third.
    assert(slots(2, 0.3, 0).contains(6))
    assert(slots(2, 0.3, 1).contains(2))
    assert(slots(0, 1, 1).isEmpty && slots(4, 0, 0).isEmpty)
  }

  test("a local session assigns no GPUs, and says what to do") {
    val error = intercept[ClusterException](Cluster.checkSlots(spark, 1, 1, 0))
    assert(
      error.getMessage == "numGpusPerWorker is 1, but Spark assigns no GPUs in local mode: leave it at 0, and each " +
        "worker takes a GPU of its machine"
    )
  }

  test("paths as Spark takes them") {
    val paths = Seq("/tmp/a", "/dbfs/a", "/Volumes/c/s/v", "s3://b/a").map(WorkDirectory.sparkPath)
    assert(paths == Seq("file:///tmp/a", "dbfs:/a", "/Volumes/c/s/v", "s3://b/a"))
    assert(WorkDirectory.absolute("s3://b/a/") == "s3://b/a" && WorkDirectory.absolute("/tmp/a/") == "/tmp/a")
  }

  test("the sweep goes by age, and leaves models") {
    val work = WorkDirectory(path("swept"), Settings.of(spark))
    val names = Seq("20200101T000000Z-0123456789ab" -> false, work.newId() -> true, "mine" -> true)
    val kinds = Seq("shards", "programs", "attempts", "models")
    for (kind <- kinds; (name, _) <- names) work.write(work.path(kind, name, "deep", "file"), Array(1))
    Site(spark, work, isVisible = true).sweep()
    for (kind <- kinds; (name, stays) <- names)
      assert(work.sees(work.path(kind, name, "deep", "file")) == (stays || kind == "models"), s"$kind/$name")
  }

  test("the sweep leaves what a fit that runs has, and kept checkpoints") {
    val work = WorkDirectory(path("leased"), Settings.of(spark))
    def idOf(days: Long): String = {
      val stamp = DateTimeFormatter.ofPattern("yyyyMMdd'T'HHmmss'Z'")
      s"${stamp.format(LocalDateTime.now(ZoneOffset.UTC).minusDays(days))}-0123456789ab"
    }
    val Seq(eight, nine, ten) = Seq(8L, 9L, 10L).map(idOf)
    for (name <- Seq(eight, nine, ten)) work.write(work.path("shards", name, "file"), Array(1))
    work.write(work.path("attempts", ten, "KEPT"), Array())
    work.write(work.path("runs", s"$ten.json"), Array(1))
    work.write(work.path("leases", nine), work.newId().getBytes)
    def left: Seq[String] =
      Seq(eight, nine, ten).filter(name => work.sees(work.path("shards", name, "file")))
    Site(spark, work, isVisible = true).sweep()
    assert(left == Seq(eight, nine))
    work.write(work.path("leases", nine), eight.getBytes)
    Site(spark, work, isVisible = true).sweep()
    assert(left.isEmpty && !work.sees(work.path("leases", nine)))
    assert(work.sees(work.path("attempts", ten, "KEPT")) && !work.sees(work.path("runs", s"$ten.json")))
  }

  test("a fit holds a lease, and one that goes wrong leaves it") {
    val work = WorkDirectory(path("holds"), Settings.of(spark))
    def held: Int = Option(directory.resolve("holds").resolve("leases").toFile.list).fold(0)(_.length)
    val site = Site(spark, work, isVisible = true)
    assert(Lease.held(site)(held) == 1)
    assert(held == 0)
    intercept[IllegalStateException](Lease.held(site)(throw new IllegalStateException))
    assert(held == 1)
  }

  test("the probe passes on a shared directory, and names one that cannot be written to") {
    Cluster.probe(spark, WorkDirectory(path("probed"), Settings.of(spark)), 2)
    assert(Option(directory.resolve("probed").resolve("probes").toFile.list).forall(_.isEmpty))
    Files.write(directory.resolve("file"), Array[Byte](1))
    val inTheWay = WorkDirectory(path("file"), Settings.of(spark))
    val error = intercept[StoreException](Cluster.probe(spark, inTheWay, 2))
    assert(error.getMessage.contains("not a directory that all workers reach"), error.getMessage)
    assert(!error.isTransient)
    // Nobody listens there.
    val options = Map(
      "spark.flambeau.store.aws_endpoint" -> "http://127.0.0.1:1",
      "spark.flambeau.store.aws_allow_http" -> "true",
      "spark.flambeau.store.aws_region" -> "nowhere",
      "spark.flambeau.store.aws_access_key_id" -> "id",
      "spark.flambeau.store.secret.aws_secret_access_key" -> "secret"
    )
    val away = WorkDirectory("s3://bucket/work", Settings(Settings.of(spark).values ++ options))
    assert(intercept[StoreException](Cluster.probe(spark, away, 2)).isTransient)
  }

  test("an epoch in one line") {
    val training = Training.begin(new AtomicBoolean).copy(
      epoch = 1,
      epochs = 3,
      metrics = ListMap("loss" -> 0.25, "rmse" -> 0.5, "val_loss" -> Double.NaN, "val_rmse" -> 0.125),
      rowsPerSecond = Some(1234.5)
    )
    assert(EpochLog.line(training) ==
      "epoch 2 of 3: loss 0.2500, rmse 0.5000, validation loss -, validation rmse 0.1250, 1,235 rows/s")
  }
}
