package flambeau

import flambeau.internal.rows.Columns
import flambeau.internal.scoring.{Linkage, RowScoring, ScoreExec}
import flambeau.internal.session.Settings
import flambeau.internal.util.Failures
import org.apache.spark.ml.functions.{array_to_vector, vector_to_array}
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.{DataFrame, Row, SparkSession}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.Attribute
import org.apache.spark.sql.execution.{FileSourceScanExec, SparkPlan, UnaryExecNode}
import org.apache.spark.sql.execution.adaptive.AdaptiveSparkPlanHelper
import org.apache.spark.sql.functions._
import org.apache.spark.sql.types.{DataType, StringType, UserDefinedType}

/** Scoring as a part of Spark's plans: on columns and on rows, below and above Spark's own operators. What torch makes of
  * the rows is the oracle.
  */
class ScoreSuite extends SparkSuite with AdaptiveSparkPlanHelper {
  import spark.implicits._

  private val Vectorized = "spark.sql.parquet.enableVectorizedReader"
  private def rows(name: String): DataFrame = spark.read.parquet(SavedModels.rows(name))
  private def load(name: String): TorchModel = TorchModel.load(SavedModels.model(name))

  private def withSetting[T](name: String, value: String)(action: => T): T = {
    spark.conf.set(name, value)
    try action
    finally spark.conf.unset(name)
  }

  private def operator(df: DataFrame): ScoreExec = {
    df.collect()
    find(df.queryExecution.executedPlan)(_.isInstanceOf[ScoreExec]).get.asInstanceOf[ScoreExec]
  }

  private def isClose(df: DataFrame): Boolean =
    df.where(!(abs($"prediction" - $"expected") < 1e-6)).isEmpty && !df.isEmpty

  /** All values as text, nested ones too. */
  private def texts(df: DataFrame): Seq[String] = {
    def text(value: Any): String = value match {
      case row: Row                       => row.toSeq.map(text).mkString("(", ",", ")")
      case bytes: Array[Byte]             => bytes.mkString("b")
      case items: scala.collection.Seq[_] => items.map(text).mkString("[", ",", "]")
      case other                          => String.valueOf(other)
    }
    df.orderBy("id").collect().map(text).toSeq
  }

  test("columns and rows give the same, for every type of input and output") {
    for (name <- Seq("mlp", "column", "array", "several", "classes", "binary")) {
      val model = load(name)
      val columns = model.transform(rows(name))
      assert(operator(columns).supportsColumnar, name)
      val ofColumns = texts(columns)
      withSetting(Vectorized, "false") {
        val ofRows = model.transform(rows(name))
        assert(!operator(ofRows).supportsColumnar, name)
        assert(texts(ofRows) == ofColumns, name)
      }
    }
  }

  test("rows with a null or a NaN are skipped, or refused by their column") {
    def model(rule: String) = load("mlp").setFeaturesCol(Array("p", "q")).setHandleInvalid(rule)
    val holes = rows("mlp").select(
      $"id",
      when($"id" % 3 =!= 0, $"id".cast("float")).as("p"),
      when($"id" % 5 === 0, Float.NaN).otherwise(1f).as("q")
    )
    val valid = holes.where($"id" % 3 =!= 0 && $"id" % 5 =!= 0)
    assert(texts(model("skip").transform(holes)) == texts(model("keep").transform(valid)))
    val refused = intercept[Exception](model("error").transform(holes).collect())
    assert(Failures.causes(refused).exists(_.getMessage.contains("column 'p' holds a null or a NaN")))
  }

