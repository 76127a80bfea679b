"""What an exported program's archive may hold.

`torch.export.load` unpickles sample inputs and some tensors, resolves operators by attribute access from
`torch`, and evaluates symbolic expressions with sympy, which uses `eval`. A saved model is data, so an
archive is read only where none of that can run code of its author: no pickles, operators of the dispatcher
and plain arithmetic, and expressions of known names.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from typing import Any

from flambeau.errors import DataError

_OPERATOR = re.compile(
    r"torch\.ops\.\w+\.\w+(\.\w+)*|torch\.sym_\w+|torch\._sym_\w+|math\.\w+"
    r"|_operator\.(add|sub|mul|truediv|floordiv|mod|pow|neg|pos|eq|ne|lt|le|gt|ge|and_|or_|not_|getitem)"
)
_EXPRESSION = re.compile(r"[\w\s+\-*/%(),.<>=!~&|]*")
_QUOTED = re.compile(r"'([a-z]+\d*)'")
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
_SYMBOL = re.compile(r"[a-z]+\d+|rows|oo|int_oo|True|False|inf|nan")
# fmt: off
_FUNCTIONS = frozenset([
    "FloorDiv", "ModularIndexing", "Mod", "PythonMod", "Where", "CleanDiv", "CeilDiv", "CeilToInt",
    "FloorToInt", "TruncToInt", "RoundToInt", "RoundDecimal", "IntTrueDiv", "FloatTrueDiv",
    "PowByNatural", "FloatPow", "ToFloat", "Identity", "TruncToFloat", "LShift", "RShift",
    "IsNonOverlappingAndDenseIndicator", "BitwiseFn_bitwise_and", "BitwiseFn_bitwise_or", "Max", "Min",
    "Abs", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "And", "Or", "Not", "Piecewise", "floor", "ceiling",
    "sqrt", "sign", "Add", "Mul", "Pow", "Integer", "Float", "Rational", "Symbol", "integer",
    "positive", "nonnegative", "negative", "nonzero", "real",
])
# fmt: on


# Modes that a part of a graph runs under. The part is in the graph.
_MODES = frozenset(["higher_order::wrap_with_set_grad_enabled", "higher_order::wrap_with_autocast"])
# As in native/torch: what an archive may come to in memory, so many times its size and these bytes beside.
_MAX_RATIO = 8
_MAX_BESIDE = 64 << 20


def without_pickles(data: bytes) -> bytes:
    """The archive with its sample inputs, which are a pickle and of no use to us, left empty."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as source,
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as target,
    ):
        for entry in source.infolist():
            empty = "/sample_inputs/" in entry.filename
            target.writestr(zipfile.ZipInfo(entry.filename), b"" if empty else source.read(entry))
    return buffer.getvalue()


def operators_of(data: bytes) -> set[str]:
    """The operators that a checked archive calls, such as `aten::add`."""
    called: set[str] = set()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in archive.namelist():
            if "models/" in name and name.endswith(".json"):
                targets = (found.get("target") for found in _objects(json.loads(archive.read(name))))
                called.update(t for t in targets if isinstance(t, str) and t.startswith("torch.ops."))
    names = {"::".join(target.split(".")[2:4]) for target in called}
    return names - _MODES


def check_exported(data: bytes) -> None:
    """Raises DataError where reading the archive could run code that it brings along."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
            if size > _MAX_RATIO * len(data) + _MAX_BESIDE:
                raise DataError(
                    f"the exported program of {len(data)} bytes has entries of {size} bytes, more than "
                    f"{_MAX_RATIO} times its size and {_MAX_BESIDE} beside"
                )
            names = archive.namelist()
            if len(set(names)) != len(names):
                raise DataError("the exported program has two entries of one name")
            for entry in archive.infolist():
                _check_entry(entry.filename.split("/", 1)[-1], entry, archive)
    except DataError:
        raise
    except Exception as error:  # zipfile, zlib and json have many ways to say that bytes are damaged
        raise DataError(f"the exported program is not a whole archive: {error}") from error


def _check_entry(name: str, entry: zipfile.ZipInfo, archive: zipfile.ZipFile) -> None:
    if name.startswith("data/sample_inputs/"):
        if entry.file_size:
            raise DataError("the exported program carries sample inputs, which are a pickle")
    elif name.startswith(("data/weights/", "data/constants/")) and name.endswith("_config.json"):
        for found in _objects(json.loads(archive.read(entry))):
            if found.get("use_pickle"):
                raise DataError("the exported program carries a pickled tensor")
    elif name.startswith(("data/weights/weight_", "data/constants/tensor_")):
        pass
    elif name.startswith("models/") and name.endswith(".json"):
        for found in _objects(json.loads(archive.read(entry))):
            _check_node(found)
    elif name not in (
        "archive_format",
        "archive_version",
        "byteorder",
        ".data/version",
        ".data/serialization_id",
        "version",
    ):
        raise DataError(f"the exported program has an entry {name!r} that it should not have")


def _check_node(node: dict[str, Any]) -> None:
    target = node.get("target")
    if isinstance(target, str) and "inputs" in node and not _OPERATOR.fullmatch(target):
        raise DataError(f"the exported program calls {target!r}, which is no operator")
    for key, value in node.items():
        if key in ("expr_str", "_expr", "root") and isinstance(value, str):
            _check_expression(value)
        elif key in ("range_constraints", "symbol_values") and isinstance(value, dict):
            for expression in value:
                _check_expression(expression)


def _check_expression(text: str) -> None:
    original, text = text, _QUOTED.sub(r" \1 ", text)
    known = all(
        name in _FUNCTIONS or _SYMBOL.fullmatch(name) or re.fullmatch(r"e\d*", name)
        for name in _NAME.findall(text)
    )
    if not known or not _EXPRESSION.fullmatch(text) or "__" in text:
        raise DataError(f"the exported program has an expression of unknown names: {original[:80]!r}")


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every JSON object inside a JSON value."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            yield item
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
