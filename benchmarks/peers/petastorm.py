"""Petastorm's side of the suite `reading`: one shuffled epoch over Parquet files, as torch tensors."""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from typing import Any

# This program's directory would hide the package of the same name.
sys.path[0] = str(Path(__file__).resolve().parent.parent)
warnings.filterwarnings("ignore")

import torch  # noqa: E402
from harness import serve  # noqa: E402
from petastorm import make_batch_reader  # noqa: E402
from petastorm.pytorch import BatchedDataLoader  # noqa: E402

# What Petastorm's own benchmark of its loaders takes.
QUEUED_BATCHES = 10


def epoch(files: list[str], tensors: list[dict[str, Any]], batch_size: int) -> dict[str, Any]:
    """Reads all rows once and says how many there were and how many seconds it took.

    Each of `tensors` has `columns`, packed into one tensor of `[rows, columns]`; a single column is taken as
    it is.
    """
    begun = time.perf_counter()
    urls = [f"file://{file}" for file in files]
    columns = [column for tensor in tensors for column in tensor["columns"]]
    rows = 0
    with make_batch_reader(urls, schema_fields=columns, num_epochs=1, shuffle_row_groups=True) as reader:
        loader = BatchedDataLoader(
            reader, batch_size=batch_size, shuffling_queue_capacity=QUEUED_BATCHES * batch_size
        )
        for batch in loader:
            for tensor in tensors:
                packed = [batch[column] for column in tensor["columns"]]
                first = torch.stack(packed, dim=1) if len(packed) > 1 else packed[0]
            rows += len(first)
    return {"rows": rows, "seconds": time.perf_counter() - begun}


if __name__ == "__main__":
    serve(epoch)