  test("every type of number is cast as Spark casts it, in columns and in rows") {
    val model = load("mlp").setFeaturesCol(Array("p", "q"))
    val numbers = rows("mlp").withColumn("whole", ($"id" % 100 - 50).cast("byte"))
    for (dtype <- Seq("tinyint", "smallint", "int", "bigint", "float", "double", "decimal(9,3)", "boolean")) {
      val at = path(s"as-$dtype".replaceAll("\\W", "-"))
      numbers.select($"id", $"whole".cast(dtype).as("p"), $"whole".cast(dtype).as("q")).write.parquet(at)
      val df = spark.read.parquet(at)
      // What Spark's own cast gives is scored as floats.
      val cast = model.transform(df.select($"id", $"p".cast("float"), $"q".cast("float")))
      for (vectorized <- Seq("true", "false")) withSetting(Vectorized, vectorized) {
        assert(
          texts(model.transform(df).select("id", "prediction")) == texts(cast.select("id", "prediction")),
          dtype
        )
      }
    }
  }

  test("vectors in columns, dense and sparse") {
    val at = path("vectors")
    val sparse = udf { (values: org.apache.spark.ml.linalg.Vector, id: Long) =>
      if (id % 2 == 0) values.toSparse else values
    }
    rows("column")
      .withColumn("expected", $"expected" (0))
      .withColumn("x", sparse(array_to_vector($"x"), $"id"))
      .write
      .parquet(at)
    assert(isClose(load("column").transform(spark.read.parquet(at))))
  }

  test("wrong rows are refused with the column's name, in columns and in rows") {
    val mend = "fill it (Imputer, DataFrame.fillna) or drop those rows (DataFrame.dropna)"
    val wrong = Seq(
      ("mlp", $"a", when($"id" =!= 77, $"a"), s"column 'a' holds a null: $mend"),
      ("column", $"x", when($"id" =!= 77, $"x"), s"column 'x' holds a null: $mend"),
      ("column", $"x", when($"id" =!= 77, array_to_vector($"x")), s"column 'x' holds a null: $mend"),
      (
        "column",
        $"x",
        when($"id" === 77, array(lit(1f), lit(null), lit(2f)).cast("array<float>")).otherwise($"x"),
        s"column 'x' holds an array with a null in it: $mend before transform"
      ),
      (
        "column",
        $"x",
        when($"id" === 77, array(lit(1f))).otherwise($"x"),
        "column 'x' holds an array of 1, where 3 were trained on: every row's array must have that length"
      )
    )
    for (((name, column, value, message), index) <- wrong.zipWithIndex) {
      val at = path(s"wrong-$index")
      rows(name).withColumn(column.toString, value).write.parquet(at)
      for (vectorized <- Seq("true", "false")) withSetting(Vectorized, vectorized) {
        val scored = load(name).transform(spark.read.parquet(at))
        assert(causeOf(classOf[DataException])(scored.collect()).getMessage == message)
      }
    }
  }

  test("batches larger and smaller than those that Spark reads") {
    for (size <- Seq(1, 7, 999, 1000, 5000); read <- Seq(10, 300, 4096))
      withSetting("spark.sql.parquet.columnarReaderBatchSize", read.toString) {
        val model = load("mlp").setInferenceBatchSize(size)
        assert(isClose(model.transform(rows("mlp"))), s"$size, $read")
      }
    // Two floats in a row, and a double out of it.
    for ((bytes, number) <- Seq(1 -> 1, 100 -> 12, 512 -> 64, 1000 -> 64)) {
      val model = load("mlp").setInferenceBatchBytes(bytes)
      val spec = model.scorerSpec(model.trained.inputs, Seq("predictionCol"), Settings.of(spark), spark)
      assert(spec.numRowsAtOnce == number)
      assert(isClose(model.transform(rows("mlp"))), bytes)
    }
  }

  test("rows of text and of very different sizes keep what they are") {
    val text = expr("repeat('é', cast(id * 37 % 5000 as int))")
    val wide = rows("mlp")
      .withColumn("text", when($"id" % 5 =!= 0, text))
      .withColumn("large", when($"id" % 250 === 0, repeat(lit("x"), 3000000)))
      .repartition(2)
    val scored = load("mlp").transform(wide)
    assert(isClose(scored))
    assert(scored.where(
      !($"text" <=> text) && $"id" % 5 =!= 0
    ).isEmpty)
    assert(scored.where($"large".isNotNull).select(sum(length($"large"))).as[Long].head() == 4 * 3000000L)
  }

