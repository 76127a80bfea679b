"""Estimators and models as plain directories that Spark ML's readers find their way in.

    metadata/             Spark ML's metadata, one line of JSON, with an object "flambeau" of our own
    program.pt, .pt2      a program, scripted and exported: no pickle; program-train.pt2 is its graph to train
    program.pkl           a model's module by cloudpickle, where neither was possible
    weights.safetensors   a model's weights
    history.json          what each epoch of a model's training came to
    preprocess.pkl        what makes the module's inputs of columns, by cloudpickle, where there is such
    loss.pt               an estimator's loss, where it is a TorchScript archive
    objects.pkl           an estimator's module, loss, optimizer and metrics, those that are no JSON

docs/saved-models.md has the whole format.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, cast

import cloudpickle
import pyspark
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter

from flambeau._module.named import is_named
from flambeau._redacted import redacted
from flambeau._saved.metadata import class_of, written_by
from flambeau._saved.program import FILE_NAMES, OutputSpec, compile_programs, instantiate, is_wide
from flambeau._saved.weights import FILE_NAME, WeightsRef, load_into
from flambeau._spark.directory import Directory, load_metadata
from flambeau._spark.files import fetched
from flambeau._spark.fitted import Fitted
from flambeau._spark.saving.pipelines import share_pipelines
from flambeau._spark.saving.program_files import FORM_FILES, ProgramFiles, file_at, scripted_archive
from flambeau._spark.saving.trust import ALLOW_PICKLE, pickle_allowed, refusal
from flambeau._spark.session import is_running
from flambeau._store import local_path
from flambeau._tensors import TensorColumns
from flambeau.errors import FlambeauError
from flambeau.params.objects import PYTHON_PARAMS

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.ml.param import Params
    from pyspark.sql import SparkSession
    from torch import nn

    from flambeau._module.preprocessor import ScoringPreprocess


log = logging.getLogger("flambeau")

HISTORY = "history.json"
OBJECTS = "objects.pkl"
LOSS_SCRIPT = "loss.pt"
PREPROCESS = "preprocess.pkl"


class PlainWriter(MLWriter):
    """A writer that works on classic Spark and on Connect."""

    def save(self, path: str) -> None:
        """Saves to a directory; `overwrite()` first where there may be one already.

        What is there is replaced once the new directory lies whole beside it, by two renames, so that a save
        that fails leaves it. On Spark Connect nothing renames directories of an object store: there it is
        removed once all that can be checked beforehand has been.
        """
        directory = Directory(self.sparkSession, path)
        self.check(directory)
        if not directory.exists():
            self._write_whole(directory)
        elif not self.shouldOverwrite:
            raise FlambeauError(f"{path} exists already; use write().overwrite().save(path) to replace it")
        elif directory.can_move:
            beside = directory.sibling("new")
            try:
                self._write_whole(beside)
            except BaseException:
                # The first error says more.
                with suppress(Exception):
                    beside.remove()
                raise
            directory.replace_by(beside)
        else:
            directory.remove()
            self._write_whole(directory)

    def _write_whole(self, directory: Directory) -> None:
        self.write_to(directory)
        directory.check_reached()

    def check(self, directory: Directory) -> None:
        """Raises what speaks against the save before anything is removed or written, and makes ready what may
        fail.
        """

    def write_to(self, directory: Directory) -> None:
        """Writes the files and, last, the metadata."""
        raise NotImplementedError

    def write_metadata(
        self, directory: Directory, instance: Params, ours: Mapping[str, Any], skip: tuple[str, ...] = ()
    ) -> None:
        """Writes Spark ML's metadata of `instance` with `ours` and the versions as the object `flambeau`; the
        params in `skip` are left out.
        """
        spark = None if directory.is_here else self.sparkSession
        params = {p.name: value for p, value in instance._paramMap.items() if p.name not in skip}
        extra = {"flambeau": {**written_by(), **ours}}
        version: Any = SimpleNamespace(version=pyspark.__version__) if spark is None else spark
        text = DefaultParamsWriter._get_metadata_to_save(instance, version, extra, params)
        metadata = json.loads(text)
        for name in skip:
            metadata["defaultParamMap"].pop(name, None)
        text = json.dumps(metadata, separators=(",", ":"))
        if spark is None:
            place = Directory(None, f"{directory.path}/metadata")
            place.write("part-00000", f"{text}\n".encode())
            place.write("_SUCCESS", b"")
            return
        frame = spark.createDataFrame([(text,)], "value string")
        frame.coalesce(1).write.text(f"{directory.path}/metadata")
        share_pipelines(spark, directory.path)


class ModelWriter(PlainWriter):
    """Writes a fitted model."""

    def __init__(self, model: Fitted) -> None:
        super().__init__()
        self._model = model

    def check(self, directory: Directory) -> None:
        """Refuses to remove the directory that the model's own weights are read from."""
        own = self._model._weights.uri
        if self.shouldOverwrite and _plain(own).startswith(_plain(directory.uri) + "/"):
            raise FlambeauError(
                f"the model was loaded from {directory.path} and reads its weights from there; "
                "save it to another path"
            )
        self._made = self._programs()

    def write_to(self, directory: Directory) -> None:
        """Writes program, weights and history, then the metadata."""
        model = self._model
        programs, reasons = self._made
        scored = {} if model._preprocess is None else {PREPROCESS: model._preprocess.pickle}
        history = json.dumps(model._history, separators=(",", ":")).encode()
        files: dict[str, dict[str, Any]] = {}
        contents = {FILE_NAMES[form]: data for form, data in programs.items()} | scored
        for name, data in (contents | {HISTORY: history}).items():
            files[name] = directory.put(name, data)
        directory.copy(FILE_NAME, model._weights)
        files[FILE_NAME] = {"size": model._weights.size, "sha256": model._weights.sha256}
        ours = {
            "programs": {form: FILE_NAMES[form] for form in programs},
            "reasons": reasons,
            "files": files,
            "inputs": _inputs_json(model._inputs),
            "output": model._output.to_json(),
            "classes": model._classes,
            # Scala's `evaluate` reads labels and weights of floats in it.
            "parameterDtype": "float64" if is_wide(instantiate(model._programs)) else "float32",
            "summary": dict(model._counts),
            "judgedBy": _named(model._judged_by),
            "lineage": {name: told and redacted(told) for name, told in model._lineage.items()},
        }
        if model._preprocess is not None:
            made = model._preprocess.spec
            ours["preprocess"] = {"makes": _inputs_json(made.inputs), "byName": made.by_name}
        self.write_metadata(directory, model, ours)

    def _programs(self) -> tuple[dict[str, bytes], dict[str, str]]:
        """The program's forms to save, and why those that are missing are."""
        model = self._model
        if "pickle" not in model._programs:
            return dict(model._programs), dict(model._reasons)
        spark = self.sparkSession if is_running() else None
        if model._preprocess is not None:
            if spark is not None and not pickle_allowed(spark):
                raise FlambeauError(
                    f"{ALLOW_PICKLE} is false, and a model with a preprocess can be saved as a pickle only"
                )
            no_graph = "the module's inputs are what preprocess makes, which is a pickle"
            return {"pickle": model._programs["pickle"]}, dict.fromkeys(("exported", "scripted"), no_graph)
        with fetched(model._weights, spark) as path:
            module = load_into(instantiate(model._programs), path, share=True)
            programs, reasons = compile_programs(module, model._inputs, path, ("exported", "scripted"))
            # A scripted program trains as it is; an exported one needs a graph for that.
            if "scripted" not in programs and "exported" in programs:
                graph, why = compile_programs(module, model._inputs, path, ("exportedTrain",))
                programs, reasons = programs | graph, reasons | why
        if programs:
            return programs, reasons
        if spark is not None and not pickle_allowed(spark):
            raise FlambeauError(
                f"{ALLOW_PICKLE} is false, and the module can be saved as a pickle only: "
                + "; ".join(f"{form}: {reason}" for form, reason in reasons.items())
            )
        return {"pickle": model._programs["pickle"]}, reasons


