"""What earlier versions saved; `test_crossing.py` reads it, in the sessions that it has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

FORMATS = sorted((Path(__file__).parent / "golden").glob("format-*"))


def stages(directory: Path) -> dict[str, Path]:
    """The saved models, pipelines and estimators of a format, by side and name."""
    found = [path for side in ("python", "scala") for path in sorted((directory / side).iterdir())]
    return {f"{path.parent.name}/{path.name}": path for path in found}


def check(directory: Path, outcome: dict[str, Any], refused: dict[str, str] | None = None) -> None:
    """Every stage predicts what it did, or is refused with the words that are expected.

    The estimator learns what it learned in the pipeline.
    """
    expected = json.loads((directory / "expected.json").read_text())
    assert set(outcome) == set(stages(directory))
    for name, found in outcome.items():
        side, stage = name.split("/")
        if refused and name in refused:
            assert refused[name] in found["error"]
            continue
        assert "error" not in found, (name, found)
        model, tolerance = ("pipeline", 1e-4) if stage == "estimator" else (stage, 1e-6)
        for row, wanted in zip(found["predictions"], expected[side][model], strict=True):
            for value, number in zip(row, wanted, strict=True):
                np.testing.assert_allclose(flat(value), flat(number), tolerance, tolerance, err_msg=name)


def flat(value: Any) -> list[float]:
    """A number, or lists of numbers within lists, as one list."""
    return [number for item in value for number in flat(item)] if isinstance(value, list) else [float(value)]


def paths(directory: Path) -> dict[str, str]:
    """The stages' directories by their names."""
    return {name: str(path) for name, path in stages(directory).items()}


def test_there_are_formats_of_both_sides() -> None:
    for directory in FORMATS:
        kinds = {"regressor", "classifier", "pipeline", "estimator"}
        assert {f"{side}/{kind}" for side in ("python", "scala") for kind in kinds} <= set(stages(directory))
    assert FORMATS
