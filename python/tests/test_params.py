"""Params: names, defaults, bounds and docs are the schema's, and Spark ML's conventions hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from pyspark.ml.param.shared import HasFeaturesCol, HasLabelCol, HasPredictionCol, HasSeed, HasWeightCol

from flambeau import ParamError, TorchClassifier, TorchEstimator, TorchRegressor, _native
from flambeau.params.declared import EstimatorArguments
from flambeau.params.objects import PYTHON_PARAMS

SCHEMA = json.loads(_native.job_schema())
PROPERTIES: dict[str, dict[str, Any]] = SCHEMA["$defs"]["TrainingParams"]["properties"]
EXAMPLES = {
    "featuresCol": "x",
    "featuresCols": ["a", "b"],
    "inputCols": ["a", "b"],
    "inputNames": ["a", "b"],
    "inputShapes": [[3, 2]],
    "gradientGroups": [["a", "b"], ["c"]],
    "inputTypes": ["int64"],
    "outputCols": ["a", ""],
    "outputKinds": ["number"],
    "outputNames": ["a", "b"],
    "thresholds": [0.5, 1.0],
    "labelCols": ["a", "b"],
    "heartbeatTimeout": 2.5,
    "oneCycleDivFactor": 2.5,
    "oneCycleFinalDivFactor": 2.5,
    "memoryBudget": 1 << 20,
    "numGpusPerWorker": 1,
    "verbose": 0,
    "boolean": True,
    "integer": 5,
    "number": 0.5,
    "string": "s",
}


def net() -> torch.nn.Module:
    return torch.nn.Linear(2, 1)


def types_of(schema: dict[str, Any]) -> list[str]:
    types = schema["type"]
    return [types] if isinstance(types, str) else types


def test_the_params_are_those_of_the_schema() -> None:
    names = {param.name for param in TorchEstimator().params} - set(PYTHON_PARAMS)
    assert names == set(PROPERTIES)


def test_the_constructor_takes_every_param() -> None:
    names = {param.name for param in TorchEstimator().params}
    assert names <= set(EstimatorArguments.__annotations__)


def test_the_constructor_says_which_params_are_for_experts() -> None:
    doc = TorchEstimator.__init__.__doc__ or ""
    expert = {line.split()[0] for line in doc.splitlines() if line.endswith("(expert)")}
    assert expert == set(SCHEMA["$defs"]["TrainingParams"]["x-expert"])


@pytest.mark.parametrize("name", sorted(PROPERTIES))
def test_doc_default_and_type_are_those_of_the_schema(name: str) -> None:
    estimator, schema = TorchEstimator(), PROPERTIES[name]
    param = estimator.getParam(name)
    assert param.doc == " ".join(schema["description"].split())
    default = schema.get("default")
    assert estimator.isDefined(param) == (default is not None)
    if default is not None:
        assert estimator.getOrDefault(param) == default
        assert type(estimator.getOrDefault(param)) is type(default)
    kind = next(kind for kind in types_of(schema) if kind != "null")
    value = EXAMPLES.get(name, schema.get("enum", [EXAMPLES.get(kind)])[-1])
    estimator._set(**{name: value})
    assert getattr(estimator, "get" + name[0].upper() + name[1:])() == value


@pytest.mark.parametrize("name", sorted(PROPERTIES))
def test_bounds_are_those_of_the_schema(name: str) -> None:
    schema, estimator = PROPERTIES[name], TorchEstimator()
    step = 1 if "integer" in types_of(schema) else 0.001
    allowed = [schema[key] for key in ("minimum", "maximum") if key in schema]
    allowed += [schema["exclusiveMinimum"] + step] if "exclusiveMinimum" in schema else []
    allowed += [schema["exclusiveMaximum"] - step] if "exclusiveMaximum" in schema else []
    refused = [schema["minimum"] - step] if "minimum" in schema else []
    refused += [schema["maximum"] + step] if "maximum" in schema else []
    refused += [schema[key] for key in ("exclusiveMinimum", "exclusiveMaximum") if key in schema]
    if "enum" in schema:
        allowed += schema["enum"]
        refused += ["float16", ""]
    elif "string" in types_of(schema):
        (refused if schema.get("minLength") else allowed).append("")
    refused += [[]] if schema.get("minItems") else []
    for value in allowed:
        estimator._set(**{name: value})
        assert estimator.getOrDefault(name) == value
    for value in refused:
        with pytest.raises(ParamError, match=name) as refusal:
            estimator._set(**{name: value})
        assert repr(value) in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 1.5),
        ("epochs", True),
        ("epochs", "3"),
        ("shuffle", 1),
        ("labelCol", 3),
        ("inputCols", "a"),
        ("inputCols", ["a", "a"]),
        ("outputCols", ["a", "", "a"]),
        ("outputCols", ["", ""]),
        ("inputShapes", [3, 2]),
        ("gradientGroups", ["a", "b"]),
        ("gradientGroups", [["a"], []]),
        ("gradientGroups", [["a", ""]]),
        ("gradientGroups", [["a", "b"], ["a"]]),
        ("inputTypes", ["float16"]),
        ("checkpointInterval", 0),
        ("learningRate", float("nan")),
    ],
)
def test_a_wrong_value_is_refused_with_name_and_value(name: str, value: Any) -> None:
    with pytest.raises(ParamError, match=name):
        TorchEstimator(**{name: value})


def test_spark_mixins_are_spark_mls() -> None:
    for mixin in (HasFeaturesCol, HasLabelCol, HasPredictionCol, HasSeed, HasWeightCol):
        assert isinstance(TorchEstimator(), mixin)


def test_none_unsets() -> None:
    estimator = TorchEstimator(learningRate=0.1, epochs=None)  # type: ignore[arg-type]
    assert estimator.getEpochs() == 1
    estimator.setLearningRate(None)
    assert not estimator.isDefined(estimator.learningRate)
    estimator.setParams(epochs=3, learningRate=0.1)
    estimator.setParams(epochs=None, num_proc=None)
    assert (estimator.getEpochs(), estimator.getLearningRate()) == (1, 0.1)


def test_step_size_is_the_learning_rate_by_spark_mls_name() -> None:
    estimator = TorchEstimator(stepSize=0.1)
    assert (estimator.getLearningRate(), estimator.getStepSize()) == (0.1, 0.1)
    assert estimator.stepSize is estimator.learningRate
    assert estimator.setStepSize(0.2).getLearningRate() == 0.2
    assert estimator.setParams(stepSize=0.3).getLearningRate() == 0.3
    assert estimator.copy({estimator.stepSize: 0.4}).getLearningRate() == 0.4
    assert estimator.setStepSize(None).getStepSize() is None
    assert "stepSize" not in {param.name for param in estimator.params}


def test_horovods_names_are_taken() -> None:
    estimator = TorchEstimator(
        num_proc=2,
        feature_cols=["a", "b"],
        label_cols=["y"],
        input_shapes=[[-1, 3], [-1, 2, 2]],
        sample_weight_col="w",
        validation=0.25,
        batch_size=64,
        random_seed=7,
        backward_passes_per_step=4,
        inference_batch_size=10,
    )
    assert estimator.getNumWorkers() == 2
    assert estimator.getInputCols() == ["a", "b"]
    assert estimator.getLabelCols() == ["y"]
    assert estimator.getInputShapes() == [[3], [2, 2]]
    assert estimator.getWeightCol() == "w"
    assert estimator.getValidationFraction() == 0.25
    assert estimator.getBatchSize() == 64
    assert estimator.getSeed() == 7
    assert estimator.getGradientAccumulationSteps() == 4
    assert estimator.getInferenceBatchSize() == 10
    assert TorchEstimator(validation="held_out").getValidationIndicatorCol() == "held_out"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"epoch": 3}, "epochs"),
        ({"store": "/tmp"}, "workDir"),
        ({"callbacks": ["early"]}, "callbacks must be objects of classes derived from"),
        ({"num_proc": 2, "numWorkers": 2}, "twice"),
        ({"featuresCol": ["a"], "featuresCols": ["b"]}, "featuresCols is given twice"),
        ({"inputCols": {"x": "a"}, "inputNames": ["y"]}, "inputNames is given twice"),
        ({"stepSize": 0.1, "learningRate": 0.2}, "as 'stepSize' and as 'learningRate'"),
    ],
)
def test_unknown_and_doubled_arguments_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ParamError, match=said):
        TorchEstimator(**arguments)


def test_explain_params_shows_objects_in_a_line() -> None:
    module = net()
    text = TorchRegressor(
        model=module, optimizer=lambda p: torch.optim.SGD(p, lr=0.1), metrics=["mae"]
    ).explainParams()
    lines = text.splitlines()
    assert any(line.startswith("model: ") and "Linear with 3 parameters" in line for line in lines)
    assert any(line.startswith("optimizer: ") and "test_params.py" in line for line in lines)
    assert any(line.startswith("loss: ") and "default: mse" in line for line in lines)
    assert len(lines) == len(TorchRegressor().params)


def test_copy_shares_objects_and_keeps_its_own_values() -> None:
    estimator = TorchClassifier(model=net(), epochs=2)
    copied = estimator.copy({estimator.epochs: 5, estimator.loss: "nll"})
    assert (estimator.getEpochs(), copied.getEpochs()) == (2, 5)
    assert (estimator.getLoss(), copied.getLoss()) == ("cross_entropy", "nll")
    assert copied.getModel() is estimator.getModel()
    assert copied.uid == estimator.uid
    with pytest.raises(ParamError, match="epochs"):
        estimator.copy({estimator.epochs: 0})


def test_classes_carry_the_packages_name() -> None:
    for cls in (TorchEstimator, TorchRegressor, TorchClassifier):
        assert f"{cls.__module__}.{cls.__name__}" == f"flambeau.{cls.__name__}"


def test_the_job_is_what_the_native_side_takes() -> None:
    estimator = TorchRegressor(
        model=net(), numWorkers=2, inputCols=["a"], inputShapes=[[2]], workDir="/tmp/w"
    )
    job = {
        "format": 1,
        "params": estimator._job_params(),
        "data": {
            "train": ["a.parquet"],
            "spec": {"inputs": [_tensor("a")], "labels": [_tensor("y")], "weight": None},
        },
        "attempt": {"id": "a", "workDir": "/tmp/w"},
    }
    _native.validate_job(json.dumps(job))
    job["params"] = estimator._job_params() | {"dataLanes": 3}
    with pytest.raises(ParamError, match="dataLanes"):
        _native.validate_job(json.dumps(job))


def test_featurescol_takes_a_list() -> None:
    estimator = TorchEstimator(featuresCol=["a", "b"])
    assert estimator.getFeaturesCols() == ["a", "b"]
    assert not estimator.isSet(estimator.featuresCol)
    assert estimator.copy({estimator.featuresCol: ["c"]}).getFeaturesCols() == ["c"]
    assert estimator.setFeaturesCol(["d"]).getFeaturesCols() == ["d"]


def test_inputcols_takes_a_dict() -> None:
    estimator = TorchEstimator(inputCols={"x": "a", "mask": "b"})
    assert (estimator.getInputNames(), estimator.getInputCols()) == (["x", "mask"], ["a", "b"])
    copied = estimator.copy({estimator.inputCols: {"y": "c"}})
    assert (copied.getInputNames(), copied.getInputCols()) == (["y"], ["c"])


def _tensor(name: str) -> dict[str, Any]:
    return {"name": name, "columns": [name], "dtype": "float32", "shape": []}