def _inputs_json(inputs: Sequence[TensorColumns]) -> list[dict[str, Any]]:
    return [tensor.to_json() | ({"keyword": True} if tensor.keyword else {}) for tensor in inputs]


def _preprocess_of(
    columns: Sequence[TensorColumns], told: Mapping[str, Any], data: bytes
) -> ScoringPreprocess:
    from flambeau._module.preprocessor import PreprocessSpec, ScoringPreprocess

    makes = tuple(TensorColumns.from_json(value) for value in told["makes"])
    return ScoringPreprocess(data, PreprocessSpec(tuple(columns), makes, told["byName"]))


Refusal = Callable[[str, Callable[[], bytes]], str | None]
"""Why a program in this form, whose bytes the function gives, is not read; None where it is."""


class _RefusedError(FlambeauError):
    """No program of a saved model may be read."""


class ModelReader(MLReader[Any]):
    """Reads a fitted model; with `module` it takes the program's place."""

    def __init__(self, cls: type[Fitted], module: nn.Module | None = None) -> None:
        super().__init__()
        self._cls = cls
        self._module = module

    def load(self, path: str) -> Fitted:
        """Reads the model, from a directory of this machine without a session where none runs and it holds a
        program that does nothing but compute: of others a session says whether they may be read. Its weights
        stay where they are until they are used.
        """
        local = local_path(path)
        if self._sparkSession is None and not is_running() and local is not None and local.is_dir():
            with suppress(_RefusedError):
                return self.read(None, local.resolve().as_uri(), partial(refusal, None))
        spark = self.sparkSession
        return self.read(spark, path, partial(refusal, spark))

    def read(self, spark: SparkSession | None, path: str, refusal_of: Refusal) -> Fitted:
        """Reads the model through a session, or from a directory of this machine without one. `refusal_of`
        says which of its programs are not read.
        """
        metadata = load_metadata(spark, path)
        model = cast("Fitted", class_of(metadata, path, self._cls)())
        directory = Directory(spark, path)
        ours = metadata["flambeau"]
        files = ours["files"]

        def read(name: str) -> bytes:
            return directory.read(name, files[name]["size"], files[name]["sha256"])

        model._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(cast(Any, model), metadata)
        model._inputs = tuple(TensorColumns.from_json(value) for value in ours["inputs"])
        model._output = OutputSpec.from_json(ours["output"])
        model._classes = ours["classes"]
        model._counts = ours["summary"]
        model._reasons = ours["reasons"]
        # Older versions tell neither.
        model._judged_by = _named(ours.get("judgedBy", {}))
        model._lineage = ours.get("lineage", {})
        model._history = json.loads(read(HISTORY))
        entry = files[FILE_NAME]
        model._weights = directory.reference(FILE_NAME, entry["size"], entry["sha256"])
        model._is_here = spark is None
        if "preprocess" in ours:
            why = refusal_of("pickle", partial(read, PREPROCESS))
            if why is not None:
                raise _RefusedError(f"{path} has a preprocess, which is a pickle and may not be read: {why}")
            model._preprocess = _preprocess_of(model._inputs, ours["preprocess"], read(PREPROCESS))
        if self._module is not None:
            model._use_module(self._module)
            return model
        programs, refused = {}, {}
        for form, name in ((form, FILE_NAMES[form]) for form in ours["programs"]):
            why = refusal_of(form, partial(read, name))
            if why is None:
                programs[form] = read(name)
            else:
                refused[form] = why
        if not programs.keys() - {"exportedTrain"}:
            raise _RefusedError(
                f"{path} holds no program that may be read "
                f"({'; '.join(f'{form}: {why}' for form, why in refused.items())}): load it with "
                "TorchModel.load(path, module=...), giving the module that was trained"
            )
        model._programs = programs
        return model


