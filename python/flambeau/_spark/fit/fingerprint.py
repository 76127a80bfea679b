"""Fingerprints: what tells an object of the user's from another, the same in every process.

The user's own code is told by what it is, everybody else's by its name, and an object by what pickle would
keep of it. Pickles themselves are no such text: they hold sets in the order of a process's hashes, and names
in place of code.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import io
import json
import re
import sys
import zipfile
from collections import ChainMap
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import suppress
from pathlib import PurePath
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

_PLAIN = (str, int, float, bool, bytes, type(None))
# Objects deeper than this, and those after so many, are told by their classes.
_MAX_DEPTH = 90
_MAX_OBJECTS = 100_000

# What the standard library makes of functions, and where those are in it.
_WRAPPERS = (
    property,
    staticmethod,
    classmethod,
    functools.cached_property,
    functools.partialmethod,
    functools.singledispatchmethod,
    functools._lru_cache_wrapper,
)
_WRAPPED = ("fget", "fset", "__wrapped__", "func", "args", "keywords", "dispatcher")


def digest_of(value: Any, trained: bool = False) -> str:
    """A SHA-256 of what tells `value` from others.

    A function counts by its code, defaults, closure, and those names of its module that it uses; an object by
    its class and state; a tensor by its bytes; what is not the user's own code by its name. Parameters and
    buffers of a module that is `trained`, and what is computed of them, count by their places, shapes, types
    and `requires_grad` alone.
    """
    tensors = {id(one) for one in _restored(value)} if trained else set()
    return digest(_Fingerprinter(tensors, trained, _MAX_OBJECTS, {}).of(value))


def digest(value: Any) -> str:
    """The SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class _Fingerprinter:
    """Tells one object: of `tensors` the bytes do not count, nor those of scripted modules where it is
    `trained`; `left` is how many objects are told before only their classes are; `known` is what
    came of which object, by its id, which stays its own as it is held.
    """

    def __init__(
        self,
        tensors: set[int],
        trained: bool,
        left: int,
        known: MutableMapping[int, tuple[Any, str]],
        depth: int = 0,
    ) -> None:
        self._tensors, self._trained = tensors, trained
        self._left, self._known, self._depth = left, known, depth

    def of(self, value: Any) -> Any:
        """A plain value itself, of others a digest: what many refer to is told once."""
        if type(value) is int and value.bit_length() > 64:
            return ["int", hex(value)]
        if type(value) is bytes:
            return ["bytes", hashlib.sha256(value).hexdigest()]
        if type(value) in _PLAIN:
            return value
        if id(value) not in self._known:
            # What refers to itself meets its class there.
            own = _name(value if isinstance(value, (FunctionType, type)) else type(value))
            self._known[id(value)] = (value, own)
            if self._left > 0 and self._depth < _MAX_DEPTH:
                self._left -= 1
                self._depth += 1
                with suppress(Exception):
                    self._known[id(value)] = (value, digest(self._object(value)))
                self._depth -= 1
        return self._known[id(value)][1]

    def _object(self, value: Any) -> Any:
        import torch

        if isinstance(value, (BuiltinFunctionType, ModuleType)):
            return _name(value)
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, _WRAPPERS):
            parts = (getattr(value, part, None) for part in _WRAPPED)
            return [_name(type(value)), self._all(parts)]
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, CodeType):
            return [value.co_code.hex(), list(value.co_names), self._all(value.co_consts)]
        if isinstance(value, CellType):
            # Raises ValueError for one that is empty.
            return [self.of(value.cell_contents)]
        if type(value) in (list, tuple):
            return self._all(value)
        if type(value) is dict:
            return ["items", *map(self._all, value.items())]
        if isinstance(value, (set, frozenset)):
            # Each by itself, as their order differs.
            left = self._left // max(1, len(value))
            alone = [
                _Fingerprinter(self._tensors, self._trained, left, ChainMap({}, self._known), self._depth)
                for _ in value
            ]
            found = [each.of(one) for each, one in zip(alone, value, strict=True)]
            self._left -= sum(left - one._left for one in alone)
            return ["set", *sorted(found, key=json.dumps)]
        if isinstance(value, torch.optim.Optimizer):
            # Its parameters are the module's, its state is in the checkpoints.
            shapes = [[list(one.shape) for one in group["params"]] for group in value.param_groups]
            groups = [
                {key: one for key, one in group.items() if key != "params"} for group in value.param_groups
            ]
            return [self.of(type(value)), shapes, self.of(groups)]
        if isinstance(value, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
            return _archive(value, with_tensors=not self._trained)
        if isinstance(value, torch.fx.GraphModule):
            return [value.code, self._all((value._parameters, value._buffers, value._modules))]
        return self._reduced(value)

    def _reduced(self, value: Any) -> Any:
        """An object as pickle takes it apart."""
        import torch

        reduce = copyreg.dispatch_table.get(type(value))
        parts = reduce(value) if reduce else value.__reduce_ex__(4)
        if isinstance(parts, str):
            return [_name(type(value)), parts]
        make, arguments, state, items, pairs = (*parts, None, None, None)[:5]
        if isinstance(value, torch.nn.Module) and isinstance(state, dict):
            # Hooks are known by numbers that grow with each in a process.
            state = {
                key: list(one.values()) if "_hooks" in key and isinstance(one, dict) else one
                for key, one in state.items()
            }
        return self._all((make, arguments, state, list(items or ()), list(pairs or ())))

    def _tensor(self, value: Any) -> Any:
        import torch

        what = [list(value.shape), str(value.dtype), value.requires_grad]
        if id(value) in self._tensors or value.is_meta:
            return what
        raw = value.detach().cpu().resolve_conj().resolve_neg()
        if raw.layout != torch.strided or raw.is_quantized:
            return [*what, str(raw)]
        return [*what, hashlib.sha256(raw.contiguous().reshape(-1).view(torch.uint8).numpy()).hexdigest()]

    def _function(self, function: FunctionType) -> Any:
        names = function.__globals__
        if not _is_own(names.get("__name__")):
            # A decorator's has the name and the module of what it wraps.
            inner = (getattr(function, "__wrapped__", None), dict(getattr(function, "registry", {})))
            return [_name(function), self._all(inner)]
        used = [
            [name, self.of(names[name])]
            for name in _names(function.__code__)
            if name in names and _counts(names[name])
        ]
        parts = (function.__code__, function.__defaults__, function.__kwdefaults__, function.__closure__)
        return [_name(function), self._all(parts), used]

    def _class(self, kind: type) -> Any:
        """A class with the functions and the plain values of its body, and the classes that it is made of."""
        if not _is_own(kind.__module__):
            return _name(kind)
        body = [
            [name, self.of(one)]
            for name, one in sorted(vars(kind).items())
            if _counts(one) and not (name.startswith("__") and _is_plain(one))
        ]
        return [_name(kind), body, self._all(kind.__bases__)]

    def _all(self, values: Iterable[Any]) -> list[Any]:
        return list(map(self.of, values))


def _is_own(module: str | None) -> bool:
    """Whether code of that module is the user's: neither Python's nor installed as others' packages are."""
    top = (module or "").partition(".")[0]
    if top == "__main__":
        return True
    if top in sys.stdlib_module_names or top in ("torch", "flambeau"):
        return False
    found = sys.modules.get(top)
    places = [getattr(found, "__file__", None) or "", *getattr(found, "__path__", ())]
    return not any({"site-packages", "dist-packages"} & {*PurePath(place).parts} for place in places)


def _names(code: CodeType) -> list[str]:
    """The names that a function's code, and that of functions in it, may look up."""
    inner = (_names(one) for one in code.co_consts if isinstance(one, CodeType))
    return sorted({*code.co_names, *(name for names in inner for name in names)})


def _counts(value: Any) -> bool:
    """Whether a global of a function, or a member of a class, is code or a plain value: others have states
    that change as they are used.
    """
    return isinstance(value, (FunctionType, type, functools.partial, *_WRAPPERS)) or _is_plain(value)


def _is_plain(value: Any) -> bool:
    import torch

    kinds = (*_PLAIN, torch.Tensor, re.Pattern)
    return all(isinstance(one, kinds) or type(one).__module__ == "numpy" for one in _leaves(value))


def _restored(module: Any) -> Iterator[Any]:
    """The tensors of a module that follow from its state, which checkpoints hold."""
    import torch

    for part in module.modules():
        fields = vars(part)
        state = {**fields["_parameters"], **fields["_buffers"]}
        yield from state.values()
        for name, one in fields.items():
            # As weight_norm, spectral_norm and prune have them.
            is_derived = any(name + end in state for end in ("_g", "_v", "_orig"))
            if isinstance(one, torch.Tensor) and (is_derived or one.grad_fn is not None):
                yield one


def _leaves(value: Any) -> Iterator[Any]:
    """What lies in lists, tuples, sets and dicts, each of which is looked at once."""
    seen: dict[int, Any] = {}
    left = [value]
    while left:
        one = left.pop()
        if not isinstance(one, (list, tuple, set, frozenset, dict)):
            yield one
        elif id(one) not in seen:
            seen[id(one)] = one
            left += one.values() if isinstance(one, dict) else one


def _archive(module: Any, with_tensors: bool) -> list[Any]:
    """What the archive of a scripted module holds, less its tensors' bytes where they do not count."""
    import torch

    buffer, code, parts = io.BytesIO(), [], []
    torch.jit.save(module, buffer)
    with zipfile.ZipFile(buffer) as archive:
        for path in archive.namelist():
            name, data = path.partition("/")[2], archive.read(path)
            # What the second of a name is called depends on the process, and so does its file.
            plain = re.sub(rb"\.?___torch_mangle_\d+", b"", data)
            if name.startswith("code/") and name.endswith(".py"):
                for one in re.split(r"^(?=\S)", plain.decode(), flags=re.MULTILINE):
                    # Constants are in the order of a set.
                    attributes, _, methods = one.partition("\n  def ")
                    code.append([sorted(attributes.split("\n")), methods])
            elif name in ("data.pkl", "constants.pkl"):
                parts.append([name, hashlib.sha256(plain).hexdigest()])
            elif name.startswith("constants/") or (name.startswith("data/") and with_tensors):
                parts.append([name, hashlib.sha256(data).hexdigest()])
    return [sorted(code), sorted(parts)]


def _name(value: Any) -> str:
    # Functions that torch makes of others share their qualified names.
    return ".".join(str(getattr(value, part, "")) for part in ("__module__", "__qualname__", "__name__"))
