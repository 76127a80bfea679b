"""`runtime="native"`, on the driver: the module as a libtorch program, loss and optimizer by name.

The program is given as one, or made of the module: TorchScript, else torch.export.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

from flambeau._libtorch import WAY_OUT
from flambeau._module.named import is_named
from flambeau._rank.meeting import meeting_place
from flambeau._rank.native_runtime import NativeRequest
from flambeau._saved.program import dump_skeleton, instantiate, libtorch_programs
from flambeau._saved.weights import FILE_NAME, load_into, save_module
from flambeau._spark.files import fetched
from flambeau._spark.saving.program_files import ProgramFiles, file_at, scripted_archive
from flambeau._spark.session import LIBTORCH, setting
from flambeau.errors import ParamError
from flambeau.params.objects import describe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from torch import nn

    from flambeau._module.layout import Layout
    from flambeau._module.preprocessor import PreprocessSpec
    from flambeau._spark.fit.initial_weights import InitialWeights
    from flambeau._tensors import TensorColumns


_METRICS = re.compile(r"mse|rmse|mae|r2|accuracy|top[1-9]\d*_accuracy|precision|recall|f1")

OPTIMIZERS = ("adam", "adamw", "rmsprop", "sgd")


@dataclass(frozen=True)
class NativeProgram:
    """What is trained: this fit's own copy of the module, and loss, optimizer and metrics as the job has
    them.
    """

    module: nn.Module
    """It checks and probes; libtorch trains it unless there are archives."""
    archives: Mapping[str, bytes]
    """The program by its forms, where it was given as one; empty for a module of Python's."""
    weights: bytes | None
    """The weights file that the archives start from; None takes those inside them."""
    loss: Any
    optimizer: Mapping[str, Any]
    metrics: Sequence[str]
    libtorch: str | None

    @classmethod
    def of(
        cls, given: Mapping[str, Any], initial: InitialWeights | None, spark: SparkSession
    ) -> NativeProgram:
        """The estimator's objects for libtorch. `initial` are the weights to start from instead of the
        model's.

        Raises ParamError that names the object which libtorch cannot have, and what to give instead.
        """
        judged = (
            _loss_of(given["loss"], spark),
            _optimizer_of(given["optimizer"]),
            _metrics_of(given["metrics"]),
        )
        model, weights = given["model"], None
        archives: dict[str, bytes] = {}
        if isinstance(model, str):
            files = ProgramFiles.of(spark, model)
            archives = files.read(spark)
            module = instantiate(archives)
            if files.weights is not None:
                with fetched(files.weights, spark) as path:
                    load_into(module, path)
                    weights = path.read_bytes()
        elif _is_scripted(model):
            archives = {"scripted": scripted_archive(model)}
            module = instantiate(archives)
        else:
            module = cloudpickle.loads(cloudpickle.dumps(model))
        if initial is not None:
            weights = initial.load_file(module)
        return cls(module, archives, weights, *judged, setting(spark, LIBTORCH) or None)

    @property
    def modules(self) -> tuple[str, ...]:
        """What a rank imports: no torch, which its child has as libtorch."""
        return ("flambeau._rank.native_runtime",)

    def metric_names(self, weighted: bool, validates: bool) -> tuple[list[str], list[str]]:
        """The metrics of training rows and those of validation rows by name, which are the same."""
        return list(self.metrics), list(self.metrics)

    def logged(self, layout: Layout) -> None:
        """What the module's own steps log: it has none here."""

    @property
    def objects(self) -> dict[str, Any]:
        """The module as `model`, and `loss`, `optimizer` and `metrics`."""
        objects = {"model": self.module, "loss": self.loss, "metrics": self.metrics}
        return {**objects, "optimizer": dict(self.optimizer)}

    def programs(self) -> dict[str, bytes]:
        """The forms of the module that a fitted model holds."""
        return dict(self.archives) or {"pickle": dump_skeleton(self.module)}

    def payload(
        self, inputs: Sequence[TensorColumns], preprocessing: PreprocessSpec | None = None
    ) -> NativePayload:
        """What goes to the workers. Raises ParamError where neither TorchScript nor torch.export takes the
        module.
        """
        archives, weights = self.archives, self.weights
        if not archives:
            with tempfile.TemporaryDirectory(prefix="flambeau-") as folder:
                path = save_module(self.module, Path(folder) / FILE_NAME).uri
                archives = libtorch_programs(self.module, inputs, path, ("exported", "exportedTrain"))
                weights = Path(path).read_bytes()
        form = "scripted" if "scripted" in archives else "exported"
        files = {"eval": archives[form]}
        if form == "exported" and "exportedTrain" in archives:
            files["train"] = archives["exportedTrain"]
        program: dict[str, Any] = {"form": form, "optimizer": self.optimizer, "metrics": self.metrics}
        if weights is not None:
            files["weights"] = weights
            program["weights"] = {"size": len(weights), "sha256": hashlib.sha256(weights).hexdigest()}
        if is_named(self.loss):
            program["loss"] = self.loss
        else:
            files["loss"] = _saved(self.loss)
        return NativePayload(program, files, self.libtorch)


