"""PySpark's `transform` with `runtime="native"`: what the Python runtime gives, made in the JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scala import jars
from spark_program import outcome_of

CASES = {
    "packed columns": ["prediction"],
    "pickled": ["prediction"],
    "arrays": ["prediction"],
    "vectors": ["rawPrediction", "probability", "prediction"],
    "several": ["prediction"],
    "output columns": ["mean", "top"],
    "exported": ["prediction"],
    "large": ["prediction"],
    "saved and loaded": ["prediction"],
    "trained": ["prediction"],
}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory: Path = tmp_path_factory.mktemp("native-transform")
    return outcome_of("native_transform.py", directory, jars=jars())


@pytest.mark.parametrize("case", CASES)
def test_it_gives_what_the_python_runtime_gives(outcome: dict[str, Any], case: str) -> None:
    found = outcome[case]
    assert found["columns"] == CASES[case]
    assert found["in the JVM"] and found["same schema"]
    # The runtimes cut their batches at different rows, and torch's kernels differ in the last bits with that.
    assert found["difference"] < 1e-6


def test_the_estimators_runtime_is_the_models_and_is_saved(
    outcome: dict[str, Any],
) -> None:
    assert outcome["taken over"] == "native"
    assert outcome["loaded"] == "native"


def test_what_is_refused(outcome: dict[str, Any]) -> None:
    assert outcome["neither form"].startswith("ParamError: model: runtime='native' runs what TorchScript or")
    assert "or take runtime='python'" in outcome["neither form"]
    assert "column 'x2' holds a null: fill it (Imputer, DataFrame.fillna)" in outcome["null"]
    assert outcome["column"].startswith("DataError: no column 'x3' for the input")
