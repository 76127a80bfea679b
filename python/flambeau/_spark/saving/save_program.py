"""`save_program`: a module as files that a job without Python trains and scores."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flambeau._saved.program import FILE_NAMES, compile_programs, dump_skeleton, instantiate, probe_output
from flambeau._saved.weights import FILE_NAME, load_into, save_module
from flambeau._spark.directory import Directory
from flambeau._spark.saving.program_files import CONTENTS
from flambeau._tensors import TensorColumns
from flambeau.errors import FlambeauError, ParamError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from torch import Tensor, nn

log = logging.getLogger("flambeau")

_DTYPES = ("float32", "float64", "int64", "bool", "uint8")


def save_program(module: nn.Module, path: str, inputs: Sequence[Tensor]) -> None:
    """Saves a module as a program, for `setModel(path)` in Scala and `runtime="native"` in Python.

    `inputs` are example tensors, one for each argument of `forward`, whose first dimension is the rows; their
    shapes and types count, and the module is run on them once, in eval mode. `path` is a directory that is
    not there yet. Without a scheme it lies on Spark's default file system, where `model=path` looks for it;
    where there is no session, on this machine. It gets

    - `program.pt`, TorchScript, where the module can be scripted,
    - `program.pt2` and `program-train.pt2`, the graphs of torch.export in its two modes, where it can be
      exported,
    - `weights.safetensors`, what training starts from,
    - `program.json`, written last: which of these there are, why not the others, and size and SHA-256 of each
      file.

    The module itself is left as it is. A program is its `forward` alone: a warning names steps and a
    `configure_optimizers` of its own, which stay behind. Raises ParamError where neither form is possible,
    with both reasons, or where the inputs do not fit; FlambeauError where there is something at the path.
    """
    from flambeau._module.assembly import CONFIGURE
    from flambeau._module.lightning import has_own
    from flambeau._module.steps import TRAINING, VALIDATION

    columns = _columns_of(inputs)
    probe_output(module, columns, inputs)
    directory = Directory(_session(), path)
    if directory.exists():
        raise FlambeauError(f"{path} exists already; give the path of a new directory, or remove it first")
    with tempfile.TemporaryDirectory(prefix="flambeau-") as folder:
        weights = Path(folder) / FILE_NAME
        reference = save_module(module, weights)
        copy = load_into(instantiate({"pickle": dump_skeleton(module)}), weights, share=True)
        programs, reasons = compile_programs(copy, columns, weights)
        if not {"scripted", "exported"} & set(programs):
            told = "; ".join(f"{form}: {reason}" for form, reason in reasons.items())
            raise ParamError(f"model: {type(module).__name__} can be neither scripted nor exported ({told})")
        files = {FILE_NAMES[form]: directory.put(FILE_NAMES[form], data) for form, data in programs.items()}
        directory.put_file(FILE_NAME, weights)
        files[FILE_NAME] = {"size": reference.size, "sha256": reference.sha256}
    contents = {
        "programs": {form: FILE_NAMES[form] for form in programs},
        "reasons": reasons,
        "files": files,
    }
    directory.write(CONTENTS, json.dumps(contents, indent=2).encode())
    if left_out := [name for name in (TRAINING, VALIDATION, CONFIGURE) if has_own(module, name)]:
        log.warning(
            "%s of %s is no part of the program at %s, which is its forward alone: give loss, metrics and "
            "optimizer where it is trained",
            ", ".join(left_out),
            type(module).__name__,
            path,
        )


def _session() -> SparkSession | None:
    """Spark's session of this thread, else of this process, if there is one."""
    from pyspark.sql import SparkSession as Session

    return Session.getActiveSession() or getattr(Session, "_instantiatedSession", None)


def _columns_of(inputs: Sequence[Tensor]) -> list[TensorColumns]:
    """The inputs as tensors of a job; raises ParamError for what is none."""
    import torch

    if not isinstance(inputs, (list, tuple)) or not inputs:
        raise ParamError("inputs: give a list of example tensors, one for each argument of forward")
    columns = []
    for index, tensor in enumerate(inputs):
        name = f"input_{index + 1}"
        if not isinstance(tensor, torch.Tensor) or tensor.dim() == 0:
            raise ParamError(f"inputs: number {index + 1} must be a tensor whose first dimension is the rows")
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in _DTYPES:
            raise ParamError(f"inputs: number {index + 1} is {dtype}; columns become {', '.join(_DTYPES)}")
        columns.append(TensorColumns(name, (name,), dtype, tuple(tensor.shape[1:])))
    if len({len(tensor) for tensor in inputs}) > 1 or len(inputs[0]) == 0:
        raise ParamError("inputs: all need the same number of rows, one at least")
    return columns