@dataclass(frozen=True)
class NativePayload:
    """A program as it goes to the workers: `files` by their part in the job's `program`, which lacks their
    places.
    """

    program: Mapping[str, Any]
    files: Mapping[str, bytes]
    libtorch: str | None

    def request(
        self, job: Mapping[str, Any], secret: bytes, placed: Mapping[str, str], shares_machine: bool
    ) -> NativeRequest:
        """What every rank gets; `placed` are the URIs of the files that lie in the work directory."""
        text = json.dumps({**job, "program": self.program})
        carried = {part: data for part, data in self.files.items() if part not in placed}
        place = meeting_place(job, shares_machine)
        hashes = {part: hashlib.sha256(self.files[part]).hexdigest() for part in placed}
        return NativeRequest(text, secret, carried, placed, hashes, self.libtorch, meeting_place=place)


def _is_scripted(value: Any) -> bool:
    import torch

    return isinstance(value, torch.jit.ScriptModule)


def _saved(module: Any) -> bytes:
    """A TorchScript archive of a scripted module."""
    import torch

    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    return buffer.getvalue()


def _named(value: Any) -> dict[str, Any]:
    return {"name": value, "options": {}} if isinstance(value, str) else {"options": {}, **value}


def _loss_of(loss: Any, spark: SparkSession) -> Any:
    """A named loss, or a scripted one; its file lies where that of a program would."""
    import torch

    from flambeau._module import losses

    if is_named(loss):
        return _named(loss)
    known = losses.named(loss)
    if known is not None:
        return known
    if _is_scripted(loss):
        return loss
    if isinstance(loss, Mapping) and set(loss) == {"script"}:
        file = file_at(spark, loss["script"])
        if file is None:
            raise ParamError(f"loss: there is no file at {loss['script']}: give the path of a scripted loss")
        with fetched(file, spark) as path:
            return torch.jit.load(str(path))
    if isinstance(loss, torch.nn.Module):
        try:
            return torch.jit.script(loss)
        except Exception as error:
            raise ParamError(
                f"loss: runtime='native' needs a loss that TorchScript takes, and {type(loss).__name__} is "
                f"none: {error}"
            ) from error
    raise ParamError(
        "loss: runtime='native' takes a name, {'name': ..., 'options': {...}} or a module that TorchScript "
        f"takes, got {describe(loss)}; put a function into the forward of a torch.nn.Module, {WAY_OUT}"
    )


def _optimizer_of(optimizer: Any) -> dict[str, Any]:
    if is_named(optimizer) and _named(optimizer)["name"] in OPTIMIZERS:
        return _named(optimizer)
    raise ParamError(
        f"optimizer: runtime='native' takes {', '.join(OPTIMIZERS)}, as a name or as "
        "{'name': 'adamw', 'options': {'lr': 0.01}}, got "
        f"{describe(optimizer)}; give one of them, {WAY_OUT}"
    )


def _metrics_of(metrics: Any) -> list[str]:
    named = [metrics] if isinstance(metrics, str) else list(metrics or [])
    others = [metric for metric in named if not isinstance(metric, str)]
    if others or isinstance(metrics, Mapping):
        raise ParamError(
            f"metrics: runtime='native' takes a list of names, got {describe(metrics)}; leave the others "
            f"out, {WAY_OUT}"
        )
    unknown = [metric for metric in named if not _METRICS.fullmatch(metric)]
    if unknown:
        raise ParamError(
            f"metrics: runtime='native' has mse, rmse, mae, r2, accuracy, top<k>_accuracy, precision, "
            f"recall and f1, and no {', '.join(unknown)}: leave it out, {WAY_OUT}"
        )
    return named
