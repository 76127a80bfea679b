package flambeau

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path, Paths}

import flambeau.internal.fit.Program
import flambeau.internal.model.ProgramForms
import flambeau.internal.saving.{Metadata, ProgramSource}
import flambeau.internal.util.Json
import org.apache.spark.ml.{Pipeline, PipelineModel}
import org.apache.spark.ml.feature.{StringIndexer, VectorAssembler}
import org.apache.spark.ml.param.ParamMap
import org.apache.spark.sql.functions._

class SavingSuite extends SparkSuite {
  import spark.implicits._

  private def load(name: String): TorchModel = TorchModel.load(SavedModels.model(name))

  /** A copy of a case's model, to be damaged. */
  private def copied(name: String, to: String): Path = {
    val target = directory.resolve(to)
    Files.createDirectories(target.getParent)
    SavedModels.copy(SavedModels.directory.resolve(name).resolve("model"), target)
    target
  }

  private def edit(file: Path)(change: String => String): Unit =
    Files.write(file, change(new String(Files.readAllBytes(file), UTF_8)).getBytes(UTF_8))

  private def list(directory: String): Seq[Path] = Paths.get(directory).toFile.listFiles.toSeq.map(_.toPath)

  test("a model that PySpark saved: params, history, summary") {
    val model = TorchRegressionModel.load(SavedModels.model("mlp"))
    assert(model.uid == "TorchRegressionModel_0123456789ab")
    assert(model.getFeaturesCols.toSeq == Seq("a", "b") && model.getInferenceBatchSize == 64)
    assert(model.isSet(model.inferenceBatchSize) && !model.isSet(model.predictionCol))
    assert(model.history("loss")(0) == 0.75 && model.history("loss")(1).isNaN)
    assert(model.history("val_mae")(0).isNaN && model.history("val_mae")(1) == 0.125)
    assert(model.history.keys.toSeq == Seq(
      "epoch",
      "steps",
      "num_rows",
      "seconds",
      "rows_per_second",
      "loss",
      "mae",
      "val_loss",
      "val_mae"
    ))
    val summary = model.summary
    assert(model.hasSummary && summary.totalIterations == 2 && summary.numSteps == 8 && summary.numRows == 20)
    assert(summary.numValidationRows == 5 && summary.trainingSeconds.contains(
      1.5
    ) && summary.objectiveHistory(0) == 0.75)
  }

  for (name <- Seq("mlp", "several", "classes", "binary"))
    test(s"$name: inputs, outputs and the line of a model are what PySpark has") {
      val model = load(name)
      val told = SavedModels.directory.resolve(name).resolve("described.json")
      val expected = Json.parse(new String(Files.readAllBytes(told), UTF_8))
      val inputs = model.inputs.map(one => Seq(one.name, one.columns, one.dtype, one.shape))
      val outputs = model.outputs.map(one => Seq(one.name, one.kind, one.columnType.simpleString))
      assert(Json.of(inputs, "inputs") == expected.get("inputs"))
      assert(Json.of(outputs, "outputs") == expected.get("outputs"))
      assert(model.toString == expected.get("text").asText)
      val wrong = model.copy(ParamMap(model.outputNames -> Array.tabulate(6)(n => s"o$n")))
      val refused = intercept[ParamException](wrong.outputs).getMessage
      assert(
        refused.startsWith("outputNames has 6 entries") && wrong.toString.contains(s"outputs=[$refused]")
      )
    }

  for (name <- Seq("mlp", "exported", "several", "classes"))
    test(s"$name: what is saved again is the same model, in the same format") {
      val saved = path(s"again/$name")
      load(name).write.save(saved)
      val original = SavedModels.directory.resolve(name).resolve("model")
      for (
        file <- Seq(
          "weights.safetensors",
          ProgramForms.fileNames(if (name == "exported") "exported" else "scripted")
        )
      )
        assert(
          Files.readAllBytes(Paths.get(saved, file)).sameElements(Files.readAllBytes(original.resolve(file))),
          file
        )
      val (before, after) = (Metadata.read(spark, original.toString), Metadata.read(spark, saved))
      for (field <- Seq("programs", "reasons", "inputs", "output", "classes", "summary"))
        assert(after.ours.get(field) == before.ours.get(field), field)
      assert(after.json.get("paramMap") == before.json.get("paramMap") && after.uid == before.uid)
      assert(after.className == before.className)
      assert(!list(saved).exists(_.getFileName.toString.endsWith(".crc")))
      val rows = spark.read.parquet(SavedModels.rows(name))
      val again = TorchModel.load(saved).transform(rows).select("id", "prediction").collect().toSet
      assert(again == load(name).transform(rows).select("id", "prediction").collect().toSet)
    }

  test("a model saved in place of another, never over its own files") {
    val target = path("place")
    load("mlp").write.save(target)
    intercept[java.io.IOException](load("column").write.save(target))
    load("column").write.overwrite().save(target)
    val model = TorchModel.load(target)
    assert(intercept[FlambeauException](model.write.overwrite().save(target)).getMessage ==
      s"the model was loaded from $target and reads its weights from there; save it to another path")
    assert(Files.exists(Paths.get(target, "weights.safetensors")))
  }

