package flambeau

import flambeau.internal.rows.{Columns, DataColumns, DataFile, FrameRows, ParquetRows, Reading, ShardSet}
import flambeau.internal.session.Settings
import flambeau.internal.storage.{Site, WorkDirectory}
import flambeau.internal.util.Json
import org.apache.spark.ml.attribute.NominalAttribute
import org.apache.spark.ml.linalg.Vectors
import org.apache.spark.sql.{Column, DataFrame}
import org.apache.spark.sql.functions._
import org.apache.spark.sql.types._

/** Stock Spark is the oracle for the rows that are written. */
class ShardsSuite extends SparkSuite {
  import spark.implicits._

  private def params() = new ParamsSuite.Everything("params")

  private lazy val table: DataFrame = spark
    .range(0, 100, 1, 3)
    .select(
      col("id"),
      (col("id") / 3).as("x"),
      (col("id") % 5).cast("int").as("n"),
      (col("id") % 2 === 0).as("even"),
      (col("id").cast("decimal(10,2)") / 7).cast("decimal(12,4)").as("d"),
      array(col("id").cast("float"), lit(1.5f)).as("a"),
      (col("id") / 10).as("label")
    )

  private def reading(params: HasTrainingParams, labels: Option[String] = None): Reading =
    Reading(params, labels, isWide = false, arguments = Nil)

  private def written(
      name: String,
      df: DataFrame,
      params: HasTrainingParams,
      labels: Option[String] = None
  ): ShardSet = {
    val rows = new FrameRows(df)
    rows.write(rows.columns(reading(params, labels)), site, path(name))
  }

  private def site = Site(spark, WorkDirectory(path("work"), Settings.of(spark)), isVisible = true)

  private def inPlace(files: String, params: HasTrainingParams): ShardSet = {
    val rows = new ParquetRows(spark, files)
    rows.shards(rows.columns(reading(params)), reading(params), site)(identity)
  }

  private def read(files: Seq[DataFile]): DataFrame = spark.read.parquet(files.map(_.uri): _*)

  private def resolve(schema: StructType, params: HasTrainingParams): DataColumns =
    DataColumns.resolve(schema, reading(params))

  test("inputs, labels and weight become columns of the tensors' types, in the rows' order") {
    val asked = params().setInputCols(Array("x", "n", "even", "d", "a")).setWeightCol("id")
    val shards = written("types", table, asked)
    assert(shards.numRows == 100 && shards.numValidationRows == 0 && shards.validation.isEmpty)
    val kinds = read(shards.train).schema.fields.map(field => field.name -> field.dataType.simpleString).toMap
    assert(kinds == Map(
      "x" -> "float",
      "n" -> "bigint",
      "even" -> "boolean",
      "d" -> "float",
      "a" -> "array<float>",
      "label" -> "float",
      "id" -> "float"
    ))
    val expected = table.select(
      $"x".cast("float"),
      $"n".cast("long"),
      $"even",
      $"d".cast("float"),
      $"a",
      $"label".cast("float"),
      $"id".cast("float")
    ).collect().toSeq
    assert(shards.train.flatMap(file => read(Seq(file)).collect().toSeq) == expected)
    assert(shards.columns.inputs.map(_.shape.get) == Seq(Nil, Nil, Nil, Nil, Seq(2)))
    assert(shards.columns.inputs.map(_.dtype) == Seq("float32", "int64", "bool", "float32", "float32"))
  }

  test("several numbers are packed into one tensor; a wide module has its labels in float64") {
    val asked = params().setFeaturesCol(Array("x", "n"))
    val columns = DataColumns.resolve(table.schema, reading(asked).copy(isWide = true))
    assert(columns.inputs == Seq(TensorColumns("features", Seq("x", "n"), "float32", Some(Seq(2)))))
    assert(columns.labels == Seq(TensorColumns("label", Seq("label"), "float64", Some(Nil))))
    assert(Json.text(columns.specJson.get("inputs")) ==
      """[{"name":"features","columns":["x","n"],"dtype":"float32","shape":[2]}]""")
  }

  test("a column of which there are two is refused before anything is read") {
    for (other <- Seq("x", "X"); role <- Seq("input", "label")) {
      val both = table.select($"*", lit("a text").as(other))
      val asked =
        if (role == "input") params().setFeaturesCol("x") else params().setFeaturesCol("n").setLabelCol("x")
      val error = intercept[DataException](resolve(both.schema, asked))
      assert(error.getMessage.startsWith(s"column 'x' for the $role is not the only one of that name"), error)
    }
  }

  test("a column that is input and label is written once for each") {
    val shards = written("twice", table, params().setFeaturesCol("x").setLabelCol("x"))
    val names = shards.columns.inputs.head.columns ++ shards.columns.labels.head.columns
    assert(names == Seq("x", "x as float32 label"))
    assert(read(shards.train).columns.toSeq == names)
  }

