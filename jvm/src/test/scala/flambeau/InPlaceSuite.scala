package flambeau

import java.net.URI
import java.nio.file.{Files, Path, Paths}
import java.util.BitSet

import scala.collection.JavaConverters._

import flambeau.internal.rows.{
  BitmapRange, DataFile, FirstRows, FrameRows, ParquetRows, Reading, Rows, ShardSet
}
import flambeau.internal.session.Settings
import flambeau.internal.storage.{Site, WorkDirectory}
import org.apache.spark.ml.linalg.Vectors
import org.apache.spark.sql.{DataFrame, Row}
import org.apache.spark.sql.expressions.Window
import org.apache.spark.sql.functions._

/** Rows that are read where they lie. Spark's own rows of the same DataFrame are the oracle. */
class InPlaceSuite extends SparkSuite {
  import spark.implicits._

  /** More in a file than one of Spark's bitmaps has. */
  private val NumRows = 100000L

  /** Two files of so many rows, in a directory whose name a URI has to escape. */
  private lazy val place: String = {
    val place = path("50%25 of all")
    spark
      .range(0, NumRows, 1, 2)
      .select(
        $"id",
        ($"id" % 97 / 10).cast("float").as("x"),
        ($"id" % 89 / 3).cast("float").as("label"),
        when($"id" % 7 =!= 0, $"id".cast("double")).as("gaps"),
        ($"id" % 5 === 0).as("held")
      )
      .write.parquet(place)
    place
  }

  private def table: DataFrame = spark.read.parquet(place)

  private def params() =
    new ParamsSuite.Everything("params").setInputCols(Array("id", "x")).setInPlace("always")

  /** The files in the work directory. */
  private def left: Seq[Path] =
    if (Files.isDirectory(Paths.get(path("work")))) {
      val files = Files.walk(Paths.get(path("work")))
      try files.iterator.asScala.filter(Files.isRegularFile(_)).toList
      finally files.close()
    } else Nil

  /** What `use` makes of what a fit with these params reads; nothing is left of that. */
  private def of[T](rows: Rows, asked: HasTrainingParams = params(), isVisible: Boolean = true)(
      use: ShardSet => T
  ): T = {
    val site = Site(spark, WorkDirectory(path("work"), Settings.of(spark)), isVisible)
    val reading = Reading(asked, Some("float32"), isWide = false, arguments = Nil)
    try rows.shards(rows.columns(reading), reading, site)(use)
    finally assert(left.isEmpty)
  }

  private def refused(df: DataFrame, asked: HasTrainingParams = params()): String =
    intercept[DataException](of(new FrameRows(df), asked)(identity)).getMessage

  /** The ids in the rows that are read, by the files' order. */
  private def ids(files: Seq[DataFile]): Seq[Long] = files.flatMap { file =>
    val all = spark.read.parquet(Paths.get(new URI(file.uri)).toString)
      .select($"_metadata.row_index", $"id").as[(Long, Long)].collect().sorted.toSeq
    val read = file.rows match {
      case None => all
      case Some(FirstRows(count)) =>
        assert(count <= all.length)
        all.take(count.toInt)
      case Some(BitmapRange(uri, offset, length)) =>
        val bytes = Files.readAllBytes(Paths.get(uri)).slice(offset.toInt, (offset + length).toInt)
        val bits = BitSet.valueOf(bytes)
        assert(bits.length <= all.length && bytes.length == (bits.length + 7) / 8)
        assert(bits.cardinality < bits.length)
        all.filter { case (row, _) => bits.get(row.toInt) }
    }
    read.map(_._2)
  }

  private def ids(df: DataFrame): Seq[Long] = df.select("id").as[Long].collect().sorted.toSeq

  test("all rows of files are read without a bitmap, and without a job") {
    of(new FrameRows(table.select("label", "x", "id"))) { shards =>
      assert(shards.train.length == 2 && shards.train.forall(_.rows.isEmpty) && shards.validation.isEmpty)
      assert(shards.numRows == NumRows && shards.numValidationRows == 0)
      assert(ids(shards.train) == (0L until NumRows))
      assert(shards.columns.inputs.map(_.shape) == Seq(Some(Nil), Some(Nil)))
      assert(left.isEmpty)
    }
  }

