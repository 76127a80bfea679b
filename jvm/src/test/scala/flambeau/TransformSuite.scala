package flambeau

import java.sql.Date

import scala.concurrent.ExecutionContext.Implicits.global
import scala.concurrent.duration.DurationInt
import scala.concurrent.{Await, Future}

import flambeau.internal.rows.Expressions
import org.apache.spark.ml.functions.{array_to_vector, vector_to_array}
import org.apache.spark.ml.param.ParamMap
import org.apache.spark.ml.linalg.{SQLDataTypes, Vector, Vectors}
import org.apache.spark.sql.{DataFrame, Row}
import org.apache.spark.sql.functions._
import org.apache.spark.sql.types._

/** What torch makes of the rows is the oracle for the outputs, stock Spark for all other columns. */
class TransformSuite extends SparkSuite {
  import spark.implicits._

  private def rows(name: String): DataFrame = spark.read.parquet(SavedModels.rows(name))
  private def load(name: String): TorchModel = TorchModel.load(SavedModels.model(name))

  /** The largest difference of two columns of numbers or of arrays of them. */
  private def difference(df: DataFrame, one: String, other: String): Double = {
    def numbers(value: Any): Seq[Double] = value match {
      case items: scala.collection.Seq[_] => items.toSeq.flatMap(numbers)
      case flag: Boolean                  => Seq(if (flag) 1.0 else 0.0)
      case number: Number                 => Seq(number.doubleValue)
    }
    df.select(one, other).collect().map { row =>
      val (a, b) = (numbers(row.get(0)), numbers(row.get(1)))
      assert(a.length == b.length)
      a.zip(b).map { case (x, y) => math.abs(x - y) }.max
    }.max
  }

  for (name <- Seq("mlp", "exported", "column"))
    test(s"$name: one number a row is a double") {
      val scored = load(name).transform(rows(name))
      assert(scored.schema("prediction").dataType == DoubleType)
      assert(scored.count() == 1000)
      val flat = if (name == "column") scored.withColumn("expected", $"expected" (0)) else scored
      assert(difference(flat, "prediction", "expected") < 1e-6)
    }

  test("several numbers a row are an array of floats") {
    val scored = load("array").transform(rows("array"))
    assert(scored.schema("prediction").dataType == ArrayType(FloatType, containsNull = false))
    assert(difference(scored, "prediction", "expected") < 1e-6)
  }

  test("several tensors are a struct, of every type") {
    val scored = load("several").transform(rows("several"))
    val kinds =
      scored.schema("prediction").dataType.asInstanceOf[StructType].fields.map(_.dataType.simpleString).toSeq
    assert(kinds == Seq("double", "array<float>", "double", "array<boolean>", "array<array<float>>"))
    for (name <- Seq("_1", "_2", "_3", "_4", "_5"))
      assert(
        difference(scored.withColumn("made", $"prediction" (name)), "made", s"expected$name") < 1e-5,
        name
      )
  }

