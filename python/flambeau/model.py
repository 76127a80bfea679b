"""Fitted models: transformers that score rows with a trained module."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, cast

from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from flambeau._described import Checkpoint, Described, Input, Lineage, Output
from flambeau._input_rows import NUMPY
from flambeau._saved.program import OutputSpec, instantiate, is_wide
from flambeau._saved.weights import WeightsRef, load_into
from flambeau._score.gpu_slots import NUM_SLOTS
from flambeau._score.heads import Head
from flambeau._score.scoring import Scorer
from flambeau._spark.columns import (
    column_names,
    expressions,
    find_field,
    quoted,
    resolve_inputs,
    resolve_raw,
    resolve_tensor,
    valid_rows,
)
from flambeau._spark.files import fetched
from flambeau._spark.outputs import OutputColumn, class_type, result_type
from flambeau._spark.rows.shards import resolve_labels
from flambeau._spark.saving.stages import ModelReader, ModelWriter
from flambeau._spark.session import has_extensions
from flambeau._spark.transform import evaluation, local, native_scoring, sql
from flambeau._spark.transform.udf import gpu_tasks_of, scalar_udf, whole_arrays
from flambeau._tensors import TensorColumns
from flambeau.errors import DataError, ParamError
from flambeau.params import (
    HasClassColumns,
    HasDevice,
    HasInputColumns,
    HasLabelColumns,
    HasRuntime,
)

if TYPE_CHECKING:
    from pyspark.ml.util import MLReader, MLWriter
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType
    from torch import nn

__all__ = [
    "Checkpoint",
    "Input",
    "Lineage",
    "Output",
    "TorchClassificationModel",
    "TorchModel",
    "TorchRegressionModel",
]

_CLASS_COLUMNS = ("rawPrediction", "probability", "prediction")
"""A classifier's columns, in their order in a DataFrame; the param that names one is called so with a Col."""


