"""The program of a model: what computes its outputs, without its weights.

A program comes in up to four forms. `pickle` is the module itself, by cloudpickle, with its tensors left
hollow; it is what a fresh fit holds, and what is saved where nothing else can be. `exported` (torch.export)
and `scripted` (TorchScript) are graphs that need no pickle and none of the user's code; they are made when a
model is saved, and kept only where they give the module's outputs to the last bit on two batch sizes. The
mode is fixed in an exported graph, so `exportedTrain` is its other half: the graph in training mode, which
libtorch trains and nothing scores. In every form the weights lie beside the program, in one safetensors
file, and `flambeau._saved.weights.load_into` brings them together.
"""

from __future__ import annotations

import inspect
import io
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, TextIO, cast

import cloudpickle

from flambeau._libtorch import TORCH, WAY_OUT
from flambeau._program import _hollow
from flambeau._quiet import forked_rng, quieting, without_warnings
from flambeau._saved.archive import check_exported, without_pickles
from flambeau._saved.weights import load_into
from flambeau._tensors import TensorColumns
from flambeau.errors import FlambeauError, ParamError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from flambeau._saved.last_operation import LastOperations

log = logging.getLogger("flambeau")

FILE_NAMES = {
    "exported": "program.pt2",
    "exportedTrain": "program-train.pt2",
    "scripted": "program.pt",
    "pickle": "program.pkl",
}
COMPILED = ("exported", "exportedTrain", "scripted")
"""The forms that need no pickle."""
# A scripted program is read in milliseconds, an exported one brings sympy and torch's compiler along, some
# seconds in each process. On a GPU TorchScript fuses kernels after a few batches, which changes last bits.
ORDER_CPU = ("scripted", "exported", "pickle")
ORDER_GPU = ("exported", "scripted", "pickle")
CHECKED_BATCHES = (1, 5)
# A single row has no variance to normalize with.
TRAINED_BATCHES = (2, 5)
FIXED = "flambeau_fixed.json"
_CHECKED_RUNS = 3


@dataclass(frozen=True)
class OutputTensor:
    """One tensor that a module returns: its name (None where it is the only one), dtype, and the shape of a
    row.

    `activation` is the operation that it ends in, sigmoid, softmax or log_softmax, where a probe has told.
    """

    name: str | None
    dtype: str
    shape: tuple[int, ...]
    activation: str | None = field(default=None, compare=False)

    @property
    def is_scalar(self) -> bool:
        """Whether a row is one number: shape () or (1,)."""
        return self.shape in ((), (1,))


@dataclass(frozen=True)
class OutputSpec:
    """What a module returns: one tensor, or several with the keys of a dict or `_1`, `_2`, ... of a tuple as
    names.
    """

    tensors: tuple[OutputTensor, ...]

    def to_json(self) -> list[dict[str, Any]]:
        """A list of {name, dtype, shape}."""
        return [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in self.tensors]

    @staticmethod
    def from_json(value: list[dict[str, Any]]) -> OutputSpec:
        """The inverse of `to_json`."""
        return OutputSpec(tuple(OutputTensor(v["name"], v["dtype"], tuple(v["shape"])) for v in value))

    @property
    def single(self) -> OutputTensor | None:
        """The only tensor, None where there are several."""
        return self.tensors[0] if len(self.tensors) == 1 and self.tensors[0].name is None else None


def keywords(inputs: Sequence[TensorColumns]) -> list[str] | None:
    """The names that forward takes the inputs by; None where it takes them by position."""
    return [one.name for one in inputs] if any(one.keyword for one in inputs) else None


def call(
    module: Callable[..., Any], tensors: Sequence[Any], keywords: Sequence[str] | None, **more: Any
) -> Any:
    """What a module returns for its inputs: by position, or where it takes `keywords`, by these names."""
    if keywords is None:
        return module(*tensors, **more)
    return module(**dict(zip(keywords, tensors, strict=True)), **more)


