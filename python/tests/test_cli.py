"""The program `flambeau`. Oracles: flambeau-worker, plain torch in a process of its own, the packages' own
metadata, and what a fit says.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fitted
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from pyspark.sql import SparkSession
from test_saving import Writing, with_program

import flambeau
from flambeau._cli import main
from flambeau._machine import NEEDED, PYSPARK, is_within
from flambeau._rank.native_runtime import binary
from flambeau._report import Report
from flambeau._spark.fit.preflight import session_facts
from flambeau._spark.saving.plain_torch import convert
from flambeau._spark.saving.stages import save_here
from flambeau._tensors import TensorColumns
from flambeau.errors import ParamError

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
PROGRAM = [sys.executable, "-m", "flambeau"]


def environment(**given: str) -> dict[str, str]:
    """This process's, with its modules, and no other libtorch than this Python's."""
    left_out = ("LIBTORCH", "FLAMBEAU_PYTHON", "SPARK_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "PYTHONPATH": os.pathsep.join(sys.path), **given}


def run(*command: object, **given: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=300, env=environment(**given)
    )


def test_the_help_is_the_workers_with_what_python_adds() -> None:
    script = "import sys; from flambeau._cli import main; main(); print(*sys.modules, file=sys.stderr)"
    done = run(sys.executable, "-c", script, "--help")
    assert done.returncode == 0, done.stderr
    workers = run(binary(), "--help").stdout.replace("flambeau-worker", "flambeau").rstrip()
    assert done.stdout.startswith(workers) and workers.count("\n    flambeau ") > 5
    assert "\n    flambeau doctor " in done.stdout and "\n    flambeau convert " in done.stdout
    # What makes a help wait.
    assert not {"torch", "pyspark", "pandas", "pyarrow", "numpy"} & set(done.stderr.split())
    assert run(*PROGRAM, "convert", "--help").stdout == done.stdout


def test_other_commands_are_the_workers(tmp_path: Path) -> None:
    rows = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"x": [1.5, 2.5]}), rows)
    for arguments in ([], ["learn"], ["train", "--rank", "0"], ["--version"], ["inspect", rows]):
        ours = run(*PROGRAM, *arguments)
        workers = run(binary(), *arguments, LIBTORCH=str(Path(torch.__file__).parent))
        assert (ours.returncode, ours.stdout, ours.stderr) == (
            workers.returncode,
            workers.stdout,
            workers.stderr,
        )
    found = json.loads(run(*PROGRAM, "libtorch", PATH="/nowhere").stdout)
    assert Path(found["libraries"][0]).parent.samefile(Path(torch.__file__).parent / "lib")


LOADED = """
import sys, torch
folder = sys.argv[1]
x = torch.load(f"{folder}/x.pt")
with torch.inference_mode():
    torch.save(torch.jit.load(f"{folder}/model.pt").eval()(x), f"{folder}/scripted.out")
    torch.save(torch.export.load(f"{folder}/model.pt2").module()(x), f"{folder}/exported.out")
weights = torch.load(f"{folder}/state.pt", weights_only=True)
net = torch.nn.ModuleDict({"hidden": torch.nn.Linear(4, 8), "norm": torch.nn.BatchNorm1d(8)})
net["output"] = torch.nn.Linear(8, 1)
net.load_state_dict(weights)
with torch.inference_mode():
    made = net.eval()["output"](torch.relu(net["norm"](net["hidden"](x))))