  test("only the columns that are asked for are read") {
    val scored = load("mlp").transform(rows("mlp")).select("prediction")
    scored.collect()
    val read = collect(scored.queryExecution.executedPlan) { case scan: FileSourceScanExec =>
      scan.requiredSchema
    }
    assert(read.map(_.fieldNames.toSet) == Seq(Set("a", "b")))
  }

  test("a join with itself, a filter, an aggregate, a sort and a union above") {
    val scored = load("mlp").transform(rows("mlp"))
    val joined = scored.as("l").join(scored.as("r"), $"l.id" === $"r.id")
    assert(joined.count() == 1000)
    assert(joined.where($"l.prediction" =!= $"r.prediction").isEmpty)
    val same = scored.select($"id", $"prediction".as("again")).join(scored, "id")
    assert(same.where($"again" =!= $"prediction").isEmpty && same.count() == 1000)
    assert(isClose(scored.where($"a" > 0 && $"prediction" > -1000)))
    assert(isClose(scored.orderBy($"prediction".desc).limit(10)))
    assert(isClose(scored.union(scored)) && scored.union(scored).count() == 2000)
    val sums = scored.groupBy($"id" % 3).agg(sum("prediction"), sum("expected")).collect()
    assert(sums.length == 3 && sums.forall(row => math.abs(row.getDouble(1) - row.getDouble(2)) < 1e-3))
    assert(
      scored.select($"a", $"prediction").where(scored("a") > 0).count() == rows("mlp").where($"a" > 0).count()
    )
  }

  test("after a join, after a shuffle, of rows in memory and one model after another") {
    val base = rows("mlp")
    val joined = base.drop("b").join(base.select($"id", $"b"), "id")
    assert(isClose(load("mlp").transform(joined)))
    withSetting("spark.sql.adaptive.enabled", "false")(assert(isClose(load("mlp").transform(joined))))
    val local =
      base.select("a", "b", "expected").as[(Double, Int, Double)].collect().toSeq.toDF("a", "b", "expected")
    assert(isClose(load("mlp").transform(local)))
    val twice = load("mlp").setPredictionCol("first").transform(base)
    assert(isClose(load("mlp").transform(twice)))
    assert(load("mlp").transform(twice).where($"first" =!= $"prediction").isEmpty)
  }

  test("cached before and after, and found in the cache by another transform of the same") {
    val base = rows("mlp").cache()
    try {
      val scored = load("mlp").transform(base)
      assert(isClose(scored))
      scored.cache()
      try {
        assert(isClose(scored))
        val again = load("mlp").transform(rows("mlp"))
        assert(collect(again.queryExecution.executedPlan) { case score: ScoreExec => score }.isEmpty)
        assert(isClose(again))
      } finally scored.unpersist()
    } finally base.unpersist()
  }

  /** Rows of a directory with a partition for each remainder of `id`. */
  private lazy val partitioned: DataFrame = {
    rows("mlp").withColumn("part", $"id" % 4).write.partitionBy("part").parquet(path("partitioned"))
    spark.read.parquet(path("partitioned"))
  }

  /** What a plan reads: columns, and the filters that Parquet and the partitions get. */
  private def scans(df: DataFrame): Seq[(Set[String], String, String)] =
    collect(df.queryExecution.executedPlan) { case scan: FileSourceScanExec =>
      // A filter on what a function gives is one of the function itself, which no file gets past reading.
      def plain(filters: Seq[Any]): String =
        filters.map(_.toString.replaceAll("#\\d+L?", "")).filterNot(_.contains("UDF(")).sorted.mkString(", ")
      (scan.requiredSchema.fieldNames.toSet, plain(scan.partitionFilters), plain(scan.dataFilters))
    }

  private def numScored(df: DataFrame): Int =
    collect(df.queryExecution.executedPlan) { case score: ScoreExec => score }.length

