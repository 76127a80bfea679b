"""What a fitted model tells of itself: its training, its inputs and outputs, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from pyspark.sql.types import StructType

from flambeau import _history, _shown
from flambeau._history import Bottleneck, TrainingSummary
from flambeau._saved.program import instantiate
from flambeau._saved.weights import WeightsRef
from flambeau._score.heads import Head, heads_of
from flambeau._spark.fitted import Fitted
from flambeau._spark.outputs import result_type
from flambeau.errors import ParamError
from flambeau.params import HasOutputColumns
from flambeau.params.objects import params_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

M = TypeVar("M", bound="Described")


@dataclass(frozen=True)
class Input:
    """An input of a fitted model.

    Attributes
    ----------
    name : the argument of the module's forward, or what the params call the input.
    columns : the columns that it is made of.
    dtype : the tensor's type: float32, float64, int64, bool or uint8; for preprocess string, binary or
        sparse too.
    shape : that of one row: () for a single number; None for arrays of any length, which preprocess takes.
    """

    name: str
    columns: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...] | None


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
class Lineage:
    """Where a model comes from; None stands for what there was not, and for what its writer did not know.

    Attributes
    ----------
    runId : the name of its run.
    rowsSha256 : with `runId`, a SHA-256 of the rows: of all bytes of the files that were written for the fit,
        and of rows that were read in place of the sizes and ends of their files. Two runs have the same where
        these are.
    initialWeights : the file of `initialModel` that training started from.
    initialWeightsSha256 : that file's SHA-256, which its model's metadata have too.
    initialState : the checkpoint of that param.
    checkpoint : the last of those that `keepCheckpoints` left, which another fit's `initialState` takes.
    """

    runId: str | None = None
    rowsSha256: str | None = None
    initialWeights: str | None = None
    initialWeightsSha256: str | None = None
    initialState: str | None = None
    checkpoint: str | None = None


@dataclass(frozen=True)
class Checkpoint(Generic[M]):
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
    _fitted: M = field(repr=False)

    def model(self) -> M:
        """The fitted model with this checkpoint's weights and the history up to it."""
        model = self._fitted.copy()
        weights, options = self._weights, self._fitted._weights.store_options
        model._weights = WeightsRef(weights["uri"], weights["size"], weights["sha256"], options)
        model._history = dict(self._history)
        unknown = {"trainingSeconds": None, "bottleneck": None}
        model._counts = {**self._fitted._counts, "numSteps": self.step, **unknown}
        model._checkpoints = ()
        model._lineage = {**self._fitted._lineage, "checkpoint": self.uri}
        return model


class Described(Fitted, HasOutputColumns):
    """A trained module that tells of itself; `TorchModel` is what users have of it."""

    @property
    def history(self) -> dict[str, list[Any]]:
        """What each epoch came to: lists of one value an epoch, by name.

        `epoch` (from 0), `steps`, `num_rows`, `seconds`, `rows_per_second`, `loss`, each metric by its name,
        and with validation rows `val_loss` and `val_<metric>`. None stands where a value was not a finite
        number. `learning_rate` is that of the epoch's last step and of the optimizer's first parameter group.
        With `logGradientNorm` or `gradientClipNorm`, on the CPU, `gradient_norm` is the mean over the epoch's
        steps of the 2-norm of all gradients before clipping, of the steps that have a finite one.
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
            bottleneck=None if bottleneck is None else Bottleneck.of(bottleneck),
            timeline=self._timeline,
        )

    @property
    def checkpoints(self) -> list[Checkpoint[Self]]:
        """The newest `keepCheckpoints` of the training, oldest first; `checkpoint.model()` is the model that
        it was then. They lie in the work directory, and a saved model does not have them.
        """
        return [
            Checkpoint(told["epoch"], told["step"], told["uri"], told["weights"], told["history"], self)
            for told in self._checkpoints
        ]

    @property
    def lineage(self) -> Lineage:
        """Where the model comes from: run, rows, and what training started from. A saved model has it."""
        return Lineage(**{name: self._lineage.get(name) for name in Lineage.__annotations__})

    @property
    def inputs(self) -> tuple[Input, ...]:
        """What the module was trained on, in the order of forward's arguments, or the columns that
        `preprocess` makes those of.
        """
        lists = self._preprocess is not None
        return tuple(
            Input(t.name, t.columns, t.dtype, t.shape if t.shape is not None or lists else ())
            for t in self._inputs
        )

    @property
    def outputs(self) -> tuple[Output, ...]:
        """What `transform` adds to a DataFrame."""
        heads = [head for head in self._heads() if head.name]
        kind = result_type(self._output, self._heads())
        own, root = self._value("outputCols"), self.getPredictionCol()
        if not (own or root):
            return ()
        if self._output.single is not None:
            return (Output(own[0] if own else root, heads[0].kind, kind.simpleString()),)
        fields = cast("StructType", kind).fields
        return tuple(
            Output(head.name if own else f"{root}.{head.name}", head.kind, field.dataType.simpleString())
            for head, field in zip(heads, fields, strict=True)
        )

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

    def _heads(self) -> list[Head]:
        """The outputs as they are written. Raises ParamError where the params do not fit them."""
        return heads_of(
            self._output,
            self._value("outputCols"),
            self.getOutputNames(),
            self.getOutputKinds(),
            self._default_kind(),
            self._value("threshold"),
            self._value("thresholds"),
        )

    def _default_kind(self) -> str:
        """What an output is where `outputKinds` does not say."""
        return "number"


def _input_text(tensor: Input, columns: bool = False) -> str:
    """An input in a line: `features: float32[4]`, with its columns where they are asked for."""
    sizes = "..." if tensor.shape is None else ", ".join(map(str, tensor.shape))
    text = f"{tensor.name}: {tensor.dtype}[{sizes}]"
    return f"{text} of {', '.join(tensor.columns)}" if columns else text
