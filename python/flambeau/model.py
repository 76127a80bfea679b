"""Fitted models: transformers that score rows with a trained module."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, cast

from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, DoubleType, FloatType, LongType, StructField, StructType

from flambeau._history import RECORD_COLUMNS
from flambeau._saved.program import OutputSpec, OutputTensor, instantiate
from flambeau._saved.weights import WeightsRef, load_into
from flambeau._score.heads import CLASS_FIELDS, Head
from flambeau._score.scoring import Scorer
from flambeau._spark.columns import expressions, find_field, quoted, resolve_inputs, resolve_tensor
from flambeau._spark.files import fetched
from flambeau._spark.fitted import Fitted
from flambeau._spark.saving.stages import ModelReader, ModelWriter
from flambeau._spark.transform import native_scoring
from flambeau._spark.transform.udf import gpu_tasks_of, scalar_udf, whole_arrays
from flambeau._tensors import TensorColumns
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
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType
    from torch import nn

    from flambeau._score.heads import Head


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


@dataclass(frozen=True)
class Checkpoint:
    """Where a training was at one moment.

    Attributes
    ----------
    epoch : the epoch, counted from 0, that training goes on with from here.
    step : the number of optimizer steps before it.
    uri : its directory; `weights/weights.safetensors` in it are the weights.
    """

    epoch: int
    step: int
    uri: str
    _weights: Mapping[str, Any] = field(repr=False)
    _history: Mapping[str, Any] = field(repr=False)
    _fitted: TorchModel = field(repr=False)

    def model(self) -> TorchModel:
        """The fitted model with this checkpoint's weights and the history up to it."""
        model = self._fitted.copy()
        weights, options = self._weights, self._fitted._weights.store_options
        model._weights = WeightsRef(weights["uri"], weights["size"], weights["sha256"], options)
        model._history = dict(self._history)
        model._counts = {**self._fitted._counts, "numSteps": self.step, "trainingSeconds": None}
        model._checkpoints = ()
        return model


