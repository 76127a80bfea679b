"""Where a model's weights lie, and how they get into a module.

Weights are one safetensors file in the store. What travels with a plan or a fitted model is a `WeightsRef`:
the file's URI, size and hash, and for workers that cannot read the URI a broadcast of its bytes. A tensor
that a module has under several names is written once; the file's metadata maps the other names to the one
written, as `safetensors.torch.load_model` expects it.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from flambeau._store import ANOTHER_FILE, STORE_SCHEMES, cached, local_path, open_store, sha256_of
from flambeau.errors import DataError, FlambeauError, ParamError, StoreError

if TYPE_CHECKING:
    from torch import Tensor, nn

FILE_NAME = "weights.safetensors"
# Vector kernels give other last bits on memory that is aligned otherwise, so every tensor that a module
# computes with starts at a multiple of this, as torch's own allocations on the CPU do.
ALIGNMENT = 64

_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


class Content(Protocol):
    """A file's bytes, as a Spark broadcast has them."""

    @property
    def value(self) -> bytes: ...


@dataclass(frozen=True)
class WeightsRef:
    """A weights file: its URI, its size in bytes, its SHA-256 in lower-case hexadecimal, and the options of
    its store. `content` are its bytes for Spark's Python workers, where they cannot read the URI.
    """

    uri: str
    size: int
    sha256: str
    store_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    content: Content | None = field(default=None, repr=False, compare=False)

    @staticmethod
    def of_file(path: Path | str, store_options: Mapping[str, str] | None = None) -> WeightsRef:
        """The reference to a local file that is complete."""
        path = Path(path)
        return WeightsRef(str(path), path.stat().st_size, sha256_of(path), dict(store_options or {}))

    @property
    def is_hadoops(self) -> bool:
        """Whether Hadoop's file systems alone have the file."""
        return urlsplit(self.uri).scheme not in STORE_SCHEMES

    def visible(self) -> bool:
        """Whether this process can read the file: it is there and has the right size."""
        if self.is_hadoops:
            return False
        try:
            path = local_path(self.uri)
            if path is not None:
                return path.is_file() and path.stat().st_size == self.size
            return bool(open_store(self.store_options).size(self.uri) == self.size)
        except (OSError, ValueError, FlambeauError):
            return False

    def local(self) -> Path:
        """A local file with these weights, checked against the hash once in each process.

        A file that is local already is used where it lies. Others are fetched once for each machine into the
        temporary directory. Raises StoreError where the file is gone, and FlambeauError where it is another
        file.
        """
        path = local_path(self.uri)
        if path is None or (self.content is not None and not path.is_file()):
            return _fetched(self)
        if not path.is_file():
            raise StoreError(
                f"the model's weights are not at {self.uri}: the file was removed, "
                "or this machine does not see it"
            )
        verify(path, self)
        return path


