"""Params whose values are checked when they are set, and params that are Python objects rather than JSON."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Self

from pyspark.ml.param import Param, Params

from flambeau._callbacks import callback_list
from flambeau._suggest import suggestion
from flambeau.callbacks import Callback
from flambeau.errors import ParamError
from flambeau.params.converters import Integer, function, one_of

TRAINED_PARAMS = (
    "model",
    "loss",
    "optimizer",
    "metrics",
    "lrScheduler",
    "lrSchedulerInterval",
    "preprocess",
    "validationPreprocess",
)
"""What is trained and how it is judged, by which a run is known again."""

OBJECT_PARAMS = (*TRAINED_PARAMS, "callbacks", "preprocessThreads")

PYTHON_PARAMS = (*OBJECT_PARAMS, "runtime")
"""The params of Python's estimators that are not part of a training job."""


class CheckedParams(Params):
    """Params that refuse a wrong value with the param's name, the value and what is allowed; None unsets."""

    def _set(self, **kwargs: Any) -> Self:
        for name, value in spread(kwargs).items():
            if not self.hasParam(name):
                raise unknown(name, self)
            param = self.getParam(name)
            if value is None:
                self._paramMap.pop(param, None)
                continue
            try:
                self._paramMap[param] = param.typeConverter(value)
            except (TypeError, ValueError) as error:
                raise ParamError(f"{name} {error}") from None
        return self

    def set(self, param: Param[Any], value: Any) -> None:
        """Sets a param; None unsets it. Raises ParamError for a value that is not allowed."""
        self._shouldOwn(param)
        self._set(**{param.name: value})

    def copy(self, extra: Mapping[Any, Any] | None = None) -> Self:
        """A copy with the params of `extra`; what is no JSON is shared."""
        if not all(isinstance(key, Param) for key in extra or {}):
            return super().copy(extra)  # type: ignore[arg-type]  # which refuses it
        own = {p.name: v for p, v in (extra or {}).items() if p.parent == self.uid and self.hasParam(p.name)}
        return super().copy({self.getParam(name): value for name, value in spread(own).items()})

    def explainParam(self, param: str | Param[Any]) -> str:
        """A param's name, doc, default and value, objects in a line."""
        param = self._resolveParam(param)
        if param.name in OBJECT_PARAMS and self.isSet(param):
            return f"{param.name}: {param.doc} (current: {describe(self.getOrDefault(param))})"
        return super().explainParam(param)

    def _value(self, name: str) -> Any:
        """A param's value or default, None where it has neither."""
        param = self.getParam(name)
        return self.getOrDefault(param) if self.isDefined(param) else None


