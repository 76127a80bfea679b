"""Where a step's time goes, as `model.history` tells it: draws docs/performance/step.svg.

    python benchmarks/anatomy.py

Two ranks with one thread each; means of the epochs after the first, of rank 0.
"""

from __future__ import annotations

import statistics
import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
from harness import ROOT
from scaling import Ranks, program, write

matplotlib.use("svg")
import matplotlib.pyplot as plt

PARTS = {
    "dataSeconds": "waiting for rows",
    "modelSeconds": "forward, loss, backward",
    "reduceSeconds": "averaging gradients, waiting for the other rank",
    "optimizerSeconds": "optimizer",
    "rest": "the rest",
}
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


def draw(steps: dict[str, dict[str, float]], path: Path) -> None:
    """One bar for each training, of the shares of its step."""
    figure, axes = plt.subplots(figsize=(9, 3.2), layout="constrained")
    left = dict.fromkeys(steps, 0.0)
    for part, text in PARTS.items():
        shares = [100 * step[part] / sum(step.values()) for step in steps.values()]
        axes.barh(list(steps), shares, left=list(left.values()), label=text)
        left = {work: before + share for (work, before), share in zip(left.items(), shares, strict=True)}
    for work, step in steps.items():
        axes.annotate(f" {sum(step.values()):,.0f} µs", (100, work), va="center")
    axes.set(xlim=(0, 112), xlabel="% of a step")
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    path.parent.mkdir(exist_ok=True)
    matplotlib.rcParams["svg.hashsalt"] = "flambeau"
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="flambeau-anatomy-") as name, closing(Ranks(Path(name))) as ranks:
        steps = {work.text: work.microseconds(ranks, Path(name)) for work in WORKS}
    for work, step in steps.items():
        print(f"{work}: " + ", ".join(f"{PARTS[part]} {value:,.0f} µs" for part, value in step.items()))
    draw(steps, ROOT / "docs" / "performance" / "step.svg")


if __name__ == "__main__":
    main()
