"""The worker's side of `transform`: Arrow columns in, the module's outputs as an Arrow array out.

A Python worker loads a module once, by the hashes of its program and weights, and keeps the last few. Batches
are copied into memory of torch's own alignment, so that a row's outputs have the same bits in every process.
Where the model's `device` finds a GPU it computes there, for as many tasks at a time as `slots` lets in. A
module is on the GPU for a task's turn only, since the next turn may be another process's: in between it lies
in the weights' file, which all processes of a machine share.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from flambeau._input_rows import InputRows, Rows, refuse_nulls_within
from flambeau._saved.program import OutputSpec, OutputTensor, call, instantiate, keywords, named_outputs
from flambeau._saved.weights import WeightsRef, load_into
from flambeau._score import gpu_slots
from flambeau._score.heads import CLASS_FIELDS, Head
from flambeau._score.pieces import Pieces
from flambeau._score.placement import Place, place_of_task
from flambeau._tensors import TensorColumns
from flambeau.errors import FlambeauError, ParamError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from flambeau._module.preprocessor import ScoringPreprocess

KEPT_MODULES = 4
_modules: OrderedDict[tuple[str, ...], nn.Module] = OrderedDict()
_users: Counter[Any] = Counter()
"""How many score with a module on a GPU."""
_lock = threading.Lock()


@dataclass(frozen=True)
class Scorer:
    """All that a Python worker needs to score rows; it travels in the plan.

    `heads` are the outputs as they are written, in their order. `fields` are a classifier's wanted columns
    among prediction, rawPrediction and probability, and empty for another model. `device` is the param;
    `gpu_tasks` is how many tasks of a machine use a GPU at a time.
    """

    programs: Mapping[str, bytes]
    weights: WeightsRef
    inputs: Sequence[TensorColumns]
    output: OutputSpec
    batch_size: int
    batch_bytes: int
    heads: Sequence[Head]
    fields: Sequence[str] = ()
    sys_path: Sequence[str] = field(default=())
    device: str = "auto"
    gpu_tasks: int = gpu_slots.NUM_SLOTS
    preprocess: ScoringPreprocess | None = None
    """What makes the module's inputs of the columns that `inputs` names, where they are not tensors."""

    @property
    def arguments(self) -> Sequence[TensorColumns]:
        """The tensors that the module is called with."""
        return self.inputs if self.preprocess is None else self.preprocess.spec.inputs

    @property
    def rows_at_once(self) -> int:
        """How many rows the module gets at once: `batch_size`, or fewer, so that no input or output takes
        more than `batch_bytes`, but for a single row.
        """
        import torch

        def row_bytes(shape: Sequence[int] | None, dtype: str) -> int:
            size: torch.dtype = getattr(torch, dtype)
            return math.prod(shape or ()) * size.itemsize

        given = [row_bytes(tensor.shape, tensor.dtype) for tensor in self.arguments]
        made = [row_bytes(tensor.shape, tensor.dtype) for tensor in self.output.tensors]
        return max(1, min(self.batch_size, self.batch_bytes // max(1, *given, *made)))

    def place(self) -> Place | None:
        """The GPU that the task computes on; None for the CPU, to which `preprocess` belongs. Raises
        ParamError.
        """
        if self.preprocess is None:
            return place_of_task(self.device)
        if self.device == "cuda":
            raise ParamError(
                "device is 'cuda', and the model's preprocess makes tensors for the CPU alone: set device to "
                "'cpu'"
            )
        return None

    def score(self, batches: Iterator[Any]) -> Generator[pa.Array]:
        """For each batch, a tuple of the inputs' columns in order, the array of its results. To be called in
        a Python worker of Spark's.
        """
        prepare_worker(self.sys_path)
        yield from self.score_here(batches)

    def score_here(self, batches: Iterator[Any]) -> Generator[pa.Array]:
        """As `score`, in a process whose settings are not this module's to change."""
        place = self.place()
        with closing(
            self._on_cpu(batches) if place is None else self._on_gpu(place, map(self._rows, batches))
        ) as outputs:
            yield from map(self._array, outputs)

    @contextmanager
    def module(self) -> Iterator[tuple[nn.Module, torch.device]]:
        """The module where this task computes, for the time of the block: on the CPU, or on a GPU once that
        has a slot for the task.
        """
        import torch

        place = self.place()
        if place is None:
            yield _module(self.programs, self.weights, "cpu"), torch.device("cpu")
            return
        with self._on_device(place) as module:
            yield module, torch.device(place.device)

    @contextmanager
    def _on_device(self, place: Place) -> Iterator[nn.Module]:
        from flambeau._score.gpu_scoring import explained

        device = place.device
        with (
            gpu_slots.held(place.uuid, self.gpu_tasks, place.task),
            explained(device, self.rows_at_once),
            _resident(_module(self.programs, self.weights, device), self.weights, device) as module,
        ):
            yield module

    def _rows(self, batch: Any) -> Rows:
        columns = batch if isinstance(batch, tuple) else (batch,)
        return InputRows.of(self.inputs, columns), len(columns[0])

    def parts(self, batch: Any) -> tuple[Callable[[int, int], list[Tensor]], int]:
        """What makes the module's inputs of the rows of a batch between two bounds, and their number."""
        if self.preprocess is None:
            rows, num_rows = self._rows(batch)
            return lambda start, stop: [part.tensor(start, stop) for part in rows], num_rows
        preprocess, columns = self.preprocess, batch if isinstance(batch, tuple) else (batch,)
        arrow = preprocess.arrow(columns)
        for column, tensor in zip(arrow.columns, self.inputs, strict=True):
            refuse_nulls_within(column, tensor.columns[0])
        return lambda start, stop: preprocess.tensors(arrow.slice(start, stop - start)), arrow.num_rows

    def _on_cpu(self, batches: Iterator[Any]) -> Generator[list[Tensor]]:
        module = _module(self.programs, self.weights, "cpu")
        pieces = Pieces(self.rows_at_once)
        for parts, num_rows in map(self.parts, batches):
            yield self._outputs(module, parts, num_rows, pieces)

    def _on_gpu(self, place: Place, batches: Iterator[Rows]) -> Generator[list[Tensor]]:
        """The same on a task's GPU, once that has a slot for the task."""
        from flambeau._score.gpu_scoring import GpuScoring

        def forward(inputs: Sequence[Tensor], num_rows: int) -> list[Tensor]:
            return self._checked(call(module, inputs, keywords(self.inputs)), num_rows)

        with self._on_device(place) as module:
            pinned = functools.partial(self._results, pin_memory=True)
            yield from GpuScoring(place.device, self.rows_at_once, forward, pinned).results(batches)

    def _array(self, outputs: Sequence[Tensor]) -> pa.Array:
        import torch

        with torch.inference_mode():
            if self.fields:
                return _class_columns(outputs[0], self.heads[0], self.fields)
            results = [
                _result(tensor, spec) if head.kind == "number" else _class_columns(tensor, head, CLASS_FIELDS)
                for tensor, spec, head in zip(outputs, self.output.tensors, self.heads, strict=True)
                if head.name
            ]
        if self.output.single is not None:
            return results[0]
        return pa.StructArray.from_arrays(results, names=[head.name for head in self.heads if head.name])

    def _outputs(
        self, module: nn.Module, parts: Callable[[int, int], list[Tensor]], num_rows: int, pieces: Pieces
    ) -> list[Tensor]:
        """What the module returns for all rows, of the types that the results have.

        The module's own tensors are freed batch by batch, for the next one to lie in the same memory.
        """
        import torch

        joined: list[Tensor] = []

        def run(start: int, stop: int) -> None:
            found = self._checked(call(module, parts(start, stop), keywords(self.arguments)), stop - start)
            if not joined:
                joined.extend(self._results(num_rows, [tensor.dtype for tensor in found]))
            for whole, tensor in zip(joined, found, strict=True):
                whole[start:stop] = tensor

        with torch.inference_mode():
            pieces.over(num_rows, run)
        return joined or self._results(0)

    def _results(
        self, num_rows: int, dtypes: Sequence[torch.dtype] = (), pin_memory: bool = False
    ) -> list[Tensor]:
        """Tensors for the results of so many rows, given the types of the outputs; without, those that the
        module had when it was trained.
        """
        import torch

        given = dtypes or [getattr(torch, spec.dtype) for spec in self.output.tensors]
        return [
            torch.empty((num_rows, *spec.shape), dtype=self._dtype(spec, head, dtype), pin_memory=pin_memory)
            for spec, head, dtype in zip(self.output.tensors, self.heads, given, strict=True)
        ]

    def _dtype(self, spec: OutputTensor, head: Head, dtype: torch.dtype) -> Any:
        """The type that results are made of, for an output of a dtype."""
        import torch

        return torch.float64 if spec.is_scalar or head.kind != "number" else _kept(dtype)

    def _checked(self, output: Any, num_rows: int) -> list[Tensor]:
        """The output's tensors, where they are what the module returned when it was trained."""
        named = named_outputs(output)
        found = [(name, (t.shape[0] if t.dim() else -1, *t.shape[1:])) for name, t in named]
        wanted = [(spec.name, (num_rows, *spec.shape)) for spec in self.output.tensors]
        if found != wanted:
            raise FlambeauError(
                f"model: forward returned {_shapes(found)} for a batch of {num_rows} rows, "
                f"where {_shapes(wanted)} was expected"
            )
        return [tensor for _, tensor in named]


def prepare_worker(sys_path: Sequence[str]) -> None:
    """Makes a Python worker of Spark's one that computes: where it imports from, how many threads torch has,
    and that memory stays with the process from batch to batch.
    """
    import torch

    for entry in sys_path:
        if entry not in sys.path:
            sys.path.append(entry)
    # Spark runs one task a core and says in OMP_NUM_THREADS how many cores a task has.
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))
    from flambeau import _native

    _native.keep_freed_batches()


