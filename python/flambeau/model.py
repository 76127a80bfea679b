"""Fitted models: transformers that score rows with a trained module."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, cast

from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from flambeau import _history, _shown
from flambeau._history import Bottleneck, TrainingSummary
from flambeau._saved.program import OutputSpec, instantiate, is_wide
from flambeau._saved.weights import WeightsRef, load_into
from flambeau._score.gpu_slots import NUM_SLOTS
from flambeau._score.heads import CLASS_FIELDS, Head
from flambeau._score.scoring import Scorer
from flambeau._spark.columns import (
    column_names,
    expressions,
    find_field,
    quoted,
    resolve_inputs,
    resolve_tensor,
)
from flambeau._spark.files import fetched
from flambeau._spark.fitted import Fitted
from flambeau._spark.outputs import check_thresholds, checked_kind, class_type, column_type
from flambeau._spark.rows.shards import resolve_labels
from flambeau._spark.saving.stages import ModelReader, ModelWriter
from flambeau._spark.transform import evaluation, local, native_scoring, sql
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
from flambeau.params.objects import describe

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.ml.param import Params
    from pyspark.ml.util import MLReader, MLWriter
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType
    from torch import nn

    from flambeau._score.heads import Head


_CLASS_COLUMNS = ("rawPredictionCol", "probabilityCol", "predictionCol")
"""The params of a classifier's columns, in their order in a DataFrame."""