  test("several tensors are columns where outputCols names them, in the operator and row by row") {
    val names = Array("sum", "joined", "", "flags", "matrix")
    val model = load("several").setOutputCols(names)
    val df = rows("several")
    for (way <- Seq("operator", "rows")) {
      spark.conf.set("spark.flambeau.scoring", way)
      try {
        val scored = model.transform(df)
        val added = scored.schema.fields.drop(df.columns.length)
        assert(added.map(_.name).toSeq == names.filter(_.nonEmpty).toSeq)
        assert(
          added.map(_.dataType.simpleString).toSeq ==
            Seq("double", "array<float>", "array<boolean>", "array<array<float>>")
        )
        for ((name, index) <- names.zipWithIndex if name.nonEmpty)
          assert(difference(scored, name, s"expected_${index + 1}") < 1e-5, name)
        val both = scored.select("flags", "sum", "expected_4", "expected_1")
        assert(difference(both, "flags", "expected_4") < 1e-5 && difference(both, "sum", "expected_1") < 1e-5)
      } finally spark.conf.unset("spark.flambeau.scoring")
    }
    model.write.save(path("output-columns"))
    for (each <- Seq(model, TorchModel.load(path("output-columns"))))
      assert(each.transform(df).schema == model.transformSchema(df.schema))
    assert(model.outputs.map(_.name) == names.toSeq.filter(_.nonEmpty))
    val one = load("mlp").setOutputCols(Array("y"))
    assert(difference(one.transform(rows("mlp")), "y", "expected") < 1e-6)

    def refused(model: TorchModel): String = intercept[ParamException](model.transform(df)).getMessage
    assert(refused(load("several").setOutputCols(Array("a", "b", "c"))) ==
      "outputCols has 3 entries, a, b, c, and the module returns 5 tensors: give one entry for each")
    assert(refused(load("several").setOutputCols(Array("p", "P", "q", "r", "s"))) ==
      "outputCols is 'p' and outputCols 'P', which are one column: give each its own name, or leave one out with an " +
      "empty name")
    assert(refused(load("several").setOutputCols(Array("p", "ID", "q", "r", "s"))).startsWith(
      "outputCols: the DataFrame has a column 'id' already"
    ))
    assert(refused(model.copy(ParamMap(model.outputNames -> Array("a", "b", "c", "d", "e")))) ==
      "outputCols and outputNames are both set: set outputCols for columns, or outputNames for the fields of " +
      "predictionCol")
    assert(refused(load("classes").setOutputCols(Array("a"))).startsWith(
      "outputCols: a classifier's columns are rawPredictionCol, probabilityCol and predictionCol"
    ))
    assert(intercept[ParamException](model.setOutputCols(Array("a", "", "a"))).getMessage ==
      "outputCols must be a list of different column names, not all of them empty, got ['a', '', 'a']")
  }

  test("a classifier writes raw predictions, probabilities and the class") {
    val model = TorchClassificationModel.load(SavedModels.model("classes"))
    assert(model.numClasses == 3 && model.numFeatures == 3)
    val scored = model.transform(rows("classes"))
    assert(scored.schema("rawPrediction").dataType == SQLDataTypes.VectorType)
    val found = scored.select(
      vector_to_array($"rawPrediction"),
      vector_to_array($"probability"),
      $"prediction",
      $"expected"
    )
    for (row <- found.collect()) {
      val logits = row.getSeq[Float](3).map(_.toDouble)
      val exponents = logits.map(math.exp)
      assert(row.getSeq[Double](0).size == 3 && row.getSeq[Double](1).size == 3)
      assert(row.getSeq[Double](0).zip(logits).forall { case (a, b) => math.abs(a - b) < 1e-6 })
      assert(row.getSeq[Double](1).zip(exponents.map(_ / exponents.sum)).forall { case (a, b) =>
        math.abs(a - b) < 1e-6
      })
      assert(row.getDouble(2) == logits.indexOf(logits.max).toDouble)
    }
  }

  test("a classifier with one logit tells of two classes; an empty name leaves a column out") {
    val model = TorchClassificationModel.load(SavedModels.model("binary")).setRawPredictionCol(
      ""
    ).setProbabilityCol("p")
    assert(model.numClasses == 2)
    val scored = model.transform(rows("binary"))
    assert(scored.columns.toSeq == rows("binary").columns.toSeq ++ Seq("p", "prediction"))
    for (row <- scored.select($"p", $"prediction", $"expected" (0)).as[(Vector, Double, Float)].collect()) {
      val positive = 1 / (1 + math.exp(-row._3.toDouble))
      assert(math.abs(row._1(1) - positive) < 1e-6 && math.abs(row._1(0) + row._1(1) - 1) < 1e-12)
      assert(row._2 == (if (positive > 0.5) 1.0 else 0.0))
    }
    val none = model.copy(ParamMap.empty).setPredictionCol("").setProbabilityCol("")
    assert(none.transform(rows("binary")).schema == rows("binary").schema)
  }

  test("vectors, dense and sparse, score as arrays do") {
    val df = rows("column").withColumn("x", array_to_vector($"x"))
    assert(difference(
      load("column").transform(df).withColumn("expected", $"expected" (0)),
      "prediction",
      "expected"
    ) < 1e-6)
    val sparse = Seq((1, Vectors.sparse(3, Seq(1 -> 2.0))), (2, Vectors.dense(0, 2, 0))).toDF("id", "x")
    assert(load("column").transform(sparse).select("prediction").distinct().count() == 1)
  }

