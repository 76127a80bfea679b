"""The example of `make quickstart` and the study on the same flights, as a user runs them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def printed(directory: Path, example: str, *arguments: str) -> str:
    """What an example prints that runs in a directory and ends well."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example), "--output", str(directory), *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        cwd=directory,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.matrix
def test_flights(tmp_path: Path) -> None:
    """Trains on two workers, beats both baselines, and predicts the same in a fresh process."""
    out = printed(tmp_path, "flights.py")
    scores = dict(re.findall(r"^  (predicting the mean|linear regression|flambeau) +([\d.]+)$", out, re.M))
    assert (
        float(scores["flambeau"]) < float(scores["linear regression"]) < float(scores["predicting the mean"])
    )
    epochs = re.findall(r"^ +(\d+) +([\d.]+) +([\d.]+) +[\d.]+ +[\d,]+$", out, re.M)
    assert [int(number) for number, *_ in epochs] == list(range(1, len(epochs) + 1))
    assert len(epochs) > 1
    assert float(epochs[-1][2]) < float(epochs[0][2])
    assert re.search(r"fresh process: [\d,]+ flights scored, 0 differ", out)
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_a_search_on_the_flights(tmp_path: Path) -> None:
    """Beats predicting the mean, and each trial tells of its epochs."""
    out = printed(tmp_path, "search_flights.py", "--trials", "3", "--rows", "20000")
    trials = re.findall(r"^ +(\d) (COMPLETE|PRUNED) +(\d) +([\d.]+)  \{'width'", out, re.M)
    assert [number for number, *_ in trials] == ["0", "1", "2"]
    assert all(int(epochs) == 6 for _, state, epochs, _ in trials if state == "COMPLETE")
    scores = dict(re.findall(r"^  (predicting the mean|the best trial) +([\d.]+)$", out, re.M))
    assert float(scores["the best trial"]) < float(scores["predicting the mean"])
