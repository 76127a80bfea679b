"""The example of `make quickstart`, as a user runs it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "flights.py"


@pytest.mark.matrix
def test_flights(tmp_path: Path) -> None:
    """Trains on two workers, beats both baselines, and predicts the same in a fresh process."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--output", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=500,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

    scores = dict(
        re.findall(r"^  (predicting the mean|linear regression|flambeau) +([\d.]+)$", done.stdout, re.M)
    )
    assert (
        float(scores["flambeau"]) < float(scores["linear regression"]) < float(scores["predicting the mean"])
    )
    epochs = re.findall(r"^ +(\d+) +([\d.]+) +([\d.]+) +[\d.]+ +[\d,]+$", done.stdout, re.M)
    assert [int(number) for number, *_ in epochs] == list(range(1, len(epochs) + 1))
    assert len(epochs) > 1
    assert float(epochs[-1][2]) < float(epochs[0][2])
    assert re.search(r"fresh process: [\d,]+ flights scored, 0 differ", done.stdout)
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