torch.save(made, f"{folder}/weights.out")
assert not {"flambeau", "pyspark", "safetensors"} & set(sys.modules)
"""


def test_a_converted_model_predicts_the_same_bits_in_plain_torch(tmp_path: Path) -> None:
    model = fitted.regressor(tmp_path / "fit", fitted.trained(fitted.Mlp(4, 1)))
    save_here(model, tmp_path / "saved")
    x = torch.randn(33, 4)
    torch.save(x, tmp_path / "x.pt")
    # Without a JVM none can be started unseen.
    done = run(
        *PROGRAM, "convert", tmp_path / "saved", tmp_path / "model.pt", JAVA_HOME="/nowhere", PATH="/nowhere"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    convert(str(tmp_path / "saved"), str(tmp_path / "model.pt2"))
    convert(str(tmp_path / "saved"), str(tmp_path / "state.pt"), weights=True)
    done = run(sys.executable, "-c", LOADED, tmp_path)
    assert done.returncode == 0, done.stderr
    expected = model.predict(x.numpy())
    for form in ("scripted", "exported", "weights"):
        found = torch.load(tmp_path / f"{form}.out")[:, 0].double().numpy()
        assert np.array_equal(found, expected), form


def test_tied_weights_are_there_under_each_name(tmp_path: Path) -> None:
    module = fitted.Tied()
    inputs = [TensorColumns("i", ("i",), "int64", ())]
    model = fitted.fitted(flambeau.TorchEstimator(model=module, loss="mse"), module, inputs, tmp_path / "fit")
    save_here(model, tmp_path / "saved")
    convert(str(tmp_path / "saved"), str(tmp_path / "state.pt"), weights=True)
    again = fitted.Tied()
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(again.output.weight, module.output.weight)
    i = torch.arange(10)
    for name in ("model.pt", "model.pt2"):
        convert(str(tmp_path / "saved"), str(tmp_path / name))
        path = str(tmp_path / name)
        loaded = torch.jit.load(path) if name == "model.pt" else torch.export.load(path).module()
        assert torch.equal(loaded(i), module(i)), name


def test_what_cannot_be_converted_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pickled = fitted.regressor(tmp_path / "fit", fitted.Branching())
    save_here(pickled, tmp_path / "pickled")
    save_here(fitted.regressor(tmp_path / "fit2"), tmp_path / "writing")
    torch.jit.script(Writing(str(tmp_path / "written"))).save(str(tmp_path / "script.pt"))
    with_program(tmp_path / "writing", "scripted", (tmp_path / "script.pt").read_bytes())
    (tmp_path / "there.pt").touch()
    for model, out, said in (
        ("pickled", "out.pt", r"no scripted program \(.*\): take --weights"),
        ("writing", "out.pt", r"no Spark session allows it .*aten::save"),
        ("writing", "out.pt2", r"no exported program .*: take \.pt"),
        ("writing", "there.pt", "is there already"),
        ("writing", "out.onnx", r"ends in neither \.pt"),
        ("writing", "nowhere/out.pt", "there is no directory"),
    ):
        with pytest.raises(ParamError, match=said):
            convert(str(tmp_path / model), str(tmp_path / out))
    convert(str(tmp_path / "pickled"), str(tmp_path / "state.pt"), weights=True)
    weights = torch.load(tmp_path / "state.pt", weights_only=True)
    expected = pickled.module().state_dict()
    assert weights.keys() == expected.keys() and all(torch.equal(weights[n], expected[n]) for n in weights)
    monkeypatch.setattr(sys, "argv", ["flambeau", "convert", str(tmp_path / "fit"), str(tmp_path / "out.pt")])
    capsys.readouterr()
    assert main() == 1
    told = capsys.readouterr().err
    assert "is not a saved stage" in told and told.count("\n") == 1
    assert not (tmp_path / "written").exists() and not (tmp_path / "out.pt").exists()


def by_name(report: Report) -> dict[str, Any]:
    return {fact["name"]: fact for fact in json.loads(report.toJson())["facts"]}


def test_a_machine_is_looked_at() -> None:
    report = flambeau.doctor()
    found = by_name(report)
    for name in ("torch", "pandas", "pyarrow", "pyspark"):
        assert found[name]["found"] == version(name) and found[name]["state"] == "ok"
    assert found["cores"]["found"] == str(len(os.sched_getaffinity(0)))
    assert report.isWell, str(report)
    assert len(str(report).splitlines()) == len(report.facts) and "Java" in report._repr_html_()


def test_what_a_machine_lacks_is_told_with_what_to_do() -> None:
    done = run(*PROGRAM, "doctor", "--json", JAVA_HOME="/nowhere", FLAMBEAU_WORKER="/nowhere")
    told = json.loads(done.stdout)
    facts = {fact["name"]: fact for fact in told["facts"]}
    assert done.returncode == 1 and told["isWell"] is False
    assert facts["Java"]["state"] == "missing" and "set JAVA_HOME" in facts["Java"]["remedy"]
    # A fit with the default runtime needs none.
    assert facts["flambeau-worker"]["state"] == "optional"
    assert "FLAMBEAU_WORKER" in facts["flambeau-worker"]["remedy"]
    wrong = run(*PROGRAM, "doctor", "--num-workers", "2")
    assert wrong.returncode == 2 and "give --master or --remote" in wrong.stderr


def test_versions_that_are_taken_are_those_of_the_package() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    wanted = {one.name: one.specifier for one in map(Requirement, project["dependencies"])}
    assert {name: SpecifierSet(bounds) for name, bounds in NEEDED.items()} == wanted
    assert SpecifierSet(PYSPARK) == Requirement(project["optional-dependencies"]["spark"][0]).specifier
    for found in ("2.3.1", "2.4.0", "2.4", "2.13.0", "2.13.0+cu130", "2.14.0", "3", "10.0"):
        for bounds in (">=2.4,<2.14", ">=3", ">=2,<3", ""):
            assert is_within(found, bounds) == SpecifierSet(bounds).contains(found), (found, bounds)


def test_a_session_is_looked_at_by_the_checks_of_a_fit(any_spark_long: SparkSession, tmp_path: Path) -> None:
    spark = any_spark_long
    found = by_name(flambeau.doctor(spark, numWorkers=2, workDir=str(tmp_path / "work")))
    assert found["task slots"]["found"] == "2, for numWorkers 2"
    assert (
        f"torch {torch.__version__.split('+')[0]}, pyarrow {pa.__version__} (2)" in found["workers"]["found"]
    )
    assert found["work directory"]["state"] == "ok" and str(tmp_path) in found["work directory"]["found"]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    short = by_name(Report(list(session_facts(spark, 3, None))))
    assert short["task slots"]["state"] == "missing" and "workers" not in short
    assert "numWorkers is 3 and the cluster has 2 task slots" in short["task slots"]["remedy"]
    (tmp_path / "file").touch()
    blocked = by_name(Report(list(session_facts(spark, 2, str(tmp_path / "file")))))
    assert "not a directory that all workers reach" in blocked["work directory"]["remedy"]
