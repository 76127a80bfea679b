"""The files of a program that needs none of Flambeau's users' code: where they lie, and what they are.

A program is given by a path: of a TorchScript archive, of an archive of torch.export (ending in .pt2), or of
a directory that holds such archives and says what they are: one that `flambeau.save_program` wrote, a saved
model, or a saved estimator.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flambeau._quiet import without_warnings
from flambeau._saved.program import COMPILED, FILE_NAMES, FIXED
from flambeau._saved.weights import FILE_NAME, WeightsRef
from flambeau._spark.directory import Directory, load_metadata
from flambeau._spark.files import fetched
from flambeau.errors import ParamError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from torch import nn

FORM_FILES = {form: FILE_NAMES[form] for form in COMPILED}
"""The forms of a program that need no pickle, and the names of their files."""

CONTENTS = "program.json"
"""The file of a program's directory that says what the others are."""


@dataclass(frozen=True)
class ProgramFiles:
    """A program's files.

    `forms` maps `scripted`, `exported` and `exportedTrain`, those that there are, to their files. `weights`
    is the safetensors file that training starts from, None where the weights are inside the program's own
    file.
    """

    forms: Mapping[str, WeightsRef]
    weights: WeightsRef | None = None

    @staticmethod
    def of(spark: SparkSession, path: str) -> ProgramFiles:
        """The program at `path`. Raises ParamError where there is none, saying what a path may name."""
        single = file_at(spark, path)
        if single is not None:
            return ProgramFiles({"exported" if path.endswith(".pt2") else "scripted": single})
        directory = Directory(spark, path)
        ours = _contents(spark, directory)
        files, programs = ours.get("files", {}), ours.get("programs", {})

        def file(name: str) -> WeightsRef:
            directory.file(name)  # refuses what is no plain name
            return directory.reference(name, files[name]["size"], files[name]["sha256"])

        forms = {form: file(programs[form]) for form in FORM_FILES if form in programs}
        if not forms:
            why = "; ".join(f"{form}: {reason}" for form, reason in (ours.get("reasons") or {}).items())
            raise ParamError(
                f"model: {path} holds no program in TorchScript or of torch.export"
                + (f" ({why})" if why else "")
            )
        return ProgramFiles(forms, file(FILE_NAME) if FILE_NAME in files else None)

    def read(self, spark: SparkSession) -> dict[str, bytes]:
        """The files' bytes by form, through Spark's workers where this process does not see them."""
        read = {}
        for form, file in self.forms.items():
            with fetched(file, spark) as path:
                read[form] = path.read_bytes()
        return read

    def named(self) -> dict[str, WeightsRef]:
        """The files by the names that they have in a directory of their own."""
        named = {FORM_FILES[form]: file for form, file in self.forms.items()}
        return named if self.weights is None else {**named, FILE_NAME: self.weights}


def scripted_archive(module: nn.Module) -> bytes:
    """A module as a TorchScript archive with its weights inside. Raises what scripting raises."""
    import torch

    # TorchScript makes every buffer persistent, so the archive names those that state_dict leaves out.
    fixed = getattr(module, "_flambeau_fixed", None)
    if fixed is None:
        buffers = {name for name, _ in module.named_buffers(remove_duplicate=False)}
        fixed = buffers - set(module.state_dict())
    buffer = io.BytesIO()
    with without_warnings():
        torch.jit.save(torch.jit.script(module), buffer, _extra_files={FIXED: json.dumps(sorted(fixed))})
    return buffer.getvalue()


def _contents(spark: SparkSession, directory: Directory) -> dict[str, Any]:
    """What a directory says of its files: `programs`, `files`, `reasons`."""
    if directory.holds(CONTENTS):
        contents: dict[str, Any] = json.loads(directory.read_unknown(CONTENTS))
        return contents
    if not directory.holds("metadata"):
        raise ParamError(
            f"model: {directory.path} is no program: give a TorchScript archive (.pt), an archive of "
            "torch.export (.pt2), or a directory that flambeau.save_program wrote or a model was saved to"
        )
    return load_metadata(spark, directory.path).get("flambeau") or {}


def file_at(spark: SparkSession, path: str) -> WeightsRef | None:
    """A reference to a file that nothing tells the size and hash of; None where no file is at the path."""
    parent, _, name = path.rpartition("/")
    directory = Directory(spark, parent or ("/" if path.startswith("/") else "."))
    if not directory.is_file(name):
        return None
    data = directory.read_unknown(name)
    return directory.reference(name, len(data), hashlib.sha256(data).hexdigest())
