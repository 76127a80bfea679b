package flambeau

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
}