class TorchModel(
    Fitted,
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
    returns several, a struct where it returns several tensors. The struct's fields are the keys of a dict or
    the fields of a named tuple, `_1`, `_2`, ... of another tuple, or what `outputNames` says. An output to
    which `outputKinds` gives another kind than `number` is a struct of `prediction`, `probability` and
    `rawPrediction`. With `runtime="native"` the JVM scores, in a session that has Flambeau's jar.

    Models come from an estimator's `fit` or from `load`; they are not made by calling the class.
    """

    __module__ = "flambeau"

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

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The newest `keepCheckpoints` of the training, oldest first; `checkpoint.model()` is the model that
        it was then. They lie in the work directory, and a saved model does not have them.
        """
        return [
            Checkpoint(told["epoch"], told["step"], told["uri"], told["weights"], told["history"], self)
            for told in self._checkpoints
        ]

    def module(self) -> nn.Module:
        """The trained module in eval mode on the CPU, with weights of its own: a plain `torch.nn.Module`.

        After a fit it is of the user's class. After `load` it is the saved program, a graph for scoring,
        unless the model was loaded with `module=` or saved as a pickle. Weights that this process cannot see
        are read through Spark, in chunks.
        """
        with fetched(self._weights) as path:
            return load_into(instantiate(self._programs), path)

    def write(self) -> MLWriter:
        """A writer of this model: `write().overwrite().save(path)`."""
        return ModelWriter(self)

    @classmethod
    def read(cls) -> MLReader[Any]:
        """A reader of models of this class."""
        return ModelReader(cls)

    @classmethod
    def load(cls, path: str, module: nn.Module | None = None) -> Self:
        """Reads a saved model.

        `path` is the directory that it was saved to. `module`, where given, is a module of the class that was
        trained, itself untrained: it takes the saved program's place, so that no program is read, and no
        pickle. Raises FlambeauError for what is not a saved model of this class, and where
        `spark.flambeau.allowPickle` or `spark.flambeau.allowScripts` is false and refuses every program that
        there is. A program is code of whoever saved it.
        """
        return cast("Self", ModelReader(cls, module).load(path))

    @classmethod
    def _from_java(cls, java_stage: Any) -> Self:
        """The model of the same name that a JVM pipeline holds.

        It comes by way of a temporary directory of the driver, and its weights stay where the JVM has them.
        """
        with tempfile.TemporaryDirectory(prefix="flambeau-") as folder:
            path = f"file://{folder}/model"
            java_stage.write().overwrite().save(path)
            model = cast("Self", ModelReader(cls).load(path))
        uri = native_scoring.weights_in_jvm(java_stage)
        model._weights = replace(model._weights, uri=uri)
        return model

    def _transform(self, dataset: DataFrame) -> DataFrame:
        self._check_fitted()
        outputs = self._output_columns()
        # As Spark compares names: it would put an output in the place of such a column.
        exact = str(dataset.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"
        taken = {name if exact else name.lower(): f"a column {name!r} already" for name in dataset.columns}
        for param, name in outputs:
            known = name if exact else name.lower()
            if known in taken:
                raise ParamError(
                    f"{param}: the DataFrame has {taken[known]}; drop it or set another {param} than {name!r}"
                )
            taken[known] = f"{name!r} as another output"
        if not outputs:
            return dataset
        columns, tensors = self._columns_of(dataset)
        if self.getRuntime() == "native":
            return native_scoring.transform(self, dataset)
        wanted = [param for param, _ in outputs]
        score = self._udf(tensors, wanted, len(columns), dataset.sparkSession)(*columns)
        return self._add_outputs(dataset, score, F.col)

    def _columns_of(self, dataset: DataFrame) -> tuple[list[Column], list[TensorColumns]]:
        """The DataFrame's columns for the module, converted as they were for training, and the tensors they
        make.
        """
        schema = dataset.schema
        found = resolve_inputs(schema, self, [tensor.name for tensor in self._inputs])
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
            tensors.append(replace(then, name=now.name, columns=now.columns))
            trained_on = replace(tensor, shape=then.shape)
            for name, column in zip(tensor.columns, expressions(schema, trained_on, "input"), strict=True):
                columns.append(whole_arrays(column, name, find_field(schema, name, "input").dataType))
        return columns, tensors

    def _udf(
        self, tensors: Sequence[TensorColumns], wanted: Sequence[str], num_columns: int, spark: SparkSession
    ) -> Any:
        scorer = Scorer(
            # The graph for training stays here.
            programs={form: data for form, data in self._programs.items() if form != "exportedTrain"},
            weights=self._weights_of_workers(spark),
            inputs=tuple(tensors),
            output=self._output,
            batch_size=self.getInferenceBatchSize(),
            heads=self._heads(),
            fields=tuple(name.removesuffix("Col") for name in wanted) if self._class_fields else (),
            sys_path=tuple(sys.path),
            device=self.getDevice(),
            gpu_tasks=gpu_tasks_of(spark),
        )
        return scalar_udf(scorer, self._result_type(wanted), num_columns)

    def _output_columns(self) -> list[tuple[str, str]]:
        """The params that name output columns and the columns' names; an empty name leaves that column
        out.
        """
        name = self.getPredictionCol()
        return [("predictionCol", name)] if name else []

    def _result_type(self, wanted: Sequence[str]) -> DataType:
        heads = self._heads()
        types = [
            _column_type(tensor) if head.kind == "number" else _class_type(head.kind, CLASS_FIELDS)
            for tensor, head in zip(self._output.tensors, heads, strict=True)
        ]
        if self._output.single is not None:
            return types[0]
        named = zip(heads, types, strict=True)
        return StructType([StructField(head.name, dtype) for head, dtype in named])

    def _heads(self) -> list[Head]:
        """The outputs as they are written. Raises ParamError where the params do not fit them."""
        tensors = self._output.tensors
        names = self.getOutputNames() or [str(tensor.name) for tensor in tensors]
        kinds = self.getOutputKinds() or [self._default_kind()] * len(tensors)
        for param, given in (("outputNames", names), ("outputKinds", kinds)):
            if len(given) != len(tensors):
                raise ParamError(
                    f"{param} has {len(given)} entries, {', '.join(given)}, and the module returns "
                    f"{len(tensors)} tensors: give one entry for each"
                )
        threshold, thresholds = self._value("threshold"), self._value("thresholds")
        heads = []
        for name, said, tensor in zip(names, kinds, tensors, strict=True):
            kind = _checked_kind(said, tensor)
            if kind != "number":
                _check_thresholds(tensor, kind, threshold, thresholds)
            heads.append(Head(name, kind, threshold, thresholds))
        return heads

    def _default_kind(self) -> str:
        """What an output is where `outputKinds` does not say."""
        return "number"

    def _add_outputs(self, dataset: DataFrame, score: Column, col: Any) -> DataFrame:
        return dataset.withColumn(self.getPredictionCol(), score)


class TorchRegressionModel(TorchModel):
    """A trained regression module: `predictionCol` is a double, or an array where the module returns several
    numbers.
    """

    __module__ = "flambeau"
    _parents = "TorchRegressor"

    def _check_output(self, output: OutputSpec) -> None:
        if any(kind != "number" for kind in self._value("outputKinds") or ()):
            raise ParamError("outputKinds: a regressor's output is a number; use TorchEstimator for others")
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
    are read as such; of a loss that is not torch's, the module's last operation says what they are: a
    sigmoid or a softmax makes probabilities. `outputKinds` says it instead. An empty name leaves a column
    out.

    A module whose several outputs bce or bce_with_logits takes has several labels a row: `probabilityCol` has
    that of each label, and `predictionCol` is an array of 0 and 1.

    `threshold` and `thresholds` are Spark ML's: what the probability of class 1 of two has to exceed, and for
    each class what its probability is divided by before the largest is taken.
    """

    __module__ = "flambeau"
    _parents = "TorchClassifier"
    _class_fields = True

    @property
    def numClasses(self) -> int:
        """The number of classes, or of labels: the module's outputs a row, 2 where it has one."""
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
        if "number" in (self._value("outputKinds") or ()):
            raise ParamError("outputKinds: a classifier's output is no number; use TorchRegressor")

    def _output_columns(self) -> list[tuple[str, str]]:
        names = ("rawPredictionCol", "probabilityCol", "predictionCol")
        return [(name, self.getOrDefault(name)) for name in names if self.getOrDefault(name)]

    def _result_type(self, wanted: Sequence[str]) -> DataType:
        return _class_type(self._heads()[0].kind, [name.removesuffix("Col") for name in wanted])

    def _default_kind(self) -> str:
        return self._classes or "logits"

    def _add_outputs(self, dataset: DataFrame, score: Column, col: Any) -> DataFrame:
        from pyspark.ml.functions import array_to_vector

        held = f"{self.uid}_scores"
        made = {}
        for param, name in self._output_columns():
            field = col(quoted(held)).getField(param.removesuffix("Col"))
            made[name] = field if param == "predictionCol" else array_to_vector(field)
        return dataset.withColumn(held, score).withColumns(made).drop(held)


def _checked_kind(given: str, tensor: OutputTensor) -> str:
    """A kind that `outputKinds` gives to an output, as `Head` has it. Raises ParamError where it is not one
    of such an output.
    """
    single = {"logit": "logits", "probability": "probabilities"}
    what = f"outputKinds: {given!r} is for an output of {{}}, and {tensor.name or 'the output'} has "
    what += f"{list(('rows', *tensor.shape))}"
    if given in single and not tensor.is_scalar:
        raise ParamError(what.format("one number a row"))
    if given in ("labels", "label_probabilities") and (len(tensor.shape) != 1 or tensor.is_scalar):
        raise ParamError(what.format("several labels, [rows, labels]"))
    if given != "number" and len(tensor.shape) > 1:
        raise ParamError(what.format("one number or one dimension a row"))
    return single.get(given, given)


def _check_thresholds(
    tensor: OutputTensor, kind: str, threshold: float | None, thresholds: Sequence[float] | None
) -> None:
    """Raises ParamError where they do not fit an output of classes."""
    num_classes = 2 if tensor.is_scalar else tensor.shape[0]
    if threshold is not None and thresholds is not None:
        raise ParamError("threshold and thresholds are both set: unset one of them, with None")
    if threshold is not None and num_classes > 2 and not kind.startswith("label"):
        raise ParamError(
            f"threshold is for two classes or for labels, and there are {num_classes} classes: set "
            "thresholds, one for each"
        )
    if thresholds is not None and len(thresholds) != num_classes:
        raise ParamError(f"thresholds has {len(thresholds)} entries, and there are {num_classes} classes")


def _class_type(kind: str, fields: Sequence[str]) -> DataType:
    """The struct of an output of classes."""
    vector = ArrayType(DoubleType(), False)
    types: dict[str, DataType] = {
        "prediction": vector if kind.startswith("label") else DoubleType(),
        "rawPrediction": vector,
        "probability": vector,
    }
    return StructType([StructField(name, types[name]) for name in fields])


def _column_type(tensor: OutputTensor) -> DataType:
    """Spark's type of a column with this output: double for one number a row, (nested) arrays otherwise."""
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