class TorchModel(
    Described,
    HasInputColumns,
    HasLabelColumns,
    HasDevice,
    HasRuntime,
    MLReadable["TorchModel"],
    MLWritable,
):
    """A trained module as a Spark ML transformer.

    `transform` adds `predictionCol`: a double where the module returns one number a row, an array where it
    returns several, a struct where it returns several tensors. The struct's fields are the keys of a dict or
    the fields of a named tuple, `_1`, `_2`, ... of another tuple, or what `outputNames` says. With
    `outputCols` each tensor is a column of its own instead. An output to which `outputKinds` gives another
    kind than `number` is a struct of `prediction`, `probability` and `rawPrediction`. With `runtime="native"`
    the JVM scores, in a session that has Flambeau's jar; with "auto", the default, it does where it can, in a
    session with the settings of `flambeau.spark_config()`.

    Models come from an estimator's `fit` or from `load`; they are not made by calling the class.
    """

    __module__ = "flambeau"

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
        elif self._preprocess is not None:
            raise ParamError(
                "predict: the model has a preprocess, which takes columns: give a pandas DataFrame with "
                f"{', '.join(tensor.columns[0] for tensor in self._inputs)}"
            )
        else:
            columns, tensors = local.of_arrays(data, self._inputs)
        with fetched(self._weights) as path:
            weights = replace(self._weights, uri=str(path), content=None)
            scorer = self._scorer(tensors, _fields(wanted), weights)
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
        dataset = self._valid(dataset)
        columns, tensors = self._columns_of(dataset)
        scorer = self._scorer(tensors, (), self._weights_of_workers(spark), gpu_tasks_of(spark))
        wide = is_wide(instantiate(self._programs))
        labels = resolve_labels(dataset.schema, self, self._label_dtype, wide)
        by_name = self.getInputNames() is not None
        if self._preprocess is not None:
            by_name = self._preprocess.spec.by_name
        return evaluation.evaluated(dataset, scorer, columns, labels, objects, by_name)

    def udf(self, name: str | None = None) -> Any:
        """The model as a function of columns, for the active session; with a name it is one of SQL too:
        `SELECT score(x1, x2) FROM t`.

        It takes the columns of `inputs` in their order and gives what `transform` writes as `predictionCol`,
        or a struct of several `outputCols`; that of a classifier gives a struct of `rawPrediction`,
        `probability` and `prediction`, with arrays in place of vectors. Raises ParamError for a model that is
        not fitted.
        """
        self._check_fitted()
        spark = SparkSession.active()
        weights = self._weights_of_workers(spark)
        scorer = self._scorer(self._inputs, _CLASS_COLUMNS, weights, gpu_tasks_of(spark))
        return sql.function_of(scorer, self._result_type(_CLASS_COLUMNS), name, spark)

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
        for one in outputs:
            known = one.name if exact else one.name.lower()
            if known in taken:
                raise ParamError(
                    f"{one.param}: the DataFrame has {taken[known]}; drop it or set another {one.param} than "
                    f"{one.name!r}"
                )
            taken[known] = f"{one.name!r} as another output"
        if not outputs:
            return dataset
        runtime = self.getRuntime()
        if runtime == "native" or (runtime == "auto" and has_extensions(dataset.sparkSession)):
            # Columns that do not fit are told of in the same words, whoever scores.
            self._tensors_of(dataset.schema)
            if runtime == "native":
                return native_scoring.transform(self, dataset)
            if (scored := native_scoring.transform_where_it_can(self, dataset)) is not None:
                return scored
        dataset = self._valid(dataset)
        columns, tensors = self._columns_of(dataset)
        wanted = _fields(outputs)
        spark = dataset.sparkSession
        scorer = self._scorer(tensors, wanted, self._weights_of_workers(spark), gpu_tasks_of(spark))
        score = scalar_udf(scorer, self._result_type(wanted), len(columns))(*columns)
        if not wanted:
            return dataset.withColumn(outputs[0].name, score)
        held = f"{self.uid}_scores"
        made = {
            one.name: self._written(field, F.col(quoted(held)).getField(field))
            for one, field in zip(outputs, wanted, strict=True)
        }
        return dataset.withColumn(held, score).withColumns(made).drop(held)

    def _valid(self, dataset: DataFrame) -> DataFrame:
        """The rows as `handleInvalid` has them."""
        if (rule := self.getHandleInvalid()) == "keep":
            return dataset  # without a second look at the schema
        return valid_rows(dataset, self._tensors_of(dataset.schema), rule)

    def _columns_of(self, dataset: DataFrame) -> tuple[list[Column], list[TensorColumns]]:
        """The DataFrame's columns for the module, converted as they were for training, and the tensors they
        make.
        """
        schema = dataset.schema
        tensors = self._tensors_of(schema)
        columns = []
        for tensor in tensors:
            for name, column in zip(tensor.columns, expressions(schema, tensor, "input"), strict=True):
                is_whole = tensor.dtype == "sparse"  # as its expression sees to it
                kind = find_field(schema, name, "input").dataType
                columns.append(column if is_whole else whole_arrays(column, name, kind))
        return columns, tensors

    def _tensors_of(self, schema: StructType) -> list[TensorColumns]:
        """The module's inputs in terms of a schema's columns, with the types and shapes that were trained on.
        Raises DataError and ParamError where they cannot be had.
        """
        if self._preprocess is not None:
            return self._columns_for_preprocess(schema)
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
            wanted = then.size
            if tensor.shape is not None and tensor.size != wanted:
                raise DataError(
                    f"input {now.name!r} ({', '.join(now.columns)}) has {tensor.size} numbers in a row, "
                    f"where {wanted} were trained on"
                )
            tensors.append(replace(then, name=now.name, columns=now.columns))
        return tensors

    def _columns_for_preprocess(self, schema: StructType) -> list[TensorColumns]:
        """The columns of a schema in the places of those that `preprocess` was trained on. Raises DataError
        and ParamError where they are others.
        """
        found = resolve_raw(schema, self)
        if len(found) != len(self._inputs):
            trained = ", ".join(tensor.name for tensor in self._inputs)
            raise ParamError(
                f"the params name {len(found)} columns, and preprocess was trained on {len(self._inputs)}: "
                f"{trained}"
            )
        tensors = []
        for now, then in zip(found, self._inputs, strict=True):
            dtypes = {now.dtype, then.dtype}
            if len(dtypes) > 1 and not dtypes <= NUMPY.keys():
                raise DataError(
                    f"column {now.name!r} is {now.dtype}, where preprocess was trained on {then.dtype}: "
                    "cast it"
                )
            if (now.shape == ()) != (then.shape == ()):
                kinds = ("single values", "arrays") if now.shape == () else ("arrays", "single values")
                raise DataError(
                    f"column {now.name!r} holds {kinds[0]}, where preprocess was trained on {kinds[1]}"
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
        """What scores these tensors; `wanted` are the fields of a classifier's columns."""
        return Scorer(
            # The graph for training stays here.
            programs={form: data for form, data in self._programs.items() if form != "exportedTrain"},
            weights=weights,
            inputs=tuple(tensors),
            output=self._output,
            batch_size=self.getInferenceBatchSize(),
            batch_bytes=self.getInferenceBatchBytes(),
            heads=self._heads(),
            fields=tuple(wanted) if self._class_fields else (),
            sys_path=tuple(sys.path),
            device=self.getDevice(),
            gpu_tasks=gpu_tasks,
            preprocess=self._preprocess,
        )

    def _output_columns(self) -> list[OutputColumn]:
        """The columns that `transform` adds; an empty name leaves one out."""
        names, single = self._value("outputCols"), self._output.single is not None
        if names is None:
            columns = [OutputColumn("predictionCol", self.getPredictionCol(), None)]
        else:
            columns = [OutputColumn("outputCols", name, None if single else name) for name in names]
        return [column for column in columns if column.name]

    def _result_type(self, wanted: Sequence[str]) -> DataType:
        return result_type(self._output, self._heads())

    def _written(self, field: str, column: Column) -> Column:
        """A field of what is scored, as its column has it."""
        return column


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
        types = {"prediction": class_type(kind, ["prediction"])["prediction"].dataType.simpleString()}
        return tuple(
            Output(one.name, kind, types.get(str(one.field), "vector")) for one in self._output_columns()
        )

    @property
    def numClasses(self) -> int:
        """The number of classes, or of labels: the module's outputs a row, 2 where it has one."""
        tensor = self._output.tensors[0]
        return 2 if tensor.is_scalar else tensor.shape[0]

    @property
    def numFeatures(self) -> int:
        """The number of numbers in a row of the module's inputs."""
        return sum(tensor.size for tensor in self._arguments)

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

    def _heads(self) -> list[Head]:
        if self._value("outputCols") is not None:
            raise ParamError(
                "outputCols: a classifier's columns are rawPredictionCol, probabilityCol and predictionCol; "
                "use TorchEstimator for others"
            )
        return super()._heads()

    def _output_columns(self) -> list[OutputColumn]:
        columns = [
            OutputColumn(f"{field}Col", self.getOrDefault(f"{field}Col"), field) for field in _CLASS_COLUMNS
        ]
        return [column for column in columns if column.name]

    def _result_type(self, wanted: Sequence[str]) -> DataType:
        return class_type(self._heads()[0].kind, wanted)

    def _default_kind(self) -> str:
        return self._classes or "logits"

    def _written(self, field: str, column: Column) -> Column:
        from pyspark.ml.functions import array_to_vector

        return column if field == "prediction" else array_to_vector(column)


def _fields(outputs: Sequence[OutputColumn]) -> list[str]:
    """The fields that the columns are of what is scored."""
    return [one.field for one in outputs if one.field is not None]
