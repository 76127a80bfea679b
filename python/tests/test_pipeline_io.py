"""Flambeau's stages inside Spark's pipelines and validators: saved, loaded, and loaded without Spark's own
readers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fitted
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.ml.tuning import CrossValidator, CrossValidatorModel, ParamGridBuilder, TrainValidationSplitModel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from flambeau import FlambeauError, TorchClassifier, TorchRegressor, load_pipeline
from flambeau._spark.directory import load_metadata


def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(0, 40, 1, 2).select(
        "id", *[(F.sin(F.col("id") * i)).alias(f"c{i}") for i in range(1, 5)]
    )


def pipeline(spark: SparkSession, folder: Path) -> PipelineModel:
    """An assembler, a scaler fitted by the JVM, and a classifier."""
    assembler = VectorAssembler(inputCols=[f"c{i}" for i in range(1, 5)], outputCol="raw")
    scaler = StandardScaler(inputCol="raw", outputCol="features").fit(assembler.transform(numbers(spark)))
    return PipelineModel([assembler, scaler, fitted.classifier(folder)])


def outputs(model: PipelineModel, frame: DataFrame) -> list[object]:
    return [row[0] for row in model.transform(frame).orderBy("id").select("rawPrediction").collect()]


def test_a_pipeline_of_jvm_and_python_stages(any_spark: SparkSession, tmp_path: Path) -> None:
    model, path = pipeline(any_spark, tmp_path / "fit"), str(tmp_path / "saved")
    model.write().overwrite().save(path)
    model.write().overwrite().save(path)
    frame = numbers(any_spark)
    expected = outputs(model, frame)
    for load in (PipelineModel.load, load_pipeline):
        loaded = load(path)
        assert loaded.uid == model.uid and [s.uid for s in loaded.stages] == [s.uid for s in model.stages]
        assert outputs(loaded, frame) == expected


def test_unfitted_and_nested_pipelines(spark: SparkSession, tmp_path: Path) -> None:
    inner = Pipeline(stages=[TorchClassifier(model=fitted.Mlp(), epochs=2)])
    outer = Pipeline(stages=[VectorAssembler(inputCols=["c1"], outputCol="features"), inner])
    path = str(tmp_path / "saved")
    outer.save(path)
    for load in (Pipeline.load, load_pipeline):
        loaded: Any = load(path)
        assert loaded.uid == outer.uid
        (estimator,) = loaded.getStages()[1].getStages()
        assert estimator.getEpochs() == 2 and type(estimator.getModel()) is fitted.Mlp


def test_a_pipeline_whose_metadata_scala_wrote(spark: SparkSession, tmp_path: Path) -> None:
    """As Scala's writer leaves it: the JVM's class name, and no language."""
    model, path = pipeline(spark, tmp_path / "fit"), tmp_path / "saved"
    model.save(str(path))
    (part,) = path.glob("metadata/part-*")
    metadata = json.loads(part.read_text())
    metadata["class"] = "org.apache.spark.ml.PipelineModel"
    del metadata["paramMap"]["language"]
    part.write_text(json.dumps(metadata))
    (part.parent / f".{part.name}.crc").unlink()
    assert outputs(load_pipeline(str(path)), numbers(spark)) == outputs(model, numbers(spark))


def test_single_stages_and_what_is_no_stage(spark: SparkSession, tmp_path: Path) -> None:
    assembler = VectorAssembler(inputCols=["c1"], outputCol="x")
    assembler.save(str(tmp_path / "assembler"))
    assert load_pipeline(str(tmp_path / "assembler")).uid == assembler.uid
    with pytest.raises(Exception, match="nothing"):
        load_pipeline(str(tmp_path / "nothing"))


def test_a_class_of_ours_that_does_not_exist(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "saved"
    fitted.classifier(tmp_path / "fit").save(str(path))
    (part,) = path.glob("metadata/part-*")
    part.write_text(part.read_text().replace("flambeau.TorchClassificationModel", "flambeau.TorchRanker"))
    (part.parent / f".{part.name}.crc").unlink()
    with pytest.raises(FlambeauError, match="TorchRanker, which this version"):
        load_pipeline(str(path))


def test_validators_and_their_models(any_spark_long: SparkSession, tmp_path: Path) -> None:
    estimator = TorchRegressor(model=fitted.Scalar(), featuresCol="features", labelCol="c1")
    grid = ParamGridBuilder().addGrid(estimator.learningRate, [0.1, 0.2]).build()
    evaluator = RegressionEvaluator(labelCol="c1")
    validator = CrossValidator(estimator=estimator, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2)
    validator.save(str(tmp_path / "validator"))
    loaded = CrossValidator.load(str(tmp_path / "validator"))
    assert [next(iter(m.values())) for m in loaded.getEstimatorParamMaps()] == [0.1, 0.2]
    assert isinstance(loaded.getEstimator(), TorchRegressor)

    best = fitted.fitted(estimator, fitted.Scalar(), [fitted.features(4)], tmp_path / "fit")
    whole = validator._copyValues(CrossValidatorModel(best, [0.5, 0.25], stdMetrics=[0.0, 0.0]))
    whole.write().overwrite().save(str(tmp_path / "model"))
    again = CrossValidatorModel.load(str(tmp_path / "model"))
    frame = numbers(any_spark_long).select("id", F.array("c1", "c2", "c3", "c4").alias("features"))

    def predictions(model: CrossValidatorModel | TrainValidationSplitModel) -> list[float]:
        return [row["prediction"] for row in model.transform(frame).orderBy("id").collect()]

    assert again.avgMetrics == [0.5, 0.25]
    assert predictions(again) == predictions(whole)


def test_metadata_of_nothing_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "empty" / "metadata").mkdir(parents=True)
    (tmp_path / "empty" / "metadata" / "part-00000").touch()
    with pytest.raises(FlambeauError, match="has no metadata"):
        load_metadata(spark, str(tmp_path / "empty"))