  test(
    "predicates and columns reach the files as they do past a column of a function, here and in other sessions"
  ) {
    val sum = udf((a: Double, b: Double) => a + b)
    val queries = Seq[(String, DataFrame => DataFrame)](
      "a partition" -> (_.where($"part" === 1)),
      "a partition and a prediction" -> (_.where($"part" === 1 && $"prediction" > -1000)),
      "a column" -> (_.where($"a" > 0).select("id", "prediction")),
      "a column, after others" -> (_.select($"id" + 1 as "next", $"prediction", $"part").where(
        $"next" > 500
      )),
      "no prediction" -> (_.select("id")),
      "no prediction, of some rows" -> (_.where($"part" === 2 && $"a" > 0).select("id")),
      "a number of rows" -> (_.groupBy().count()),
      "a join" -> (df =>
        df.join(df.select($"id", $"prediction" as "again"), "id").where($"part" === 3).select("id", "again")
      )
    )
    for ((name, query) <- queries; adaptive <- Seq("true", "false"))
      withSetting("spark.sql.adaptive.enabled", adaptive) {
        val base = partitioned
        val scored = query(load("mlp").transform(base))
        val oracle = query(base.withColumn("prediction", sum($"a".cast("double"), $"b".cast("double"))))
        assert(scored.count() == oracle.count(), name)
        scored.collect()
        oracle.collect()
        assert(scans(scored) == scans(oracle), name)
      }
  }

  test("what nobody reads is not computed") {
    val df = rows("classes")
    val scored = TorchClassificationModel.load(SavedModels.model("classes")).transform(df)
    val whole = scored.select("id", "prediction", "rawPrediction", "probability").orderBy("id").collect()
    for ((names, outputs) <- Seq(Seq("prediction") -> 1, Seq("probability", "prediction") -> 2)) {
      val some = scored.select(("id" +: names).map(col): _*).orderBy("id")
      assert(some.collect().toSeq == whole.map(row =>
        Row.fromSeq(("id" +: names).map(row.getAs[Any](_)))
      ).toSeq)
      assert(collect(some.queryExecution.executedPlan) { case score: ScoreExec =>
        score.predictions.length
      } == Seq(outputs))
    }
    val none = scored.where($"id" > 10).select("id")
    assert(none.collect().length == df.where($"id" > 10).count() && numScored(none) == 0)
    // A row that a filter leaves out is not looked at.
    val holes = rows("mlp").withColumn("a", when($"id" =!= 77, $"a"))
    assert(isClose(load("mlp").transform(holes).where($"a".isNotNull)))
  }

  test("a session with the extension plans and optimizes the view of another") {
    val at = partitioned.inputFiles.head.replaceAll("/part=.*", "")
    val before = (SparkSession.getActiveSession, SparkSession.getDefaultSession)
    SparkSession.clearActiveSession()
    SparkSession.clearDefaultSession()
    try {
      val first = SparkSession.builder().withExtensions(new FlambeauExtensions).getOrCreate()
      load("mlp").transform(first.read.parquet(at)).createOrReplaceGlobalTempView("scored")
      val other = first.newSession()
      assert(other.experimental.extraStrategies.isEmpty && other.experimental.extraOptimizations.isEmpty)
      val some = other.table("global_temp.scored").where("part = 1 and prediction > -1000")
      assert(some.collect().length == 250 && isClose(some))
      assert(scans(some).map(_._2) == Seq("(part = 1), isnotnull(part)"))
      val ids = other.table("global_temp.scored").select("id")
      assert(ids.collect().length == 1000 && numScored(ids) == 0)
    } finally {
      before._1.foreach(SparkSession.setActiveSession)
      before._2.foreach(SparkSession.setDefaultSession)
    }
  }

