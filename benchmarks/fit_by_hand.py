"""What a user writes to train without Flambeau: the program of a TorchDistributor, or of torchrun.

`TorchDistributor(...).run("fit_by_hand.py", ROWS, WEIGHTS, EPOCHS, BATCH_SIZE)` starts it on each rank. It is
the fastest plain way to write it: each rank reads its share of the rows by pyarrow into one tensor, and takes
slices of that.
"""

from __future__ import annotations

import sys
import time
from itertools import accumulate, pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch_loops import MODELS


def read_own(rows: str, rank: int, world_size: int) -> tuple[Tensor, Tensor]:
    """This rank's share of the rows, as many as the other ranks'; the label is the last column.

    Only the row groups that hold it are read.
    """
    groups = [
        group
        for file in ds.dataset(rows, format="parquet").get_fragments()
        for group in file.split_by_row_group()
    ]
    starts = [0, *accumulate(group.row_groups[0].num_rows for group in groups)]
    num_rows = starts[-1] // world_size
    first, end = rank * num_rows, (rank + 1) * num_rows
    held = [
        group.to_table().slice(max(first - start, 0), end - max(first, start))
        for group, (start, stop) in zip(groups, pairwise(starts), strict=True)
        if start < end and first < stop
    ]
    columns = [torch.from_numpy(column.to_numpy()) for column in pa.concat_tables(held).itercolumns()]
    return torch.stack(columns[:-1], dim=1), columns[-1].unsqueeze(1)


def main(rows: str, weights: str, epochs: int, batch_size: int) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    x, y = read_own(rows, rank, dist.get_world_size())
    module = MODELS["mlp"]()
    ddp = DistributedDataParallel(module)
    optimizer = torch.optim.Adam(ddp.parameters(), fused=True)
    began = time.perf_counter()
    for _ in range(epochs):
        order = torch.randperm(len(x))
        for batch_x, batch_y in zip(x[order].split(batch_size), y[order].split(batch_size), strict=True):
            optimizer.zero_grad()
            functional.mse_loss(ddp(batch_x), batch_y).backward()
            optimizer.step()
    seconds = time.perf_counter() - began
    if rank == 0:
        torch.save(module.state_dict(), weights)
        Path(f"{weights}.seconds").write_text(str(seconds))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