def is_wide(module: nn.Module) -> bool:
    """Whether a module computes in float64, which its first parameter of floats says."""
    floats = (p.dtype for p in module.parameters() if p.dtype.is_floating_point)
    return str(next(floats, None)) == "torch.float64"


def named_outputs(output: Any) -> list[tuple[str | None, Tensor]]:
    """The tensors that a module returned, by name. Raises ParamError where it returned something else."""
    import torch

    if isinstance(output, torch.Tensor):
        return [(None, output)]
    if isinstance(output, Mapping):
        named: list[tuple[str | None, Any]] = [(str(key), value) for key, value in output.items()]
        if len(named) == 1 and _is_model_output(output):
            named = [(None, named[0][1])]
    elif is_dataclass(output):
        given = [(one.name, getattr(output, one.name)) for one in fields(output)]
        named = [(name, value) for name, value in given if value is not None]
    elif isinstance(output, tuple) and hasattr(output, "_fields"):
        named = list(zip(output._fields, output, strict=True))
    elif isinstance(output, (tuple, list)):
        named = [(f"_{i + 1}", value) for i, value in enumerate(output)]
    else:
        raise ParamError(
            f"model: forward returns {type(output).__name__}; return a tensor, or a tuple, dict or dataclass "
            "of tensors"
        )
    for name, value in named:
        if not isinstance(value, torch.Tensor):
            raise ParamError(f"model: forward returns {type(value).__name__} as {name}; return tensors only")
    return list(named)


def _is_model_output(output: Any) -> bool:
    """Whether an output is one of transformers', which wraps a single tensor too."""
    kinds = type(output).__mro__
    return any((one.__name__, one.__module__.partition(".")[0]) == _MODEL_OUTPUT for one in kinds)


_MODEL_OUTPUT = ("ModelOutput", "transformers")


def probe_output(
    module: nn.Module, inputs: Sequence[TensorColumns], examples: Sequence[Tensor] | None = None
) -> OutputSpec:
    """What `module` returns for these inputs, found by running it once, in eval mode and without gradients.

    It is run on two rows of zeros, then of ones where zeros fail, or on `examples` (one tensor an input, rows
    first) where given. A module that calls what the CPU has no kernel for is run on the meta device, which
    computes shapes alone; a warning says so. Its modes and the random generators are as before afterwards.
    Raises ParamError where `forward` takes other arguments, fails, or returns something that has not one row
    for each row.
    """
    check_signature(module, inputs)
    modes = [(part, part.training) for part in module.modules()]
    tried = [list(examples)] if examples is not None else [_constant(inputs, 2, value) for value in (0, 1)]
    error: Exception | None = None
    try:
        module.eval()
        for tensors in tried:
            try:
                return _output_of(module, inputs, tensors)
            except ParamError:
                raise
            except Exception as problem:
                error = error or problem
        if _lacks_kernel(error):
            output = _meta_output(module, inputs, tried[0])
            # What follows is a list of the kernels that there are.
            told = str(error).partition(" This could be because")[0]
            log.warning("model: forward is left to workers to try, as it does not run on the CPU: %s", told)
            return output
    finally:
        for part, training in modes:
            part.training = training
    shapes = ", ".join(f"{i.name}: {[2, *(i.shape or ())]} {i.dtype}" for i in inputs)
    raise ParamError(f"model: forward fails on inputs of the columns' shapes ({shapes}): {error}") from error


def _output_of(
    module: Callable[..., Any], inputs: Sequence[TensorColumns], tensors: Sequence[Tensor]
) -> OutputSpec:
    import torch

    from flambeau._saved.last_operation import LastOperations

    # Not inference_mode: the module may keep a tensor that it makes here, and is to be trained after.
    with forked_rng(), torch.no_grad(), without_warnings():
        with LastOperations() as made:
            output = call(module, tensors, keywords(inputs))
        return output_spec(output, len(tensors[0]), made)


def _lacks_kernel(error: Exception | None) -> bool:
    """Whether torch's dispatcher has found no kernel for tensors of the CPU."""
    return isinstance(error, NotImplementedError) and "arguments from the 'CPU' backend" in str(error)