  test("rows are scored by Spark's public interfaces alone where that is asked for, or all that there is") {
    for (name <- Seq("mlp", "column", "array", "several", "classes", "binary")) {
      val expected = texts(load(name).transform(rows(name)))
      withSetting(RowScoring.Key, "rows") {
        val scored = load(name).transform(rows(name))
        assert(scored.schema == load(name).transformSchema(rows(name).schema), name)
        assert(texts(scored) == expected && numScored(scored) == 0, name)
      }
    }
    withSetting(RowScoring.Key, "rows") {
      val holes = load("column").transform(rows("column").withColumn("x", when($"id" =!= 77, $"x")))
      val error = intercept[Throwable](holes.collect())
      assert(error.toString.contains("column 'x' holds a null"), error)
      val twice = load("mlp").transform(rows("mlp").select($"*", $"expected"))
      assert(twice.select("prediction").collect().length == 1000)
    }
    withSetting(RowScoring.Key, "quickly") {
      assert(intercept[ParamException](load("mlp").transform(rows("mlp"))).getMessage ==
        "spark.flambeau.scoring is 'quickly': give 'operator' or 'rows'")
    }
    val settings = Settings(Map.empty)
    assert(!RowScoring.isChosen(settings) && RowScoring.isChosen(settings, Some("of another Spark")))
  }

  test("a Spark that lacks what the operator uses is known before a query runs") {

    /** Has other classes in the place of some of Spark's, or none. */
    class OtherSpark(others: Map[String, Option[Class[_]]]) extends ClassLoader(getClass.getClassLoader) {
      override def loadClass(name: String, resolve: Boolean): Class[_] = others.get(name) match {
        case Some(other) => other.getOrElse(throw new ClassNotFoundException(name))
        case None        => super.loadClass(name, resolve)
      }
    }
    def missingFor(root: String, others: (String, Option[Class[_]])*): Option[String] =
      Linkage.missing(s"flambeau.internal.scoring.$root", new OtherSpark(others.toMap))
    def missing(others: (String, Option[Class[_]])*): Option[String] = missingFor("Scoring$", others: _*)
    assert(missing().isEmpty)
    // What these have is used by tasks alone.
    val joiner = "org.apache.spark.sql.catalyst.expressions.codegen.GenerateUnsafeRowJoiner$"
    assert(missing(joiner -> None).exists(_.contains(joiner)))
    val vector = "org.apache.spark.sql.execution.vectorized.OnHeapColumnVector"
    assert(missing(vector -> Some(classOf[Object])).exists(_.startsWith(s"$vector.<init>(ILorg")))
    // What a training alone needs is nothing to a query.
    assert(missing("org.apache.spark.BarrierTaskContext" -> None).isEmpty)
    // Nor is what functions of SQL need, and the other way around it is.
    val registry = "org.apache.spark.sql.catalyst.analysis.FunctionRegistry"
    assert(missing(registry -> None).isEmpty && missingFor("ScoreFunction").isEmpty)
    assert(missingFor("ScoreFunction", registry -> None).exists(_.contains(registry)))
    assert(missingFor("ScoreFunction", joiner -> None).exists(_.contains(joiner)))
    assert(Linkage.missing("flambeau.NotThere", getClass.getClassLoader).nonEmpty)
  }

  test("vectors of other makes than Spark's are read as rows") {
    val foreign = new ForeignVectors(rows("mlp").queryExecution.executedPlan)
    val score = operator(load("mlp").transform(rows("mlp")))
    assert(score.supportsColumnar && !score.copy(child = foreign).supportsColumnar)
    assert(Columns.isVector(org.apache.spark.ml.linalg.SQLDataTypes.VectorType))
    assert(!Columns.isVector(new ForeignVectors.VectorUDT))
  }

  /** Rows with their model's function of columns and of SQL, which is `f` there; what transform writes is the oracle. */
  private def functionOf(name: String): (TorchModel, ModelFunction) = {
    rows(name).createOrReplaceTempView("t")
    val model = load(name)
    (model, model.udf("f"))
  }

