"""The keyword arguments of the estimators: the params, and the names that users of Horovod's estimators know
them by.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from pyspark.ml.param import Params

from flambeau.errors import ParamError
from flambeau.params.objects import suggestion

if TYPE_CHECKING:
    from flambeau.model import TorchModel


class EstimatorArguments(TypedDict, total=False):
    """What the estimators take as keywords: every param, None for one that is left as it is."""

    model: Any
    loss: Any
    optimizer: Any
    metrics: Any
    runtime: str | None
    featuresCol: str | list[str] | None
    inputCols: list[str] | None
    inputShapes: list[list[int]] | None
    inputTypes: list[str] | None
    labelCol: str | None
    labelCols: list[str] | None
    weightCol: str | None
    predictionCol: str | None
    rawPredictionCol: str | None
    probabilityCol: str | None
    outputNames: list[str] | None
    outputKinds: list[str] | None
    threshold: float | None
    thresholds: list[float] | None
    initialModel: str | TorchModel | None
    validationIndicatorCol: str | None
    validationFraction: float | None
    numWorkers: int | None
    dataLanes: int | None
    batchSize: int | None
    dropLast: bool | None
    epochs: int | None
    seed: int | None
    shuffle: bool | None
    shuffleWindow: int | None
    stepSize: float | None
    scaleLearningRate: bool | None
    warmupEpochs: float | None
    lrSchedule: str | None
    lrEndFactor: float | None
    lrDecayRate: float | None
    lrDecayEpochs: int | None
    monitor: str | None
    monitorMode: str | None
    monitorMinDelta: float | None
    earlyStoppingPatience: int | None
    restoreBestWeights: bool | None
    gradientAccumulationSteps: int | None
    gradientClipNorm: float | None
    gradientCompression: str | None
    powerSgdRank: int | None
    powerSgdStartStep: int | None
    topKRatio: float | None
    precision: str | None
    compile: bool | None
    device: str | None
    checkpointInterval: int | None
    checkpointSteps: int | None
    keepCheckpoints: int | None
    runId: str | None
    maxRestarts: int | None
    collectiveTimeout: float | None
    heartbeatTimeout: float | None
    slotTimeout: float | None
    workDir: str | None
    inferenceBatchSize: int | None
    verbose: int | None
    verifyReplicas: bool | None
    numGpusPerWorker: int | None
    numThreads: int | None
    memoryBudget: int | None
    num_proc: int | None
    feature_cols: list[str] | None
    label_cols: list[str] | None
    input_shapes: list[list[int]] | None
    sample_weight_col: str | None
    validation: str | float | None
    batch_size: int | None
    inference_batch_size: int | None
    random_seed: int | None
    backward_passes_per_step: int | None
    run_id: str | None


_ALIASES = {
    "num_proc": "numWorkers",
    "feature_cols": "inputCols",
    "label_cols": "labelCols",
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
    "transformation_fn": "transform the DataFrame before fit",
    "transformation_edit_fields": "transform the DataFrame before fit",
    "removed_fields": "select the columns before fit",
    "label_shapes": "labels take the shape of their columns",
    "partitions_per_process": "it is not needed: the rows are shared out evenly however they are stored",
    "inmemory_cache_all": "give memoryBudget, in bytes for each worker",
    "callbacks": "give earlyStoppingPatience, restoreBestWeights, warmupEpochs or lrSchedule in their place; "
    "model.history has each epoch's losses and metrics",
    "gradient_compression": 'give gradientCompression, such as "fp16"',
    "use_gpu": 'give device, such as "cuda"',
}


def resolve_arguments(params: Params, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by the names of their params, those left out that are None.

    Raises ParamError for an argument that is unknown, naming the param that was meant or what takes its
    place, and for one that is given under two names.
    """
    resolved: dict[str, Any] = {}
    for name, value in arguments.items():
        param = _param_of(name, value)
        if name in _INSTEAD:
            raise ParamError(f"{type(params).__name__} has no param {name!r}: {_INSTEAD[name]}")
        if not params.hasParam(param):
            raise ParamError(f"{type(params).__name__} has no param {name!r}{suggestion(name, params)}")
        if value is None:
            continue
        if param in resolved:
            raise ParamError(f"{param} is given twice, once as {name!r}")
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