def save_here(model: Fitted, path: Path) -> None:
    """Saves a model to a new directory of this machine, which this process writes, whatever session there is.

    Weights that it does not see are read through the session. Raises as `write().save(path)`.
    """
    writer, directory = ModelWriter(model), Directory(None, str(path))
    writer.check(directory)
    writer.write_to(directory)


def load_here(cls: type[Fitted], path: Path, refusal_of: Refusal) -> Fitted:
    """Reads a model from a directory of this machine by this process alone, whatever session there is."""
    return ModelReader(cls).read(None, path.resolve().as_uri(), refusal_of)


def weights_of(spark: SparkSession | None, model: str | Fitted) -> WeightsRef:
    """The weights of a saved model, given by its directory, or of a fitted one. Without a session the
    directory is one of this machine.

    Raises FlambeauError where the directory holds no model of ours, and ParamError for an unfitted one.
    """
    if isinstance(model, Fitted):
        model._check_fitted()
        return model._weights
    metadata = load_metadata(spark, model)
    class_of(metadata, model, Fitted, "TorchModel")
    entry = metadata["flambeau"]["files"][FILE_NAME]
    return Directory(spark, model).reference(FILE_NAME, entry["size"], entry["sha256"])


class HoldsObjects(Protocol):
    """An estimator with params that are Python objects."""

    uid: str

    def _objects(self) -> dict[str, Any]: ...

    def _set_objects(self, objects: dict[str, Any]) -> None: ...

    def getRuntime(self) -> str: ...

    def getInitialModel(self) -> Any: ...


