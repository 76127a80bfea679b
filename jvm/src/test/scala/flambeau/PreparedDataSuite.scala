package flambeau

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path, Paths, StandardCopyOption}
import java.util.concurrent.CountDownLatch
import java.util.concurrent.locks.LockSupport

import scala.collection.JavaConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import flambeau.internal.rows.{DataColumns, DataFile, PreparedRows, Reading, ShardSet}
import flambeau.internal.session.Settings
import flambeau.internal.storage.{Site, WorkDirectory}
import flambeau.internal.util.Json
import org.apache.spark.ml.attribute.NominalAttribute
import org.apache.spark.ml.feature.VectorAssembler
import org.apache.spark.ml.functions.vector_to_array
import org.apache.spark.ml.param.ParamMap
import org.apache.spark.sql.DataFrame
import org.apache.spark.sql.functions._
import org.apache.spark.sql.types.{DataType, DoubleType, UserDefinedType}

/** Prepared data: the files are held against Spark's own rows of the DataFrame, the fits against fits of the DataFrame. */
class PreparedDataSuite extends SparkSuite {
  import spark.implicits._

  /** 240 rows in four partitions. */
  private lazy val table: DataFrame = spark.range(0, 240, 1, 4).select(
    $"id",
    ($"id" * 7 % 97 / 97).as("a"),
    ($"id" * 31 % 89 / 89).as("b"),
    ($"id" % 5 === 0).as("held"),
    (sin($"id") + $"id" / 100).as("label")
  )

  private def regressor: TorchRegressor = new TorchRegressor()
    .setModel(TrainingCases.program("guide"))
    .setFeaturesCol(Array("a", "b"))
    .setLearningRate(0.05)
    .setNumWorkers(2)
    .setBatchSize(30)
    .setEpochs(3)
    .setSeed(3)
    .setCheckpointInterval(-1)
    .setVerbose(0)

  private def siteOf(name: String, isVisible: Boolean = true): Site =
    Site(spark, WorkDirectory(path(name), Settings.of(spark)), isVisible)

  private def reading(params: HasTrainingParams): Reading =
    Reading(params, Some("float32"), isWide = false, arguments = Nil)

  private def read(files: Seq[DataFile]): DataFrame = spark.read.parquet(files.map(_.uri): _*)

  private def filesBelow(directory: String): Seq[Path] = {
    val files = Files.walk(Paths.get(directory))
    try files.iterator.asScala.filter(_.toString.endsWith(".parquet")).toList.sorted
    finally files.close()
  }

  private def sha256(model: TorchModel): String = model.trained.weights.sha256

  test("the files hold what the DataFrame does, and are taken up as they were", Matrix) {
    val nominal = NominalAttribute.defaultAttr.withName("kind").withValues("p", "q", "r").toMetadata()
    val rows = new VectorAssembler().setInputCols(Array("a", "b")).setOutputCol("v").transform(table)
      .withColumn("kind", ($"id" % 3).cast("double").as("kind", nominal))
      .withColumn("image", array(array($"id", lit(1)), array(lit(2), lit(3))))
    val params = new ParamsSuite.Everything("params")
      .setInputCols(Array("v", "image", "kind"))
      .setWeightCol("a")
      .setValidationIndicatorCol("held")
    val asked = DataColumns.resolve(rows.schema, reading(params))
    for (isVisible <- Seq(true, false)) {
      val site = siteOf(s"everything seen $isVisible", isVisible)
      val written = new PreparedData(PreparedRows.write(rows, Seq(asked), site))
      val again = PreparedData.open(spark, site.work.uri)
      for (one <- Seq(written, again)) {
        val shards =
          one.rows.shards(one.rows.columns(reading(params)), reading(params), site)(identity[ShardSet])
        assert(shards.columns.inputs.map(_.shape) == Seq(Some(Seq(2)), Some(Seq(2, 2)), Some(Nil)))
        for ((files, isHeld) <- Seq(shards.train -> false, shards.validation -> true)) {
          val expected = rows.where($"held" === isHeld).select(
            vector_to_array($"v", "float32"),
            flatten($"image"),
            $"kind".cast("long"),
            $"label".cast("float"),
            $"a".cast("float")
          ).collect().toSet
          val found = read(files).select("v", "image", "kind", "label", "a").collect().toSeq
          assert(found.toSet == expected && found.length == expected.size)
        }
      }
      assert(again.numRows == 192 && again.numValidationRows == 48 && again.seconds > 0)
      assert(again.numBytes == filesBelow(again.path).map(Files.size).sum)
      val shown =
        f"PreparedData(192 rows and 48 for validation, ${again.numBytes / 1e6}%.1f MB in ${again.path}"
      assert(again.toString.startsWith(shown) && written.toString == again.toString)
      again.close()
      assert(!Files.exists(Paths.get(again.path)))
    }
  }