  test("of files whose rows are all read, or the first ones, there are numbers and no bitmaps") {
    val half = NumRows / 2
    for ((condition, counts) <- Seq("id >= 0" -> Seq(half, half), s"id < ${half + 7}" -> Seq(half, 7L)))
      of(new FrameRows(table.where(condition))) { shards =>
        assert(shards.train.map(_.rows) == counts.map(count => Some(FirstRows(count))))
        assert(shards.numRows == counts.sum && ids(shards.train) == ids(table.where(condition)))
        assert(left.isEmpty && shards.selectionDigest.isDefined)
      }
    of(new FrameRows(table.where($"id" < half || $"id" % 2 === 0))) { shards =>
      val Seq(whole, other) = shards.train.flatMap(_.rows)
      assert(whole == FirstRows(half) && other.asInstanceOf[BitmapRange].offset == 0)
    }
  }

  test("a filter, which leaves no nulls, and a split by any expression", Matrix) {
    val df = table.where("id % 3 != 0 and gaps is not null").where(!$"held")
      .withColumn("flag", hash($"id") % 4 === 0)
    val asked = params().setInputCols(Array("gaps", "id")).setValidationIndicatorCol("flag")
    for (isVisible <- Seq(true, false))
      of(new FrameRows(df), asked, isVisible) { shards =>
        val (train, validation) = (ids(shards.train), ids(shards.validation))
        // As the files have them: two in their order, with rising ids in each.
        assert(train == ids(df.where("not flag")) && validation == ids(df.where("flag")))
        assert(shards.numRows == train.length && shards.numValidationRows == validation.length)
        assert(
          left.map(_.getFileName.toString) == Seq("bitmaps") && Files.size(left.head) <= NumRows / 8 * 2 + 4
        )
        assert(shards.uris == shards.train.map(_.uri) && shards.selectionDigest.exists(_.length == 64))
      }
  }

  test("a seeded fraction is that of Spark's rand, and parts of randomSplit are themselves") {
    val df = table.where("id > 500")
    of(new FrameRows(df), params().setValidationFraction(0.25).setSeed(5)) { shards =>
      val flagged = df.withColumn("flag", rand(5) < 0.25)
      assert(ids(shards.train) == ids(flagged.where("not flag")))
      assert(ids(shards.validation) == ids(flagged.where("flag")))
    }
    for (part <- table.randomSplit(Array(0.7, 0.3), 5))
      of(new FrameRows(part))(shards => assert(ids(shards.train) == ids(part)))
  }

  test("steps that choose rows") {
    val latest = row_number().over(Window.partitionBy("x").orderBy($"id".desc))
    for (
      chosen <- Seq(table.sample(0.1, 3), table.repartition(3), table.withColumn("n", latest).where("n <= 2"))
    )
      of(new FrameRows(chosen))(shards => assert(ids(shards.train) == ids(chosen)))
  }

  test("what cannot be read in place is refused where it must be, and else written") {
    table.createOrReplaceTempView("some_rows")
    val cases = Seq(
      table.withColumn("x", $"x" * 2) -> "column 'x' is computed, and not one of the files' own",
      table.withColumn("x", $"gaps".cast("float")).na.fill(0, Seq("x")) ->
        "column 'x' is computed, and not one of the files' own",
      table.union(table) -> "it is made of several tables",
      table.join(table.select($"id".as("key")), $"id" === $"key") -> "it is made of several tables",
      table.withColumn("twice", explode(array(lit(1), lit(2)))) ->
        "not all of its rows are rows of files as they are (Generate)",
      table.dropDuplicates("id") -> "not all of its rows are rows of files as they are (Deduplicate)",
      spark.table("some_rows") -> "not all of its rows are rows of files as they are (View",
      table.sample(withReplacement = true, 2.0, 1) -> "it has some rows of its files more than once",
      spark.read.parquet(place, place) -> "it has some rows of its files more than once",
      table.withColumn("_metadata", lit(1)) -> "it has a column '_metadata'",
      table.where($"id" > -7).cache() -> "it is cached, and its rows are those of the cache",
      spark.range(100).select($"id", $"id".as("x"), $"id".as("label")) ->
        "it is not read from Parquet files, a Delta table or an Iceberg table"
    )
    for ((df, reason) <- cases) {
      assert(refused(df).startsWith(s"inPlace is always, and the rows can't be read in place: $reason"))
      of(new FrameRows(df), params().setInPlace("auto")) { shards =>
        assert(shards.train.forall(file => file.rows.isEmpty && file.uri.contains(path("work"))))
        assert(ids(shards.train).sorted == ids(df))
      }
    }
    val sorted = table.orderBy("label")
    of(new FrameRows(sorted))(shards => assert(ids(shards.train) == (0L until NumRows)))
    assert(refused(sorted, params().setShuffle(false)).endsWith(
      "shuffle is off, and its rows are not in the order of files (Sort)"
    ))
    of(new FrameRows(table), params().setInPlace("never")) { shards =>
      assert(shards.train.forall(_.uri.contains(path("work"))))
    }
  }

