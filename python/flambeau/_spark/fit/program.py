"""What a fit trains, in the form that its runtime takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from flambeau._callbacks import on_workers
from flambeau._spark.fit.launch import Payload
from flambeau._spark.fit.native_program import NativeProgram
from flambeau._spark.fit.trainable import Trainable
from flambeau._tensors import TensorColumns
from flambeau.errors import ParamError
from flambeau.params.objects import TRAINED_PARAMS, describe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from torch.nn import Module

    from flambeau._module.layout import Layout
    from flambeau._module.preprocessor import PreprocessSpec
    from flambeau._spark.fit.initial_weights import InitialWeights


class Program(Protocol):
    """What a fit trains, in the form that its runtime takes."""

    @property
    def module(self) -> Module:
        """This fit's own copy of the module."""

    @property
    def modules(self) -> tuple[str, ...]:
        """What a rank imports to train it."""

    @property
    def objects(self) -> Mapping[str, Any]:
        """The module as `model`, and `loss`, `optimizer` and `metrics`, and `lrScheduler` where it is set."""

    def metric_names(self, weighted: bool, validates: bool) -> tuple[list[str], list[str]] | None:
        """The metrics of training rows and of validation rows by name, None where the module's own steps log
        them; `weighted` is whether rows have weights, `validates` whether there are validation rows.
        Raises ParamError for what is none, and for what can't be had of such rows.
        """

    def logged(self, layout: Layout) -> Mapping[str, Sequence[str]] | None:
        """What the module's own steps log of such batches, by the step; None where it has none. Raises
        ParamError for steps that fail.
        """

    def programs(self) -> dict[str, bytes]:
        """The forms of the module that the fitted model holds."""

    def payload(
        self, inputs: Sequence[TensorColumns], preprocessing: PreprocessSpec | None = None
    ) -> Payload:
        """What goes to the workers, for inputs whose shapes are known, or that `preprocess` makes. Raises
        ParamError.
        """


def program_of(estimator: Trainable, spark: SparkSession, initial: InitialWeights | None) -> Program:
    """What the estimator trains, with the `initial` weights of `initialModel` where that is set.

    Raises ParamError that names the object which is missing, of the wrong kind, or not for this runtime, and
    where the initial weights are not those of such a module.
    """
    import torch

    from flambeau._module.assembly import makes_loss
    from flambeau._spark.fit.python_program import PythonProgram

    given = _given(estimator)
    native = estimator._trains_natively
    if isinstance(given["model"], str) and not native:
        raise ParamError(
            f"model is the path {given['model']!r}: set runtime='native', which trains programs in files, or "
            "give a torch.nn.Module"
        )
    if isinstance(given["model"], torch.jit.ScriptModule) and not native:
        raise ParamError(
            "model is a TorchScript module: set runtime='native', which trains those, or give the "
            "torch.nn.Module that it was made of"
        )
    if not isinstance(given["model"], (str, torch.nn.Module)):
        raise ParamError(f"model must be a torch.nn.Module, got {describe(given['model'])}")
    if native:
        _check_native(given)
    if given["loss"] is None and not makes_loss(given["model"]):
        raise ParamError("loss must be given: a name such as 'mse', a torch.nn loss module, or a callable")
    if native and estimator.getCompile():
        raise ParamError(
            "compile is True, but runtime='native' trains programs, which are compiled already: "
            "leave it False, or take runtime='python'"
        )
    callbacks = on_workers(estimator.getCallbacks())
    if native and callbacks:
        raise ParamError(
            f"callbacks: {describe(callbacks)} are called in workers (where={callbacks[0].where!r}), which "
            "have no Python with runtime='native': set where='driver', which both runtimes have, or take "
            "runtime='python'"
        )
    if native:
        return NativeProgram.of(given, initial, spark)
    names = estimator.getInputNames()
    if "preprocess" in given and estimator.getDevice() == "cuda":
        raise ParamError(
            "preprocess makes tensors for the CPU alone, and device is 'cuda': set device to 'cpu', or make "
            "the tensors before the fit"
        )
    threads = estimator.getPreprocessThreads()
    return PythonProgram.of(given, initial, estimator.getCompile(), names, callbacks, threads)


def _given(estimator: Trainable) -> dict[str, Any]:
    """The estimator's objects. What is a default alone is left out where the module has its own.

    Raises ParamError for a lrSchedulerInterval without a lrScheduler, for a validationPreprocess without a
    preprocess, and for a configure_optimizers in the optimizer's place that can't be called.
    """
    from flambeau._module.assembly import CONFIGURE, configures
    from flambeau._module.lightning import has_own
    from flambeau._module.steps import has_steps

    given = {name: estimator._value(name) for name in TRAINED_PARAMS}
    if given["lrScheduler"] is None:
        if estimator.isSet("lrSchedulerInterval"):
            raise ParamError(
                "lrSchedulerInterval is set, and lrScheduler is not: give that too, or leave both"
            )
        del given["lrScheduler"], given["lrSchedulerInterval"]
    if given["preprocess"] is None:
        if given["validationPreprocess"] is not None:
            raise ParamError(
                "validationPreprocess is set, and preprocess is not: give that too, which rows are trained "
                "on with, or leave both"
            )
        del given["preprocess"], given["validationPreprocess"]
    elif given["validationPreprocess"] is None:
        given["validationPreprocess"] = given["preprocess"]
    for name, makes in (("loss", has_steps), ("optimizer", configures)):
        if not estimator.isSet(name) and makes(given["model"]):
            given[name] = None
    if not estimator.isSet("optimizer") and given["optimizer"] and has_own(given["model"], CONFIGURE):
        raise ParamError(
            f"model: {describe(given['model'])} has a configure_optimizers that takes arguments, and would "
            "not be used: give optimizer, such as lambda parameters: AdamW(parameters, lr=1e-3)"
        )
    return given


def _check_native(given: Mapping[str, Any]) -> None:
    """Raises ParamError for code of Python's that trains, which libtorch does not run."""
    from flambeau._module.assembly import configures
    from flambeau._module.lightning import has_own
    from flambeau._module.steps import VALIDATION, has_steps

    for what, is_given in (
        ("lrScheduler", "lrScheduler" in given),
        ("preprocess", "preprocess" in given),
        ("the model's training_step", has_steps(given["model"])),
        ("the model's validation_step", has_own(given["model"], VALIDATION)),
        ("the model's configure_optimizers", configures(given["model"])),
        ("a loss that the model returns", given["loss"] is None),
    ):
        if is_given:
            instead = "give loss and optimizer by name, and lrSchedule"
            if what == "preprocess":
                instead = (
                    "make numbers of the columns before the fit: a program of libtorch takes those alone"
                )
            raise ParamError(
                f"{what} is Python's, and runtime='native' trains without Python: take runtime='python', or "
                f"{instead}"
            )