def _meta_output(module: nn.Module, inputs: Sequence[TensorColumns], tensors: Sequence[Tensor]) -> OutputSpec:
    """What a module returns on the meta device, of a copy: it may keep a tensor that it makes there. Raises
    ParamError where it does not run there either.
    """
    tensors_of = (*module.parameters(), *module.buffers())
    # In their places from the start: no tensor is copied.
    copied = deepcopy(module, {id(tensor): _on_meta(tensor) for tensor in tensors_of})
    try:
        return _output_of(copied, inputs, [tensor.to("meta") for tensor in tensors])
    except ParamError:
        raise
    except Exception as error:
        raise ParamError(
            "model: forward runs neither on the CPU nor on the meta device, so its outputs are not known: "
            f"{error}; give the operators of other devices shapes (torch.library.register_fake)"
        ) from error


def _on_meta(tensor: Tensor) -> Tensor:
    import torch

    held = tensor.detach().to("meta")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(held, tensor.requires_grad)
    return held


def output_spec(output: Any, num_rows: int, made: LastOperations | None = None) -> OutputSpec:
    """The signature of what a module returned for `num_rows` rows; `made` has seen it run."""
    tensors = []
    for name, tensor in named_outputs(output):
        if tensor.dim() == 0 or tensor.shape[0] != num_rows:
            raise ParamError(
                f"model: forward returns {name or 'a tensor'} of shape {list(tensor.shape)} for "
                f"{num_rows} rows; "
                "its first dimension must be the rows"
            )
        dtype = str(tensor.dtype).removeprefix("torch.")
        activation = made.activation(tensor) if made is not None else None
        tensors.append(OutputTensor(name, dtype, tuple(tensor.shape[1:]), activation))
    if not tensors:
        raise ParamError("model: forward returns nothing")
    return OutputSpec(tuple(tensors))


def check_signature(module: nn.Module, inputs: Sequence[TensorColumns]) -> None:
    """Raises ParamError where `forward` cannot be called with one argument for each input."""
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):
        return
    try:
        call(signature.bind, inputs, keywords(inputs))
    except TypeError as error:
        names = ", ".join(tensor.name for tensor in inputs)
        raise ParamError(
            f"model: forward{signature} cannot take the inputs ({names}): {error}; "
            "set inputCols to one column for each argument, in their order"
        ) from None


def forward_arguments(module: nn.Module) -> list[str]:
    """The names of the arguments that `forward` takes by position; none for code without a signature."""
    import torch

    forward: Any = module.forward
    if isinstance(module, torch.jit.ScriptModule):
        return [argument.name for argument in forward.schema.arguments[1:]]
    try:
        parameters = inspect.signature(forward).parameters.values()
    except (TypeError, ValueError):
        return []
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind in by_position]


def argument_names(module: nn.Module) -> list[str]:
    """The names of all arguments of `forward`, those that it takes by name alone too."""
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        return forward_arguments(module)
    try:
        return list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        return []


def by_keyword(module: nn.Module, names: Sequence[str]) -> bool:
    """Whether `forward` takes inputs of these names by name: it has all of them, not as its first arguments,
    and needs no others.
    """
    known = argument_names(module)
    if set(forward_arguments(module)[: len(names)]) == set(names) or not set(names) <= set(known):
        return False
    try:
        inspect.signature(module.forward).bind(**dict.fromkeys(names))
    except (TypeError, ValueError):
        return False
    return True


def dump_skeleton(module: nn.Module) -> bytes:
    """A module by cloudpickle without the data of the tensors in its `state_dict`, which `weights` holds."""
    import torch

    hollow: dict[int, Tensor] = {}
    for name, value in module.state_dict(keep_vars=True).items():
        if isinstance(value, (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)):
            raise ParamError(
                f"model: {name} is lazy and has no shape yet; call the module once on a batch before the fit"
            )
        if isinstance(value, torch.Tensor):
            hollow[id(value)] = value

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if id(obj) in hollow:
                is_parameter = isinstance(obj, torch.nn.Parameter)
                return _hollow, (tuple(obj.shape), obj.dtype, is_parameter, obj.requires_grad)
            return super().reducer_override(obj)

    buffer = io.BytesIO()
    try:
        Pickler(buffer).dump(module)
    except Exception as error:
        raise ParamError(f"model: {type(module).__name__} cannot be pickled: {error}") from error
    return buffer.getvalue()