def spread(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values by the params that hold them: a list for featuresCol is one for featuresCols, and a dict for
    inputCols has the inputNames too. Raises ParamError where these are given as well.
    """
    found = dict(values)
    features, inputs = values.get("featuresCol"), values.get("inputCols")
    parts: dict[str, Any] = {}
    if isinstance(features, (list, tuple)):
        del found["featuresCol"]
        parts["featuresCols"] = features
    if isinstance(inputs, Mapping):
        parts["inputNames"] = list(inputs)
        found["inputCols"] = list(inputs.values())
    for name in parts:
        if values.get(name) is not None:
            raise ParamError(f"{name} is given twice, by itself and within another param")
    return found | parts


def unknown(name: str, params: Params) -> ParamError:
    """The error of a param that there is not, with a hint at the one that was meant."""
    hint = suggestion(name, [param.name for param in params.params])
    return ParamError(f"{type(params).__name__} has no param {name!r}{hint}")


def describe(value: Any) -> str:
    """An object in one line: a module with its size, a function with the place it is written at."""
    if isinstance(value, (str, int, float)):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {describe(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(describe(item) for item in value) + "]"
    if isinstance(value, type):
        return value.__qualname__
    if callable(getattr(value, "parameters", None)):
        return f"{type(value).__name__} with {sum(p.numel() for p in value.parameters()):,} parameters"
    if callable(getattr(value, "zero_grad", None)):
        return f"{type(value).__name__} with lr {value.param_groups[0].get('lr')}"
    if inspect.isfunction(value):
        code = value.__code__
        return f"{value.__qualname__} at {code.co_filename}:{code.co_firstlineno}"
    return getattr(value, "__qualname__", None) or type(value).__name__


def params_text(params: Params) -> list[str]:
    """The params that are set, in a line each, objects by what they are."""
    values = {param.name: params.getOrDefault(param) for param in params.params if params.isSet(param)}
    return [f"{name}: {describe(value)}" for name, value in values.items()]


class HasObjects(CheckedParams):
    """What is trained, how it is judged, and what is called meanwhile: Python objects, saved beside the
    params that are JSON.
    """

    _default_loss: str | None = None

    model: Param[Any] = Param(
        Params._dummy(),
        "model",
        "The torch.nn.Module to train. It is copied for each fit and never changed. Its own training_step "
        "and configure_optimizers are used in the place of loss and optimizer.",
    )

    loss: Param[Any] = Param(
        Params._dummy(),
        "loss",
        "The loss: a name such as mse, a torch.nn loss module, or a callable of the outputs and the labels, "
        "and of the inputs where it takes three, that returns the mean over the rows or one value for each "
        "row. Left out, it is the module's own: that of its training_step, or of what its forward returns "
        "where that takes labels.",
    )

    optimizer: Param[Any] = Param(
        Params._dummy(),
        "optimizer",
        "The optimizer: a name such as adam, a callable that makes an optimizer of the parameters, or "
        "an optimizer made on the parameters of model.",
    )

    metrics: Param[Any] = Param(
        Params._dummy(),
        "metrics",
        "Metrics of each epoch beside the loss: a list of names and callables, or a dict of them by name.",
    )

    lrScheduler: Param[Any] = Param(
        Params._dummy(),
        "lrScheduler",
        "A callable that makes a scheduler of torch.optim.lr_scheduler of the optimizer, in place of "
        "lrSchedule and warmupEpochs. A ReduceLROnPlateau gets the validation loss.",
    )

    lrSchedulerInterval: Param[str] = Param(
        Params._dummy(),
        "lrSchedulerInterval",
        "After what lrScheduler takes a step: each epoch, or each step of the optimizer.",
        one_of("epoch", "step"),
    )

    preprocess: Param[Any] = Param(
        Params._dummy(),
        "preprocess",
        "A callable that makes the module's inputs of a flambeau.preprocessing.Batch of the inputs' columns, "
        "which may hold strings, binaries and arrays of any length: a tensor, or a tuple or dict of tensors.",
        function,
    )

    validationPreprocess: Param[Any] = Param(
        Params._dummy(),
        "validationPreprocess",
        "In place of preprocess where rows are validated or scored. Saved with the model.",
        function,
    )

    preprocessThreads: Param[int] = Param(
        Params._dummy(),
        "preprocessThreads",
        "In how many threads of each worker preprocess runs ahead of the training, a batch in each; up to "
        "twice as many batches are ahead.",
        Integer(1, 1024),
    )

    callbacks: Param[list[Callback]] = Param(
        Params._dummy(),
        "callbacks",
        "Objects of flambeau.callbacks.Callback, which are called at the events of a training, in workers or "
        "on the driver.",
        callback_list,
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setDefault(optimizer="adam", lrSchedulerInterval="epoch", preprocessThreads=2)
        if self._default_loss is not None:
            self._setDefault(loss=self._default_loss)

    def setModel(self, value: Any) -> Self:
        """Sets `model`."""
        return self._set(model=value)

    def getModel(self) -> Any:
        """The module as it was given, untrained."""
        return self._value("model")

    def setLoss(self, value: Any) -> Self:
        """Sets `loss`."""
        return self._set(loss=value)

    def getLoss(self) -> Any:
        """The loss as it was given, None when it is not set."""
        return self._value("loss")

    def setOptimizer(self, value: Any) -> Self:
        """Sets `optimizer`."""
        return self._set(optimizer=value)

    def getOptimizer(self) -> Any:
        """The optimizer as it was given, None when it is not set."""
        return self._value("optimizer")

    def setMetrics(self, value: Any) -> Self:
        """Sets `metrics`."""
        return self._set(metrics=value)

    def getMetrics(self) -> Any:
        """The metrics as they were given, None when there are none."""
        return self._value("metrics")

    def setLrScheduler(self, value: Any) -> Self:
        """Sets `lrScheduler`."""
        return self._set(lrScheduler=value)

    def getLrScheduler(self) -> Any:
        """The callable as it was given, None when there is none."""
        return self._value("lrScheduler")

    def setLrSchedulerInterval(self, value: str) -> Self:
        """Sets `lrSchedulerInterval`."""
        return self._set(lrSchedulerInterval=value)

    def getLrSchedulerInterval(self) -> str:
        """The value of `lrSchedulerInterval`, or its default."""
        return self.getOrDefault(self.lrSchedulerInterval)

    def setPreprocess(self, value: Any) -> Self:
        """Sets `preprocess`; None unsets it."""
        return self._set(preprocess=value)

    def getPreprocess(self) -> Any:
        """The callable as it was given, None when there is none."""
        return self._value("preprocess")

    def setValidationPreprocess(self, value: Any) -> Self:
        """Sets `validationPreprocess`; None unsets it."""
        return self._set(validationPreprocess=value)

    def getValidationPreprocess(self) -> Any:
        """The callable as it was given, None when there is none."""
        return self._value("validationPreprocess")

    def setPreprocessThreads(self, value: int) -> Self:
        """Sets `preprocessThreads`."""
        return self._set(preprocessThreads=value)

    def getPreprocessThreads(self) -> int:
        """The value of `preprocessThreads`, or its default."""
        return self.getOrDefault(self.preprocessThreads)

    def setCallbacks(self, value: list[Callback] | None) -> Self:
        """Sets `callbacks`; None unsets it."""
        return self._set(callbacks=value)

    def getCallbacks(self) -> list[Callback] | None:
        """The callbacks as they were given, None when there are none."""
        return self._value("callbacks")

    def _objects(self) -> dict[str, Any]:
        """The objects that are set, by the names of their params."""
        return {name: self._value(name) for name in OBJECT_PARAMS if self.isSet(self.getParam(name))}

    def _set_objects(self, objects: dict[str, Any]) -> None:
        """Takes the objects that `_objects` gave."""
        self._set(**objects)


class HasRuntime(CheckedParams):
    """What runs the module. Python's alone: the JVM has the native runtime only."""

    runtime: Param[str] = Param(
        Params._dummy(),
        "runtime",
        "What runs the module: python runs it as it is in Spark's Python workers, native runs it as a "
        "libtorch program, made with TorchScript or torch.export, without Python: it trains in processes of "
        "its own, and scores in the executors' JVMs, for which the session needs Flambeau's jar. To train, "
        "native takes losses, optimizers and metrics by name, and a model that is the path of such a program "
        "too. auto trains as python does, and scores as native does where it can, in a session with "
        "flambeau.spark_config(), else as python does.",
        one_of("auto", "python", "native"),
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setDefault(runtime="auto")

    def setRuntime(self, value: str) -> Self:
        """Sets `runtime`."""
        return self._set(runtime=value)

    def getRuntime(self) -> str:
        """The value of `runtime`, or its default."""
        return self.getOrDefault(self.runtime)