  test("all other columns stay as they are, nulls, types and metadata too") {
    val base = rows("column").where("id < 20").withColumn("expected", $"expected" (0))
    val some = $"id" % 3 =!= 0
    val metadata = new MetadataBuilder().putString("a", "b").build()
    val df = base
      .withColumn("text", when(some, concat(lit("é€😀"), $"id")))
      .withColumn("bytes", when(some, $"data"))
      .withColumn("day", when(some, date_add(lit(Date.valueOf("1500-01-01")), $"id".cast("int"))))
      .withColumn("time", when(some, timestamp_micros($"id" * 123456789L - 62000000000000000L)))
      .withColumn("local", when(some, lit("2020-02-28 01:02:03.000004").cast("timestamp_ntz")))
      .withColumn("decimal", when(some, ($"id".cast("decimal(38,10)") / 7).cast("decimal(38,18)")))
      .withColumn(
        "map",
        when(
          some,
          map(
            lit("z"),
            $"id",
            lit("y"),
            lit(1L),
            lit("b"),
            lit(2L),
            lit("c"),
            lit(3L),
            lit("a"),
            lit(null).cast("long")
          )
        )
      )
      .withColumn("struct", when(some, struct($"id".as("p"), struct($"text".as("q")).as("r"))))
      .withColumn("list", when(some, array($"text", lit(null).cast("string"))))
      .withColumn("vector", when(some, array_to_vector($"x")))
      .withColumn("interval", expr("INTERVAL '1 02:03:04' DAY TO SECOND"))
      .withColumn("hours", expr("INTERVAL '02:03' HOUR TO MINUTE"))
      .withColumn("float", when(some, lit(Float.NaN)))
      .withColumn("byte", $"id".cast("byte"))
      .withColumn("void", lit(null))
      .withColumn("odd.name`", $"id".as("odd.name`", metadata))
    val scored = load("column").transform(df)
    assert(scored.columns.last == "prediction")
    val kept = scored.drop("prediction")
    assert(kept.schema == df.schema)
    def text(frame: DataFrame): Seq[String] = {
      val hashed = frame.columns.toSeq.filterNot(name => name == "map" || name == "void").map(name =>
        Expressions.quoted(name)
      )
      frame.select(hashed.map(col) ++ Seq(
        map_entries($"map").as("entries"),
        $"time".cast("string").as("when"),
        $"day".cast("string").as("date")
      ): _*)
        .orderBy("id").collect().map(show).toSeq
    }
    def show(value: Any): String = value match {
      case row: Row                       => row.toSeq.map(show).mkString("(", ",", ")")
      case bytes: Array[Byte]             => bytes.mkString("b")
      case items: scala.collection.Seq[_] => items.map(show).mkString("[", ",", "]")
      case other                          => String.valueOf(other)
    }
    assert(text(kept) == text(df))
  }

  test("the schema is told beforehand, and two columns of one name do no harm") {
    for (name <- Seq("mlp", "several", "classes")) {
      val model = load(name)
      assert(model.transform(rows(name)).schema == model.transformSchema(rows(name).schema), name)
    }
    val twice = rows("column").select($"x", $"id", $"id", $"expected")
    assert(load("column").transform(twice).columns.toSeq == Seq("x", "id", "id", "expected", "prediction"))
  }

  test("an input of which there are two, and an output that is there in another case, are refused") {
    val model = load("column")
    val df = rows("column").select("id", "x")
    for (other <- Seq("x", "X")) {
      val error = intercept[DataException](model.transform(df.select($"*", $"x".as(other))))
      assert(
        error.getMessage.contains(s"not the only one of that name: the DataFrame has x, $other"),
        error
      )
    }
    val beside = df.withColumn("Prediction", lit(1))
    val error = intercept[ParamException](model.transform(beside))
    assert(
      error.getMessage.contains("has a column 'Prediction' already, which is 'prediction' to Spark"),
      error
    )
    val classifier =
      TorchClassificationModel.load(SavedModels.model("classes")).setProbabilityCol("Prediction")
    assert(intercept[ParamException](classifier.transform(rows("classes"))).getMessage.contains("one column"))

    spark.conf.set("spark.sql.caseSensitive", "true")
    try {
      val scored = model.transform(beside.withColumn("X", lit("a text")))
      assert(scored.columns.toSeq == Seq("id", "x", "Prediction", "X", "prediction"))
      assert(scored.select("prediction").collect().length == 1000)
    } finally spark.conf.unset("spark.sql.caseSensitive")
  }

