"""Which saved programs a session reads.

A program is code of whoever wrote it. With `spark.flambeau.allowPickle=false` only those are read that can do
nothing but compute: they call the operators of `native/train/src/pure_operators.txt` alone.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from flambeau._saved.archive import check_exported, operators_of
from flambeau.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALLOW_PICKLE = "spark.flambeau.allowPickle"
ALLOW_SCRIPTS = "spark.flambeau.allowScripts"
# The first torch that holds a tensor's sizes and strides against its storage where it loads them.
CHECKED_BY = (2, 13)


def pickle_allowed(spark: SparkSession) -> bool:
    """Whether the session lets saved models and estimators hold pickles, and reads them and programs that do
    more than compute: `spark.flambeau.allowPickle`.
    """
    return _is_on(spark, ALLOW_PICKLE)


def refusal(spark: SparkSession, form: str, read: Callable[[], bytes]) -> str | None:
    """Why the session does not read a program that was saved in this form, or a loss that is `scripted`; None
    where it does. Nothing of it is run. `read` gives its bytes, and is called where they matter.
    """
    if form == "scripted" and not _is_on(spark, ALLOW_SCRIPTS):
        return f"{ALLOW_SCRIPTS} is false"
    if pickle_allowed(spark):
        return None
    if form == "pickle":
        return f"{ALLOW_PICKLE} is false"
    import torch

    # By numbers: 2.13.0a0 comes before 2.13.
    if tuple(map(int, torch.__version__.split(".")[:2])) < CHECKED_BY:
        return (
            f"{ALLOW_PICKLE} is false, and torch {torch.__version__} takes on trust that a program's tensors "
            f"lie in their memory: take torch {'.'.join(map(str, CHECKED_BY))}, or give the module"
        )
    try:
        check_pure(form, read())
    except DataError as error:
        return f"{ALLOW_PICKLE} is false, and {error}"
    return None


def check_pure(form: str, data: bytes) -> None:
    """Raises DataError where a program could do more than compute, or is none. Nothing of it is run."""
    if form != "scripted":
        check_exported(data)
        _check_operators(operators_of(data))
        return
    import torch

    from flambeau import _native

    try:
        reader = torch._C.PyTorchFileReader(io.BytesIO(data))
        sizes: dict[str, int] = {}
        for name in reader.get_all_records():
            size = len(reader.get_record(name))
            sizes[name.lower()] = min(size, sizes.get(name.lower(), size))
        for name in reader.get_all_records():
            if name.lower().endswith((".py", ".pkl", ".json")):
                _native.check_script_file(name, bytes(reader.get_record(name)), sizes)
        # What a load itself runs is known to be nothing now.
        unit: Any = torch._C.CompilationUnit()
        read_module: Any = torch._C.import_ir_module_from_buffer
        read_module(unit, data, torch.device("cpu"), {}, False)
        called: set[str] = set()
        for function in unit.get_functions():
            _collect(function.graph, called)
    except DataError:
        raise
    except Exception as error:  # torch says in many ways that bytes are no archive
        raise DataError(f"the scripted program cannot be read: {error}") from error
    _check_operators(called)


def _collect(block: Any, called: set[str]) -> None:
    """The operators of a block and of those inside it, and, of objects that C++ made, their classes."""
    for node in block.nodes():
        called.add(node.kind())
        called.update(t for t in (o.type().annotation_str for o in node.outputs()) if "torch.classes" in t)
        for inner in node.blocks():
            _collect(inner, called)


def _check_operators(names: Iterable[str]) -> None:
    from flambeau import _native

    others = _native.impure_operators(sorted(names))
    if others:
        raise DataError(f"it calls {', '.join(others)}, which may do more than compute")


def _is_on(spark: SparkSession, name: str) -> bool:
    return str(spark.conf.get(name, "true")).strip().lower() != "false"
