"""Scoring on a GPU: while it computes one batch, the next is on its way there and the one before on its way
back.

Rows are gathered in pinned memory, and copies run on streams of their own, one for each direction. The host
waits for the results of an Arrow batch once the next one has been launched, and otherwise only where it is
two batches ahead of the copies, for the memory that they are made from. The CPU counts as a device with one
stream, as in `torch.cpu`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flambeau._module.devices import streams_of
from flambeau._score.gpu_slots import SETTING
from flambeau.errors import FlambeauError

if TYPE_CHECKING:
    from flambeau._input_rows import InputRows


@dataclass
class _Room:
    """Memory for one batch's inputs, at both ends of their way to the GPU."""

    copied: Any
    """The event after which `pinned` may be written again."""
    used: Any
    """The event after which `there` may be written again."""
    pinned: list[Tensor] = field(default_factory=list)
    there: list[Tensor] = field(default_factory=list)
    num_rows: int = 0
    """How many rows there is room for."""


@dataclass
class _Launched:
    """The results of an Arrow batch, which are there once `done` has come."""

    results: list[Tensor]
    done: Any


class GpuScoring:
    """Runs a module on Arrow batches, on one GPU.

    `forward` gives the module's outputs for inputs on the device and their number of rows. `new_results`
    makes the tensors, in pinned memory, for the outputs of that many rows and of those types. `batch_size` is
    the most rows that the module gets at once.
    """

    def __init__(
        self,
        device: str,
        batch_size: int,
        forward: Callable[[Sequence[Tensor], int], list[Tensor]],
        new_results: Callable[[int, Sequence[torch.dtype]], list[Tensor]],
    ) -> None:
        self._device = torch.device(device)
        self._batch_size = batch_size
        self._forward = forward
        self._new_results = new_results
        self._is_gpu = self._device.type == "cuda"
        self._streams = streams_of(self._device)
        with self._present():
            self._computing = self._streams.current_stream()
            self._going, self._coming = self._streams.Stream(), self._streams.Stream()
        self._rooms = [_Room(self._event(), self._event()) for _ in range(2)]

    def results(self, batches: Iterable[tuple[Sequence[InputRows], int]]) -> Iterator[list[Tensor]]:
        """The outputs of each batch, in main memory and in order; a batch is its inputs and its number of
        rows. To be called once.

        Takes one batch more than it has given the results of.
        """
        try:
            before: _Launched | None = None
            for rows, num_rows in batches:
                launched = self._launch(rows, num_rows)
                if before is not None:
                    yield self._awaited(before)
                before = launched
            if before is not None:
                yield self._awaited(before)
        finally:
            # Where this ends early, the exception keeps what this holds.
            self._rooms.clear()

    def _launch(self, rows: Sequence[InputRows], num_rows: int) -> _Launched:
        results: list[Tensor] = []
        with torch.inference_mode(), self._present():
            for start in range(0, num_rows, self._batch_size):
                stop = min(start + self._batch_size, num_rows)
                room = self._send(rows, start, stop, num_rows)
                outputs = self._forward([tensor[: stop - start] for tensor in room.there], stop - start)
                results = results or self._new_results(num_rows, [output.dtype for output in outputs])
                self._fetch(outputs, room, [whole[start:stop] for whole in results])
            done = self._event()
            done.record(self._coming)
        return _Launched(results or self._new_results(0, ()), done)

    def _send(self, rows: Sequence[InputRows], start: int, stop: int, num_rows: int) -> _Room:
        """Gathers the rows from `start` to `stop` and has them copied to the GPU before it computes on."""
        room = self._rooms.pop(0)
        self._rooms.append(room)
        if room.num_rows < stop - start:
            self._allocate(room, rows, min(self._batch_size, num_rows))
        room.copied.synchronize()
        self._going.wait_event(room.used)
        with self._streams.stream(self._going):
            for part, pinned, there in zip(rows, room.pinned, room.there, strict=True):
                part.fill(pinned[: stop - start], start)
                there[: stop - start].copy_(pinned[: stop - start], non_blocking=True)
            room.copied.record(self._going)
        self._computing.wait_event(room.copied)
        return room

    def _allocate(self, room: _Room, rows: Sequence[InputRows], num_rows: int) -> None:
        """Makes the room one for so many rows."""
        room.num_rows = num_rows
        room.pinned = [part.empty(num_rows, pin_memory=self._is_gpu) for part in rows]
        # Torch gives memory to the stream that asks for it, here the first to write there, and has to know of
        # others that use it.
        with self._streams.stream(self._going):
            room.there = [torch.empty_like(pinned, device=self._device) for pinned in room.pinned]
        self._lend(room.there, self._computing)

    def _fetch(self, outputs: Sequence[Tensor], room: _Room, results: Sequence[Tensor]) -> None:
        """Has the outputs copied to main memory.

        They are copied on the GPU first, into the results' types: they may be memory of the inputs, or of the
        module, which the next batch writes to.
        """
        copies = [
            output.to(self._device, whole.dtype, copy=True, memory_format=torch.contiguous_format)
            for output, whole in zip(outputs, results, strict=True)
        ]
        room.used.record(self._computing)
        self._coming.wait_event(room.used)
        with self._streams.stream(self._coming):
            for copy, whole in zip(copies, results, strict=True):
                whole.copy_(copy, non_blocking=True)
        self._lend(copies, self._coming)

    def _lend(self, tensors: Iterable[Tensor], stream: Any) -> None:
        """Keeps memory from being given away, once it is freed, before that stream is done with it."""
        if self._is_gpu:
            for tensor in tensors:
                tensor.record_stream(stream)

    def _present(self) -> AbstractContextManager[Any]:
        """Makes the device the present one."""
        return torch.cuda.device(self._device) if self._is_gpu else nullcontext()

    def _event(self) -> Any:
        """An event for which the host waits without using a processor."""
        return torch.cuda.Event(blocking=True) if self._is_gpu else torch.cpu.Event()

    def _awaited(self, launched: _Launched) -> list[Tensor]:
        launched.done.synchronize()
        return launched.results


@contextmanager
def explained(device: str, batch_size: int) -> Iterator[None]:
    """Raises what fails on the GPU in the block as a FlambeauError that says what to do."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise FlambeauError(
            f"the memory of {device} is too small for the module and {batch_size} rows at once: lower "
            f"inferenceBatchSize or inferenceBatchBytes, or {SETTING}, the number of tasks that share the "
            f"GPU, or set device='cpu' ({error})"
        ) from error
    except RuntimeError as error:
        if "CUDA" not in str(error):
            raise
        raise FlambeauError(
            f"{device} failed while scoring {batch_size} rows at once; device='cpu', or the workers' "
            f"environment with CUDA_LAUNCH_BLOCKING=1, tells which operation it was ({error})"
        ) from error
