"""`runtime="python"`: the module as it is, pickled to Spark's Python workers together with what trains it."""

from __future__ import annotations

import functools
import hashlib
import json
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import cloudpickle

from flambeau._module import metrics, steps
from flambeau._module.named import is_named
from flambeau._module.uncompiled import COMPILER
from flambeau._rank.imports import RANK_MODULES
from flambeau._rank.meeting import meeting_place
from flambeau._rank.worker import WorkerRequest, versions
from flambeau._saved.program import dump_skeleton
from flambeau.errors import ParamError
from flambeau.params.objects import describe

if TYPE_CHECKING:
    from torch.nn import Module

    from flambeau._module.layout import Layout
    from flambeau._module.preprocessor import PreprocessSpec
    from flambeau._spark.fit.initial_weights import InitialWeights
    from flambeau._tensors import TensorColumns
    from flambeau.callbacks import Callback

_FILE = "program.pkl"


@dataclass(frozen=True)
class PythonProgram:
    """What is trained: the pickle that goes to the workers, and this fit's own copy of what is in it."""

    data: bytes
    objects: Mapping[str, Any]
    compiles: bool = False
    """Whether ranks compile the module."""
    preprocess_threads: int = 1
    preprocessing: PreprocessSpec | None = None
    """What `preprocess` makes, once that is known."""

    @classmethod
    def of(
        cls,
        given: Mapping[str, Any],
        initial: InitialWeights | None,
        compiles: bool = False,
        names: Sequence[str] | None = None,
        callbacks: Sequence[Callback] = (),
        preprocess_threads: int = 1,
    ) -> PythonProgram:
        """The estimator's objects and the workers' callbacks, in one pickle so that an optimizer keeps its
        parameters.

        `initial` are the weights to start from instead of the module's own, `names` those of its inputs.
        Raises ParamError that names the object which cannot be pickled.
        """
        data = _pickle({**given, "callbacks": callbacks} if callbacks else given)
        objects = pickle.loads(data)
        module, predicts = objects["model"], steps.predicts(objects["model"])
        if predicts:
            # Of the instance, it goes where the module goes: to workers, and into what is saved.
            module.forward = functools.partial(steps.forward_by_predict_step, module, names)
        if initial is not None:
            initial.load(module)
        if predicts or initial is not None:
            data = _pickle(objects)
        objects.pop("callbacks", None)
        return cls(data, objects, compiles, preprocess_threads)

    @property
    def module(self) -> Module:
        """This fit's copy of the module."""
        module: Module = self.objects["model"]
        return module

    @property
    def modules(self) -> tuple[str, ...]:
        """What a rank imports: torch, and its compiler too where the module is compiled, and for an optimizer
        that is not made of a name.
        """
        is_plain = is_named(self.objects["optimizer"]) and "lrScheduler" not in self.objects
        compiles = self.compiles or not is_plain
        return (*RANK_MODULES, COMPILER) if compiles else RANK_MODULES

    def metric_names(self, weighted: bool, validates: bool) -> tuple[list[str], list[str]] | None:
        """The metrics of training rows and of validation rows by name, None where the module's own steps log
        them. Raises ParamError for what is none, and for what can't be had of such rows.
        """
        names = metrics.check(self.objects["metrics"], weighted, validates)
        return None if steps.has_steps(self.module) else names

    def logged(self, layout: Layout) -> Mapping[str, Sequence[str]] | None:
        """What the module's own steps log of such batches, by the step; None where it has none. Raises
        ParamError for steps that fail.
        """
        return steps.logged_names(self.module, layout) if steps.has_steps(self.module) else None

    def programs(self) -> dict[str, bytes]:
        """The forms of the module that a fitted model holds."""
        return {"pickle": dump_skeleton(self.module)}

    def payload(
        self, inputs: Sequence[TensorColumns], preprocessing: PreprocessSpec | None = None
    ) -> PythonProgram:
        """What goes to the workers, which take the module for any inputs, and those that `preprocessing`
        makes.
        """
        return replace(self, preprocessing=preprocessing)

    @property
    def files(self) -> dict[str, bytes]:
        """The pickle."""
        return {_FILE: self.data}

    def request(
        self, job: Mapping[str, Any], secret: bytes, placed: Mapping[str, str], shares_machine: bool
    ) -> WorkerRequest:
        """What every rank gets; `placed` has the pickle's URI where it lies in the work directory."""
        return WorkerRequest(
            job_json=json.dumps(job),
            secret=secret,
            program=None if _FILE in placed else self.data,
            program_uri=placed.get(_FILE),
            program_sha256=hashlib.sha256(self.data).hexdigest(),
            sys_path=tuple(sys.path) if shares_machine else (),
            versions=versions(),
            preprocessing=self.preprocessing,
            preprocess_threads=self.preprocess_threads,
            meeting_place=meeting_place(job, shares_machine),
        )


def _pickle(objects: Mapping[str, Any]) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(dict(objects))
        return data
    except Exception:
        for name, value in objects.items():
            try:
                cloudpickle.dumps(value)
            except Exception as error:
                raise ParamError(
                    f"{name} ({describe(value)}) cannot be pickled to be sent to the workers: {error}; "
                    f"make open files, locks and connections where they are first used"
                ) from error
        raise