  test("vectors, their size from metadata or from the first row, and nominal columns") {
    val nominal = NominalAttribute.defaultAttr.withName("c").withValues("p", "q").toMetadata()
    val df = Seq((Vectors.dense(1, 2, 3), 1.0, 0.0), (Vectors.sparse(3, Seq(1 -> 5.0)), 0.0, 1.0))
      .toDF("v", "c", "label").withColumn("c", col("c").as("c", nominal))
    val shards = written("vectors", df.coalesce(1), params().setInputCols(Array("v", "c")))
    assert(shards.columns.inputs.map(_.dtype) == Seq("float32", "int64"))
    assert(shards.columns.inputs.head.shape.contains(Seq(3)))
    assert(read(shards.train).select("v").as[Seq[Float]].collect().toSeq == Seq(
      Seq(1f, 2f, 3f),
      Seq(0f, 5f, 0f)
    ))
  }

  test("a seeded fraction is that of Spark's rand, and an indicator column splits as it says") {
    val shards =
      written("fraction", table, params().setFeaturesCol("id").setValidationFraction(0.3).setSeed(5))
    val expected = table.select($"id".cast("float").as("id"), (rand(5) < 0.3).as("flag"))
      .where("flag").orderBy("id").select("id").as[Float].collect().toSeq
    assert(shards.numValidationRows == expected.length && shards.numRows == 100 - expected.length)
    assert(read(shards.validation).select($"id".cast("float")).as[
      Float
    ].collect().sorted.toSeq == expected)
    assert(shards.train.intersect(shards.validation).isEmpty && shards.train.nonEmpty)

    val flagged = written("indicator", table, params().setFeaturesCol("x").setValidationIndicatorCol("even"))
    assert(flagged.numRows == 50 && flagged.numValidationRows == 50)
  }

  test("what no tensor can be made of is refused with the column's name and the way out") {
    val cases = Seq[(DataFrame, ParamsSuite.Everything, String)](
      (
        table,
        params().setFeaturesCol("xx"),
        "no column 'xx' for the input: the DataFrame has id, x, n, even, d, a, label; did you mean 'x'?"
      ),
      (
        table.withColumn("s", lit("p")),
        params().setFeaturesCol("s"),
        "column 's' is string, which cannot be an input: index it (StringIndexer) or cast it to a number"
      ),
      (
        table.withColumn("t", current_timestamp()),
        params().setFeaturesCol("t"),
        "column 't' is timestamp, which cannot be an input: cast it to a number, for example with unix_timestamp"
      ),
      (
        table,
        params().setFeaturesCol(Array("x", "a")),
        "column 'a' is array<float>; columns that are packed into one tensor are single numbers: give arrays and vectors " +
          "as inputs of their own, in inputCols"
      ),
      (
        table,
        params().setFeaturesCol("x").setWeightCol("a"),
        "column 'a' is array<float>; the weight of a row is a single number"
      ),
      (
        table.withColumn("b", lit(Array[Byte](1))),
        params().setInputCols(Array("b")).setInputTypes(Array("int64")),
        "column 'b' is binary, which gives uint8 and cannot be read as int64"
      ),
      (
        table.where("id < 0"),
        params().setFeaturesCol("x"),
        "there is nothing to train on: there are no rows"
      ),
      (
        table.withColumn("all", lit(true)),
        params().setFeaturesCol("x").setValidationIndicatorCol("all"),
        "there is nothing to train on: all rows are for validation"
      ),
      (
        table.withColumn("x", when($"id" =!= 50, $"x")),
        params().setFeaturesCol("x"),
        "column 'x' holds a null: fill it (Imputer, DataFrame.fillna) or drop those rows (DataFrame.dropna)"
      ),
      (
        table.withColumn("label", lit(Double.NaN)),
        params().setFeaturesCol("x"),
        "column 'label' is the label and holds a NaN: fill it (Imputer, DataFrame.fillna) or drop those rows " +
          "(DataFrame.dropna)"
      ),
      (
        table.withColumn("w", lit(-1.0)),
        params().setFeaturesCol("x").setWeightCol("w"),
        "column 'w' is the weight and holds a value that is not a finite number >= 0: drop those rows"
      )
    )
    for (((df, asked, message), index) <- cases.zipWithIndex)
      assert(intercept[DataException](written(s"refused$index", df, asked)).getMessage == message)
    assert(
      intercept[DataException](written(
        "fraction-label",
        table.where("id < 2"),
        params().setFeaturesCol("x"),
        Some("int64")
      )).getMessage ==
        "column 'label' holds 0.1, which is not a whole number, where int64 is asked for: round it, or ask for float32"
    )
  }