  test("a model's function gives what transform writes, bit for bit") {
    for (name <- Seq("mlp", "column", "array", "several")) {
      val (model, function) = functionOf(name)
      val columns = model.inputs.flatMap(_.columns)
      val wanted = texts(model.transform(rows(name)).select("id", "prediction"))
      val found = spark.sql(s"SELECT id, f(${columns.mkString(", ")}) AS prediction FROM t")
      assert(texts(found) == wanted, name)
      assert(found.schema("prediction").dataType == model.outputFields.head.field.dataType, name)
      val score = model.udf()
      assert(texts(rows(name).select($"id", score(columns.map(col): _*))) == wanted, name)
      assert(function.name == "f" && score.name != function.name)
    }
  }

  test("a classifier's function gives a struct, of which only what is read is computed") {
    val (model, _) = functionOf("classes")
    val written =
      model.transform(rows("classes")).select(
        $"id",
        struct(
          vector_to_array($"rawPrediction"),
          vector_to_array($"probability"),
          $"prediction"
        )
      )
    val found = spark.sql("SELECT id, f(x) AS s FROM t")
    assert(texts(found) == texts(written))
    assert(found.schema("s").dataType.simpleString ==
      "struct<rawPrediction:array<double>,probability:array<double>,prediction:double>")
    val part = spark.sql("SELECT id, f(x).probability[1] FROM t")
    assert(texts(part) == texts(model.transform(rows("classes")).select(
      $"id",
      vector_to_array($"probability")(1)
    )))
    assert(operator(part).predictions.length == 1)
    val (binary, _) = functionOf("binary")
    binary.asInstanceOf[TorchClassificationModel].setProbabilityCol("")
    assert(texts(spark.sql("SELECT id, f(x).probability FROM t")) ==
      texts(load("binary").transform(rows("binary")).select($"id", vector_to_array($"probability"))))
  }

  test("a model's function takes columns of any type that can be what was trained on") {
    val (mlp, _) = functionOf("mlp")
    val whole = "cast(a * 100 AS decimal(9,0))"
    for (
      given <- Seq(s"f($whole, b)", s"f(float($whole), cast(b AS decimal(20,3)))", s"f(int($whole), 1.0 * b)")
    )
      assert(
        texts(spark.sql(s"SELECT id, $given FROM t")) ==
          texts(mlp.transform(rows("mlp").withColumn("a", expr(whole))).select("id", "prediction")),
        given
      )
    functionOf("column")
    val wanted = texts(spark.sql("SELECT id, f(x) FROM t"))
    val sparse = udf((values: org.apache.spark.ml.linalg.Vector) => values.toSparse)
    for (
      (given, index) <- Seq(array_to_vector($"x"), sparse(array_to_vector($"x")), array($"x")).zipWithIndex
    )
      assert(texts(rows("column").select($"id", call_function("f", given))) == wanted, index)
    val (several, function) = functionOf("several")
    val converted =
      rows("several").select($"id", function($"x", $"n".cast("double"), $"flag".cast("int"), $"data"))
    assert(texts(converted) == texts(several.transform(rows("several")).select("id", "prediction")))
    assert(spark.sql("SELECT isnotnull(f(array(1, 2, 3), 2, true, binary('abcd'))) ").as[Boolean].head())
  }

