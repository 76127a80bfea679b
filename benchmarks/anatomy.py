"""Where a step's time goes, as `model.history` tells it; docs/performance/step.png draws it.

Two ranks with one thread each; means of the epochs after the first, of rank 0.
"""

from __future__ import annotations

import statistics
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pictures import PARTS
from scaling import Ranks, program, write

EPOCHS = 6


@dataclass(frozen=True)
class Work:
    """A training: its text, the widths of its layers, its rows and further params."""

    text: str
    widths: tuple[int, ...]
    num_rows: int
    batch_size: int
    params: dict[str, Any] = field(default_factory=dict)

    def microseconds(self, ranks: Ranks, scratch: Path) -> dict[str, float]:
        """The parts of a step, in microseconds."""
        shards, columns = write(scratch, self.num_rows, 10)
        objects = {**program(*self.widths), "optimizer": "adam"}
        params = {"batchSize": self.batch_size, "epochs": EPOCHS, **self.params}
        epochs = ranks.train(shards, columns, objects, 2, **params)["epochs"][1:]
        num_steps = self.num_rows / (2 * self.batch_size)
        parts = {part: statistics.mean(epoch[part] for epoch in epochs) for part in PARTS if part != "rest"}
        parts["rest"] = statistics.mean(epoch["seconds"] for epoch in epochs) - sum(parts.values())
        return {part: seconds / num_steps * 1e6 for part, seconds in parts.items()}


WORKS = (
    Work("121 parameters, batch 1", (10, 10, 1), 8_000, 1),
    Work("MLP 10-256-256-1, batch 512", (10, 256, 256, 1), 204_800, 512),
    Work("the same, precision bf16", (10, 256, 256, 1), 204_800, 512, {"precision": "bf16"}),
    Work("8 M parameters, batch 32", (10, 2816, 2816, 1), 2_560, 32),
)


def measured(scratch: Path) -> dict[str, dict[str, float]]:
    """The parts of a step of each training, in microseconds."""
    with closing(Ranks(scratch)) as ranks:
        steps = {work.text: work.microseconds(ranks, scratch) for work in WORKS}
    for work, step in steps.items():
        print(f"  {work}: " + ", ".join(f"{PARTS[part]} {value:,.0f} µs" for part, value in step.items()))
    return steps