def instantiate(programs: Mapping[str, bytes], *, device: str = "cpu") -> nn.Module:
    """The module of a program, hollow and in eval mode; its weights are still to be loaded.

    The first form that can be read counts. Raises FlambeauError, with each form's reason, where none can.
    """
    reasons = []
    for form in ORDER_CPU if device == "cpu" else ORDER_GPU:
        if form not in programs:
            continue
        try:
            return _READERS[form](programs[form], device).eval()
        except Exception as error:
            reasons.append(f"{form}: {type(error).__name__}: {error}")
    raise FlambeauError(
        "the model's program cannot be read ("
        + "; ".join(reasons)
        + "); load it with TorchModel.load(path, module=...), giving the module that was trained"
    )


def _read_pickle(data: bytes, device: str) -> nn.Module:
    module: nn.Module = cloudpickle.loads(data)
    return module.to(device) if device != "cpu" else module


def _read_exported(data: bytes, device: str) -> nn.Module:
    import torch

    check_exported(data)
    with without_warnings():
        program = torch.export.load(io.BytesIO(data))
        if device != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, device)
        module = program.module()

    def train(self: nn.Module, mode: bool = True) -> nn.Module:
        if mode:
            raise FlambeauError(
                "an exported program is for scoring only; to train on, give your own module: "
                "TorchModel.load(path, module=...).module()"
            )
        return self

    # torch.export puts methods that refuse both on the instance.
    module.__dict__.update(train=MethodType(train, module), eval=MethodType(lambda self: self, module))
    return module


def exported_archive(data: bytes, weights: Path | str) -> bytes:
    """The archive of an exported program, `data`, with the weights of a safetensors file inside. Raises what
    `load_into` raises.
    """
    import torch

    check_exported(data)
    with without_warnings():
        program = torch.export.load(io.BytesIO(data))
        filled = load_into(program.module(), weights).state_dict(keep_vars=True)
        program._state_dict = {name: filled[name] for name in program.state_dict}
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
    return buffer.getvalue()


def _read_scripted(data: bytes, device: str) -> nn.Module:
    import torch

    with without_warnings():
        extra = {FIXED: ""}
        module: nn.Module = torch.jit.load(io.BytesIO(data), map_location=device, _extra_files=extra)
        module._flambeau_fixed = frozenset(json.loads(extra[FIXED] or "[]"))  # type: ignore[assignment]
        return module


_READERS = {"exported": _read_exported, "scripted": _read_scripted, "pickle": _read_pickle}