  test("a fit is that of the DataFrame, to the bit, of whatever estimator", Matrix) {
    table.write.parquet(path("source"))
    val df = spark.read.parquet(path("source"))
    val estimator = regressor.setValidationFraction(0.25).setWorkDir(path("work")).setInPlace("never")
    val swapped = estimator.copy(ParamMap.empty).setFeaturesCol(Array("b", "a")).setEpochs(2)
    val (model, other) = (estimator.fit(df), swapped.fit(df))
    val prepared = estimator.prepare(df)
    assert(Paths.get(prepared.path).getParent == Paths.get(path("work"), "prepared"))
    // What is fitted on now is not the DataFrame.
    SavedModels.remove(Paths.get(path("source")))
    val again = PreparedData.open(spark, prepared.path)
    val fitted: TorchRegressionModel = estimator.fit(again)
    assert(sha256(fitted) == sha256(model) && sha256(model) != sha256(other))
    assert(fitted.history("val_loss") sameElements model.history("val_loss"))
    assert(fitted.summary.numRows == prepared.numRows && model.summary.numRows == prepared.numRows)
    assert(fitted.summary.numValidationRows == prepared.numValidationRows && prepared.numValidationRows > 40)
    assert(sha256(swapped.fit(prepared)) == sha256(other))
    val maps = Seq(ParamMap(swapped.epochs -> 1), ParamMap(swapped.epochs -> 2))
    val models = swapped.setEpochs(9).fit(prepared, maps)
    assert(models.map(_.summary.totalIterations).head == 1 && sha256(models(1)) == sha256(other))
    assert(sha256(swapped.fit(prepared, maps(1))) == sha256(other))
    val twice = intercept[ParamException](swapped.setRunId("nightly").fit(prepared, maps))
    assert(twice.getMessage.startsWith("runId 'nightly' names one run, and 2 of these param maps have it"))
    // Another seed has another order, on the same split.
    val seeded = estimator.setSeed(5).fit(prepared)
    assert(sha256(seeded) != sha256(model) && seeded.summary.numRows == prepared.numRows)
    prepared.delete()
    assert(!Files.exists(Paths.get(prepared.path)))
  }

  test("what was not prepared is refused with what was") {
    val prepared = regressor.setValidationFraction(0.25).prepare(table, path("asked otherwise"))
    def split = regressor.setValidationFraction(0.25)
    val cases = Seq(
      split.setFeaturesCol(Array("a", "id")) ->
        "no column 'id' for the input: the DataFrame has a, b, label; these are the columns that ",
      split.setLabelCol("a") -> "column \"a\" was prepared as input in float32 in ",
      split.setInputTypes(Array("float64")) -> "column \"a\" was prepared as input in float32 in ",
      regressor -> s"the rows in ${prepared.path} were prepared by validationFraction 0.25, and are asked for without validation",
      regressor.setValidationFraction(0.1) ->
        s"the rows in ${prepared.path} were prepared by validationFraction 0.25, and are asked for by validationFraction 0.1",
      split.setHandleInvalid("skip") ->
        s"""the rows in ${prepared.path} were prepared by handleInvalid "keep", and are asked for by handleInvalid "skip""""
    )
    for ((estimator, told) <- cases) {
      val error = intercept[FlambeauException](estimator.fit(prepared))
      assert(error.getMessage.startsWith(told), error.getMessage)
    }
    prepared.close()
  }

  test("files that are not those that were written are refused") {
    val place = path("changed")
    def refused(action: => Any): String = intercept[DataException](action).getMessage
    assert(refused(regressor.prepare(table.limit(0), place)) ==
      "there is nothing to train on: there are no rows")
    val nulls = table.withColumn("label", lit(null).cast("double"))
    assert(refused(regressor.prepare(nulls, place)).startsWith("column 'label' holds a null"))
    assert(!Files.exists(Paths.get(place)), "nothing is left of what failed")
    assert(refused(PreparedData.open(spark, place)).startsWith(s"$place holds no prepared data"))
    val prepared = regressor.prepare(table, place)
    assert(intercept[ParamException](regressor.prepare(table, place)).getMessage.startsWith(
      s"path: $place is there already: give one that is not, or take up what was prepared there"
    ))
    val Seq(one, other, _*) = filesBelow(place)
    Files.copy(other, one, StandardCopyOption.REPLACE_EXISTING)
    val changed = refused(regressor.fit(prepared))
    assert(changed.startsWith("the prepared data has changed: ") &&
      changed.endsWith(
        s"${one.getFileName} is another file than the one that was written; prepare the rows anew"
      ))
    Files.delete(one)
    assert(refused(regressor.fit(prepared)).contains(s"${one.getFileName} is gone"))
    Files.delete(Paths.get(place, "manifest.json"))
    assert(refused(PreparedData.open(spark, place)).contains("not written to its end"))
  }