  test("inputShapes and inputTypes that do not fit are refused") {
    assert(intercept[ParamException](
      resolve(table.schema, params().setFeaturesCol(Array("x", "n")).setInputShapes(Array(Array(3))))
    ).getMessage == "inputShapes gives [3] (3 numbers) to input 'features', and its columns hold 2 in a row")
    assert(intercept[ParamException](
      resolve(table.schema, params().setInputCols(Array("x", "n")).setInputTypes(Array("auto")))
    ).getMessage == "inputTypes has 1 entries, and there are 2 inputs: ['x', 'n']")
    val named = params().setInputCols(Array("x", "n")).setInputNames(Array("a"))
    assert(intercept[ParamException](resolve(table.schema, named)).getMessage ==
      "inputNames has 1 entries, and there are 2 inputs: ['x', 'n']")
    val both = params().setFeaturesCol("x").setFeaturesCols(Array("x", "n"))
    assert(intercept[ParamException](resolve(table.schema, both)).getMessage ==
      "featuresCol ('x') and featuresCols (['x', 'n']) are both set: clear one of them")
  }

  test("nested arrays have the shape of the first row, and others are refused") {
    def nested(name: String, m: Column): ShardSet =
      written(name, table.withColumn("m", m), params().setFeaturesCol("m"))
    val (x, y) = (col("x").cast("float"), col("n").cast("float"))
    val shards = nested("nested", array(array(x, y, x), array(y, y, x)))
    assert(shards.columns.inputs.map(_.shape) == Seq(Some(Seq(2, 3))))
    val found = read(shards.train).orderBy("label").head().getSeq[Float](0)
    assert(found.length == 6)
    // As many numbers, otherwise nested.
    val whole = array(array(x, y, x), array(y, y, x))
    val ragged = when(col("id") === 7, array(array(x, y, x, x), array(y, y))).otherwise(whole)
    assert(intercept[DataException](nested("ragged", ragged)).getMessage.contains(
      "column 'm' holds an array that is not of shape [2, 3]"
    ))
    // A first row that has no shape gives none.
    for (
      (hollow, index) <- Seq("array(cast(null as array<float>))", "array(array())", "array()").zipWithIndex
    ) {
      val m = when(col("id") === 0, expr(hollow).cast("array<array<float>>")).otherwise(whole)
      assert(intercept[DataException](nested(s"hollow $index", m)).getMessage.contains("not of shape [2, 3]"))
    }
  }

  test("Parquet files in place: no copy, partition columns as validation, and the refusals") {
    val place = path("in place")
    table.select("id", "x", "label", "even", "n").write.partitionBy("even", "n").parquet(place)
    val shards = inPlace(place, params().setFeaturesCol("x").setValidationIndicatorCol("even"))
    assert(shards.numRows == 50 && shards.numValidationRows == 50)
    assert(shards.uris.sorted == spark.read.parquet(place).inputFiles.sorted.toSeq)
    assert(shards.train.forall(_.uri.contains("even=false")))

    val instead = s"""use fit(spark.read.parquet("$place")) instead"""
    assert(intercept[DataException](inPlace(place, params().setFeaturesCol("n"))).getMessage ==
      s"column 'n' is a partition column, and not in the files: $instead")

    for (
      (table_, marker) <- Seq(
        "Delta" -> "_delta_log/0.json",
        "Iceberg" -> "metadata/v1.metadata.json",
        "Hudi" -> ".hoodie/hoodie.properties"
      )
    ) {
      val root = directory.resolve(s"a $table_")
      val file = root.resolve(marker)
      java.nio.file.Files.createDirectories(file.getParent)
      java.nio.file.Files.write(file, "{}".getBytes)
      assert(intercept[DataException](
        inPlace(root.toString, params())
      ).getMessage.startsWith(
        s"$root is a $table_ table: its directory holds removed rows too."
      ))
    }
    assert(intercept[DataException](inPlace(path("nothing"), params())).getMessage.startsWith(
      s"${path("nothing")} cannot be read as Parquet: "
    ))
    val empty = path("no rows in place")
    table.where("id < 0").select("a", "label").write.parquet(empty)
    assert(intercept[DataException](inPlace(empty, params().setFeaturesCol("a"))).getMessage ==
      "there is nothing to train on: there are no rows")
  }

  test("columns whose names have dots and backticks") {
    val odd = table.withColumnRenamed("x", "a.b`c")
    val shards = written("dots", odd, params().setFeaturesCol("a.b`c"))
    assert(shards.numRows == 100 && shards.columns.inputs.head.columns == Seq("a.b`c"))
  }

  test("a type that is unknown to the tensors is told by Spark's name of it") {
    val df = table.withColumn("m", map(lit("k"), col("x")))
    assert(intercept[DataException](
      Columns.resolveInputs(df.schema, params().setFeaturesCol("m"))
    ).getMessage ==
      "column 'm' is map<string,double>, which cannot be an input: select its values as columns of their own")
    assert(Columns.typeName(ArrayType(FloatType)) == "array<float>")
  }
}
