"""PySpark's `transform` in the JVM, asked for and by itself, gives what the Python runtime gives."""

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
    "exported and loaded": ["prediction"],
    "large": ["prediction"],
    "saved and loaded": ["prediction"],
    "trained": ["prediction"],
}
IN_PYTHON = {
    "exported": "TorchScript does not take the module",
    "threshold": "scores no outputKinds but number",
    "neither, by itself": "TorchScript does not take the module",
    "custom operator": "flambeau_test::twice",
    "registered": "TorchScript does not take the module",
    "preprocess": "the model has a preprocess, which is Python's",
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
    assert found["by itself"] == (case not in IN_PYTHON)
    # The runtimes cut their batches at different rows, and torch's kernels differ in the last bits with that.
    assert found["difference"] < 1e-6


@pytest.mark.parametrize("case", IN_PYTHON)
def test_what_the_jvm_cannot_do_is_left_to_python(outcome: dict[str, Any], case: str) -> None:
    found = outcome[case]
    assert not found["by itself"] and found["same schema"] and found["difference"] < 1e-6
    [told] = found["told"]
    assert told.startswith("transform scores in Python: ") and IN_PYTHON[case] in told


@pytest.mark.parametrize("case", ["trained in Python", "by an estimator that was saved"])
def test_a_plain_fit_scores_in_the_jvm(outcome: dict[str, Any], case: str) -> None:
    assert outcome[case]["by itself"] and outcome[case]["difference"] < 1e-6


def test_where_there_may_be_gpus_python_scores(outcome: dict[str, Any]) -> None:
    assert outcome["auto"]
    is_there, told = outcome["cuda"]
    assert not is_there
    assert told == "transform scores in Python: there may be GPUs for it, and device is 'cuda'"


def test_other_sessions_and_streams_read_what_the_jvm_scores(outcome: dict[str, Any]) -> None:
    is_there, total = outcome["another session"]
    is_streamed, sum_of_stream = outcome["stream"]
    assert is_there and is_streamed and sum_of_stream == pytest.approx(total)


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
