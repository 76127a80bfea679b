"""Fitted models: transformers that score rows with a trained module."""

from __future__ import annotations

import copy
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from pyspark.ml import Model
from pyspark.ml.param import Params
from pyspark.ml.util import MLReadable, MLWritable

from flambeau._columns import (
    TensorColumns,
    expressions,
    quoted,
    resolve_inputs,
    resolve_tensor,
)
from flambeau._history import RECORD_COLUMNS
from flambeau._module.named import name_of
from flambeau._saved.program import OutputSpec, OutputTensor, check_signature, dump_skeleton, instantiate
from flambeau._saved.weights import WeightsRef, fetched, load_into
from flambeau._transform import slots
from flambeau.errors import DataError, ParamError
from flambeau.params import (
    HasClassColumns,
    HasDevice,
    HasInputColumns,
    HasLabelColumns,
    HasOutputColumns,
    HasRuntime,
)

if TYPE_CHECKING:
    from pyspark.ml.util import MLReader, MLWriter
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType
    from torch import nn


@dataclass(frozen=True)
class TrainingSummary:
    """What a training came to, with the names that Spark ML's summaries have.

    Attributes
    ----------
    objectiveHistory : the mean training loss of each epoch.
    totalIterations : the number of epochs.
    bestEpoch : the epoch, counted from 0, in which `monitor` was best, None where that is not known.
    numSteps : the number of optimizer steps.
    numRows : the number of training rows.
    numValidationRows : the number of validation rows.
    trainingSeconds : seconds that the training took on the workers, None where it is not known.
    """

    objectiveHistory: list[float]
    totalIterations: int
    bestEpoch: int | None
    numSteps: int
    numRows: int
    numValidationRows: int
    trainingSeconds: float | None


