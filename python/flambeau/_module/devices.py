"""A worker's GPU: whether torch can use one, and batches and results on their way to it and back.

Nothing here waits for the device but `Readback.wait`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flambeau._module.losses import HostFacts


def cuda_obstacle() -> str | None:
    """Why torch can't compute on GPUs in this process; None where it can."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA: install a build with CUDA"
    if torch.cuda.is_available():
        return None
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return f"torch {torch.__version__} for CUDA {torch.version.cuda} can't use the GPU: {reason}"
    return f"torch {torch.__version__} for CUDA {torch.version.cuda} finds no GPU"


def nccl_directories() -> list[str]:
    """Where the NCCL that came with torch may lie: in a wheel of its own beside torch, or in torch's."""
    torch_directory = Path(torch.__file__).parent
    return [
        str(directory)
        for directory in (torch_directory.parent / "nvidia" / "nccl" / "lib", torch_directory / "lib")
        if directory.is_dir()
    ]


@dataclass
class TensorBatch:
    """A batch as tensors, where the module is."""

    inputs: Sequence[Tensor]
    labels: list[Tensor]
    weight: Tensor | None
    num_rows: int
    facts: HostFacts | None = None
    """What was found in main memory, of a batch on a device."""
    arrived: Any = None
    """After the copies to the device."""

    def tensors(self) -> list[Tensor]:
        """All of them."""
        weight = [] if self.weight is None else [self.weight]
        return [*self.inputs, *self.labels, *weight]


class BatchCopier:
    """Copies batches to a device on a stream of its own, beside what the module does there.

    To a GPU by way of pinned memory: CUDA has the host wait for copies from any other. The CPU counts as
    a device with one stream, as in `torch.cpu`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams = streams_of(device)
        self._stream = self._streams.Stream()

    def send(self, batch: TensorBatch) -> TensorBatch:
        """Begins to copy a batch from main memory."""
        with self._streams.stream(self._stream):
            sent = TensorBatch(
                [self._copy(tensor) for tensor in batch.inputs],
                [self._copy(tensor) for tensor in batch.labels],
                None if batch.weight is None else self._copy(batch.weight),
                batch.num_rows,
                batch.facts,
            )
            sent.arrived = self._stream.record_event()
        return sent

    def _copy(self, tensor: Tensor) -> Tensor:
        # torch reuses pinned memory once the copy is done.
        source = tensor.pin_memory() if self._device.type == "cuda" else tensor
        return source.to(self._device, non_blocking=True)

    def receive(self, batch: TensorBatch) -> None:
        """Has the present stream wait for a batch that was sent."""
        present = self._streams.current_stream(self._device)
        present.wait_event(batch.arrived)
        for tensor in batch.tensors():
            if tensor.is_cuda:
                # Made on the copying stream, whose memory torch would give away while this one reads it.
                tensor.record_stream(present)


class Readback:
    """Numbers on their way from a device to main memory."""

    def __init__(self, numbers: Tensor) -> None:
        self._numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=numbers.is_cuda)
        self._numbers.copy_(numbers, non_blocking=True)
        streams = streams_of(numbers.device)
        self._arrived = streams.Event()
        self._arrived.record(streams.current_stream(numbers.device))

    def wait(self) -> list[float]:
        """The numbers, once the device has come to them; not to what it was given later."""
        self._arrived.synchronize()
        return self._numbers.tolist()


def streams_of(device: torch.device) -> Any:
    """The module with the streams and events of a kind of device."""
    return torch.cuda if device.type == "cuda" else torch.cpu
