"""The pictures of docs/performance.md, from what results/ holds of a step's parts and of profiles."""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

from harness import ROOT

RESULTS = Path(__file__).resolve().parent / "results"
PICTURES = ROOT / "docs" / "performance"
PARTS = {
    "dataSeconds": "waiting for rows",
    "modelSeconds": "forward, loss, backward",
    "reduceSeconds": "averaging gradients, waiting for the other rank",
    "optimizerSeconds": "optimizer",
    "rest": "the rest",
}
FLAMES = ("step", "reading")


def draw() -> None:
    """Draws all of them anew."""
    PICTURES.mkdir(exist_ok=True)
    parts_of_a_step(json.loads((RESULTS / "anatomy.json").read_text())["microseconds"])
    for name in FLAMES:
        flame_graph(RESULTS / f"{name}.folded", PICTURES / f"{name}-flame.png")


def save(figure: Any, path: Path) -> None:
    """Saves a figure without the version of what drew it: a file changes only where its numbers do."""
    figure.savefig(path, dpi=100, metadata={"Software": None})


def parts_of_a_step(steps: dict[str, dict[str, float]]) -> None:
    """One bar for each training, of the shares of its step; the parts are in microseconds."""
    plt = pyplot()
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
    save(figure, PICTURES / "step.png")
    plt.close(figure)


def flame_graph(folded: Path, path: Path) -> None:
    """Draws folded stacks as `flame.py` prints them: frames as wide as their share, above their callers."""
    lines = (line.rpartition(" ") for line in folded.read_text().splitlines())
    stacks = [(stack.split(";"), int(count)) for stack, _, count in lines]
    widths: dict[tuple[str, ...], int] = defaultdict(int)
    for stack, count in stacks:
        for depth in range(1, len(stack) + 1):
            widths[tuple(stack[:depth])] += count
    # Frames with one caller lie side by side, in the order of their names.
    starts: dict[tuple[str, ...], int] = {(): 0}
    ends = dict(starts)
    for frame in sorted(widths):
        caller = frame[:-1]
        starts[frame] = ends[frame] = ends[caller]
        ends[caller] += widths[frame]
    plt = pyplot()
    depth, whole, inches = max(map(len, widths)), ends[()], 11.0
    figure, axes = plt.subplots(figsize=(inches, 0.2 * depth + 0.2), layout="constrained")
    for frame, width in widths.items():
        share, shade = width / whole, zlib.crc32(frame[-1].encode()) % 100 / 250
        axes.barh(
            len(frame), width, left=starts[frame], height=0.94, color=plt.cm.YlOrRd(0.15 + shade), linewidth=0
        )
        # At this size a letter takes 0.075 inches. The share comes first; crates are left out.
        room = int(share * inches / 0.075) - 1
        text = f"{100 * share:.0f} % {'::'.join(frame[-1].split('::')[-2:])}"
        if room >= 10:
            text = text if len(text) <= room else text[: room - 1] + "…"
            axes.text(starts[frame] + whole / 500, len(frame), text, va="center", size=8, family="monospace")
    axes.set(xlim=(0, whole), ylim=(0.4, depth + 0.6))
    axes.axis("off")
    save(figure, path)
    plt.close(figure)


def pyplot() -> Any:
    """Matplotlib's, which draws into files."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    return plt
