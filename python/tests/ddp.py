"""torch's DistributedDataParallel, in a process a rank: what trainings are held against."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from harness import FORK_SERVER
from ports import held_port
from torch.nn.parallel import DistributedDataParallel


def train(program: Mapping[str, Any], directory: Path) -> list[dict[str, Any]]:
    """Trains with one thread a rank; returns each rank's `losses` and `weights` by name.

    `program` holds `model`, `loss`, `optimizer` (which is given the parameters), the `batches` of each rank,
    `half`, the type that forward and loss autocast to, if any, and `register`, which is given the
    DistributedDataParallel, where gradients travel by way of a communication hook. With float16 the loss is
    scaled, by `scales` after each step. `backend` is "gloo", on the CPU, or "nccl", with rank r on the GPU r.
    """
    pickled = cloudpickle.dumps(dict(program))
    results = [directory / f"ddp-{rank}.pt" for rank, _ in enumerate(program["batches"])]
    with held_port() as port:
        ranks = [
            FORK_SERVER.Process(target=_run, args=(pickled, rank, port, result), daemon=True)
            for rank, result in enumerate(results)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(120)
        assert [process.exitcode for process in ranks] == [0] * len(ranks)
    return [torch.load(result) for result in results]


def _train_rank(program: dict[str, Any], rank: int) -> dict[str, Any]:
    device = torch.device("cuda", rank) if program.get("backend") == "nccl" else torch.device("cpu")
    module = DistributedDataParallel(program["model"].to(device))
    if "register" in program:
        program["register"](module)
    optimizer = program["optimizer"](module.parameters())
    half = program.get("half")
    scaler = torch.amp.GradScaler(device.type, enabled=half == torch.float16)
    losses, scales = [], []
    for x, y in ((x.to(device), y.to(device)) for x, y in program["batches"][rank]):
        with torch.autocast(device.type, dtype=half, enabled=half is not None):
            loss = program["loss"](module(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return {"losses": losses, "scales": scales, "weights": module.module.cpu().state_dict()}


def _run(program: bytes, rank: int, port: int, result: Path) -> None:
    """One rank, in its own process."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    job = pickle.loads(program)
    dist.init_process_group(job.get("backend", "gloo"), rank=rank, world_size=len(job["batches"]))
    torch.save(_train_rank(job, rank), result)
    # Taking the group down ends a process now and then with "terminate called without an active exception".
    os._exit(0)