def save_module(module: nn.Module, path: Path | str) -> WeightsRef:
    """Writes a module's `state_dict` as a safetensors file; returns the reference to it.

    The file is written tensor by tensor, so no second copy of the weights is made in memory. Raises
    ParamError for what safetensors cannot hold: extra state that is not a tensor, sparse or complex tensors,
    lazy parameters.
    """
    import torch

    tensors, aliases = _named_tensors(module)

    # safetensors knows no gaps between tensors: those that keep the alignment come first, the others after
    # them.
    def place(name: str) -> tuple[bool, int, str]:
        tensor = tensors[name]
        return bool(tensor.numel() * tensor.element_size() % ALIGNMENT), -tensor.element_size(), name

    ordered = sorted(tensors, key=place)
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **aliases}}
    end = 0
    for name in ordered:
        tensor = tensors[name]
        size = tensor.numel() * tensor.element_size()
        code = _DTYPES.get(str(tensor.dtype).removeprefix("torch."))
        if code is None or tensor.layout != torch.strided:
            raise ParamError(
                f"model: {name} is a {tensor.layout} tensor of {tensor.dtype}, which safetensors cannot hold"
            )
        header[name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    path, digest, written = Path(path), hashlib.sha256(), 0
    with path.open("wb") as file:

        def write(data: Any) -> None:
            nonlocal written
            file.write(data)
            digest.update(data)
            written += len(data)

        write(struct.pack("<Q", len(text)) + text)
        for name in ordered:
            flat = tensors[name].detach().to("cpu").contiguous().reshape(-1)
            if flat.numel():
                write(flat.view(torch.uint8).numpy().data)
    return WeightsRef(str(path), written, digest.hexdigest())


def load_into(module: nn.Module, path: Path | str, *, device: str = "cpu", share: bool = False) -> nn.Module:
    """Gives a module the weights of a safetensors file, on `device`; returns the module.

    Parameters stay the objects that they are, so ties hold; only their data is replaced. With `share` the
    data is the mapped file itself where the device is the CPU and the alignment allows it: processes of one
    machine share its pages, and a write to it is private to its process. Raises ParamError where names,
    shapes or dtypes do not match.
    """
    import torch
    from safetensors import SafetensorError, safe_open

    wanted, _ = _named_tensors(module, aliases_too=True)
    try:
        with safe_open(str(path), framework="pt", device=device) as file:
            names, aliases = set(file.keys()), _aliases(file)
            fixed: frozenset[str] = getattr(module, "_flambeau_fixed", frozenset())
            wanted = {name: target for name, target in wanted.items() if name not in fixed}
            missing = sorted(set(wanted) - names - set(aliases))
            unexpected = sorted((names | set(aliases)) - set(wanted))
            if missing or unexpected:
                raise ParamError(
                    "the module is not the one that the weights are of: "
                    f"the weights lack {_some(missing)} and have {_some(unexpected)} that the module lacks"
                )
            loaded: dict[str, Tensor] = {}
            for name, target in wanted.items():
                source = aliases.get(name, name)
                if source not in loaded:
                    tensor = file.get_tensor(source)
                    copied = device == "cpu" and not (share and tensor.data_ptr() % ALIGNMENT == 0)
                    loaded[source] = tensor.clone() if copied else tensor
                tensor = loaded[source]
                if tensor.shape != target.shape or tensor.dtype != target.dtype:
                    raise ParamError(
                        f"the module's {name} is {list(target.shape)} {target.dtype}, and the weights' is "
                        f"{list(tensor.shape)} {tensor.dtype}"
                    )
                with torch.no_grad():
                    target.data = tensor
    except SafetensorError as error:
        raise FlambeauError(f"{path} is not a whole safetensors file: {error}") from error
    return module


def state_dict_of(path: Path | str) -> dict[str, Tensor]:
    """The tensors of a safetensors file under all names that `state_dict` has them by, ties included.

    Raises FlambeauError where the file is not whole.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in list(file.keys())}
            return tensors | {alias: tensors[name] for alias, name in _aliases(file).items()}
    except SafetensorError as error:
        raise FlambeauError(f"{path} is not a whole safetensors file: {error}") from error


def _aliases(file: Any) -> dict[str, str]:
    """For a tensor's further names the one that a safetensors file has it by."""
    names = set(file.keys())
    return {alias: name for alias, name in (file.metadata() or {}).items() if name in names}


def _named_tensors(module: nn.Module, aliases_too: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of `state_dict` by name, and for a tensor's further names the first one."""
    import torch

    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, value in module.state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor):
            raise ParamError(
                f"model: {name} is extra state ({type(value).__name__}), not a tensor; it cannot be saved"
            )
        if isinstance(value, (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)):
            raise ParamError(
                f"model: {name} is lazy and has no shape yet; call the module once on a batch before the fit"
            )
        key: tuple[Any, ...] = (id(value),)
        if (
            value.layout == torch.strided
            and value.device.type != "meta"
            and value.untyped_storage().nbytes() > 0
        ):
            key = (value.data_ptr(), value.device, value.dtype, tuple(value.shape), tuple(value.stride()))
        known = first.setdefault(key, name)
        if known != name and not aliases_too:
            aliases[name] = known
        else:
            tensors[name] = value
    return tensors, aliases


def _some(names: list[str], limit: int = 5) -> str:
    """A few names for a message."""
    if not names:
        return "nothing"
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest


def verify(path: Path, ref: WeightsRef) -> None:
    """Refuses a file that is not the one of the reference. Hashes each state of a file once in a process."""
    if (actual := sha256_of(path)) != ref.sha256:
        raise DataError(f"{path} is {ANOTHER_FILE.format(actual=actual, expected=ref.sha256)}")


def _fetched(ref: WeightsRef) -> Path:
    """The machine's own copy of a file that is not local, made where it is not there yet."""

    def fetch(part: Path) -> None:
        if ref.content is None:
            open_store(ref.store_options).get_to_file(ref.uri, str(part))
            return
        part.write_bytes(ref.content.value)
        held = vars(ref.content)
        if held.get("_path") is not None:
            # Spark has it in that file too, and reads it there where it is asked for again.
            held.pop("_value", None)

    return cached(ref.uri, ref.sha256, fetch)


def read_range(ref: WeightsRef, start: int, stop: int) -> bytes:
    """Bytes `start` to `stop` of the file, as this process sees it. Raises StoreError."""
    path = local_path(ref.uri)
    if path is None:
        return bytes(open_store(ref.store_options).get_range(ref.uri, start, stop))
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(stop - start)
    except OSError as error:
        raise StoreError(f"{ref.uri} cannot be read: {error}") from error