class EstimatorWriter(PlainWriter):
    """Writes an estimator: params, and what is JSON of its objects, as JSON; a program as its files; other
    objects in one pickle, so that an optimizer keeps its parameters.
    """

    def __init__(self, estimator: HoldsObjects) -> None:
        super().__init__()
        self._estimator = estimator
        objects = estimator._objects()
        self._names = {name: value for name, value in objects.items() if _is_json(name, value)}
        self._program = self._find_program(objects.get("model"))
        self._script = _script_of(objects.get("loss"))
        self._blob = {
            name: value
            for name, value in objects.items()
            if name not in self._names and not (name == "model" and self._program is not None)
        }

    def _find_program(self, model: Any) -> str | bytes | None:
        """The path of the program, or its archive; None where the module is to be pickled."""
        import torch

        if isinstance(model, str):
            return model
        if isinstance(model, torch.jit.ScriptModule):
            return scripted_archive(model)
        if isinstance(model, torch.nn.Module) and self._estimator.getRuntime() == "native":
            try:
                return scripted_archive(model)
            except Exception as error:
                log.debug("the module is saved as a pickle, since it cannot be scripted: %s", error)
        return None

    def check(self, directory: Directory) -> None:
        """Refuses objects where pickles are, an initial model that has no directory to name, and to remove
        the directory that the program is read from.
        """
        initial = self._estimator.getInitialModel()
        if initial is not None and not isinstance(initial, str):
            raise FlambeauError(
                "initialModel is a fitted model, which an estimator is not saved with: save the model, and "
                "give its directory as initialModel"
            )
        if self._blob and not pickle_allowed(self.sparkSession):
            raise FlambeauError(
                f"{', '.join(self._blob)} can be saved as a pickle only, and {ALLOW_PICKLE} is false"
            )
        self._pickled = self._pickle() if self._blob else None
        self._copied = self._files_to_copy()
        own = _plain(directory.uri)
        if self.shouldOverwrite and any(_plain(f.uri).startswith(f"{own}/") for f in self._copied.values()):
            raise FlambeauError(
                f"the estimator's program is read from {directory.path}; save it to another path"
            )

    def _pickle(self) -> bytes:
        try:
            data: bytes = cloudpickle.dumps(self._blob)
        except Exception as error:
            raise FlambeauError(f"{', '.join(self._blob)} cannot be pickled: {error}") from error
        return data

    def _files_to_copy(self) -> dict[str, WeightsRef]:
        """The files of a program and of a loss that are given by their paths, by the names that they get."""
        files: dict[str, WeightsRef] = {}
        if isinstance(self._program, str):
            files.update(ProgramFiles.of(self.sparkSession, self._program).named())
        if self._script is not None:
            script = file_at(self.sparkSession, self._script)
            if script is None:
                raise FlambeauError(f"loss: there is no file {self._script}")
            files[LOSS_SCRIPT] = script
        return files

    def write_to(self, directory: Directory) -> None:
        """Writes the program and the objects, then the metadata."""
        ours: dict[str, Any] = {"names": self._names, "runtime": self._estimator.getRuntime()}
        files: dict[str, dict[str, Any]] = {}
        for name, file in self._copied.items():
            directory.copy(name, file)
            files[name] = {"size": file.size, "sha256": file.sha256}
        if isinstance(self._program, bytes):
            files[FORM_FILES["scripted"]] = directory.put(FORM_FILES["scripted"], self._program)
        if self._program is not None:
            ours["programs"] = {form: name for form, name in FORM_FILES.items() if name in files}
        if self._script is not None:
            ours["names"] = {**self._names, "loss": {"script": LOSS_SCRIPT}}
        if self._pickled is not None:
            files[OBJECTS] = directory.put(OBJECTS, self._pickled)
        if files:
            ours["files"] = files
        self.write_metadata(directory, cast("Params", self._estimator), ours, PYTHON_PARAMS)


