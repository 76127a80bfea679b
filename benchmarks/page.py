"""RESULTS.md and its figures, made from the suites' results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import Result, short
from pictures import pyplot, save

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
FIGURES = HERE / "figures"
INTRODUCTION = """# Results

Made by `make bench` or `make bench-full`; [README.md](README.md) says what each suite does. In each round
every contender does the work once, in turn. A figure is the median of the rounds, with the least and the most
in brackets; *times* is how many times as fast Flambeau was, the median of the rounds' own ratios. A goal that
was missed is explained in [docs/performance.md](../docs/performance.md).
"""


def write(suites: Sequence[str]) -> None:
    """Writes the page and the figures from the results that there are."""
    found = {name: RESULTS / f"{name}.json" for name in suites}
    measured = {name: json.loads(path.read_text()) for name, path in found.items() if path.exists()}
    if not measured:
        return
    FIGURES.mkdir(exist_ok=True)
    for path in FIGURES.glob("*.png"):
        path.unlink()
    results = {name: [_result(entry) for entry in suite["results"]] for name, suite in measured.items()}
    parts = [INTRODUCTION, _summary([result for several in results.values() for result in several])]
    for name, suite in measured.items():
        parts.append(_section(name, suite, results[name]))
    (HERE / "RESULTS.md").write_text("\n".join(parts))


def lines_of(result: Result) -> str:
    """A result as text for a terminal."""
    if result.skipped:
        return f"  {result.work}: skipped, {result.skipped}"
    lines = [f"  {result.work}"]
    for name in result.figures:
        cells = [f"{short(result.median(name)):>9} {result.unit:<7} {_spread(result, name):<20}"]
        if name != result.ours:
            cells.append(f"{_ratio(result, name)} {_goal(result, name)}")
        lines.append(f"    {name:<44} {' '.join(cells)}".rstrip())
    return "\n".join(lines)


def table(results: Sequence[Result]) -> list[str]:
    """The lines of a table of results."""
    lines = ["| work | | median | times | goal |", "|---|---|---|---|---|"]
    for result in results:
        lines += _rows(result)
    return lines


def _result(entry: dict[str, Any]) -> Result:
    return Result(**entry)


def _summary(results: Sequence[Result]) -> str:
    goals = [(result, name) for result in results for name in result.goals if not result.skipped]
    missed = [(result, name) for result, name in goals if not result.is_met(name)]
    lines = [f"**{len(goals) - len(missed)} of {len(goals)} goals are met.**"]
    if missed:
        lines += ["", "Missed:", ""]
        lines += [
            f"- {result.work}: {result.ratio(name):.2f} times {name}, the goal is {result.goals[name]:.3g}"
            for result, name in missed
        ]
    return "\n".join(lines) + "\n"


def _section(name: str, suite: dict[str, Any], results: Sequence[Result]) -> str:
    about = suite["machine"]
    versions = ", ".join(f"{package} {number}" for package, number in about["versions"].items())
    lines = [
        f"## {suite['title'].rstrip('.')}",
        "",
        f"`benchmarks/{name}.py`, {suite['date']}, {about['cores']} cores of {about['processor']}, "
        f"{about['memory']}, {about['system']}, {versions}.",
        "",
        *table(results),
    ]
    lines += [f"\n{note}" for note in dict.fromkeys(result.note for result in results if result.note)]
    for curve in dict.fromkeys(result.curve for result in results if result.curve):
        file = _draw(name, curve, [result for result in results if result.curve == curve])
        lines += ["", f"![{curve}](figures/{file})"]
    return "\n".join(lines) + "\n"


def _rows(result: Result) -> list[str]:
    if result.skipped:
        return [f"| {result.work} | skipped: {result.skipped} | | | |"]
    rows = []
    for name in result.figures:
        work = result.work if name == result.ours else ""
        median = f"{short(result.median(name))} {result.unit} {_spread(result, name)}"
        ratio = "" if name == result.ours else _ratio(result, name)
        rows.append(f"| {work} | {name} | {median} | {ratio} | {_goal(result, name)} |")
    return rows


def _spread(result: Result, name: str) -> str:
    return f"({short(min(result.figures[name]))} to {short(max(result.figures[name]))})"


def _ratio(result: Result, name: str) -> str:
    ratios = result.ratios(name)
    return f"{result.ratio(name):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _goal(result: Result, name: str) -> str:
    if name not in result.goals:
        return ""
    return f"{result.goals[name]:.3g}, {'met' if result.is_met(name) else '**missed**'}"


def _draw(suite: str, curve: str, results: Sequence[Result]) -> str:
    """Draws each contender's medians over the cases' `x`, both in logarithms; returns the file's name."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    names = [name for result in results for name in result.figures]
    # A line needs two points.
    for name in [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        points = sorted(
            (result.x or 0.0, result.median(name), min(result.figures[name]), max(result.figures[name]))
            for result in results
            if name in result.figures
        )
        x, median, low, high = zip(*points, strict=True)
        is_ours = name == results[0].ours
        (line,) = axes.plot(x, median, "o-" if is_ours else "o--", label=name, linewidth=2 if is_ours else 1)
        axes.fill_between(x, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(xscale="log", yscale="log", title=curve, xlabel=results[0].x_label, ylabel=results[0].unit)
    axes.grid(alpha=0.3)
    if axes.get_lines():
        axes.legend()
    file = f"{suite}-{''.join(c if c.isalnum() else '-' for c in curve.lower())}.png"
    save(figure, FIGURES / file)
    plt.close(figure)
    return file
