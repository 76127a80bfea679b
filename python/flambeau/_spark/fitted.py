"""What a fitted model is to those who make it, save it and score with it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from pyspark.ml import Model
from pyspark.ml.param import Params

from flambeau._module.kinds import kind_of
from flambeau._saved.program import OutputSpec, check_signature, dump_skeleton, instantiate
from flambeau._saved.weights import WeightsRef, load_into
from flambeau._score.heads import Head
from flambeau._spark.files import handed_out
from flambeau._spark.session import is_connect, shares_machine
from flambeau._tensors import TensorColumns
from flambeau.errors import ParamError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from torch import nn

    from flambeau._module.preprocessor import ScoringPreprocess

T = TypeVar("T")


class HandedOut:
    """What is kept of a model for a SparkContext: files that it hands out, and whether its JVM scores with
    the model. Copies of the model share it; a pickle or a deep copy begins with none, since what is held is
    that context's alone.
    """

    def __init__(self) -> None:
        self._context: Any = None
        self._held: dict[Hashable, Any] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[HandedOut], tuple[()]]:
        return (HandedOut, ())

    def once(self, context: Any, key: Hashable, hand_out: Callable[[], T]) -> T:
        """What `hand_out` gave under that key for this context, which it is asked once."""
        with self._lock:
            if self._context is not context:
                self._context, self._held = context, {}
            if key not in self._held:
                self._held[key] = hand_out()
            held: T = self._held[key]
            return held


class Fitted(Model):
    """A trained module: its program and weights, what it was trained on, and what that came to. `TorchModel`
    is what users have of it.
    """

    _programs: Mapping[str, bytes]
    _reasons: Mapping[str, str]
    _weights: WeightsRef
    _inputs: tuple[TensorColumns, ...]
    _output: OutputSpec
    _preprocess: ScoringPreprocess | None = None
    """What makes the module's inputs of those columns, where they are not tensors."""
    _classes: str | None
    _history: dict[str, Any]
    _counts: dict[str, Any]
    _checkpoints: tuple[Mapping[str, Any], ...] = ()
    _timeline: str | None = None
    """Where the timeline of the training lies."""
    _is_here: bool = False
    """Whether the weights are a file of the driver's machine, which others need not see."""
    _lineage: Mapping[str, Any] = MappingProxyType({})
    """The fields of the model's `lineage` that are known, by their names."""
    _judged_by: Mapping[str, Any] = MappingProxyType({})
    """The loss and the metrics of the training, as they were given, by those names."""

    _parents: ClassVar[str] = "TorchEstimator"
    _class_fields: ClassVar[bool] = False
    _label_dtype: ClassVar[str | None] = None
    """The type that labels are read as; None follows their columns."""

    def __init__(self) -> None:
        super().__init__()
        self._handed_out = HandedOut()

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
        bottleneck: Mapping[str, Any] | None = None,
        preprocess: ScoringPreprocess | None = None,
    ) -> Self:
        """A model with the estimator's params and uid.

        `programs` are the forms of the module, such as `program.dump_skeleton` as `pickle`, `history` a
        training result's history (`{"epochs": [...]}`), `inputs` the tensors it was trained on with their
        shapes, or the columns that `preprocess` makes those of, `output` what `program.probe_output` found.
        Raises ParamError where the output is not what this kind of model gives.
        """
        model = cls._of_output(estimator, output)
        model._programs, model._reasons = dict(programs), {}
        model._weights, model._inputs, model._preprocess = weights, tuple(inputs), preprocess
        model._history = copy.deepcopy(dict(history))
        model._counts = {
            "numRows": num_rows,
            "numSteps": num_steps,
            "numValidationRows": num_validation_rows,
            "trainingSeconds": training_seconds,
            "bottleneck": bottleneck,
        }
        model._resetUid(estimator.uid)
        return model

    @classmethod
    def _of_output(cls, estimator: Params, output: OutputSpec) -> Self:
        """A model with the estimator's params that is not trained yet. Raises ParamError where the output is
        not what this kind of model gives, and where the params do not fit it.
        """
        model = cls()
        estimator._copyValues(model)
        model._check_output(output)
        model._output, model._classes = output, output_kind(estimator, output)
        model._judged_by = judges(estimator)
        model._heads()
        return model

    def _use_module(self, module: nn.Module) -> None:
        """Puts the user's module in the program's place. Raises ParamError where it is not the one that was
        trained.
        """
        check_signature(module, self._arguments)
        program = dump_skeleton(module)
        if self._weights.visible():
            load_into(instantiate({"pickle": program}), self._weights.local(), share=True)
        self._programs, self._reasons, self._handed_out = {"pickle": program}, {}, HandedOut()

    @property
    def _arguments(self) -> Sequence[TensorColumns]:
        """The tensors that the module is called with."""
        return self._inputs if self._preprocess is None else self._preprocess.spec.inputs

    def _weights_of_workers(self, spark: SparkSession) -> WeightsRef:
        """The weights where Python's workers find them; a session hands them out once."""
        sees = not self._is_here or is_connect(spark) or shares_machine(spark)
        if sees and not self._weights.is_hadoops:
            return self._weights
        key = (self._weights.uri, self._weights.sha256)
        return self._handed_out.once(spark.sparkContext, key, lambda: handed_out(self._weights, spark))

    def _check_output(self, output: OutputSpec) -> None:
        """Raises ParamError where the module's output is not what this kind of model gives."""

    @property
    def _is_fitted(self) -> bool:
        """Whether the model came from a fit or was loaded."""
        return hasattr(self, "_weights")

    def _check_fitted(self) -> None:
        """Raises ParamError for a model that was made by calling its class."""
        if not self._is_fitted:
            raise ParamError(
                f"{type(self).__name__} holds no trained module; get one from {self._parents}.fit or load"
            )

    def _heads(self) -> list[Head]:
        """The outputs as they are written. Raises ParamError where the params do not fit them."""
        raise NotImplementedError


def output_kind(estimator: Params, output: OutputSpec) -> str:
    """How a classifier's output reads under its loss, as `flambeau._module.kinds.kind_of` has it."""
    tensor = output.tensors[0]
    return kind_of(judges(estimator).get("loss"), tensor.activation, tensor.is_scalar)


def judges(estimator: Params) -> dict[str, Any]:
    """The loss and the metrics of an estimator, by these names; none where the module has steps of its own,
    which make them.
    """
    from flambeau._module.steps import has_steps

    defined = [name for name in ("model", "loss", "metrics") if estimator.hasParam(name)]
    found = {name: estimator.getOrDefault(name) for name in defined if estimator.isDefined(name)}
    return {} if has_steps(found.pop("model", None)) else found
