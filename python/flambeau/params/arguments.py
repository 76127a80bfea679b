"""The keyword arguments of the estimators: the params, and the names that users of Spark ML's and Horovod's
estimators know them by.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from pyspark.ml.param import Params

from flambeau.errors import ParamError
from flambeau.params.objects import unknown


class OtherNames(TypedDict, total=False):
    """The names that Spark ML's and Horovod's estimators have for params of ours."""

    stepSize: float | None
    num_proc: int | None
    feature_cols: list[str] | None
    label_cols: list[str] | None
    output_cols: list[str] | None
    input_shapes: list[list[int]] | None
    sample_weight_col: str | None
    validation: str | float | None
    batch_size: int | None
    inference_batch_size: int | None
    random_seed: int | None
    backward_passes_per_step: int | None
    run_id: str | None


_ALIASES = {
    "stepSize": "learningRate",
    "num_proc": "numWorkers",
    "feature_cols": "inputCols",
    "label_cols": "labelCols",
    "output_cols": "outputCols",
    "input_shapes": "inputShapes",
    "sample_weight_col": "weightCol",
    "batch_size": "batchSize",
    "inference_batch_size": "inferenceBatchSize",
    "random_seed": "seed",
    "backward_passes_per_step": "gradientAccumulationSteps",
    "run_id": "runId",
}

# Horovod's arguments that have no param here, and what takes their place.
_INSTEAD = {
    "store": "give a path as workDir",
    "backend": "give numWorkers; the SparkSession decides where they run",
    "loss_constructors": "give the loss itself as loss",
    "loss_weights": "give a loss that weighs its parts as loss",
    "val_batch_size": "validation uses batchSize",
    "train_minibatch_fn": "give a loss that does this as loss",
    "transformation_fn": "give a function of a batch as preprocess",
    "transformation_edit_fields": "transform the DataFrame before fit",
    "removed_fields": "select the columns before fit",
    "label_shapes": "labels take the shape of their columns",
    "partitions_per_process": "it is not needed: the rows are shared out evenly however they are stored",
    "inmemory_cache_all": "give memoryBudget, in bytes for each worker",
    "gradient_compression": 'give gradientCompression, such as "fp16"',
    "use_gpu": 'give device, such as "cuda"',
}


def resolve_arguments(params: Params, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by the names of their params.

    Raises ParamError for an argument that is unknown, naming the param that was meant or what takes its
    place, and for one that is given under two names.
    """
    resolved: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, value in arguments.items():
        param = _param_of(name, value)
        if name in _INSTEAD:
            raise ParamError(f"{type(params).__name__} has no param {name!r}: {_INSTEAD[name]}")
        if not params.hasParam(param):
            raise unknown(name, params)
        if value is None:
            resolved.setdefault(param, None)
            continue
        if names.setdefault(param, name) != name:
            raise ParamError(f"{param} is given twice, as {names[param]!r} and as {name!r}")
        resolved[param] = _without_batch(value) if name == "input_shapes" else value
    return resolved


def _param_of(name: str, value: Any) -> str:
    if name == "validation":
        return "validationIndicatorCol" if isinstance(value, str) else "validationFraction"
    return _ALIASES.get(name, name)


def _without_batch(shapes: Any) -> Any:
    """Horovod's shapes without their first size, -1, which stands for the rows of a batch."""
    if isinstance(shapes, (list, tuple)):
        return [
            list(shape[1:]) if isinstance(shape, (list, tuple)) and shape and shape[0] == -1 else shape
            for shape in shapes
        ]
    return shapes