  test("of a query over a table that is no plain scan it is told why its rows are written") {
    val auto = params().setInPlace("auto")
    val few = table.where("id < 10").select("id", "x", "label")
    val local = spark.range(10).select($"id", $"id".cast("float").as("x"), $"id".cast("float").as("label"))
    def told(df: DataFrame): Seq[String] = {
      val (lines, _) =
        Logged(of(new FrameRows(df), auto)(shards => assert(ids(shards.train).sorted == ids(df))))
      lines
    }
    for (df <- Seq(few.union(local), local.join(few.select("id"), "id")))
      assert(told(df) == Seq(
        "the rows are written as shards, and not read in place: it is made of several tables"
      ))
    for (df <- Seq(local, local.union(local), local.join(local.select("id"), "id"))) assert(told(df).isEmpty)
  }

  test(
    "files in another kind of store than the work directory are written, unless options of stores are set"
  ) {
    val (conf, link) =
      (spark.sparkContext.hadoopConfiguration, "fs.viewfs.mounttable.elsewhere.link./rows")
    conf.set(link, directory.toUri.toString)
    val option = "spark.flambeau.store.access_key_id"
    def told(): String = {
      val df = spark.read.parquet(s"viewfs://elsewhere/rows/${Paths.get(place).getFileName}")
      assert(df.inputFiles.forall(_.startsWith("viewfs://elsewhere/rows/")))
      val (lines, _) = Logged(of(new FrameRows(df), params().setInPlace("auto")) { shards =>
        assert(ids(shards.train).sorted == (0L until NumRows))
      })
      assert(lines.length == 1)
      lines.head.stripPrefix("the rows are written as shards, and not read in place: ")
    }
    try {
      assert(told() == "its store is not that of workDir, and no spark.flambeau.store option is set")
      // They are tried, and the store's own reason is told.
      spark.conf.set(option, "any")
      val reason = told()
      assert(reason.contains("viewfs") && !reason.contains("its store is not"))
    } finally {
      spark.conf.unset(option)
      conf.unset(link)
    }
  }

  test("few rows of files are written, unless they are to be read in place") {
    val auto = params().setInPlace("auto")
    // Each file is a row group.
    val few = table.where($"id" % 5 === 0)
    of(new FrameRows(few), auto) { shards =>
      assert(shards.train.forall(_.rows.isEmpty) && !shards.inPlace)
      assert(ids(shards.train) == ids(few))
    }
    of(new FrameRows(few))(shards => assert(shards.inPlace && ids(shards.train) == ids(few)))
    // Of one file all rows, and of the other none.
    for (some <- Seq(table.where($"id" % 3 === 0), table.where($"id" < NumRows / 2)))
      of(new FrameRows(some), auto)(shards => assert(shards.inPlace && ids(shards.train) == ids(some)))
  }

  test("rows with a null or a NaN are skipped, or refused by their column") {
    val holes = table.where($"id" < 1000)
      .withColumn("x", when($"id" % 11 === 3, Float.NaN).otherwise($"x"))
      .withColumn("pair", array($"x", lit(1f)))
    holes.write.parquet(path("holes"))
    val df = spark.read.parquet(path("holes"))
    val valid = df.where($"gaps".isNotNull && !isnan($"x"))
    for (how <- Seq("always", "never"); column <- Seq("x", "pair")) {
      val asked = params().setInputCols(Array("gaps", column, "id")).setInPlace(how)
      of(new FrameRows(df), asked.setHandleInvalid("skip"))(shards => assert(ids(shards.train) == ids(valid)))
      val message = refused(df.where($"gaps".isNotNull), asked.setHandleInvalid("error"))
      assert(message.contains(s"column '$column' holds a null or a NaN, and handleInvalid is 'error'"))
    }
    of(
      new ParquetRows(spark, path("holes")),
      params().setInputCols(Array("x", "id")).setHandleInvalid("skip")
    ) {
      shards => assert(ids(shards.train) == ids(df.where(!isnan($"x"))))
    }
  }

