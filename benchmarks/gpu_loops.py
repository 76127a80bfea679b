"""One rank on a GPU, in a process of its own: a training of Flambeau's without Spark, and the loop that one
would write with DistributedDataParallel on the same rows.

For `harness.Child`; `gpu.py` asks. Models, data and the loops' batches are the same for both.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from harness import serve
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SECRET = b"ranks of a benchmark, on loopback"
Batch = tuple[Tensor, Tensor]
Epochs = Callable[[int], Iterator[Batch]]
"""The batches of an epoch, by its number, on the device."""


class Images(nn.Module):
    """A convolutional network over bytes, which become floats on the device."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 64), (64, 128), (128, 256)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(after, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 4 * 4, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.reshape(-1, 3, 32, 32).float() / 255 - 0.5)


class Tokens(nn.Module):
    """A small transformer over 128 tokens, into 10 classes."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.table = nn.Embedding(8192, width)
        self.place = nn.Parameter(torch.zeros(128, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.output = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.layers(self.table(x) + self.place).mean(1))


def mlp(hidden: int) -> nn.Module:
    """A regression of one number on 64."""
    return nn.Sequential(
        nn.Linear(64, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1)
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: mlp(1024),
    "tiny": lambda: mlp(8),
    "cnn": Images,
    "transformer": Tokens,
}


def write_rows(path: Path, kind: str, num_rows: int) -> Path:
    """Random rows for a model: `x`, an array of a row's inputs, and `y`, its label."""
    random = np.random.default_rng(0)
    x: pa.Array
    if kind == "cnn":
        images = random.integers(0, 256, (num_rows, 3072), np.uint8)
        offsets = pa.py_buffer(np.arange(num_rows + 1, dtype=np.int32) * 3072)
        x = pa.Array.from_buffers(pa.binary(), num_rows, [None, offsets, pa.py_buffer(images)])
    elif kind == "transformer":
        x = _lists(random.integers(0, 8192, (num_rows, 128), np.int64))
    else:
        x = _lists(random.standard_normal((num_rows, 64), np.float32))
    classes = random.integers(0, 10, num_rows)
    y = classes if kind in ("cnn", "transformer") else random.standard_normal(num_rows, np.float32)
    pq.write_table(pa.table({"x": x, "y": pa.array(y)}), path, row_group_size=8192)
    return path


def _lists(values: np.ndarray[Any, Any]) -> pa.Array:
    rows = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    return rows.cast(pa.list_(rows.type.value_type))


@cache
def read(path: str) -> Batch:
    """All rows of a shard."""
    x, y = (column.combine_chunks() for column in pq.read_table(path).itercolumns())
    numbers = (
        np.frombuffer(x.buffers()[2], np.uint8) if pa.types.is_binary(x.type) else x.flatten().to_numpy()
    )
    return torch.from_numpy(numbers.copy()).reshape(len(y), -1), torch.from_numpy(y.to_numpy().copy())


def mean_loss(output: Tensor, label: Tensor) -> Tensor:
    """Cross entropy for classes, squared error for numbers."""
    if label.dtype == torch.int64:
        return functional.cross_entropy(output, label)
    return functional.mse_loss(output, label.reshape(output.shape))


# What the ranks of both loops measure.


@dataclass
class Watch:
    """When the GPU comes to the first forward after a step of the optimizer. In between it waits: for the
    batch, or for the host to launch anything.
    """

    on: bool = False
    began: list[torch.cuda.Event] = field(default_factory=list)
    stepped: list[torch.cuda.Event] = field(default_factory=list)

    def start(self, on: bool) -> None:
        """Forgets all and watches, or not."""
        self.on, self.began, self.stepped = on, [], []

    def mark(self, events: list[torch.cuda.Event]) -> None:
        """Records an event on the stream that is the present one."""
        if self.on:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            events.append(event)

    def share_of_waiting(self, epochs: int) -> float:
        """The part of the time that the GPU waits, in all of so many epochs but the first."""
        torch.cuda.synchronize()
        first = len(self.stepped) // epochs
        waits = [
            step.elapsed_time(begin)
            for step, begin in zip(self.stepped[first:-1], self.began[first + 1 :], strict=True)
        ]
        return sum(waits) / self.stepped[first].elapsed_time(self.stepped[-1])


WATCH = Watch()


# Functions of this module, and no lambdas: a pickle has those by value, with a watch of their own.
def forward_begins(*_: Any) -> None:
    WATCH.mark(WATCH.began)


def step_ends(*_: Any) -> None:
    WATCH.mark(WATCH.stepped)


def build(model: str) -> nn.Module:
    """The model with the weights that both begin with; its forwards are watched."""
    torch.manual_seed(0)
    module = MODELS[model]()
    module.register_forward_pre_hook(forward_begins)
    return module


