"""`transform` in the executors' JVMs, which score with libtorch, so that no row goes to Python: with
`runtime="native"`, and with "auto" in a session that has our extensions, wherever the JVM can.

The model goes to the JVM class of its name as one message: its params, and where its weights lie, which the
executors read from there. Its program goes to the JVM once for each model, which hands it out to them.
"""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from flambeau._libtorch import WAY_OUT, libtorch_of
from flambeau._saved.program import compile_programs, instantiate, libtorch_programs
from flambeau._saved.weights import load_into
from flambeau._score.placement import has_nvidia_driver
from flambeau._spark.files import fetched
from flambeau._spark.fitted import Fitted
from flambeau._spark.session import (
    LIBTORCH,
    classic_context,
    python_models,
    setting,
    shares_machine,
    store_options,
)
from flambeau._store import local_path
from flambeau.errors import ParamError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("flambeau")


def transform(model: Fitted, dataset: DataFrame) -> DataFrame:
    """The rows with the outputs' columns, scored in the executors' JVMs when they are computed.

    Raises ParamError where the session has no jar of ours, and where libtorch runs no form of the module.
    """
    spark = dataset.sparkSession
    if (refusal := _refusal(model, spark)) is not None:
        raise ParamError(f"runtime: 'native' {refusal}, {WAY_OUT}")
    hand_out = partial(_programs_in_jvm, model, spark, exports=True)
    return _scored(model, model._handed_out.once(spark.sparkContext, "programs", hand_out), dataset)


def transform_where_it_can(model: Fitted, dataset: DataFrame) -> DataFrame | None:
    """What `transform` gives; None where the JVM cannot, or is not known to: a log line says why.

    It can where the model has a form of TorchScript's or torch.export's, or TorchScript takes its module,
    where the driver's JVM has scored a row of zeros with it, and where executors are known to find libtorch
    and to have no GPU for it. What came of that row, a failure too, is kept for all copies of the model as
    long as Spark runs.
    """
    spark: Any = dataset.sparkSession

    def try_out() -> Mapping[str, Any] | str:
        try:
            if not model._weights.is_hadoops and not model._weights.visible():
                return f"the driver does not see {model._weights.uri}"
            programs = _programs_in_jvm(model, spark, exports=False)
            python_models(spark).tryOut(_message(model, spark), programs, spark._jsparkSession)
            return programs
        except Exception as error:
            return _said(error)

    found: Mapping[str, Any] | str | None = _objection(model, spark)
    if found is None:
        key = ("tried programs", setting(spark, LIBTORCH), setting(spark, "spark.flambeau.scoring"))
        found = model._handed_out.once(spark.sparkContext, key, try_out)
    if not isinstance(found, str):
        try:
            return _scored(model, found, dataset)
        except Exception as error:
            found = _said(error)
    log.info("transform scores in Python: %s", found)
    return None


def _said(error: Exception) -> str:
    """What an error says; one of Java's that Spark has not translated says it in its second line."""
    return " ".join(str(error).splitlines()[:2])


def _refusal(model: Fitted, spark: SparkSession) -> str | None:
    """Why the JVM does not score with the model; None where it may."""
    if model._preprocess is not None:
        return "scores in Spark's JVM, and the model has a preprocess, which is Python's: train without one"
    for head in model._heads():
        named = head.kind if head.kind.startswith("label") or not model._class_fields else "number"
        if named != "number" or head.threshold is not None or head.thresholds is not None:
            return (
                "scores no outputKinds but number, and a classifier's of one label a row, and neither "
                "threshold nor thresholds: unset them"
            )
    if python_models(spark) is None:
        return f"scores in Spark's JVM, {_missing(spark)}"
    if model._is_here and not shares_machine(spark):
        return (
            "reads the weights where they lie, and the executors do not see those of a model that was loaded "
            "from files of this machine: save it where all see it"
        )
    return None


def _objection(model: Fitted, spark: SparkSession) -> str | None:
    """Why the JVM does not score by default, as far as that is known before it tries; None where it may."""
    if (refusal := _refusal(model, spark)) is not None:
        return f"runtime 'native' {refusal}"
    if not setting(spark, LIBTORCH) and not (shares_machine(spark) and libtorch_of(None)):
        return f"{LIBTORCH} does not say where executors have libtorch"
    device = model.getOrDefault("device")
    if device == "cuda" or (device == "auto" and (not shares_machine(spark) or has_nvidia_driver())):
        return f"there may be GPUs for it, and device is {device!r}"
    is_stored = local_path(model._weights.uri) is None
    if is_stored and dict(model._weights.store_options) != store_options(spark):
        return "the session has other options for the store of the weights than the model"
    return None


def _message(model: Fitted, spark: SparkSession) -> str:
    """The model as the JVM takes it."""
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
    return json.dumps(message)


def _scored(model: Fitted, programs: Mapping[str, Any], dataset: DataFrame) -> DataFrame:
    from pyspark.sql import DataFrame

    frame: Any = dataset
    spark = dataset.sparkSession
    scored = python_models(spark).transform(_message(model, spark), programs, frame._jdf)
    return DataFrame(scored, spark)


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


def _programs_in_jvm(model: Fitted, spark: SparkSession, exports: bool) -> Mapping[str, Any]:
    """The form of the module to score with, as the JVM hands it out. One that is Python's alone is compiled:
    by TorchScript, in milliseconds, or where this `exports` by torch.export, which takes seconds.
    """
    programs: Mapping[str, bytes]
    forms = [form for form in ("scripted", "exported") if form in model._programs]
    if forms:
        programs = {forms[0]: model._programs[forms[0]]}
    else:
        with fetched(model._weights, spark) as path:
            module = load_into(instantiate(model._programs), path, share=True)
            if exports:
                programs = libtorch_programs(module, model._inputs, path, graphs=("exported",))
            else:
                programs, reasons = compile_programs(module, model._inputs, path, forms=("scripted",))
                if not programs:
                    raise ParamError(f"TorchScript does not take the module: {reasons['scripted']}")
    entry, session = python_models(spark), cast("Any", spark)._jsparkSession
    return {form: entry.program(session, form, data) for form, data in programs.items()}
