"""RESULTS.md and its figures, made from the suites' results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import FIXED, ITSELF, LIMIT, Result, short
from pictures import pyplot, save

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
FIGURES = HERE / "figures"
INTRODUCTION = """# Results

Made by `make bench` or `make bench-full`; [README.md](README.md) says what each suite does. In each round
every contender does the work once, in turn. A figure is the median of the rounds, with the least and the most
in brackets; *times* is how many times as fast Flambeau was, the median of the rounds' own ratios. A goal that
was missed is explained in [docs/performance.md](../docs/performance.md). *Limits* are the same work
with nothing round it; *itself* is Flambeau at another size, which says nothing about others.
"""


class SeveralRuns(Exception):
    """The stored results are not of one commit and one kind."""


def stored(name: str) -> dict[str, Any] | None:
    """What a suite's last run left."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def of_one_run(found: Mapping[str, dict[str, Any] | None]) -> dict[str, dict[str, Any]]:
    """The suites' results, where all are of one commit and one kind.

    Raises SeveralRuns, which says which suite is of which commit and what to run.
    """
    runs = {name: _run(suite) for name, suite in found.items() if suite is not None and "commit" in suite}
    if len(runs) == len(found) and len(set(runs.values())) == 1:
        return {name: suite for name, suite in found.items() if suite is not None}
    lines = ["RESULTS.md is made of results of one commit and one kind, and these are of several:"]
    for name, suite in found.items():
        what = "not measured" if suite is None else "of no commit"
        lines.append(f"  {name}: {_text(*runs[name]) if name in runs else what}")
    if runs:
        most = max(runs.values(), key=list(runs.values()).count)
        others = ",".join(name for name in found if runs.get(name) != most)
        at, full, rounds = most[0].partition(",")[0], " --full" if most[1] else "", most[2]
        rounds_too = f" --rounds {rounds}" if rounds else ""
        lines.append(f"At {at}: python benchmarks/run.py --only {others}{full}{rounds_too}")
    lines.append("Or all of them anew: python benchmarks/run.py")
    raise SeveralRuns("\n".join(lines))


def write(suites: Mapping[str, dict[str, Any]]) -> None:
    """Writes the page and the figures from the suites' results, which are of one run."""
    FIGURES.mkdir(exist_ok=True)
    for path in FIGURES.glob("*.png"):
        path.unlink()
    measured = {name: suite for name, suite in suites.items() if "results" in suite}
    results = {name: [Result(**entry) for entry in suite["results"]] for name, suite in measured.items()}
    run = _text(*_run(next(iter(suites.values()))))
    parts = [INTRODUCTION, f"Measured at {run}.\n", _summary(results)]
    for name, suite in measured.items():
        parts.append(_section(name, suite, results[name]))
    (HERE / "RESULTS.md").write_text("\n".join(parts))


def _run(suite: dict[str, Any]) -> tuple[str, bool, int | None]:
    """What has to be the same of all suites of a page: the commit, the sizes, the rounds."""
    dirty = ", with changes that are in no commit" if suite["commit"]["dirty"] else ""
    return suite["commit"]["hash"] + dirty, suite["full"], suite["rounds"]


def _text(at: str, full: bool, rounds: int | None) -> str:
    sizes = "every size" if full else "the telling sizes"
    return f"commit {at}; {sizes}; {f'{rounds} rounds' if rounds else 'each case with rounds of its own'}"


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


def _summary(results: Mapping[str, Sequence[Result]]) -> str:
    """How many goals each suite meets, by what they are against, and which it misses."""
    goals = {
        name: [(result, against) for result in suite for against in result.goals]
        for name, suite in results.items()
    }
    kinds = ["peers", "limits", "set figures", "itself"]
    lines = ["| goals met, against | " + " | ".join(kinds) + " |", "|---|" + "---|" * len(kinds)]
    for name, suite in goals.items():
        cells = []
        for kind in kinds:
            met = [result.is_met(against) for result, against in suite if _kind(against) == kind]
            cells.append(f"{sum(met)} of {len(met)}" if met else "")
        lines.append(f"| [{name}](#{name}) | {' | '.join(cells)} |")
    for name, suite in goals.items():
        missed = [(result, against) for result, against in suite if not result.is_met(against)]
        if missed:
            lines += ["", f"Missed in {name}:", ""]
        lines += [
            f"- {result.work}: {result.ratio(against):.2f} times {against}, "
            f"the goal is {result.goals[against]:.3g}"
            for result, against in missed
        ]
    return "\n".join(lines) + "\n"


def _kind(against: str) -> str:
    """What a goal is against: a peer, or what else a contender's name begins with."""
    kinds = {LIMIT: "limits", FIXED: "set figures", ITSELF: "itself"}
    return next((kind for start, kind in kinds.items() if against.startswith(start)), "peers")


def _section(name: str, suite: dict[str, Any], results: Sequence[Result]) -> str:
    about = suite["machine"]
    dates = sorted({result.date for result in results if result.date})
    rounds = sorted({len(figures) for result in results for figures in result.figures.values()})
    lines = [
        f"## {name}",
        "",
        f"{suite['title'].rstrip('.')}.",
        "",
        f"`benchmarks/{name}.py`, {_range(dates)}, {_range(rounds)} rounds, {about['cores']} cores of "
        f"{about['processor']}, {about['memory']}, {about['system']}, {_versions(about['versions'])}.",
        *(f"Beside it, in an environment of its own: {_versions(peer)}." for peer in suite["peers"].values()),
        "",
        *table(results),
    ]
    lines += [f"\n{note}" for note in dict.fromkeys(result.note for result in results if result.note)]
    for curve in dict.fromkeys(result.curve for result in results if result.curve):
        points = [result for result in results if result.curve == curve]
        if len(points) > 1:
            lines += ["", f"![{curve}](figures/{_draw(name, curve, points)})"]
    return "\n".join(lines) + "\n"


def _versions(packages: Mapping[str, str]) -> str:
    return ", ".join(f"{package} {number}" for package, number in packages.items())


def _range(several: Sequence[object]) -> str:
    """The least and the most of sorted values."""
    return " to ".join(dict.fromkeys(str(value) for value in (several[0], several[-1]))) if several else "no"


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


def _size(value: float, label: str) -> str:
    if label != "bytes":
        return short(value)
    return f"{value / 1024:.0f} KiB" if value < 1 << 20 else f"{value / (1 << 20):.0f} MiB"


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
    sizes = sorted({result.x or 0.0 for result in results})
    axes.set_xticks(sizes, [_size(size, results[0].x_label) for size in sizes])
    axes.xaxis.minorticks_off()
    # A range that logarithms would show as hardly anything but its minor ticks is told from zero.
    low, high = axes.get_ylim()
    if high < 10 * low:
        axes.set(yscale="linear", ylim=(0, None))
    axes.yaxis.set_major_formatter(lambda value, _: short(value))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if len(axes.get_lines()) > 1:
        axes.legend()
    file = f"{suite}-{''.join(c if c.isalnum() else '-' for c in curve.lower())}.png"
    save(figure, FIGURES / file)
    plt.close(figure)
    return file