  test("a model's function stands wherever SQL has an expression") {
    // Rows that are scored alone have the same bits in every plan.
    val model = load("mlp").setInferenceBatchSize(1)
    model.udf("f")
    model.transform(rows("mlp")).createOrReplaceTempView("t")
    val queries = Seq[(String => String) => String](
      f => s"SELECT id, ${f("")} FROM t WHERE ${f("")} > 0 AND id > 10",
      f => s"SELECT id % 3, avg(${f("")}), count(*) FROM t GROUP BY id % 3",
      f => s"SELECT round(${f("")}, 2), count(DISTINCT ${f("")}) FROM t GROUP BY round(${f("")}, 2)",
      f => s"SELECT ${f("")} > 0, max(${f("")}) FROM t GROUP BY 1 HAVING min(${f("")}) > -1000",
      f => s"SELECT l.id, r.b FROM t l JOIN t r ON l.id = r.id AND ${f("r.")} > 0",
      f =>
        s"SELECT l.id, ${f("l.")}, r.id FROM t l LEFT JOIN t r ON round(${f("l.")}, 1) = round(${f("r.")} + 1, 1)",
      f => s"SELECT id, CASE WHEN ${f("")} > 0 THEN ${f("")} ELSE 0 END FROM t ORDER BY ${f("")} LIMIT 10",
      f => s"SELECT id, rank() OVER (PARTITION BY id % 7 ORDER BY ${f("")}) FROM t",
      f => s"SELECT id, explode(array(${f("")}, a)) FROM t",
      f => s"SELECT (SELECT max(${f("")}) FROM t) FROM t WHERE b IN (SELECT b FROM t WHERE ${f("")} > 1)",
      f => s"SELECT DISTINCT round(${f("")}, 1) FROM t",
      f =>
        s"WITH c AS (SELECT id, ${f("")} AS p FROM t) SELECT l.id, r.p FROM c l JOIN c r ON l.id = r.id + 1"
    )
    for (query <- queries) {
      def found(call: String => String): Seq[Row] = spark.sql(query(call)).collect().toSeq.sortBy(_.toString)
      assert(found(of => s"f(${of}a, ${of}b)") == found(of => s"${of}prediction"), query(identity))
    }
    // Above an aggregate, and on what another call gives.
    val above = "SELECT f(a, b) + count(*) AS p, f(avg(a), max(b)) AS q FROM t GROUP BY a, b"
    val beside = spark.sql("SELECT prediction + 1, prediction FROM t").collect().toSeq
    assert(spark.sql(above).collect().toSeq.sortBy(_.toString) == beside.sortBy(_.toString))
    val twice = spark.sql("SELECT id, f(f(a, b), b) AS prediction FROM t")
    val first = spark.sql("SELECT id, prediction AS a, b FROM t")
    assert(texts(twice) == texts(model.transform(first).select("id", "prediction")))
  }

  test("a model's function of partition columns prunes no partition before it is computed") {
    load("mlp").setInferenceBatchSize(1).udf("f")
    val base = rows("mlp").select($"id", $"b", $"id" % 4 as "part")
    val dimension = base.where($"id" < 4).select($"part", $"part" + 0.5f as "a")
    dimension.write.mode("overwrite").saveAsTable("dimension")
    base.write.mode("overwrite").partitionBy("part").saveAsTable("parts")
    base.createOrReplaceTempView("whole")
    val middle = spark.sql("SELECT avg(f(part, part)) FROM whole").as[Double].head()
    try {
      base.write.partitionBy("part").parquet(path("parts"))
      spark.read.parquet(path("parts")).createOrReplaceTempView("files")
      // Spark's second way of reading files.
      withSetting("spark.sql.sources.useV1SourceList", "") {
        spark.read.parquet(path("parts")).createOrReplaceTempView("scans")
      }
      for (
        condition <- Seq(
          s"t WHERE f(part, part) > $middle",
          s"t WHERE f(part, part) > $middle AND part < 3 AND id > 10",
          s"t WHERE part = 1 AND f(part, b) > $middle OR part = 2",
          s"t JOIN dimension USING (part) WHERE f(a, part) > $middle",
          s"t JOIN dimension d ON t.part = d.part AND f(d.a, d.part) > $middle WHERE f(t.part, t.part) > $middle",
          s"t LEFT JOIN dimension d ON t.part = d.part WHERE f(d.a, d.part) > $middle",
          s"t WHERE part IN (SELECT part FROM dimension WHERE f(a, part) > $middle)",
          s"t WHERE part = (SELECT max(part) FROM dimension WHERE f(a, part) > $middle)"
        )
      ) {
        def found(table: String) =
          spark.sql(s"SELECT id FROM $table $condition").as[Long].collect().toSeq.sorted
        val wanted = found("whole")
        assert(wanted.nonEmpty && wanted.length < 1000, condition)
        for (table <- Seq("parts", "files", "scans")) assert(found(table) == wanted, s"$table $condition")
      }
    } finally Seq("parts", "dimension").foreach(table => spark.sql(s"DROP TABLE IF EXISTS $table"))
  }

