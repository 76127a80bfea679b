"""Programs that can do nothing but compute: all they call is in `native/train/src/job/pure_operators.txt`."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from flambeau._saved.archive import check_exported, operators_of
from flambeau.errors import DataError


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