class TorchModel(
    Model,
    HasInputColumns,
    HasOutputColumns,
    HasLabelColumns,
    HasDevice,
    HasRuntime,
    MLReadable["TorchModel"],
    MLWritable,
):
    """A trained module as a Spark ML transformer.

    `transform` adds `predictionCol`: a double where the module returns one number a row, an array where it
    returns several, a struct where it returns several tensors (fields `_1`, `_2`, ... of a tuple, or the keys
    of a dict). With `runtime="native"` the JVM scores, in a session that has Flambeau's jar.

    Models come from an estimator's `fit` or from `load`; they are not made by calling the class.
    """

    __module__ = "flambeau"

    _programs: Mapping[str, bytes]
    _reasons: Mapping[str, str]
    _weights: WeightsRef
    _inputs: tuple[TensorColumns, ...]
    _output: OutputSpec
    _classes: str | None
    _history: dict[str, Any]
    _counts: dict[str, Any]
    _compiled: Mapping[str, bytes] | None = None
    """The module's form for libtorch, where it was made of a module of Python's."""

    _parents: ClassVar[str] = "TorchEstimator"

    @classmethod
    def _create(
        cls,
        estimator: Params,
        *,
        programs: Mapping[str, bytes],
        weights: WeightsRef,
        history: Mapping[str, Any],
        inputs: Sequence[TensorColumns],
        output: OutputSpec,
        num_rows: int,
        num_steps: int,
        num_validation_rows: int = 0,
        training_seconds: float | None = None,
    ) -> Self:
        """A model with the estimator's params and uid.

        `programs` are the forms of the module, such as `program.dump_skeleton` as `pickle`, `history` a
        training result's history (`{"epochs": [...]}`), `inputs` the tensors it was trained on with their
        shapes, `output` what `program.probe_output` found. Raises ParamError where the output is not what
        this kind of model gives.
        """
        model = cls()
        model._check_output(output)
        model._programs, model._reasons = dict(programs), {}
        model._weights, model._inputs, model._output = weights, tuple(inputs), output
        model._classes = output_kind(estimator)
        model._history = copy.deepcopy(dict(history))
        model._counts = {
            "numRows": num_rows,
            "numSteps": num_steps,
            "numValidationRows": num_validation_rows,
            "trainingSeconds": training_seconds,
        }
        model._resetUid(estimator.uid)
        estimator._copyValues(model)
        return model

    @property
    def history(self) -> dict[str, list[Any]]:
        """What each epoch came to: lists of one value an epoch, by name.

        `epoch` (from 0), `steps`, `num_rows`, `seconds`, `rows_per_second`, `loss`, each metric by its name,
        and with validation rows `val_loss` and `val_<metric>`. None stands where a value was not a finite
        number. `learning_rate` is that of the epoch's last step and of the optimizer's first parameter group.
        `data_seconds`, `model_seconds` (forward, loss and backward), `reduce_seconds` (waiting for
        slower workers included) and `optimizer_seconds` tell where the first worker's `seconds` went.
        `sent_bytes` are the gradients that each worker sent, `uncompressed_bytes` what they would have been
        without gradientCompression. Models of older versions have none of these. With precision fp16,
        `loss_scale` is what the loss was multiplied by at the end of the epoch, and `skipped_steps` how many
        of its steps overflowed and were skipped.
        `pandas.DataFrame(model.history)` is the table of epochs.
        """
        records = self._history.get("epochs", [])
        columns: dict[str, list[Any]] = {
            name: [r.get(key) for r in records]
            for key, name in RECORD_COLUMNS.items()
            if any(key in r for r in records) or not records
        }
        validated = any(r.get("validationLoss") is not None or r.get("validationMetrics") for r in records)
        for name in _names(records, "metrics"):
            columns[name] = [dict(r.get("metrics") or ()).get(name) for r in records]
        if validated:
            columns["val_loss"] = [r.get("validationLoss") for r in records]
            for name in _names(records, "validationMetrics"):
                columns[f"val_{name}"] = [dict(r.get("validationMetrics") or ()).get(name) for r in records]
        return columns

    @property
    def hasSummary(self) -> bool:
        """Whether there is a summary; there always is one, in loaded models too."""
        return True

    @property
    def summary(self) -> TrainingSummary:
        """What the training came to."""
        losses = self.history["loss"]
        return TrainingSummary(
            objectiveHistory=losses,
            totalIterations=len(losses),
            bestEpoch=self._history.get("bestEpoch"),
            **self._counts,
        )

    def module(self) -> nn.Module:
        """The trained module in eval mode on the CPU, with weights of its own: a plain `torch.nn.Module`.

        After a fit it is of the user's class. After `load` it is the saved program, a graph for scoring,
        unless the model was loaded with `module=` or saved as a pickle. Weights that this process cannot see
        are read through Spark, in chunks.
        """
        with fetched(self._weights) as path:
            return load_into(instantiate(self._programs), path)

    def copy(self, extra: Mapping[Any, Any] | None = None) -> Self:
        """A copy with the params of `extra`; weights and program are shared."""
        return super().copy(dict(extra) if extra else None)

    def write(self) -> MLWriter:
        """A writer of this model: `write().overwrite().save(path)`."""
        from flambeau._saved.saving import ModelWriter

        return ModelWriter(self)

    @classmethod
    def read(cls) -> MLReader[Any]:
        """A reader of models of this class."""
        from flambeau._saved.saving import ModelReader

        return ModelReader(cls)

    @classmethod
    def load(cls, path: str, module: nn.Module | None = None) -> Self:
        """Reads a saved model.

        `path` is the directory that it was saved to. `module`, where given, is a module of the class that was
        trained, itself untrained: it takes the saved program's place, so that no program is read, and no
        pickle. Raises FlambeauError for what is not a saved model of this class, and where
        `spark.flambeau.allowPickle` is false and there is a pickle only.
        """
        from flambeau._saved.saving import ModelReader

        return cast("Self", ModelReader(cls, module).load(path))

    @classmethod
    def _from_java(cls, java_stage: Any) -> Self:
        """The model of the same name that a JVM pipeline holds.

        It comes by way of a temporary directory of the driver; Spark hands its weights out to the workers.
        """
        from flambeau._saved.saving import ModelReader

        with tempfile.TemporaryDirectory(prefix="flambeau-") as folder:
            path = f"file://{folder}/model"
            java_stage.write().overwrite().save(path)
            return cast("Self", ModelReader(cls).load(path, hand_out=True))

    def _use_module(self, module: nn.Module) -> None:
        """Puts the user's module in the program's place. Raises ParamError where it is not the one that was
        trained.
        """
        check_signature(module, self._inputs)
        program = dump_skeleton(module)
        if self._weights.visible():
            load_into(instantiate({"pickle": program}), self._weights.local(), share=True)
        self._programs, self._reasons, self._compiled = {"pickle": program}, {}, None

    def _check_output(self, output: OutputSpec) -> None:
        """Raises ParamError where the module's output is not what this kind of model gives."""

    def _check_fitted(self) -> None:
        """Raises ParamError for a model that was made by calling its class."""
        if not hasattr(self, "_weights"):
            raise ParamError(
                f"{type(self).__name__} holds no trained module; get one from {self._parents}.fit or load"
            )

    def _transform(self, dataset: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        self._check_fitted()
        outputs = self._output_columns()
        for param, name in outputs:
            if name in dataset.columns:
                raise ParamError(
                    f"{param}: the DataFrame has a column {name!r} already; drop it or set another {param}"
                )
        if not outputs:
            return dataset
        columns, tensors = self._columns_of(dataset)
        if self.getRuntime() == "native":
            from flambeau._transform import native_scoring

            return native_scoring.transform(self, dataset)
        gpu_tasks = slots.num_slots(dataset.sparkSession)
        score = self._udf(tensors, [param for param, _ in outputs], len(columns), gpu_tasks)(*columns)
        return self._add_outputs(dataset, score, F.col)

    def _columns_of(self, dataset: DataFrame) -> tuple[list[Column], list[TensorColumns]]:
        """The DataFrame's columns for the module, converted as they were for training, and the tensors they
        make.
        """
        from flambeau._transform.udf import whole_arrays

        schema = dataset.schema
        found = resolve_inputs(schema, self)
        if len(found) != len(self._inputs):
            trained = ", ".join(tensor.name for tensor in self._inputs)
            raise ParamError(
                f"the params name {len(found)} inputs, "
                f"and the model was trained on {len(self._inputs)}: {trained}"
            )
        columns, tensors = [], []
        for now, then in zip(found, self._inputs, strict=True):
            tensor = resolve_tensor(schema, now.name, now.columns, then.dtype, "input")
            wanted = _numbers(then)
            if tensor.shape is not None and _numbers(tensor) != wanted:
                raise DataError(
                    f"input {now.name!r} ({', '.join(now.columns)}) has {_numbers(tensor)} numbers in a row, "
                    f"where {wanted} were trained on"
                )
            tensors.append(TensorColumns(now.name, now.columns, then.dtype, then.shape))
            for name, column in zip(tensor.columns, expressions(schema, tensor, "input"), strict=True):
                columns.append(whole_arrays(column, name, schema[name].dataType))
        return columns, tensors

    def _udf(
        self, tensors: Sequence[TensorColumns], wanted: Sequence[str], num_columns: int, gpu_tasks: int
    ) -> Any:
        from flambeau._transform.scoring import Scorer
        from flambeau._transform.udf import scalar_udf

        scorer = Scorer(
            # The graph for training stays here.
            programs={form: data for form, data in self._programs.items() if form != "exportedTrain"},
            weights=self._weights,
            inputs=tuple(tensors),
            output=self._output,
            batch_size=self.getInferenceBatchSize(),
            classes=self._classes if self._class_fields else None,
            fields=tuple(name.removesuffix("Col") for name in wanted) if self._class_fields else (),
            sys_path=tuple(sys.path),
            device=self.getDevice(),
            gpu_tasks=gpu_tasks,
        )
        return scalar_udf(scorer, self._result_type(wanted), num_columns)

    _class_fields: ClassVar[bool] = False

    def _output_columns(self) -> list[tuple[str, str]]:
        """The params that name output columns and the columns' names; an empty name leaves that column
        out.
        """
        name = self.getPredictionCol()
        return [("predictionCol", name)] if name else []

    def _result_type(self, wanted: Sequence[str]) -> DataType:
        from pyspark.sql.types import StructField, StructType

        if self._output.single is not None:
            return _column_type(self._output.single)
        return StructType([StructField(str(t.name), _column_type(t)) for t in self._output.tensors])

    def _add_outputs(self, dataset: DataFrame, score: Column, col: Any) -> DataFrame:
        return dataset.withColumn(self.getPredictionCol(), score)


class TorchRegressionModel(TorchModel):
    """A trained regression module: `predictionCol` is a double, or an array where the module returns several
    numbers.
    """

    __module__ = "flambeau"
    _parents = "TorchRegressor"

    def _check_output(self, output: OutputSpec) -> None:
        if output.single is None:
            raise ParamError(
                "model: a regressor's forward returns one tensor; use TorchEstimator for several"
            )


class TorchClassificationModel(TorchModel, HasClassColumns):
    """A trained classification module.

    `transform` adds `rawPredictionCol` (the module's outputs, a vector), `probabilityCol` (a vector that sums
    to 1) and `predictionCol` (the class with the largest, a double). A module with one logit a row is a
    binary classifier: its raw prediction is [-logit, logit], as Spark's LogisticRegression has it, and the
    probability its sigmoid. Where the loss takes probabilities (bce) or their logarithms (nll), the outputs
    are read as such. An empty name leaves a column out.
    """

    __module__ = "flambeau"
    _parents = "TorchClassifier"
    _class_fields = True

    @property
    def numClasses(self) -> int:
        """The number of classes: the module's outputs a row, 2 where it has one."""
        tensor = self._output.tensors[0]
        return 2 if tensor.is_scalar else tensor.shape[0]

    @property
    def numFeatures(self) -> int:
        """The number of numbers in a row of the inputs."""
        return sum(_numbers(tensor) for tensor in self._inputs)

    def _check_output(self, output: OutputSpec) -> None:
        tensor = output.single
        if tensor is None or len(tensor.shape) > 1:
            raise ParamError(
                "model: a classifier's forward returns one tensor: [rows, classes], "
                "or [rows] or [rows, 1] for two classes; "
                f"it returns {[list(('rows', *t.shape)) for t in output.tensors]}: use TorchEstimator"
            )

    def _output_columns(self) -> list[tuple[str, str]]:
        names = ("rawPredictionCol", "probabilityCol", "predictionCol")
        return [(name, self.getOrDefault(name)) for name in names if self.getOrDefault(name)]

    def _result_type(self, wanted: Sequence[str]) -> DataType:
        from pyspark.sql.types import ArrayType, DoubleType, StructField, StructType

        vector = ArrayType(DoubleType(), False)
        kinds: dict[str, DataType] = {
            "prediction": DoubleType(),
            "rawPrediction": vector,
            "probability": vector,
        }
        names = [name.removesuffix("Col") for name in wanted]
        return StructType([StructField(name, kinds[name]) for name in names])

    def _add_outputs(self, dataset: DataFrame, score: Column, col: Any) -> DataFrame:
        from pyspark.ml.functions import array_to_vector

        held = f"{self.uid}_scores"
        made = {}
        for param, name in self._output_columns():
            field = col(quoted(held)).getField(param.removesuffix("Col"))
            made[name] = field if param == "predictionCol" else array_to_vector(field)
        return dataset.withColumn(held, score).withColumns(made).drop(held)


def output_kind(estimator: Params) -> str:
    """How a classifier's outputs read under its loss: logits, probabilities (bce) or log_probabilities
    (nll).
    """
    loss: Any = (
        estimator.getOrDefault("loss") if estimator.hasParam("loss") and estimator.isDefined("loss") else None
    )
    name = name_of(loss) or getattr(loss, "__name__", type(loss).__name__)
    if name in ("bce", "BCELoss", "binary_cross_entropy"):
        return "probabilities"
    if name in ("nll", "NLLLoss", "nll_loss"):
        return "log_probabilities"
    return "logits"


def _column_type(tensor: OutputTensor) -> DataType:
    """Spark's type of a column with this output: double for one number a row, (nested) arrays otherwise."""
    from pyspark.sql.types import ArrayType, BooleanType, DoubleType, FloatType, LongType

    if tensor.is_scalar:
        return DoubleType()
    kind: DataType = FloatType()
    if tensor.dtype == "float64":
        kind = DoubleType()
    elif tensor.dtype == "bool":
        kind = BooleanType()
    elif "float" not in tensor.dtype:
        kind = LongType()
    for _ in tensor.shape:
        kind = ArrayType(kind, False)
    return kind


def _numbers(tensor: TensorColumns) -> int:
    """How many numbers a row of the tensor has."""
    size = 1
    for length in tensor.shape or ():
        size *= length
    return size


def _names(records: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    """The names of the metrics in all records, in the order in which they first come."""
    names: dict[str, None] = {}
    for record in records:
        names.update(dict.fromkeys(name for name, _ in record.get(key) or ()))
    return list(names)
