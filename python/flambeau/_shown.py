"""Models and estimators as a notebook shows them: HTML tables, and the loss as a small curve in SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from operator import itemgetter
from typing import Any

from flambeau._redacted import redacted

_WIDTH, _HEIGHT = 360, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 18, 24, 26
"""The margins, for the labels of both axes and for the legend."""
_COLORS = ("#1f77b4", "#d95f02", "#2ca02c", "#9467bd")
_LONGEST = 200
_MOST_POINTS = 500
"""Of a curve: more than its pixels, and few enough for a page that holds many."""


def page(title: str, sections: Sequence[tuple[str, str]]) -> str:
    """A title and sections, each a heading and HTML of this module's; empty ones are left out."""
    shown = "".join(
        f'<tr><th style="text-align:left;vertical-align:top">{escape(heading)}</th>'
        f'<td style="text-align:left">{body}</td></tr>'
        for heading, body in sections
        if body
    )
    return f"<div><strong>{escape(title)}</strong><table>{shown}</table></div>"


def lines(texts: Sequence[str]) -> str:
    """Texts as HTML, each in a line of its own, without the secrets of URIs."""
    return "<br>".join(f"<code>{escape(_shortened(redacted(text)))}</code>" for text in texts)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as HTML; nothing where there are no rows."""
    if not rows:
        return ""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def number(value: Any) -> str:
    """A figure in four digits; a dash for what is none."""
    return "-" if value is None else f"{value:.4g}"


def curves(series: Mapping[str, Sequence[float | None]]) -> str:
    """Lines over epochs, counted from 0, by name, as an inline SVG that needs no script; a gap where a value
    is None or not finite. Of a long line the lowest and the highest of every few epochs are drawn. Nothing
    where there is no value at all.
    """
    finite = [value for values in series.values() for run in _runs(values) for _, value in run]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    last = max(len(values) for values in series.values()) - 1
    drawn, legend = [], []
    for index, (name, values) in enumerate(series.items()):
        color = _COLORS[index % len(_COLORS)]
        for run in _runs(values):
            shown = _thinned(run, len(values))
            points = [(_x(epoch, last), _y(value, low, high)) for epoch, value in shown]
            drawn.append(_line(points, color))
        legend.append(f'<tspan fill="{color}" dx="{8 if index else 0}">{escape(name)}</tspan>')
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    ticks = [(low, bottom)] if low == high else [(low, bottom), (high, _TOP)]
    heights = "".join(
        f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{number(value)}</text>' for value, y in ticks
    )
    epochs = "".join(
        f'<text x="{_x(epoch, last):.1f}" y="{bottom + 16}" text-anchor="middle">{epoch}</text>'
        for epoch in sorted({0, last})
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="11" fill="currentColor" '
        f'role="img" aria-label="{escape(", ".join(series))} by epoch">'
        f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="currentColor" opacity="0.4"/>'
        f"{heights}{epochs}"
        f'<text x="{(_LEFT + right) / 2:.1f}" y="{bottom + 16}" text-anchor="middle">epoch</text>'
        f'<text x="{_LEFT}" y="14">{"".join(legend)}</text>{"".join(drawn)}</svg>'
    )


def _line(points: Sequence[tuple[float, float]], color: str) -> str:
    """A line through points, a dot where there is one."""
    if len(points) == 1:
        [(x, y)] = points
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{color}"/>'
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>'


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """The values with their places, in runs without a gap."""
    runs: list[list[tuple[int, float]]] = [[]]
    for place, value in enumerate(values):
        if value is not None and math.isfinite(value):
            runs[-1].append((place, value))
        else:
            runs.append([])
    return [run for run in runs if run]


def _thinned(run: Sequence[tuple[int, float]], num_values: int) -> Sequence[tuple[int, float]]:
    """The ends of a run and, of every few points in between, the lowest and the highest: about `_MOST_POINTS`
    where all runs of a line have `num_values`.
    """
    if num_values <= _MOST_POINTS:
        return run
    every = math.ceil(2 * num_values / _MOST_POINTS)
    kept = {run[0], run[-1]}
    for start in range(0, len(run), every):
        part = run[start : start + every]
        kept |= {min(part, key=itemgetter(1)), max(part, key=itemgetter(1))}
    return sorted(kept)


def _x(epoch: int, last: int) -> float:
    width = _WIDTH - _LEFT - _RIGHT
    return _LEFT + (width * epoch / last if last else width / 2)


def _y(value: float, low: float, high: float) -> float:
    height = _HEIGHT - _TOP - _BOTTOM
    return _TOP + (height * (high - value) / (high - low) if high > low else height)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