  test("a copy has other params and the same weights") {
    val model = load("mlp")
    val copy = model.copy(new org.apache.spark.ml.param.ParamMap().put(model.predictionCol, "p"))
    assert(
      copy.getPredictionCol == "p" && model.getPredictionCol == "prediction" && (copy.trained eq model.trained)
    )
    assert(copy.uid == model.uid)
  }

  test("what is no model of that class, or of a later format, is refused") {
    assert(intercept[FlambeauException](TorchClassificationModel.load(SavedModels.model("mlp"))).getMessage ==
      s"${SavedModels.model("mlp")} holds a flambeau.TorchRegressionModel, not a TorchClassificationModel")
    val later = copied("mlp", "damaged/later")
    edit(later.resolve("metadata/part-00000"))(_.replace("\"formatVersion\": 1", "\"formatVersion\": 2"))
    assert(intercept[FlambeauException](TorchModel.load(later.toString)).getMessage ==
      s"$later has format 2, written by Flambeau 0.1.0; this version reads 1")
    val assembler = path("assembler")
    new VectorAssembler().setInputCols(Array("a")).setOutputCol("b").write.save(assembler)
    assert(intercept[FlambeauException](TorchModel.load(assembler)).getMessage ==
      s"$assembler holds a org.apache.spark.ml.feature.VectorAssembler, not a TorchModel")
    assert(intercept[FlambeauException](TorchModel.load(path("nowhere"))).getMessage ==
      s"${path("nowhere")} has no metadata; it is not a saved stage, or was not written to its end")
  }

  test("a model whose program is a pickle is refused, with the way out") {
    val message = intercept[FlambeauException](load("pickle")).getMessage
    assert(message == s"${SavedModels.model("pickle")} holds its program as a pickle, which only Python reads (scripted: " +
      "it is not for it; exported: nor for that): score it in PySpark, or change the module so that torch.jit.script or " +
      "torch.export takes it and save the model again")
  }

  /** Runs with a conf set to false. */
  private def without[T](conf: String)(body: => T): T = {
    spark.conf.set(conf, "false")
    try body
    finally spark.conf.unset(conf)
  }

  test("a program that does more than compute is refused where pickles are, a script where scripts are") {
    val written = SavedModels.directory.resolve("written")
    without("spark.flambeau.allowPickle") {
      assert(intercept[FlambeauException](load("writing")).getMessage ==
        s"${SavedModels.model("writing")} holds no program that may be read (scripted: spark.flambeau.allowPickle is false, " +
        "and it calls aten::save, which may do more than compute): score it where the program may be run")
      val tuned = new TorchRegressor().setInitialModel(SavedModels.model("writing")).setLoss("mse")
      assert(
        intercept[FlambeauException](Program.of(tuned, spark)).getMessage.contains("it calls aten::save")
      )
      // What the user gives as the model is the user's.
      Program.of(
        tuned.copy(org.apache.spark.ml.param.ParamMap.empty).setModel(SavedModels.model("writing")),
        spark
      )
      for (name <- Seq("mlp", "exported", "several", "classes")) load(name)
    }
    without("spark.flambeau.allowScripts") {
      assert(intercept[FlambeauException](load("mlp")).getMessage.contains(
        "(scripted: spark.flambeau.allowScripts is false)"
      ))
      load("exported")
    }
    assert(!Files.exists(written))
    load("writing").transform(spark.read.parquet(SavedModels.rows("writing"))).collect()
    assert(Files.exists(written))
  }

  test("a saved estimator's program and loss are refused as a model's are") {
    val saved = path("estimator")
    new TorchRegressor()
      .setModel(SavedModels.model("mlp"))
      .setLossScript(SavedModels.model("writing") + "/program.pt")
      .write
      .save(saved)
    TorchRegressor.load(saved)
    without("spark.flambeau.allowPickle") {
      assert(
        intercept[FlambeauException](TorchRegressor.load(saved)).getMessage.contains("it calls aten::save")
      )
    }
    without("spark.flambeau.allowScripts") {
      intercept[FlambeauException](TorchRegressor.load(saved))
    }
  }

  test("files that were damaged after they were saved are refused") {
    val history = copied("mlp", "damaged/history")
    edit(history.resolve("history.json"))(_.replace("0.75", "0.25"))
    assert(intercept[StoreException](TorchModel.load(history.toString)).getMessage.endsWith(
      "history.json is not the file that was saved: its SHA-256 differs from the metadata's"
    ))
    for (file <- Seq("weights.safetensors", "program.pt")) {
      val damaged = copied("mlp", s"damaged/$file")
      val bytes = Files.readAllBytes(damaged.resolve(file))
      bytes(bytes.length - 100) = (bytes(bytes.length - 100) ^ 1).toByte
      Files.write(damaged.resolve(file), bytes)
      // Another batch size, since a program that is loaded already is not read again.
      val model = TorchModel.load(damaged.toString).setInferenceBatchSize(17)
      val scored = model.transform(spark.read.parquet(SavedModels.rows("mlp")))
      assert(causeOf(classOf[FlambeauException])(scored.count_()).getMessage.contains("SHA-256"), file)
    }
  }