@dataclass(frozen=True)
class Input:
    """An input of a fitted model.

    Attributes
    ----------
    name : the argument of the module's forward, or what the params call the input.
    columns : the columns that it is made of.
    dtype : the tensor's type: float32, float64, int64, bool or uint8.
    shape : that of one row: () for a single number.
    """

    name: str
    columns: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Output:
    """A column that a fitted model adds, or a field of it where the module returns several tensors.

    Attributes
    ----------
    name : the column, or `<column>.<field>`, as `select` takes it.
    kind : what the module's output is: `number`, `logits`, `probabilities`, `log_probabilities`, `labels` or
        `label_probabilities`.
    columnType : its type in Spark, such as `double`, `array<float>` or `vector`.
    """

    name: str
    kind: str
    columnType: str


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
        unknown = {"trainingSeconds": None, "bottleneck": None}
        model._counts = {**self._fitted._counts, "numSteps": self.step, **unknown}
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
        without gradientCompression. `cpu_percent` is how many cores a worker kept busy on average, 100 being
        one, and `peak_memory_bytes` the most that a worker's process has had. Models of older versions have
        none of these. With precision fp16, `loss_scale` is what the loss was multiplied by at the end of the
        epoch, and `skipped_steps` how many of its steps overflowed and were skipped.
        `pandas.DataFrame(model.history)` is the table of epochs.
        """
        return _history.columns(self._history, self._counts["numValidationRows"])

    @property
    def hasSummary(self) -> bool:
        """Whether there is a summary; there always is one, in loaded models too."""
        return True

    @property
    def summary(self) -> TrainingSummary:
        """What the training came to."""
        losses = self.history["loss"]
        counts = dict(self._counts)
        bottleneck = counts.pop("bottleneck", None)
        return TrainingSummary(
            objectiveHistory=losses,
            totalIterations=len(losses),
            bestEpoch=self._history.get("bestEpoch"),
            **counts,
            bottleneck=None if bottleneck is None else Bottleneck(**bottleneck),
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

    @property
    def inputs(self) -> tuple[Input, ...]:
        """What the module was trained on, in the order of forward's arguments."""
        return tuple(Input(t.name, t.columns, t.dtype, t.shape or ()) for t in self._inputs)

    @property
    def outputs(self) -> tuple[Output, ...]:
        """What `transform` adds to a DataFrame."""
        root, heads = self.getPredictionCol(), self._heads()
        kind = self._result_type(())
        if not root:
            return ()
        if self._output.single is not None:
            return (Output(root, heads[0].kind, kind.simpleString()),)
        fields = cast("StructType", kind).fields
        return tuple(
            Output(f"{root}.{head.name}", head.kind, field.dataType.simpleString())
            for head, field in zip(heads, fields, strict=True)
        )

    def predict(self, data: Any) -> Any:
        """What `transform` gives, computed in this process, without Spark.

        `data` is a pandas DataFrame with the columns that the model reads, or numpy arrays: one of the only
        input, `[rows, ...]`, or a dict of them by the names of `inputs`. A DataFrame gives a DataFrame with
        the output columns and the same index; an output of several tensors gives a column for each, named as
        in `outputs`. Arrays give the array of the output, or a dict of arrays where there are several.

        In a pandas column of objects or of a nullable type a missing value counts as a null, which is
        refused; a NaN among numpy's floats goes to the module as one. Raises DataError and ParamError as
        `transform` does.
        """
        import pandas as pd

        self._check_fitted()
        wanted = self._output_columns()
        if isinstance(data, pd.DataFrame):
            needed = {name for columns in column_names(self) for name in columns}
            if len(data):
                columns, tensors = local.of_frame(data, needed, self._tensors_of)
            else:
                # The types of its columns say nothing.
                columns, tensors = local.of_nothing(self._inputs)
        else:
            columns, tensors = local.of_arrays(data, self._inputs)
        with fetched(self._weights) as path:
            weights = replace(self._weights, uri=str(path), content=None)
            scorer = self._scorer(tensors, [param for param, _ in wanted], weights)
            made = local.predicted(scorer, columns, wanted) if wanted else {}
        if isinstance(data, pd.DataFrame):
            return local.as_frame(made, data.index)
        return next(iter(made.values())) if len(made) == 1 else made

    def evaluate(self, dataset: DataFrame, loss: Any = None, metrics: Any = None) -> dict[str, float | None]:
        """The loss and the metrics of the model on a DataFrame, by their names in `history`, computed on the
        executors in one job.

        They are what validation of a fit gives on the same rows: weighted by `weightCol` where that is set,
        and None where no finite number comes out. `loss` and `metrics` are, where not given, those that the
        model was trained with; a loaded model has them where they were given by name. Validation in another
        precision than float32 may differ in later digits. Raises ParamError where no loss is known, DataError
        for rows that are refused, and where there are none.
        """
        self._check_fitted()
        given = {"loss": loss, "metrics": metrics}
        objects = dict(self._judged_by) | {name: value for name, value in given.items() if value is not None}
        if objects.get("loss") is None:
            raise ParamError(
                "loss: the model has none: it was saved without the one that it was trained with, which has "
                "no name, or its module makes one itself: give it as evaluate(df, loss=...)"
            )
        spark = dataset.sparkSession
        columns, tensors = self._columns_of(dataset)
        scorer = self._scorer(tensors, (), self._weights_of_workers(spark), gpu_tasks_of(spark))
        wide = is_wide(instantiate(self._programs))
        labels = resolve_labels(dataset.schema, self, self._label_dtype, wide)
        by_name = self.getInputNames() is not None
        return evaluation.evaluated(dataset, scorer, columns, labels, objects, by_name)

    def udf(self, name: str | None = None) -> Any:
        """The model as a function of columns, for the active session; with a name it is one of SQL too:
        `SELECT score(x1, x2) FROM t`.

        It takes the columns of `inputs` in their order and gives what `transform` writes as `predictionCol`;
        that of a classifier gives a struct of `rawPrediction`, `probability` and `prediction`, with arrays in
        place of vectors. Raises ParamError for a model that is not fitted.
        """
        self._check_fitted()
        spark = SparkSession.active()
        wanted = _CLASS_COLUMNS if self._class_fields else ("predictionCol",)
        scorer = self._scorer(self._inputs, wanted, self._weights_of_workers(spark), gpu_tasks_of(spark))
        return sql.function_of(scorer, self._result_type(wanted), name, spark)

    def plot(self, *columns: str, ax: Axes | None = None) -> Axes:
        """Draws columns of `history` over the epochs with matplotlib, the losses where none are named, and
        marks the best epoch; returns the Axes, new ones where none are given.

        Raises ParamError for a column that there is not, and FlambeauError without matplotlib.
        """
        from flambeau._plot import plotted

        return plotted(self.history, columns or None, _history.best_epoch(self._history), ax)

    def __repr__(self) -> str:
        if not self._is_fitted:
            return super().__repr__()
        inputs = ", ".join(_input_text(tensor) for tensor in self.inputs)
        try:
            outputs = ", ".join(f"{output.name}: {output.columnType}" for output in self.outputs)
        except ParamError as error:  # the params do not fit the module, which scoring refuses
            outputs = str(error)
        parts = [f"uid={self.uid}", f"inputs=[{inputs}]", f"outputs=[{outputs}]"]
        table = self.history
        column, best = _history.watched(table), _history.best_epoch(self._history)
        if table["epoch"]:
            place = len(table["epoch"]) - 1 if best is None else best
            which = "last" if best is None else "best"
            value = _shown.number(table[column][place])
            parts.append(f"{column}={value} in the {which} epoch, {table['epoch'][place]}")
        return f"{type(self).__name__}: {', '.join(parts)}"

    def _repr_html_(self) -> str:
        """The model as a notebook shows it."""
        if not self._is_fitted:
            return _shown.page(self.uid, [])
        table = self.history
        best, last = _history.best_epoch(self._history), len(table["epoch"]) - 1
        epochs: dict[str, int] = {} if best is None else {"best": best}
        epochs |= {} if last < 0 else {"last": last}
        rows = [
            [n, *(_shown.number(table[n][place]) for place in epochs.values())]
            for n in _history.figures(table)
        ]
        header = ["", *(f"{which} epoch ({table['epoch'][place]})" for which, place in epochs.items())]
        losses: dict[str, list[Any]] = {n: table[n] for n in ("loss", "val_loss") if n in table}
        outputs = [f"{o.name}: {o.columnType} ({o.kind})" for o in self.outputs]
        return _shown.page(
            f"{type(self).__name__} {self.uid}",
            [
                ("module", _shown.lines([self._module_text()])),
                ("inputs", _shown.lines([_input_text(tensor, columns=True) for tensor in self.inputs])),
                ("outputs", _shown.lines(outputs)),
                ("params", _shown.lines(params_text(self))),
                ("training", _shown.table(header, rows)),
                ("loss", _shown.curves(losses)),
            ],
        )

    def _module_text(self) -> str:
        """The module in a line, without reading an exported program, which takes seconds."""
        if not self._programs.keys() & {"pickle", "scripted"}:
            return "an exported program"
        module: Any = instantiate({f: d for f, d in self._programs.items() if f in ("pickle", "scripted")})
        name = module.original_name if "scripted" in self._programs else type(module).__name__
        return f"{name} with {sum(p.numel() for p in module.parameters()):,} parameters"

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

        Where no Spark session runs, a directory of this machine is read without one, and of its programs
        those that do nothing but compute.
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
        spark = dataset.sparkSession
        scorer = self._scorer(tensors, wanted, self._weights_of_workers(spark), gpu_tasks_of(spark))
        score = scalar_udf(scorer, self._result_type(wanted), len(columns))(*columns)
        return self._add_outputs(dataset, score, F.col)

    def _columns_of(self, dataset: DataFrame) -> tuple[list[Column], list[TensorColumns]]:
        """The DataFrame's columns for the module, converted as they were for training, and the tensors they
        make.
        """
        schema = dataset.schema
        tensors = self._tensors_of(schema)
        columns = []
        for tensor in tensors:
            for name, column in zip(tensor.columns, expressions(schema, tensor, "input"), strict=True):
                columns.append(whole_arrays(column, name, find_field(schema, name, "input").dataType))
        return columns, tensors

    def _tensors_of(self, schema: StructType) -> list[TensorColumns]:
        """The module's inputs in terms of a schema's columns, with the types and shapes that were trained on.
        Raises DataError and ParamError where they cannot be had.
        """
        found = resolve_inputs(schema, self, [tensor.name for tensor in self._inputs])
        if len(found) != len(self._inputs):
            trained = ", ".join(tensor.name for tensor in self._inputs)
            raise ParamError(
                f"the params name {len(found)} inputs, "
                f"and the model was trained on {len(self._inputs)}: {trained}"
            )
        tensors = []
        for now, then in zip(found, self._inputs, strict=True):
            tensor = resolve_tensor(schema, now.name, now.columns, then.dtype, "input")
            wanted = _numbers(then)
            if tensor.shape is not None and _numbers(tensor) != wanted:
                raise DataError(
                    f"input {now.name!r} ({', '.join(now.columns)}) has {_numbers(tensor)} numbers in a row, "
                    f"where {wanted} were trained on"
                )
            tensors.append(replace(then, name=now.name, columns=now.columns))
        return tensors

    def _scorer(
        self,
        tensors: Sequence[TensorColumns],
        wanted: Sequence[str],
        weights: WeightsRef,
        gpu_tasks: int = NUM_SLOTS,
    ) -> Scorer:
        """What scores these tensors; `wanted` are a classifier's params that name columns."""
        return Scorer(
            # The graph for training stays here.
            programs={form: data for form, data in self._programs.items() if form != "exportedTrain"},
            weights=weights,
            inputs=tuple(tensors),
            output=self._output,
            batch_size=self.getInferenceBatchSize(),
            heads=self._heads(),
            fields=tuple(name.removesuffix("Col") for name in wanted) if self._class_fields else (),
            sys_path=tuple(sys.path),
            device=self.getDevice(),
            gpu_tasks=gpu_tasks,
        )

    def _output_columns(self) -> list[tuple[str, str]]:
        """The params that name output columns and the columns' names; an empty name leaves that column
        out.
        """
        name = self.getPredictionCol()
        return [("predictionCol", name)] if name else []

    def _result_type(self, wanted: Sequence[str]) -> DataType:
        heads = self._heads()
        types = [
            column_type(tensor) if head.kind == "number" else class_type(head.kind, CLASS_FIELDS)
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
            kind = checked_kind(said, tensor)
            if kind != "number":
                check_thresholds(tensor, kind, threshold, thresholds)
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
    _label_dtype = "float32"

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
    _label_dtype = "int64"

    @property
    def outputs(self) -> tuple[Output, ...]:
        """What `transform` adds to a DataFrame."""
        kind = self._heads()[0].kind
        types = {"predictionCol": class_type(kind, ["prediction"])["prediction"].dataType.simpleString()}
        return tuple(Output(name, kind, types.get(param, "vector")) for param, name in self._output_columns())

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
        return [(name, self.getOrDefault(name)) for name in _CLASS_COLUMNS if self.getOrDefault(name)]

    def _result_type(self, wanted: Sequence[str]) -> DataType:
        return class_type(self._heads()[0].kind, [name.removesuffix("Col") for name in wanted])

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


def params_text(params: Params) -> list[str]:
    """The params that are set, in a line each, objects by what they are."""
    values = {param.name: params.getOrDefault(param) for param in params.params if params.isSet(param)}
    return [f"{name}: {describe(value)}" for name, value in values.items()]


def _input_text(tensor: Input, columns: bool = False) -> str:
    """An input in a line: `features: float32[4]`, with its columns where they are asked for."""
    sizes = ", ".join(map(str, tensor.shape))
    text = f"{tensor.name}: {tensor.dtype}[{sizes}]"
    return f"{text} of {', '.join(tensor.columns)}" if columns else text


def _numbers(tensor: TensorColumns) -> int:
    """How many numbers a row of the tensor has."""
    size = 1
    for length in tensor.shape or ():
        size *= length
    return size