  test("values of partition columns are those of Spark") {
    val parted = table.where($"id" < 1000).withColumn("year", ($"id" % 3 + 2020).cast("int"))
      .withColumn("rate", ($"id" % 3 / 7).cast("float")).withColumn("odd", $"year" % 2 === 1)
    parted.write.partitionBy("year", "rate", "odd").parquet(path("parted"))
    val df = spark.read.schema("id long, label float, year int, rate float, odd boolean")
      .parquet(path("parted")).where("year > 2020")
    val asked = params().setInputCols(Array("rate", "odd", "id")).setLabelCol("year")
    of(new FrameRows(df), asked) { shards =>
      val found = shards.train.map(_.values).map(one =>
        Row(one("year").toInt, one("rate").toDouble.toFloat, one("odd") == "1")
      )
      assert(found.toSet == df.select("year", "rate", "odd").collect().toSet)
      assert(shards.numRows == df.count())
    }
  }

  test("files that a training would refuse are not read in place") {
    table.limit(10).select("id", "x", "label").write.parquet(path("mixed"))
    table.limit(10).select($"id", $"x", $"label".cast("double")).write.mode("append").parquet(path("mixed"))
    val df = spark.read.schema("id long, x float, label float").parquet(path("mixed"))
    for (isVisible <- Seq(true, false))
      assert(
        intercept[DataException](of(new FrameRows(df), params(), isVisible)(identity)).getMessage.contains(
          "column `label` has type"
        )
      )
  }

  test("no row is left to train on") {
    assert(refused(table.where("id < 0")).endsWith("there is nothing to train on: there are no rows"))
    val indicator = params().setValidationIndicatorCol("flag")
    assert(refused(table.withColumn("flag", $"id" >= 0), indicator).endsWith(
      "there is nothing to train on: all rows are for validation"
    ))
    assert(refused(table.withColumn("flag", when($"id" > 3, true)), indicator).endsWith(
      "column 'flag' holds a null: it says of each row whether it is for validation"
    ))
  }

  test("a path is split by a fraction or by any indicator") {
    of(new ParquetRows(spark, place), params().setValidationFraction(0.1).setSeed(7)) { shards =>
      val flagged = table.withColumn("flag", rand(7) < 0.1)
      assert(ids(shards.train) == ids(flagged.where("not flag")))
      assert(ids(shards.validation) == ids(flagged.where("flag")))
    }
    of(new ParquetRows(spark, place), params().setValidationIndicatorCol("held")) { shards =>
      assert(ids(shards.validation) == (0L until NumRows by 5))
      assert(shards.numRows == NumRows / 5 * 4 && shards.numValidationRows == NumRows / 5)
    }
  }

  test("vectors and nested arrays have the shapes of the files") {
    Seq((1L, Vectors.dense(1, 2), 1f), (2L, Vectors.sparse(2, Seq(1 -> 5.0)), 0f)).toDF("id", "v", "label")
      .withColumn("m", array(array($"label", $"label"), array($"label", $"label"), array($"label", $"label")))
      .write.parquet(path("vectors"))
    val asked = params().setInputCols(Array("v", "m"))
    for (
      rows <- Seq(new ParquetRows(spark, path("vectors")), new FrameRows(spark.read.parquet(path("vectors"))))
    )
      of(rows, asked) { shards =>
        assert(shards.columns.inputs.map(_.shape) == Seq(
          Some(Seq(2)),
          Some(Seq(3, 2))
        ) && shards.numRows == 2)
      }
  }

  test("a fit on some rows of a file is that of a plain loop in torch", Matrix) {
    val rows = spark.read.parquet(TrainingCases.rows("doubles"))
    // Of a row that is left out nothing is read.
    val both = rows.collect().toSeq.flatMap(row => Seq(row, Row(row(0), null)))
    spark.createDataFrame(both.asJava, rows.schema).coalesce(1).write.parquet(path("doubles"))
    val estimator = new TorchRegressor()
      .setModel(TrainingCases.program("doubles"))
      .setOptimizer("sgd", Map("momentum" -> 0.9))
      .setLearningRate(0.1)
      .setInputCols(Array("x"))
      .setInputTypes(Array("float64"))
      .setLabelCol("y")
      .setShuffle(false)
      .setEpochs(5)
      .setVerbose(0)
      .setInPlace("always")
      .setWorkDir(path("work of a fit"))
    val model = estimator.fit(spark.read.parquet(path("doubles")).where("y is not null"))
    val expected = TrainingCases.numbers("doubles", "oracle.json", "losses")
    for ((loss, torch) <- model.history("loss").zip(expected)) assert(math.abs(loss - torch) <= 1e-12 * torch)
    assert(model.summary.numRows == 200 && expected.length == 5)
    val kept = Paths.get(path("work of a fit"), "shards").toFile
    assert(!kept.exists || kept.list.isEmpty)
  }
}