def compile_programs(
    module: nn.Module,
    inputs: Sequence[TensorColumns],
    weights: Any,
    forms: Sequence[str] = COMPILED,
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Those of the forms that a module allows, none of which needs a pickle, and for the others the reason.

    `module` has its weights, `weights` is the path of their file. A form is kept where, read back and given
    the weights, it returns exactly what the module does; `exportedTrain` where it does so in training mode,
    with the same random numbers, and leaves the same buffers. The module's mode may be another afterwards.
    """
    if keywords(inputs):
        return {}, dict.fromkeys(forms, "forward takes its inputs by name")
    programs, reasons = {}, {}
    for form in forms:
        try:
            with _quiet():
                if form == "exportedTrain":
                    data = _export(module.train(), inputs)
                    _check_trains(module, data, inputs, weights)
                else:
                    data = _MAKERS[form](module.eval(), inputs)
                    with _attention_as_traced() if form == "exported" else nullcontext():
                        _check_same(module, _READERS[form](data, "cpu"), inputs, weights)
            programs[form] = data
        except Exception as error:
            lines = f"{type(error).__name__}: {error}".strip().splitlines()
            reasons[form] = " ".join(line.strip() for line in lines[:3])[:500]
        finally:
            module.eval()
    if "exported" in reasons:
        programs.pop("exportedTrain", None)
    return programs, reasons


def _export(module: nn.Module, inputs: Sequence[TensorColumns]) -> bytes:
    """The archive of a graph in the module's mode, without its weights."""
    import torch

    rows = {0: torch.export.Dim("rows", min=1)}
    # As the arguments of forward are: those of *args are one tuple.
    shapes = tuple(inspect.signature(module.forward).bind(*[rows] * len(inputs)).arguments.values())
    with forked_rng(), torch.set_grad_enabled(module.training):
        program = torch.export.export(module, tuple(_random(inputs, 3)), dynamic_shapes=shapes, strict=False)
    # The weights lie beside the program; those in the archive are hollow, and load_into replaces their data.
    # Tied ones stay one tensor, under several names.
    hollow = {
        id(value): _hollow(
            tuple(value.shape), value.dtype, isinstance(value, torch.nn.Parameter), value.requires_grad
        )
        for value in program.state_dict.values()
    }
    program._state_dict = {name: hollow[id(value)] for name, value in program.state_dict.items()}
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return without_pickles(buffer.getvalue())


def _script(module: nn.Module, inputs: Sequence[TensorColumns]) -> bytes:
    import torch

    # Scripting shares the module's tensors, so it is done on a hollow copy of it.
    copy = cloudpickle.loads(dump_skeleton(module)).eval()
    # TorchScript makes every buffer persistent; those that state_dict leaves out are not hollow and stay as
    # they are.
    fixed = sorted({name for name, _ in copy.named_buffers(remove_duplicate=False)} - set(copy.state_dict()))
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(copy), buffer, _extra_files={FIXED: json.dumps(fixed)})
    return buffer.getvalue()


_MAKERS = {"exported": _export, "scripted": _script}


def _check_same(module: nn.Module, program: nn.Module, inputs: Sequence[TensorColumns], weights: Any) -> None:
    """Raises where the program's outputs are not those of the module, to the bit, on each of the batch
    sizes.
    """
    import torch

    load_into(program, weights, share=True)
    for size in CHECKED_BATCHES:
        tensors = _random(inputs, size)
        with forked_rng(), torch.inference_mode():
            try:
                expected = named_outputs(module(*[t.clone() for t in tensors]))
            except IndexError:
                tensors = _constant(inputs, size, 0)
                expected = named_outputs(module(*[t.clone() for t in tensors]))
            # TorchScript optimizes what it has run, so the outputs that count are those of a later run.
            for _ in range(_CHECKED_RUNS):
                actual = named_outputs(program(*[t.clone() for t in tensors]))
        if [name for name, _ in expected] != [name for name, _ in actual]:
            raise FlambeauError("its outputs have other names than the module's")
        for (name, one), (_, other) in zip(expected, actual, strict=True):
            if not _equal(one, other):
                raise FlambeauError(f"{name or 'its output'} differs from the module's on a batch of {size}")


def _check_trains(module: nn.Module, data: bytes, inputs: Sequence[TensorColumns], weights: Any) -> None:
    """Raises where a graph in training mode does not return what the module does, to the bit and with the
    same random numbers, or leaves other buffers, on each of the batch sizes.
    """
    import torch

    # Both get tensors of their own, whose buffers change.
    copy = load_into(cloudpickle.loads(dump_skeleton(module)), weights).train()
    program = load_into(_read_exported(data, "cpu"), weights)
    for size in TRAINED_BATCHES:
        tensors = _random(inputs, size)
        with forked_rng(), torch.enable_grad():
            expected = _seeded(copy, tensors)
            actual = _seeded(program, tensors)
        if [name for name, _ in expected] != [name for name, _ in actual]:
            raise FlambeauError("its outputs in training have other names than the module's")
        for (name, one), (_, other) in zip(expected, actual, strict=True):
            if not _equal(one, other):
                raise FlambeauError(
                    f"{name or 'its output'} in training differs from the module's on a batch of {size}"
                )
        buffers = dict(program.named_buffers(remove_duplicate=False))
        for name, buffer in copy.named_buffers(remove_duplicate=False):
            if name in buffers and not _equal(buffer, buffers[name]):
                raise FlambeauError(f"it leaves another {name} than the module after a batch of {size}")


