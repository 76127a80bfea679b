"""One rank of torch.distributed's gloo, timing its all-reduce of float32.

    gloo.py RANK WORLD_SIZE ADDRESS INTERFACE

Rank 0 answers requests as a harness.Child and passes them on through the group itself.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import serve

Request = dict[str, int]


def broadcast(request: Request | None) -> Request | None:
    """Rank 0's request, on every rank."""
    box = [request]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def median(request: Request) -> float:
    """The median of `count` calls on `bytes` bytes, in microseconds."""
    buffer = torch.zeros(request["bytes"] // 4)
    times = []
    for _ in range(request["count"]):
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(buffer)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


def answer(**request: int) -> dict[str, float]:
    """Times a request together with the other ranks."""
    broadcast(request)
    return {"us": median(request)}


def main(rank: int, world_size: int, address: str, interface: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{address}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(hours=1),
    )
    if rank == 0:
        serve(answer)
        broadcast(None)
    else:
        while request := broadcast(None):
            median(request)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
