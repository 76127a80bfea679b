package flambeau

import flambeau.internal.mlflow.InputExample
import flambeau.internal.util.Json
import org.apache.spark.ml.functions.array_to_vector
import org.apache.spark.sql.functions.{array, lit, when}

/** What MLflow's listener refuses; python/tests/test_mlflow.py has what it logs to a server. */
class MLflowSuite extends SparkSuite {

  test("what is no server is refused, with what to do") {
    def refusal(uri: String): String = intercept[ParamException](new MLflow().setTrackingUri(uri)).getMessage
    for (uri <- Seq("databricks", "databricks://profile", "databricks-uc"))
      assert(refusal(uri).contains(s"'$uri'") && refusal(uri).contains("in PySpark with flambeau.mlflow"))
    for (uri <- Seq("mlruns", "file:/mlruns", "sqlite:///runs.db", "http://", "http:// no"))
      assert(refusal(uri).contains(s"got '$uri'") && refusal(uri).contains("start `mlflow server`"))
    assert(refusal("postgresql://ann:word@host/runs").contains("got 'postgresql://host/runs'"))
    new MLflow().setTrackingUri("https://ann:word@host/under/").setTrackingUri("http://[::1]:5000")
  }

  test("without a tracking URI a fit is refused before its work") {
    assume(!sys.env.contains("MLFLOW_TRACKING_URI"))
    val error = intercept[ParamException] {
      TrainingCases.slow().addListener(new MLflow).fit(spark.read.parquet(TrainingCases.rows("slow")))
    }
    assert(error.getMessage.contains("setTrackingUri") && error.getMessage.contains("MLFLOW_TRACKING_URI"))
  }

  test("an alias without a registered model, and what names no model, are refused") {
    val server = new MLflow().setTrackingUri("http://tracking:5000")
    intercept[ParamException](server.setRegisteredModelName("flights/champion"))
    val error = intercept[ParamException](server.setAlias("champion").begin(TrainingCases.slow()))
    assert(error.getMessage.contains("setRegisteredModelName"))
    val unlogged =
      new MLflow().setTrackingUri("http://tracking:5000").setRegisteredModelName("flights").setLogModel(false)
    assert(intercept[ParamException](unlogged.begin(TrainingCases.slow())).getMessage ==
      "registeredModelName is 'flights', but the model is left out by setLogModel(false): a model that is not logged " +
      "cannot be registered: leave logModel at true, or registeredModelName unset")
    for (uri <- Seq("flights", "models:/", "runs:/1"))
      assert(
        intercept[ParamException](MLflow.load(uri, "http://tracking:5000")).getMessage.contains(s"'$uri'")
      )
  }

  test("an example has the first rows that a model takes, in the types of its signature") {
    import spark.implicits._

    val frame = Seq((1, Double.NaN, 0.5f), (2, 1.5, 0.1f), (3, 2.5, 1f), (4, 3.5, 2f))
      .toDF("id", "a.b", "c")
      .withColumn("c", when($"id" === 3, lit(null)).otherwise($"c"))
      .select(
        $"`a.b`",
        $"c",
        ($"id" % 2 === 0).as("flag"),
        array(array($"c", lit(1f)), array(lit(2f), lit(3f))).as("nested"),
        array_to_vector(array($"`a.b`", lit(0.0))).as("vector"),
        $"`a.b`".cast("decimal(4,1)").as("decimal"),
        lit("hi".getBytes).as("bytes"),
        $"id"
      )
    val inputs = Seq(
      TensorColumns("packed", Seq("a.b", "c"), "float32", Some(Seq(2))),
      TensorColumns("flag", Seq("flag"), "bool", Some(Nil)),
      TensorColumns("nested", Seq("nested"), "float32", Some(Seq(2, 2))),
      TensorColumns("vector", Seq("vector"), "float32", Some(Seq(2))),
      TensorColumns("decimal", Seq("decimal"), "float64", Some(Nil)),
      TensorColumns("bytes", Seq("bytes"), "uint8", Some(Seq(2))),
      TensorColumns("id", Seq("id"), "int64", Some(Nil))
    )
    val expected =
      """{"columns": ["a.b", "c", "flag", "nested", "vector", "decimal", "bytes", "id"], "data": [
        |[1.5, 0.10000000149011612, true, [0.10000000149011612, 1.0, 2.0, 3.0], [1.5, 0.0], 1.5, "aGk=", 2],
        |[3.5, 2.0, true, [2.0, 1.0, 2.0, 3.0], [3.5, 0.0], 3.5, "aGk=", 4]]}""".stripMargin
    assert(Json.parse(Json.text(InputExample.of(frame, inputs))) == Json.parse(expected))
  }
}
