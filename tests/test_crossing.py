"""What PySpark or Scala saved, now or in an earlier version, read by the other, by Spark's own readers, and
by plain PyTorch.

Both sides save anew what `golden/make.py` makes: models, pipelines of indexer, assembler and model, and
estimators. The predictions of the side that saved are the oracle for the side that reads. One session with
the jar saves, another one reads, and so does one without the jar.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from scala import jars
from spark_program import outcome_of
from test_docs import python_blocks
from test_golden import FORMATS, check, paths

HERE = Path(__file__).resolve().parent
SAVED = HERE.parent / "docs" / "saved-models.md"
PICKLED = {
    "python/pickled": "holds its program as a pickle, which only Python reads",
    "python/estimator": "holds its module, loss or optimizer as a pickle, which only Python reads",
}
_SECONDS = 300


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that both sides saved to, in a session that has the jar."""
    directory = tmp_path_factory.mktemp("crossing") / "saved"
    command = [sys.executable, str(HERE / "golden" / "make.py"), str(directory), "--jars", jars()]
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return directory


@pytest.fixture(scope="module")
def without_jar(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is read in a session that has no jar, by label."""
    return outcome_of("predict.py", tmp_path_factory.mktemp("no-jar"), reads=reads(saved, "load_pipeline"))


@pytest.fixture(scope="module")
def with_jar(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is read, and trained anew, in a session that has it."""
    given = reads(saved, "PipelineModels", "JvmPipelineModel")
    return outcome_of("predict.py", tmp_path_factory.mktemp("jar"), reads=given, refit=saved, jars=jars())


def reads(saved: Path, by: str, *readers: str) -> str:
    """All stages, those of each format among them, read by our reader, and pipelines by those of Spark."""
    pipelines = {side: str(saved / side / "pipeline") for side in ("python", "scala")}
    every = {directory.name: {"by": by, "paths": paths(directory)} for directory in (saved, *FORMATS)}
    own = {name: {"by": name, "paths": pipelines} for name in ("PipelineModel", *readers)}
    return json.dumps(every | own)


def predicted(directory: Path, side: str) -> Any:
    return json.loads((directory / "expected.json").read_text())[side]["pipeline"]


def test_python_reads_both_without_the_jar(saved: Path, without_jar: dict[str, Any]) -> None:
    check(saved, without_jar[saved.name])


def test_scala_reads_both(saved: Path, with_jar: dict[str, Any]) -> None:
    check(saved, with_jar[saved.name], PICKLED)


@pytest.mark.parametrize("directory", FORMATS, ids=lambda path: path.name)
def test_python_reads_each_format(directory: Path, without_jar: dict[str, Any]) -> None:
    check(directory, without_jar[directory.name])


@pytest.mark.parametrize("directory", FORMATS, ids=lambda path: path.name)
def test_scala_reads_each_format(directory: Path, with_jar: dict[str, Any]) -> None:
    """All but what only Python can read, which it refuses in words."""
    check(directory, with_jar[directory.name], PICKLED)


@pytest.mark.parametrize("session", ["with_jar", "without_jar"])
def test_pysparks_own_reader_reads_both(saved: Path, session: str, request: pytest.FixtureRequest) -> None:
    outcome = request.getfixturevalue(session)["PipelineModel"]
    for side in ("python", "scala"):
        close(outcome[side], predicted(saved, side))


def test_scalas_own_reader_reads_both(saved: Path, with_jar: dict[str, Any]) -> None:
    for side in ("python", "scala"):
        close(with_jar["JvmPipelineModel"][side], predicted(saved, side))


def close(outcome: dict[str, Any], expected: list[list[float]]) -> None:
    assert "error" not in outcome, outcome
    torch.testing.assert_close(
        torch.tensor(outcome["predictions"]), torch.tensor(expected), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("side", ["python", "scala"])
@pytest.mark.parametrize("form", ["program.pt", "program.pt2"])
def test_plain_pytorch_reads_models_by_the_documents_lines(
    saved: Path, tmp_path: Path, side: str, form: str
) -> None:
    """The blocks of docs/saved-models.md, in a process that imports neither Spark nor Flambeau."""
    model = saved / side / "regressor"
    if not (model / form).exists():
        pytest.skip(f"SKIPPED: {side} saved no {form} of this module")
    shutil.copytree(model, tmp_path / "model")
    program = python_blocks(SAVED)
    if form == "program.pt2":
        first = 'torch.jit.load("model/program.pt").eval()'
        assert first in program
        program = program.replace(first, 'torch.export.load("model/program.pt2").module()')
    program += """
import json, math, sys
numbers = [[math.sin(i), math.cos(2.0 * i)] for i in range(12)]
with torch.inference_mode():
    print(json.dumps(module(torch.tensor(numbers)).reshape(-1).tolist()))
assert not {"flambeau", "pyspark"} & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=_SECONDS
    )
    assert done.returncode == 0, done.stderr
    found = torch.tensor(json.loads(done.stdout.splitlines()[-1]))
    expected = json.loads((saved / "expected.json").read_text())[side]["regressor"]
    torch.testing.assert_close(found, torch.tensor([row[0] for row in expected]), rtol=1e-6, atol=1e-6)


def test_estimators_cross_and_train_the_same(saved: Path, with_jar: dict[str, Any]) -> None:
    """What Scala saved trains in PySpark on the native runtime; what PySpark saved of a program, in Scala."""
    outcome = with_jar["refit"]
    close({"predictions": outcome["scala estimator in python"]}, predicted(saved, "scala"))
    close({"predictions": outcome["scala pipeline by PySpark's reader"]}, predicted(saved, "scala"))
    close({"predictions": outcome["python estimator in scala"]}, predicted(saved, "scala"))
    assert "as a pickle, which only Python reads" in outcome["refused"]


def test_each_trains_on_what_the_other_prepared(with_jar: dict[str, Any]) -> None:
    """To the bit as on the DataFrame, from files that are described alike, with one text for a refusal."""
    outcome = with_jar["prepared"]
    for side in ("python", "scala"):
        on_frame = outcome[side]["df"]
        assert len(on_frame["val_loss"]) == 2 and len(on_frame["predictions"]) == 12
        assert outcome[side]["python"] == on_frame
        assert outcome[side]["scala"] == on_frame
    described = [
        {
            **{
                name: manifest[name]
                for name in ("format", "schema", "columns", "split", "handleInvalid", "numRows")
            },
            "files": [(one["isValidation"], one["fold"], one["numRows"]) for one in manifest["files"]],
        }
        for manifest in outcome["manifests"].values()
    ]
    assert described[0] == described[1]
    assert len(outcome["refused"]) == 6
    for ours, theirs in outcome["refused"]:
        assert "prepare" in ours and ours in theirs