def _module(programs: Mapping[str, bytes], weights: WeightsRef, device: str) -> nn.Module:
    """The module with its weights on the device, loaded once in this process."""
    key = (
        device,
        weights.sha256,
        *(hashlib.sha256(data).hexdigest() for _, data in sorted(programs.items())),
    )
    with _lock:
        if key not in _modules:
            module = instantiate(programs, device=device)
            _modules[key] = load_into(module, weights.local(), device=device, share=True)
            while len(_modules) > KEPT_MODULES:
                _modules.popitem(last=False)
        _modules.move_to_end(key)
        return _modules[key]


@contextmanager
def _resident(module: nn.Module, weights: WeightsRef, device: str) -> Iterator[nn.Module]:
    """Has the module on the GPU for the time of the block. After the last such block nothing of this process
    is there but CUDA's own context: neither the module nor what torch keeps for batches to come.
    """
    with _lock:
        _users[module] += 1
    try:
        yield module.to(device)
    except BaseException:
        # After some failures the GPU refuses everything. The first error says more.
        with suppress(RuntimeError):
            _leave_gpu(module, weights)
        raise
    _leave_gpu(module, weights)


def _leave_gpu(module: nn.Module, weights: WeightsRef) -> None:
    import torch

    with _lock:
        _users[module] -= 1
        if _users[module] > 0:
            return
        del _users[module]
        load_into(module, weights.local(), share=True)
        # What is not among the weights, such as buffers that are not saved.
        module.to("cpu")
    torch.cuda.empty_cache()