  private implicit class Counted(df: org.apache.spark.sql.DataFrame) {

    /** Computes every row; `count` alone would not need the outputs. */
    def count_(): Long = df.collect().length.toLong
  }

  test("a pipeline with a model: saved and read by Spark's own reader and by PipelineModels") {
    val rows = spark.read.parquet(SavedModels.rows("column")).withColumn("kind", concat(lit("k"), $"id" % 3))
    val indexer = new StringIndexer().setInputCol("kind").setOutputCol("index")
    val assembler = new VectorAssembler().setInputCols(Array("x")).setOutputCol("vector")
    val vectors = rows.withColumn("x", org.apache.spark.ml.functions.array_to_vector($"x"))
    val model = load("column").setFeaturesCol("vector")
    val inner = new Pipeline().setStages(Array(assembler, model))
    val fitted = new Pipeline().setStages(Array(indexer, inner)).fit(vectors)
    val saved = path("pipeline")
    fitted.write.save(saved)
    val expected = fitted.transform(vectors).select("id", "index", "prediction").collect().toSet
    for (read <- Seq(PipelineModel.load(saved), PipelineModels.load(saved))) {
      assert(read.uid == fitted.uid && read.stages.map(_.uid).toSeq == fitted.stages.map(_.uid).toSeq)
      assert(read.transform(vectors).select("id", "index", "prediction").collect().toSet == expected)
    }
    // As PySpark writes a pipeline of which a stage is in Python.
    for (part <- Seq("", "/stages/1_" + fitted.stages(1).uid); file <- list(s"$saved$part/metadata"))
      if (file.getFileName.toString.endsWith(".crc")) Files.delete(file)
      else edit(file)(_.replace("org.apache.spark.ml.PipelineModel", "pyspark.ml.pipeline.PipelineModel"))
    intercept[Exception](PipelineModel.load(saved))
    assert(PipelineModels.load(saved).transform(vectors).select(
      "id",
      "index",
      "prediction"
    ).collect().toSet == expected)
  }

  test("a single stage, an unfitted pipeline, and a class that is not there") {
    assert(PipelineModels.loadStage(SavedModels.model("column")).isInstanceOf[TorchModel])
    assert(intercept[FlambeauException](PipelineModels.load(SavedModels.model("column"))).getMessage.contains(
      "holds a flambeau.TorchModel, not a PipelineModel"
    ))
    val unfitted = path("unfitted")
    new Pipeline().setStages(Array(new StringIndexer().setInputCol("kind").setOutputCol("index"))).write.save(
      unfitted
    )
    assert(
      PipelineModels.loadStage(unfitted).asInstanceOf[Pipeline].getStages.head.isInstanceOf[StringIndexer]
    )
    val unknown = copied("column", "damaged/unknown")
    edit(unknown.resolve("metadata/part-00000"))(_.replace("flambeau.TorchModel", "nowhere.Model"))
    assert(intercept[FlambeauException](PipelineModels.loadStage(unknown.toString)).getMessage ==
      s"$unknown holds a nowhere.Model, which is not on the class path")
  }

  test("programs to train: files, saved models, and what is none") {
    val scripted = ProgramSource.open(spark, SavedModels.model("mlp") + "/program.pt")
    assert(scripted.form == "scripted" && scripted.weights.isEmpty && scripted.files("scripted").uri.endsWith(
      "/program.pt"
    ))
    assert(ProgramSource.open(spark, SavedModels.model("exported") + "/program.pt2").form == "exported")
    val saved = ProgramSource.open(spark, SavedModels.model("mlp"))
    assert(saved.form == "scripted" && saved.weights.get.uri.endsWith("/weights.safetensors"))
    val index = directory.resolve("program")
    Files.createDirectories(index)
    for (name <- Seq("program.pt", "weights.safetensors"))
      Files.copy(SavedModels.directory.resolve("mlp/model").resolve(name), index.resolve(name))
    val metadata = Metadata.read(spark, SavedModels.model("mlp"))
    val json = Json.obj()
    json.replace("programs", metadata.ours.get("programs"))
    json.replace("files", metadata.ours.get("files"))
    Files.write(index.resolve("program.json"), Json.text(json).getBytes(UTF_8))
    assert(
      ProgramSource.open(spark, index.toString).files("scripted") == scripted.files("scripted").copy(uri =
        s"$index/program.pt"
      )
    )
    assert(intercept[ParamException](ProgramSource.open(spark, path("nothing"))).getMessage ==
      s"model: there is nothing at ${path("nothing")}; give the path of a program or of a saved model")
    assert(
      intercept[ParamException](ProgramSource.open(spark, SavedModels.model("pickle"))).getMessage.startsWith(
        s"model: ${SavedModels.model("pickle")} holds no program that libtorch reads (scripted: it is not for it; "
      )
    )
    assert(intercept[ParamException](ProgramSource.open(spark, directory.toString)).getMessage.contains(
      "is neither a program nor"
    ))
  }
}