  test("what a model's function refuses") {
    functionOf("mlp")
    val mend = "fill it (Imputer, DataFrame.fillna) or drop those rows (DataFrame.dropna)"
    for (
      (call, message) <- Seq(
        "f(a)" -> "the model takes 2 columns (a, b), and got 1",
        "f(a, 'b')" -> "column 'b' is string, which cannot be an input: index it (StringIndexer) or cast it to a number",
        "f(a, x)" -> ("column 'b' is array<float>; columns that are packed into one tensor are single numbers: give " +
          "arrays and vectors as inputs of their own, in inputCols"),
        "f(a, if(id = 7, null, b))" -> s"column 'b' holds a null: $mend"
      )
    ) assert(
      causeOf(classOf[DataException])(spark.sql(s"SELECT $call FROM t").collect()).getMessage == message
    )
    val both = spark.sql("SELECT l.id FROM t l LEFT JOIN t r ON l.id = r.id AND f(l.a, r.b) > 0")
    assert(intercept[ParamException](both.collect()).getMessage ==
      "f takes columns of both sides of a join in its condition: call it in a WHERE")
    withSetting(RowScoring.Key, "rows") {
      assert(intercept[ParamException](load("mlp").udf()).getMessage.contains("use transform"))
    }
    withSetting("spark.flambeau.store.secretKey", "hidden") {
      functionOf("mlp")
      val query = spark.sql("SELECT f(a, b) FROM t")
      assert(query.columns.toSeq == Seq("f(a, b)"))
      assert(!query.queryExecution.toString.contains("hidden"))
    }
  }

  test("a stream is scored as it comes") {
    val at = path("stream")
    rows("mlp").repartition(3).write.parquet(at)
    val stream = spark.readStream.schema(rows("mlp").schema).option("maxFilesPerTrigger", 1).parquet(at)
    val query = load("mlp").transform(stream).writeStream.format("memory").queryName("scored").start()
    try query.processAllAvailable()
    finally query.stop()
    assert(spark.table("scored").count() == 1000 && isClose(spark.table("scored")))
  }

  test("another session plans it too") {
    val other = spark.newSession()
    val df = other.read.parquet(SavedModels.rows("mlp"))
    assert(isClose(load("mlp").transform(df)))
  }

  test("a plan tells of its columns, and of no setting") {
    withSetting("spark.flambeau.store.secretKey", "hidden") {
      val scored = load("mlp").transform(rows("mlp"))
      val told = scored.queryExecution.toString
      assert(told.contains("Score [a#") && !told.contains("hidden"), told)
    }
  }

  test("what it took is told to Spark's UI") {
    val operators = operator(load("mlp").transform(rows("mlp")))
    assert(operators.metrics("numOutputRows").value == 1000)
    assert(operators.metrics("scoringTime").value > 0)
  }
}

/** A plan whose columns are in vectors of another make. */
private case class ForeignVectors(child: SparkPlan) extends UnaryExecNode {
  override def output: Seq[Attribute] = child.output
  override def supportsColumnar: Boolean = true
  override def vectorTypes: Option[Seq[String]] = Some(Seq("ai.rapids.GpuColumnVector"))
  protected override def doExecute(): RDD[InternalRow] = child.execute()
  protected override def withNewChildInternal(newChild: SparkPlan): ForeignVectors = copy(newChild)
}

private object ForeignVectors {

  /** A type that has but its name from Spark's vectors. */
  class VectorUDT extends UserDefinedType[String] {
    override def sqlType: DataType = StringType
    override def serialize(obj: String): Any = obj
    override def deserialize(datum: Any): String = datum.toString
    override def userClass: Class[String] = classOf[String]
  }
}