  test("wrong rows and columns are refused with the column's name") {
    val model = load("column")
    val df = rows("column").select("id", "x")
    assert(intercept[ParamException](model.transform(df.withColumn("prediction", lit(1)))).getMessage ==
      "predictionCol: the DataFrame has a column 'prediction' already; drop it or set another predictionCol")
    assert(intercept[DataException](model.transform(df.drop("x"))).getMessage.startsWith(
      "no column 'x' for the input"
    ))
    assert(intercept[DataException](model.transform(df.withColumn("x", lit(1.0)))).getMessage ==
      "input 'x' (x) has 1 numbers in a row, where 3 were trained on")
    val short = df.withColumn("x", when($"id" === 77, array(lit(1f))).otherwise($"x"))
    assert(causeOf(classOf[DataException])(model.transform(short).collect()).getMessage ==
      "column 'x' holds an array of 1, where 3 were trained on: every row's array must have that length")
    val mend = "fill it (Imputer, DataFrame.fillna) or drop those rows (DataFrame.dropna)"
    val nulls = df.withColumn("x", when($"id" =!= 77, $"x"))
    assert(intercept[Exception](model.transform(nulls).collect()).toString.contains(
      s"column 'x' holds a null: $mend"
    ))
    val vectors = nulls.withColumn("x", when($"id" =!= 77, array_to_vector($"x")))
    assert(causeOf(classOf[DataException])(
      model.transform(vectors).collect()
    ).getMessage == s"column 'x' holds a null: $mend")
    val inside = df.withColumn(
      "x",
      when($"id" === 77, array(lit(1f), lit(null), lit(2f)).cast("array<float>")).otherwise($"x")
    )
    assert(causeOf(classOf[DataException])(model.transform(inside).collect()).getMessage ==
      s"column 'x' holds an array with a null in it: $mend before transform")
    val mlp = load("mlp")
    val missing = rows("mlp").withColumn("a", when($"id" =!= 77, $"a"))
    assert(intercept[Exception](mlp.transform(missing).collect()).toString.contains(
      s"column 'a' holds a null: $mend"
    ))
  }

  test("other columns than those of the training, and another number of inputs") {
    val renamed = rows("mlp").withColumnRenamed("a", "c")
    val scored = load("mlp").setFeaturesCol(Array("c", "b")).transform(renamed)
    assert(difference(scored, "prediction", "expected") < 1e-6)
    assert(intercept[ParamException](
      load("mlp").setInputCols(Array("a", "b")).transform(rows("mlp"))
    ).getMessage ==
      "the params name 2 inputs, and the model was trained on 1: features")
    assert(
      intercept[DataException](load("mlp").setFeaturesCol(Array("a")).transform(rows("mlp"))).getMessage ==
        "input 'features' (a) has 1 numbers in a row, where 2 were trained on"
    )
  }

  test("empty frames and partitions, limit, take, and a batch larger than the rows") {
    val model = load("mlp")
    val df = rows("mlp")
    assert(model.transform(df.where("id < 0")).count() == 0)
    assert(difference(model.transform(df.where("id < 7").repartition(16)), "prediction", "expected") < 1e-6)
    assert(model.transform(df).limit(3).collect().length == 3)
    assert(model.transform(df).select("prediction").as[Double].take(70).length == 70)
    val one = model.copy(ParamMap.empty).setInferenceBatchSize(1)
    assert(difference(one.transform(df.limit(10)), "prediction", "expected") < 1e-6)
  }

  test("nothing is computed before an action, and only as far as asked for") {
    val seen = spark.sparkContext.longAccumulator("rows")
    val counted = udf { (value: Double) => seen.add(1); value }.asNondeterministic()
    val df = rows("mlp").coalesce(1).withColumn("a", counted($"a"))
    val scored = load("mlp").transform(df)
    assert(seen.value == 0)
    scored.head()
    assert(seen.value < 1000)
  }

  test("a transform in several threads at once") {
    val model = load("mlp")
    val found = (0 until 4).map { index =>
      Future(difference(model.transform(rows("mlp").where($"id" % 4 === index)), "prediction", "expected"))
    }
    assert(Await.result(Future.sequence(found), 2.minutes).max < 1e-6)
  }
}
