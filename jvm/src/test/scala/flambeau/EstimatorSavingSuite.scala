package flambeau

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Paths}

import flambeau.internal.saving.{Metadata, ProgramSource}
import flambeau.internal.util.Json
import org.apache.spark.ml.Pipeline

class EstimatorSavingSuite extends SparkSuite {

  test("an estimator is saved with its program, and read as it was") {
    val program = SavedModels.model("mlp")
    val estimator = new TorchRegressor()
      .setModel(s"$program/program.pt")
      .setFeaturesCol(Array("a", "b"))
      .setLoss("huber", Map("delta" -> 1.5))
      .setOptimizer("sgd", Map("momentum" -> 0.9, "nesterov" -> true))
      .setMetrics(Array("rmse"))
      .setEpochs(3)
      .setGradientGroups(Array(Array("0.weight", "2.bias"), Array("0.bias")))
    val saved = path("estimator")
    estimator.write.save(saved)
    val metadata = Metadata.read(spark, saved)
    assert(metadata.className == "flambeau.TorchRegressor")
    assert(Json.text(metadata.ours.get("names")) ==
      """{"loss":{"name":"huber","options":{"delta":1.5}},"optimizer":{"name":"sgd","options":""" +
      """{"momentum":0.9,"nesterov":true}},"metrics":["rmse"]}""")
    assert(Json.text(metadata.ours.get("programs")) == """{"scripted":"program.pt"}""")
    assert(Json.fields(metadata.json.get("paramMap")).map(_._1).toSet == Set(
      "featuresCols",
      "epochs",
      "gradientGroups"
    ))

    val read = TorchRegressor.load(saved)
    assert(read.uid == estimator.uid && read.getEpochs == 3 && read.getFeaturesCols.toSeq == Seq("a", "b"))
    assert(read.getGradientGroups.map(_.toSeq).toSeq == Seq(Seq("0.weight", "2.bias"), Seq("0.bias")))
    assert(read.getLoss == estimator.getLoss && read.getOptimizer == estimator.getOptimizer)
    assert(read.getMetrics.toSeq == Seq("rmse") && read.getModel == saved)
    val file = ProgramSource.open(spark, read.getModel).files("scripted")
    assert(file.uri == s"$saved/program.pt")
    assert(Files.readAllBytes(Paths.get(file.uri)).sameElements(
      Files.readAllBytes(Paths.get(s"$program/program.pt"))
    ))

    read.write.save(path("estimator again"))
    assert(intercept[FlambeauException](read.write.overwrite().save(saved)).getMessage ==
      s"the estimator's program lies in $saved; save it to another path")
  }

  test("a scripted loss and a saved model's weights travel along") {
    val estimator = new TorchEstimator().setModel(SavedModels.model("mlp")).setLossScript(
      SavedModels.model("mlp") + "/program.pt"
    )
    val saved = path("script")
    new Pipeline().setStages(Array(estimator)).write.save(saved)
    val read =
      PipelineModels.loadStage(saved).asInstanceOf[Pipeline].getStages.head.asInstanceOf[TorchEstimator]
    val stage = s"$saved/stages/0_${estimator.uid}"
    assert(read.getLoss == Loss.script(s"$stage/loss.pt") && Files.exists(Paths.get(s"$stage/loss.pt")))
    assert(ProgramSource.open(spark, read.getModel).weights.get.uri == s"$stage/weights.safetensors")
  }

  test("an estimator without a program, and one with nothing set") {
    val saved = path("bare")
    new TorchClassifier().write.save(saved)
    val read = TorchEstimator.load(saved)
    assert(
      read.isInstanceOf[TorchClassifier] && !read.isSet(read.model) && read.getOptimizer == Optimizer("adam")
    )
    assert(read.getLoss == Loss("cross_entropy"))
    assert(intercept[FlambeauException](TorchRegressor.load(saved)).getMessage ==
      s"$saved holds a flambeau.TorchClassifier, not a TorchRegressor")
  }

  test("an estimator that PySpark saved: names and what only Python has are read, a pickle is refused") {
    def save(name: String, files: String): String = {
      val folder = directory.resolve(name).resolve("metadata")
      Files.createDirectories(folder)
      val json = s"""{"class": "flambeau.TorchEstimator", "timestamp": 0, "sparkVersion": "4.1.0", "uid": "TorchEstimator_1",
        "paramMap": {"epochs": 2, "learningRate": 0.5, "runtime": "native"}, "defaultParamMap": {"optimizer": "adam", "runtime": "python"},
        "flambeau": {"formatVersion": 1, "flambeauVersion": "0.1.0", "names": {"loss": "mse", "metrics": ["mae"]}$files}}"""
      Files.write(folder.resolve("part-00000"), (json.replace("\n", " ") + "\n").getBytes(UTF_8))
      directory.resolve(name).toString
    }
    val read = TorchEstimator.load(save("names", ""))
    assert(read.getEpochs == 2 && read.getLearningRate == 0.5 && read.getLoss == Loss(
      "mse"
    ) && read.getMetrics.toSeq == Seq("mae"))
    val pickled = save("pickled", """, "files": {"objects.pkl": {"size": 1, "sha256": "0"}}""")
    assert(intercept[FlambeauException](TorchEstimator.load(pickled)).getMessage.startsWith(
      s"$pickled holds its module, loss or optimizer as a pickle, which only Python reads: "
    ))
  }
}