def _result(tensor: Tensor, spec: OutputTensor) -> pa.Array:
    """A column of doubles for single numbers, of (nested) arrays otherwise."""
    values = pa.array(tensor.reshape(-1).numpy())
    if spec.is_scalar:
        return values
    for size in reversed(spec.shape):
        values = _lists(values, size, len(values) // size if size else len(tensor))
    return values


def _lists(values: pa.Array, size: int, count: int) -> pa.Array:
    """`count` lists of `size` values each."""
    return pa.ListArray.from_arrays(
        pa.array(np.arange(count + 1, dtype=np.int64) * size).cast(pa.int32()), values
    )


def _kept(dtype: Any) -> Any:
    """The type of a column's array elements for a tensor's dtype: float, double, long or boolean."""
    import torch

    if dtype in (torch.float64, torch.bool):
        return dtype
    return torch.float32 if dtype.is_floating_point else torch.int64


def _class_columns(scores: Tensor, head: Head, fields: Sequence[str]) -> pa.StructArray:
    """Prediction, raw prediction and probability of an output in float64: [rows, classes], [rows, labels], or
    one score a row.
    """
    import torch

    if head.kind in ("labels", "label_probabilities"):
        raw, probability = scores, scores if head.kind == "label_probabilities" else scores.sigmoid()
        cuts = 0.5 if head.threshold is None else head.threshold
        limit = torch.tensor(head.thresholds or cuts, dtype=torch.float64)
        prediction = (probability > limit).to(torch.float64)
    elif scores.dim() == 1 or scores.shape[1] == 1:
        one = scores.reshape(-1)
        positive = {"logits": torch.sigmoid(one), "log_probabilities": one.exp()}.get(head.kind, one)
        probability = torch.stack([1 - positive, positive], dim=1)
        raw = torch.stack([-one, one], dim=1) if head.kind == "logits" else probability
        prediction = _predicted(probability, head)
    else:
        made = {"logits": scores.softmax(1), "log_probabilities": scores.exp()}
        raw, probability = scores, made.get(head.kind, scores)
        whole = head.threshold is None and head.thresholds is None
        prediction = scores.argmax(dim=1).to(torch.float64) if whole else _predicted(probability, head)

    def vectors(values: Tensor) -> pa.Array:
        return _lists(pa.array(values.contiguous().reshape(-1).numpy()), values.shape[1], len(values))

    columns = {
        "prediction": lambda: pa.array(prediction.numpy()) if prediction.dim() == 1 else vectors(prediction),
        "rawPrediction": lambda: vectors(raw),
        "probability": lambda: vectors(probability),
    }
    return pa.StructArray.from_arrays([columns[name]() for name in fields], names=list(fields))


def _predicted(probability: Tensor, head: Head) -> Tensor:
    """The class of each row, as Spark ML's classifiers choose it: that of two whose probability exceeds
    `threshold`, or the one with the largest ratio of probability and threshold.
    """
    import torch

    if head.thresholds is None:
        limit = 0.5 if head.threshold is None else head.threshold
        return (probability[:, 1] > limit).to(torch.float64)
    limits = torch.tensor(head.thresholds, dtype=torch.float64)
    infinite = torch.where(probability > 0, torch.inf, -torch.inf)
    return torch.where(limits == 0, infinite, probability / limits).argmax(dim=1).to(torch.float64)


def _shapes(named: Sequence[tuple[str | None, Sequence[int]]]) -> str:
    return ", ".join(f"{name or 'a tensor'} of {list(shape)}" for name, shape in named)