class EstimatorReader(MLReader[Any]):
    """Reads an estimator."""

    def __init__(self, cls: type[Any]) -> None:
        super().__init__()
        self._cls = cls

    def load(self, path: str) -> Any:
        """Reads the estimator with its objects. One with a program names its own directory as `model`."""
        spark = self.sparkSession
        metadata = load_metadata(spark, path)
        estimator = class_of(metadata, path, self._cls)()
        directory = Directory(spark, path)
        ours = metadata["flambeau"]
        objects = dict(ours["names"])
        files = ours.get("files", {})
        scripts = {"scripted": LOSS_SCRIPT} if _script_of(objects.get("loss")) == LOSS_SCRIPT else {}
        for form, name in (*ours.get("programs", {}).items(), *scripts.items()):
            entry = files[name]
            why = refusal(spark, form, partial(directory.read, name, entry["size"], entry["sha256"]))
            if why is not None:
                raise FlambeauError(f"{path}: {name} may not be read: {why}")
        blob = files.get(OBJECTS)
        if blob is not None:
            if not pickle_allowed(spark):
                raise FlambeauError(
                    f"{path} holds its module, loss or optimizer as a pickle, and {ALLOW_PICKLE} is false"
                )
            objects.update(cloudpickle.loads(directory.read(OBJECTS, blob["size"], blob["sha256"])))
        script = _script_of(objects.get("loss"))
        if script is not None and script != LOSS_SCRIPT:
            raise FlambeauError(f"{path} names its loss {script!r}, which is not the file {LOSS_SCRIPT}")
        if script is not None:
            objects["loss"] = {"script": directory.file(LOSS_SCRIPT)}
        runtime = ours.get("runtime")
        if ours.get("programs"):
            objects["model"], runtime = directory.uri, "native"
        estimator._set(runtime=runtime)
        estimator._resetUid(metadata["uid"])
        _rename(metadata)
        DefaultParamsReader.getAndSetParams(estimator, metadata)
        estimator._set_objects(objects)
        return estimator


_RENAMED = {"timeout": "collectiveTimeout", "stepSize": "learningRate", "monitorMinDelta": "minDelta"}
"""Former names of params, and their present ones."""


def _rename(metadata: dict[str, Any]) -> None:
    for key in ("paramMap", "defaultParamMap"):
        metadata[key] = {_RENAMED.get(name, name): value for name, value in metadata[key].items()}


def _is_json(name: str, value: Any) -> bool:
    """Whether an object param is one that JSON holds: a loss or an optimizer by name, a list of metrics."""
    if name == "metrics":
        return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)
    if name == "model" or not (isinstance(value, int | Mapping) or is_named(value)):
        return False
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


def _named(judges: Mapping[str, Any]) -> dict[str, Any]:
    """What judged a training, as far as it goes by names: nothing that a file says is run for it."""
    kept = {name: value for name, value in judges.items() if _is_json(name, value)}
    return kept if is_named(kept.get("loss", "")) else {name: kept[name] for name in kept if name != "loss"}


def _script_of(loss: Any) -> str | None:
    """The path of a loss that is a TorchScript archive."""
    return str(loss["script"]) if isinstance(loss, Mapping) and set(loss) == {"script"} else None


def _plain(uri: str) -> str:
    """A URI in the form in which two of them compare."""
    path = local_path(uri)
    return os.path.normpath(path) if path is not None else uri.rstrip("/")