def adam(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """Torch's Adam, whose steps are watched."""
    optimizer = torch.optim.Adam(parameters, lr=1e-4)
    optimizer.register_step_post_hook(step_ends)
    return optimizer


def momentum(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """Gradient descent with momentum, which does not divide by what may be nearly nothing."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


OPTIMIZERS = {"adam": adam, "momentum": momentum}


# Flambeau.


class Dies(nn.Module):
    """A model that writes down the time and kills its process in that forward; in none where it is 0."""

    def __init__(self, module: nn.Module, path: str, forward: int) -> None:
        super().__init__()
        self.module, self.path, self.left = module, path, forward

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        if self.left == 0:
            Path(self.path).write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        return self.module(x)


def flambeau(
    job: dict[str, Any],
    model: str,
    optimizer: str,
    rank: int,
    world_size: int,
    address: str,
    watched: bool = False,
    dies_at: int = 0,
    died: str = "",
) -> dict[str, Any]:
    """Trains a rank; `address` is where the ranks meet. With `dies_at` rank 1 kills itself in that forward,
    and leaves the time in the file `died`.
    """
    from flambeau import _native
    from flambeau._rank.worker import WorkerRequest, run_rank

    def all_gather(payload: bytes) -> list[bytes]:
        return _native.TcpRendezvous(address, rank, world_size, SECRET, 60.0).all_gather(payload)

    WATCH.start(watched)
    module = build(model)
    if dies_at:
        module = Dies(module, died, dies_at if rank == 1 else 0)
    program = {"model": module, "loss": mean_loss, "optimizer": OPTIMIZERS[optimizer], "metrics": None}
    request = WorkerRequest(json.dumps(job), SECRET, cloudpickle.dumps(program))
    outcome = run_rank(request, rank, world_size, all_gather, "127.0.0.1")
    if not outcome.ok:
        text = f"{outcome.error_type}: {outcome.message}"
        return {"error": text, "kind": outcome.error_kind, "at": time.time()}
    result = json.loads(outcome.result_json or "")
    later = result["history"]["epochs"][1:] or result["history"]["epochs"]
    return {
        "rows": sum(epoch["numRows"] for epoch in later),
        "seconds": sum(epoch["seconds"] for epoch in later),
        "weights": result["weights"]["uri"] if result["weights"] else None,
        "waits": WATCH.share_of_waiting(job["params"]["epochs"]) if watched else None,
        "warnings": result["warnings"],
    }


# DistributedDataParallel.


def from_loader(x: Tensor, y: Tensor, batch_size: int, device: torch.device) -> Epochs:
    """What a tutorial has: a DataLoader with workers and pinned memory over a DistributedSampler."""
    rows = TensorDataset(x, y)
    sampler: DistributedSampler[Any] = DistributedSampler(rows)
    loader = DataLoader(
        rows, batch_size, sampler=sampler, num_workers=4, pin_memory=True, persistent_workers=True
    )

    def batches(epoch: int) -> Iterator[Batch]:
        sampler.set_epoch(epoch)
        for one, label in loader:
            yield one.to(device, non_blocking=True), label.to(device, non_blocking=True)

    return batches


def from_slices(x: Tensor, y: Tensor, batch_size: int, device: torch.device) -> Epochs:
    """What an expert has: all rows shuffled into pinned memory in each epoch, and slices of that."""
    x, y = own_rows(x, y)

    def batches(epoch: int) -> Iterator[Batch]:
        order = torch.randperm(len(x))
        pinned = (rows[order].pin_memory().split(batch_size) for rows in (x, y))
        for one, label in zip(*pinned, strict=True):
            yield one.to(device, non_blocking=True), label.to(device, non_blocking=True)

    return batches


def from_device(x: Tensor, y: Tensor, batch_size: int, device: torch.device) -> Epochs:
    """What costs nothing: the same slices of rows that lie on the GPU, in every epoch and in order."""
    x, y = own_rows(x, y)
    pairs = list(zip(x.to(device).split(batch_size), y.to(device).split(batch_size), strict=True))
    return lambda epoch: iter(pairs)


def own_rows(x: Tensor, y: Tensor) -> Batch:
    """This rank's share of the rows: a contiguous part, as a lane of Flambeau's is."""
    rank, size = dist.get_rank(), dist.get_world_size()
    part = slice(rank * len(x) // size, (rank + 1) * len(x) // size)
    return x[part], y[part]


FEEDS = {"loader": from_loader, "slices": from_slices, "device": from_device}


def ddp(
    shard: str,
    model: str,
    optimizer: str,
    feed: str,
    batch_size: int,
    epochs: int,
    rank: int,
    world_size: int,
    address: str,
    device: int,
    backend: str = "nccl",
    watched: bool = False,
    weights: str = "",
) -> dict[str, Any]:
    """Trains a rank on a device; saves the weights where a path is given."""
    if not dist.is_initialized():
        torch.cuda.set_device(device)
        dist.init_process_group(backend, f"tcp://{address}", rank=rank, world_size=world_size)
    WATCH.start(watched)
    place = torch.device("cuda", device)
    module = build(model).to(place)
    wrapped = DistributedDataParallel(module, [device])
    stepper = OPTIMIZERS[optimizer](module.parameters())
    batches = FEEDS[feed](*read(shard), batch_size, place)
    num_rows, began = 0, 0.0
    for epoch in range(epochs):
        if epoch == min(1, epochs - 1):
            torch.cuda.synchronize()
            num_rows, began = 0, time.perf_counter()
        for x, y in batches(epoch):
            stepper.zero_grad()
            mean_loss(wrapped(x), y).backward()
            stepper.step()
            num_rows += len(y)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    if weights and rank == 0:
        torch.save(module.state_dict(), weights)
    waits = WATCH.share_of_waiting(epochs) if watched else None
    return {"rows": num_rows * world_size, "seconds": seconds, "waits": waits}


def prepare(deterministic: bool) -> dict[str, Any]:
    """Sets torch up alike in all processes: float32 is float32, with one order of additions for parity."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.deterministic = deterministic
    return {}


def answer(loop: str, **arguments: Any) -> Mapping[str, Any]:
    """What a child does."""
    loops: dict[str, Callable[..., Mapping[str, Any]]] = {
        "flambeau": flambeau,
        "ddp": ddp,
        "prepare": prepare,
    }
    return loops[loop](**arguments)


if __name__ == "__main__":
    # By its name, under which the models' pickles know this module too.
    import gpu_loops

    serve(gpu_loops.answer)