  test("nothing is written once what failed is removed") {
    val place = path("late")
    // One task is refused its row while the other is at work on its own, after which that one opens its file.
    val late = udf { (id: Long) => if (id == 0) LateTask.begun.await() else LateTask.work(); id }
    val df = spark.range(0, 2, 1, 2).select(late($"id").cast("double").as("id"))
      .select($"id".as("a"), $"id".as("b"), when($"id" > 0, 1.0).as("label"), ($"id" > 5).as("held"))
    val estimator = regressor.setValidationIndicatorCol("held")
    val error = intercept[FlambeauException](estimator.prepare(df, place))
    assert(error.getMessage.startsWith("column 'label' holds a null"))
    assert(LateTask.hasEnded && !Files.exists(Paths.get(place)))
    Thread.sleep(500)
    assert(!Files.exists(Paths.get(place)))
  }

  test("two that write at once leave each other's files") {
    val asked = Seq(DataColumns.resolve(table.schema, reading(regressor)))
    for (isVisible <- Seq(true, false)) {
      val site = siteOf(s"raced for $isVisible", isVisible)
      val prepared = PreparedRows.write(table, asked, site)
      val before = filesBelow(site.work.uri)
      // The slower one, as it looked before the other began.
      assert(intercept[ParamException](PreparedRows.write(table, asked, site)).getMessage ==
        s"path: ${site.work.uri} was prepared by another meanwhile: give another path")
      val nulls = table.withColumn("label", lit(null).cast("double"))
      intercept[DataException](PreparedRows.write(nulls, asked, site))
      assert(filesBelow(site.work.uri) == before)
      val params = reading(regressor)
      val shards = prepared.shards(prepared.columns(params), params, site)(identity[ShardSet])
      assert(read(shards.train).count() == 240)
      prepared.delete()
    }
  }

  test("fits that are split in several ways have no copy in common") {
    val asked = Seq(0.1, 0.2).map(fraction =>
      DataColumns.resolve(table.schema, reading(regressor.setValidationFraction(fraction)))
    )
    assert(intercept[ParamException](PreparedRows.write(table, asked, siteOf("split"))).getMessage ==
      "validationFraction and validationIndicatorCol are the same for all that is fitted on one copy of the rows, and here " +
      "fits are asked for by validationFraction 0.1 and by validationFraction 0.2")
  }

  test("a stranger's directory runs no code") {
    val prepared = regressor.prepare(table, path("honest"))
    val manifest = Paths.get(prepared.path, "manifest.json")
    val honest = Json.parse(new String(Files.readAllBytes(manifest), UTF_8)).asInstanceOf[ObjectNode]
    def field(dtype: String): String =
      s"""{"type": "struct", "fields": [{"name": "a", "nullable": true, "metadata": {}, "type": $dtype}]}"""
    val kind =
      s"""{"type": "udt", "class": "${classOf[Stranger].getName}", "pyClass": null, "sqlType": "double"}"""
    val cases = Seq(
      field(s"""{"type": "array", "containsNull": true, "elementType": $kind}""") ->
        "has a column of the class 'flambeau.Stranger', which is never prepared",
      field("\"nonsense\"") -> "manifest.json is damaged",
      """{"type": "struct"}""" -> "manifest.json is damaged",
      "\"double\"" -> "manifest.json is damaged",
      "null" -> "manifest.json is damaged"
    )
    for ((schema, told) <- cases) {
      Files.write(manifest, Json.text(honest.set[JsonNode]("schema", Json.parse(schema))).getBytes(UTF_8))
      val error = intercept[DataException](PreparedData.open(spark, prepared.path))
      assert(error.getMessage.contains(told), error.getMessage)
    }
    assert(!Stranger.isMade)
    // It is one that Spark would make.
    DataType.fromJson(kind)
    assert(Stranger.isMade)
  }
}

/** A type of a column that a directory may name. */
class Stranger extends UserDefinedType[String] {
  Stranger.isMade = true

  override def sqlType: DataType = DoubleType

  override def serialize(value: String): Any = value.length.toDouble

  override def deserialize(datum: Any): String = datum.toString

  override def userClass: Class[String] = classOf[String]
}

object Stranger {
  @volatile var isMade = false
}

/** What a task does for three seconds, whether it is interrupted or not. */
object LateTask {
  val begun = new CountDownLatch(1)
  @volatile var hasEnded = false

  def work(): Unit = {
    begun.countDown()
    val end = System.nanoTime + 3000000000L
    while (System.nanoTime < end) LockSupport.parkNanos(10000000L)
    hasEnded = true
  }
}
