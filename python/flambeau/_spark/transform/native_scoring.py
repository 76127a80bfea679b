"""`runtime="native"` in `transform`: the executors' JVMs score with libtorch, and no row goes to Python.

The model goes to the JVM class of its name as one message: its params, and where its weights lie, which the
executors read from there. Its program goes to the JVM once for each model, which hands it out to them.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from flambeau._libtorch import WAY_OUT, libtorch_of
from flambeau._saved.program import instantiate, libtorch_programs
from flambeau._saved.weights import load_into
from flambeau._spark.files import fetched
from flambeau._spark.fitted import Fitted
from flambeau._spark.session import LIBTORCH, classic_context, python_models, setting, shares_machine
from flambeau.errors import ParamError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession


def transform(model: Fitted, dataset: DataFrame) -> DataFrame:
    """The rows with the outputs' columns, scored in the executors' JVMs when they are computed.

    Raises ParamError where the session has no jar of ours, and where libtorch runs no form of the module.
    """
    from pyspark.sql import DataFrame

    spark = dataset.sparkSession
    entry = python_models(spark)
    for head in model._heads():
        named = head.kind if head.kind.startswith("label") or not model._class_fields else "number"
        if named != "number" or head.threshold is not None or head.thresholds is not None:
            raise ParamError(
                "runtime: 'native' scores no outputKinds but number, and a classifier's of one label a row, "
                f"and neither threshold nor thresholds: unset them, {WAY_OUT}"
            )
    if entry is None:
        raise ParamError(f"runtime: 'native' scores in Spark's JVM, {_missing(spark)}, {WAY_OUT}")
    if model._is_here and not shares_machine(spark):
        raise ParamError(
            "runtime: 'native' reads the weights where they lie, and the executors do not see those of a "
            f"model that was loaded from files of this machine: save it where all see it, {WAY_OUT}"
        )
    message = {
        "class": f"flambeau.{type(model).__name__}",
        "uid": model.uid,
        "params": {param.name: value for param, value in model._paramMap.items()},
        "defaults": {param.name: value for param, value in model._defaultParamMap.items()},
        "weights": {
            "uri": model._weights.uri,
            "size": model._weights.size,
            "sha256": model._weights.sha256,
        },
        "inputs": [tensor.to_json() for tensor in model._inputs],
        "output": model._output.to_json(),
        "classes": model._heads()[0].kind,
        "libtorch": libtorch_of(setting(spark, LIBTORCH) or None),
    }
    frame: Any = dataset
    programs = _programs_in_jvm(model, spark, entry)
    return DataFrame(entry.transform(json.dumps(message), programs, frame._jdf), spark)


def weights_in_jvm(java_model: Any) -> str:
    """The URI of the weights that a model of the JVM has."""
    uri: str = java_model.trained().weights().uri()
    return uri


def _missing(spark: SparkSession) -> str:
    """What the session lacks, and how it gets it."""
    if classic_context(spark) is None:
        return "which a Spark Connect client does not reach: use a classic session"
    return (
        "which has no Flambeau: start it with SparkSession.builder.config(map=flambeau.spark_config()), in a "
        "new process, since a JVM that runs keeps the jars it has"
    )


def _programs(model: Fitted, spark: SparkSession) -> Mapping[str, bytes]:
    """The form of the module to score with; one that is Python's alone is compiled, once for each model."""
    for form in ("scripted", "exported"):
        if form in model._programs:
            return {form: model._programs[form]}
    if model._compiled is None:
        with fetched(model._weights, spark) as path:
            module = load_into(instantiate(model._programs), path, share=True)
            model._compiled = libtorch_programs(module, model._inputs, path, graphs=("exported",))
    return model._compiled


def _programs_in_jvm(model: Fitted, spark: SparkSession, entry: Any) -> Mapping[str, Any]:
    """The programs as the JVM hands them out; a session does it once."""
    session: Any = spark
    return {
        form: model._handed_out.once(
            spark.sparkContext, data, partial(entry.program, session._jsparkSession, form, data)
        )
        for form, data in _programs(model, spark).items()
    }