def _seeded(module: nn.Module, tensors: Sequence[Tensor]) -> list[tuple[str | None, Tensor]]:
    import torch

    torch.manual_seed(len(tensors))
    return named_outputs(module(*[tensor.clone() for tensor in tensors]))


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same to the bit; a NaN is the same as another."""
    import torch

    same = one.shape == other.shape and one.dtype == other.dtype
    return same and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))


def _random(inputs: Sequence[TensorColumns], size: int) -> list[Tensor]:
    """Inputs of `size` rows: normal numbers, and zeros and ones for integers, which any table of embeddings
    has.
    """
    import torch

    generator = torch.Generator().manual_seed(size)
    tensors = []
    for tensor in inputs:
        shape, dtype = (size, *(tensor.shape or ())), getattr(torch, tensor.dtype)
        if dtype.is_floating_point:
            tensors.append(torch.randn(shape, generator=generator, dtype=dtype))
        else:
            tensors.append(torch.randint(0, 2, shape, generator=generator).to(dtype))
    return tensors


def _constant(inputs: Sequence[TensorColumns], size: int, value: int) -> list[Tensor]:
    import torch

    return [torch.full((size, *(t.shape or ())), value, dtype=getattr(torch, t.dtype)) for t in inputs]


@contextmanager
def _attention_as_traced() -> Iterator[None]:
    """Keeps eager transformers from the kernel of their own that they take in evaluation: torch.export traces
    the operators that it stands for, which round otherwise.
    """
    import torch

    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps torch's compiler from warning, logging and printing about modules that it cannot take; the
    reason is in the metadata.

    Other threads print and log on, and wait where they want quiet themselves: what is swapped belongs to the
    process, and would be restored in the wrong order.
    """
    with quieting:
        thread = threading.get_ident()

        def is_others(record: logging.LogRecord) -> bool:
            return record.thread != thread or record.levelno > logging.ERROR

        loggers = [one for one in logging.root.manager.loggerDict.values() if isinstance(one, logging.Logger)]
        handlers = {handler for logger in (logging.root, *loggers) for handler in logger.handlers}
        handlers |= {logging.lastResort} if logging.lastResort else set()
        for handler in handlers:
            handler.addFilter(is_others)
        try:
            with without_warnings(), redirect_stdout(cast("TextIO", _OthersOutput(thread))):
                yield
        finally:
            for handler in handlers:
                handler.removeFilter(is_others)


class _OthersOutput:
    """The standard output of all threads but one."""

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._stdout = sys.stdout

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self._thread else self._stdout.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stdout, name)


def libtorch_programs(
    module: nn.Module, inputs: Sequence[TensorColumns], weights: Path | str, graphs: Sequence[str]
) -> dict[str, bytes]:
    """The forms of a module that libtorch runs: TorchScript, else `graphs` of torch.export, all of which it
    has to allow. `weights` is the path of the module's weights file.

    Raises ParamError where there is neither.
    """
    import torch

    programs, reasons = compile_programs(module, inputs, weights, forms=("scripted",))
    if programs:
        return programs
    if torch.__version__.startswith(f"{TORCH}."):
        programs, others = compile_programs(module, inputs, weights, forms=graphs)
        if set(programs) == set(graphs):
            return programs
        reasons |= others
    else:
        reasons["exported"] = f"only torch {TORCH} writes what libtorch {TORCH} reads"
    told = "; ".join(f"{form}: {reason}" for form, reason in reasons.items())
    raise ParamError(
        "model: runtime='native' runs what TorchScript or torch.export can take, and neither takes "
        f"{type(module).__name__} ({told}): change the module, {WAY_OUT}"
    )
