"""The training loops that people write by hand, on ranks that serve a benchmark.

`TorchDistributor(...).run("torch_loops.py", ADDRESS, KEY)` or `torchrun` starts it on every rank. A rank
connects to the `multiprocessing.connection` at ADDRESS and answers requests, which are the arguments of `run`
or of `decode` as a dict, until it gets None.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from multiprocessing.connection import Client
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

Batch = tuple[Tensor, Tensor]


def mlp(hidden: int) -> nn.Module:
    """A regression of one number on 10."""
    return nn.Sequential(
        nn.Linear(10, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
    )


def cnn() -> nn.Module:
    """A classifier of 28 x 28 images into 10 classes."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 7 * 7, 10)),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: mlp(256),
    "wide": lambda: mlp(2816),
    "cnn": cnn,
}
"""70 thousand, 8 million and 20 thousand parameters."""


@cache
def read(path: str) -> Batch:
    """All rows of a shard: the features as one float32 matrix, and the label, which is the last column."""
    *features, label = (column.combine_chunks() for column in pq.read_table(path).itercolumns())
    if pa.types.is_list(features[0].type):
        x = torch.from_numpy(features[0].flatten().to_numpy()).reshape(len(label), -1)
    else:
        x = torch.stack([torch.tensor(column.to_numpy()) for column in features], dim=1)
    return x, torch.tensor(label.to_numpy())


def mean_loss(output: Tensor, label: Tensor) -> Tensor:
    """Cross entropy for classes, squared error for numbers."""
    if label.dtype == torch.int64:
        return functional.cross_entropy(output, label)
    return functional.mse_loss(output, label.unsqueeze(1))


def from_loader(x: Tensor, y: Tensor, batch_size: int, epochs: int) -> Iterator[Iterator[Batch]]:
    """What a tutorial has: a DataLoader over a DistributedSampler."""
    rows = TensorDataset(x, y)
    sampler: DistributedSampler[Any] = DistributedSampler(rows)
    loader = DataLoader(rows, batch_size, sampler=sampler)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        yield iter(loader)


def own_rows(x: Tensor, y: Tensor, rank: int, world_size: int) -> Batch:
    """A rank's share of the rows, in a random order."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    own = order[rank::world_size]
    return x[own], y[own]


def from_slices(x: Tensor, y: Tensor, batch_size: int, epochs: int) -> Iterator[Iterator[Batch]]:
    """What an expert has: slices of one tensor of this rank's rows that is shuffled in each epoch."""
    for _ in range(epochs):
        order = torch.randperm(len(x))
        yield zip(x[order].split(batch_size), y[order].split(batch_size), strict=True)


def from_memory(x: Tensor, y: Tensor, batch_size: int, epochs: int) -> Iterator[Iterator[Batch]]:
    """What costs nothing: the same slices of this rank's rows in every epoch."""
    slices = list(zip(x.split(batch_size), y.split(batch_size), strict=True))
    for _ in range(epochs):
        yield iter(slices)


BATCHES = {"loader": from_loader, "slices": from_slices, "memory": from_memory}


def meeting_point() -> Callable[[], None]:
    """Waits for the other ranks: each counts its calls in memory that they share, and spins."""
    path = [""]
    if dist.get_rank() == 0:
        path = [tempfile.mkstemp(dir="/dev/shm")[1]]
        np.zeros(dist.get_world_size(), np.int64).tofile(path[0])
    dist.broadcast_object_list(path)
    counts = np.memmap(path[0], np.int64, "r+")
    dist.barrier()
    if dist.get_rank() == 0:
        os.unlink(path[0])
    others = [rank for rank in range(dist.get_world_size()) if rank != dist.get_rank()]

    def meet() -> None:
        counts[dist.get_rank()] += 1
        own = counts[dist.get_rank()]
        for rank in others:
            while counts[rank] < own:
                pass

    return meet


def run(
    shard: str,
    model: str,
    batches: str,
    together: str,
    batch_size: int,
    epochs: int,
    fused: bool = False,
    autocast: bool = False,
) -> dict[str, Any]:
    """Trains, and returns this rank's rows and seconds in the epochs after the first.

    `fused` takes torch's fused Adam instead of the plain one, `autocast` computes in bfloat16.

    `together` is what the ranks do together: "ddp" wraps the module in DistributedDataParallel, "meet" waits
    for the slower rank in each step and exchanges nothing, "nothing" leaves them alone once they have begun.
    """
    module = MODELS[model]()
    wrapped = DistributedDataParallel(module) if together == "ddp" else module
    meet = meeting_point() if together == "meet" else lambda: None
    optimizer = torch.optim.Adam(module.parameters(), fused=fused)
    precision = torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext()
    rows = read(shard)
    if batches != "loader":
        rows = own_rows(*rows, dist.get_rank(), dist.get_world_size())
    num_rows, began = 0, 0.0
    dist.barrier()
    for epoch, epoch_batches in enumerate(BATCHES[batches](*rows, batch_size, epochs)):
        for x, y in epoch_batches:
            optimizer.zero_grad()
            with precision:
                loss = mean_loss(wrapped(x), y)
            loss.backward()
            meet()
            optimizer.step()
            num_rows += len(y)
        if epoch == 0:
            num_rows, began = 0, time.perf_counter()
    return {"rows": num_rows, "seconds": time.perf_counter() - began}


def decoded(images: Sequence[bytes]) -> Tensor:
    """JPEGs of one size as floats of shape [images, 3, height, width]."""
    pixels = [torch.from_numpy(np.array(Image.open(io.BytesIO(one)))) for one in images]
    return torch.stack(pixels).permute(0, 3, 1, 2) / 255


def decode(shard: str, batch_size: int, epochs: int) -> dict[str, Any]:
    """Decodes this rank's images and does no more, and returns its rows and seconds in the epochs after the
    first.
    """
    images = pq.read_table(shard).column(0).to_pylist()[dist.get_rank() :: dist.get_world_size()]
    began = 0.0
    dist.barrier()
    for epoch in range(epochs):
        for start in range(0, len(images), batch_size):
            decoded(images[start : start + batch_size])
        if epoch == 0:
            began = time.perf_counter()
    return {"rows": len(images) * (epochs - 1), "seconds": time.perf_counter() - began}


def main(address: str, key: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    host, port = address.split(":")
    with Client((host, int(port)), authkey=bytes.fromhex(key)) as connection:
        while request := connection.recv():
            connection.send((run if "model" in request else decode)(**request))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
