"""`runtime="native"`: the fits of the Python runtime, in processes without Python; and what they end in when
something goes wrong.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import make_job, tensor, train, write_shards
from ports import held_port
from pyspark.sql import DataFrame, SparkSession
from torch import Tensor, nn

from flambeau import (
    DataError,
    ParamError,
    TorchClassifier,
    TorchRegressor,
    WorkerError,
    WorkerLost,
    save_program,
)
from flambeau._libtorch import libtorch_of
from flambeau._rank.native_runtime import NativeRequest, binary
from flambeau._rank.worker import RankOutcome
from flambeau._spark.fit import launch
from flambeau._spark.fit.native_program import NativePayload, NativeProgram
from flambeau._tensors import TensorColumns

pytestmark = pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="SKIPPED: flambeau-worker runs on torch 2.13"
)

FEATURES = TensorColumns("x", ("x",), "float32", (12,))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Dropout(0.3), nn.Linear(32, 1))


def columns(num_rows: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.standard_normal((num_rows, 12)).astype(np.float32)
    return {"x": x, "y": (np.sin(x[:, 0]) + x[:, 1] * x[:, 2]).astype(np.float32)}


class Recorded:
    """A named loss that writes down the value of each batch, one file a process."""

    def __init__(self, function: Any, directory: str) -> None:
        self.function = function
        self.directory = directory

    def __call__(self, output: Tensor, label: Tensor) -> Tensor:
        loss: Tensor = self.function(output, label)
        if output.requires_grad:
            with open(f"{self.directory}/losses-{os.getpid()}", "ab") as file:
                file.write(np.float64(loss.item()).tobytes())
        return loss


def native_lines(
    job: dict[str, Any], program: NativeProgram, world_size: int, folder: Path
) -> list[dict[str, Any]]:
    """What rank 0 of a training by the program itself, without a launcher, tells: steps, then the result."""
    folder.mkdir()
    payload = program.payload([FEATURES])
    request = payload.request(job, b"", {}, True)
    assert isinstance(request, NativeRequest)
    (folder / "job.json").write_text(json.dumps(request.job_with_files(folder)))
    command = [str(binary()), "train", "--job", str(folder / "job.json"), "--report-steps"]
    command += ["--world-size", str(world_size), "--libtorch", str(libtorch_of(None))]
    environment = {**os.environ, "FLAMBEAU_SECRET": "a secret of this test"}
    with held_port() as port:
        command += ["--rendezvous", f"127.0.0.1:{port}"]
        ranks = [
            subprocess.Popen(
                [*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True, env=environment
            )
            for rank in range(world_size)
        ]
        lines = [
            [json.loads(line) for line in rank.communicate(timeout=120)[0].splitlines()] for rank in ranks
        ]
    assert all("result" in of_rank[-1] for of_rank in lines), lines
    return lines[0]


def native_steps(job: dict[str, Any], program: NativeProgram, world_size: int, folder: Path) -> list[float]:
    """The losses of the steps."""
    return [line["step"]["loss"] for line in native_lines(job, program, world_size, folder) if "step" in line]


@pytest.mark.parametrize(
    ("world_size", "optimizer", "sync_every"),
    [(1, "sgd", 1), (1, "adam", 1), (2, "sgd", 1), (2, "adam", 1), (2, "adam", 3)],
)
def test_the_first_hundred_losses_are_those_of_python(
    tmp_path: Path, world_size: int, optimizer: str, sync_every: int
) -> None:
    """With batch norm, dropout and a schedule: the generators are seeded and drawn from alike."""
    num_steps, batch_size = 100, 16
    shards = write_shards(tmp_path / "data", columns(num_steps * batch_size * world_size), num_shards=2)
    options = {"name": optimizer, "options": {"lr": 0.02}}
    params: dict[str, Any] = {"numWorkers": world_size, "batchSize": batch_size, "numThreads": 1, "seed": 5}
    params |= {
        "scaleLearningRate": True,
        "warmupEpochs": 0.1,
        "lrSchedule": "cosine",
        "syncEvery": sync_every,
    }
    job = make_job(tmp_path / "work", shards, [tensor("x")], [tensor("y")], checkpointInterval=-1, **params)
    loss = Recorded(nn.functional.mse_loss, str(tmp_path))
    train(job, {"model": net(), "loss": loss, "optimizer": options}, world_size, tmp_path / "ranks")
    of_ranks = [np.fromfile(path, dtype=np.float64) for path in tmp_path.glob("losses-*")]
    expected = np.mean(of_ranks, axis=0)

    program = NativeProgram(net(), {}, None, {"name": "mse", "options": {}}, options, [], None)
    job["attempt"]["id"] = "a2"
    losses = native_steps(job, program, world_size, tmp_path / "native")
    assert len(losses) == num_steps
    np.testing.assert_allclose(losses, expected, rtol=1e-6)


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_loss_is_scaled_as_in_python(tmp_path: Path, world_size: int) -> None:
    """Labels so large that gradients overflow: the same steps are skipped, at the same scales."""
    data = columns(16 * 40 * world_size)
    data["y"] *= 100
    shards = write_shards(tmp_path / "data", data, num_shards=2)
    options = {"name": "adam", "options": {"lr": 0.02}}
    params: dict[str, Any] = {"numWorkers": world_size, "batchSize": 16, "numThreads": 1, "seed": 5}
    params |= {"gradientClipNorm": 1.0, "precision": "fp16", "epochs": 2, "checkpointInterval": -1}
    job = make_job(tmp_path / "work", shards, [tensor("x")], [tensor("y")], validation=shards, **params)
    objects = {"model": net(), "loss": "mse", "optimizer": options}
    python, _ = train(job, objects, world_size, tmp_path / "ranks")
    program = NativeProgram(net(), {}, None, {"name": "mse", "options": {}}, options, [], None)
    job["attempt"]["id"] = "a2"
    native = native_lines(job, program, world_size, tmp_path / "native")[-1]["result"]
    for ours, theirs in zip(native["history"]["epochs"], python["history"]["epochs"], strict=True):
        assert ours["lossScale"] == theirs["lossScale"] and ours["skippedSteps"] == theirs["skippedSteps"]
        for name in ("loss", "validationLoss"):
            # A float16 has 11 bits: what the two round apart grows with the steps.
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3)
    assert native["history"]["epochs"][0]["skippedSteps"] > 0


class Wide(nn.Module):
    """Two inputs, an embedding, and a branch that TorchScript keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.layer = nn.Linear(7, 3)

    def forward(self, x: Tensor, k: Tensor) -> Tensor:
        return self.layer(torch.cat([x, self.table(k)], 1))


def classes(spark: SparkSession, num_rows: int = 400) -> DataFrame:
    random = np.random.default_rng(3)
    x = random.standard_normal((num_rows, 3))
    k = random.integers(0, 5, num_rows)
    label = (x[:, 0] + k > 2).astype(int) + (x[:, 1] > 0)
    rows = [(xs.tolist(), int(ks), float(y)) for xs, ks, y in zip(x, k, label, strict=True)]
    return spark.createDataFrame(rows, "x array<float>, k int, label double").repartition(2).cache()


def classifier(**params: Any) -> TorchClassifier:
    torch.manual_seed(1)
    settings: dict[str, Any] = {
        "model": Wide(),
        "inputCols": ["x", "k"],
        "optimizer": {"name": "adam", "options": {"lr": 0.02}},
        "metrics": ["accuracy"],
        "numWorkers": 2,
        "numThreads": 1,
        "epochs": 6,
        "seed": 4,
        "verbose": 0,
    }
    return TorchClassifier(**(settings | params))


def test_a_fit_is_that_of_the_python_runtime(any_spark: SparkSession, tmp_path: Path) -> None:
    df = classes(any_spark)
    python = classifier(validationFraction=0.2, runtime="python").fit(df)
    native = classifier(validationFraction=0.2, runtime="native", workDir=str(tmp_path / "work")).fit(df)
    # That session has no jar to score with.
    assert [model.getRuntime() for model in (python, native)] == ["python", "auto"]
    assert type(native) is type(python) and isinstance(native.module(), Wide)
    for name in ("loss", "val_loss", "accuracy", "val_accuracy"):
        np.testing.assert_allclose(native.history[name], python.history[name], rtol=1e-5)
    ours, theirs = native.module().state_dict(), python.module().state_dict()
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, rtol=1e-4, atol=1e-6)
    scored = native.transform(df).select("prediction", "label").toPandas()
    assert (scored["prediction"] == scored["label"]).mean() > 0.5
    for kind in ("attempts", "programs"):
        assert not list((tmp_path / "work" / kind).glob("*"))


def test_programs_take_inputs_by_name(spark: SparkSession, tmp_path: Path) -> None:
    df = classes(spark)
    program = str(tmp_path / "program")
    save_program(Wide(), program, [torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)])
    names = {"k": "k", "x": "x"}
    for model in (torch.jit.script(Wide()), program):
        fitted = classifier(model=model, inputCols=names, runtime="native", epochs=1).fit(df)
        assert len(fitted.transform(df).select("prediction").collect()) == 400
        with pytest.raises(ParamError, match=r"in any order: x, k"):
            classifier(model=model, inputCols={"k": "k", "y": "x"}, runtime="native").fit(df)


def test_a_scripted_module_is_trained_and_saved_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    df = classes(spark)
    module = torch.jit.script(Wide())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    model = classifier(model=module, runtime="native", loss=nn.CrossEntropyLoss()).fit(df)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    model.save(str(tmp_path / "model"))
    again = type(model).load(str(tmp_path / "model"))
    rows = [torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)]
    with torch.inference_mode():
        assert torch.equal(again.module()(*rows), model.module()(*rows))
    resumed = classifier(model=module, runtime="native", initialModel=str(tmp_path / "model"), epochs=1)
    assert resumed.fit(df).history["loss"][0] < model.history["loss"][0]


class SquaredError(nn.Module):
    """A loss of the user's own: one value a row."""

    def forward(self, output: Tensor, label: Tensor) -> Tensor:
        return (output - label).square().reshape(output.shape[0], -1).mean(1)


def regression(spark: SparkSession, num_rows: int = 200) -> DataFrame:
    x = np.random.default_rng(3).standard_normal((num_rows, 4))
    rows = [(xs.tolist(), float(xs.sum()), 1.0) for xs in x]
    return spark.createDataFrame(rows, "features array<float>, label float, w float").repartition(2).cache()


def regressor(**params: Any) -> TorchRegressor:
    torch.manual_seed(1)
    settings: dict[str, Any] = {"model": nn.Linear(4, 1), "optimizer": "sgd", "numWorkers": 2, "verbose": 0}
    return TorchRegressor(**(settings | {"runtime": "native", "epochs": 2, "numThreads": 1} | params))


def test_a_loss_of_the_users_is_scripted(spark: SparkSession) -> None:
    df = regression(spark)
    own = regressor(loss=SquaredError(), weightCol="w").fit(df)
    named = regressor(loss="mse", weightCol="w").fit(df)
    assert own.history["loss"] == pytest.approx(named.history["loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"loss": lambda output, label: (output - label).mean()}, "loss: runtime='native' takes a name"),
        ({"optimizer": lambda p: torch.optim.SGD(p, lr=0.1)}, "optimizer: runtime='native' takes adam"),
        ({"optimizer": "adagrad"}, "optimizer: runtime='native' takes adam"),
        (
            {"metrics": {"mine": lambda output, label: output.mean()}},
            "metrics: runtime='native' takes a list",
        ),
        ({"metrics": ["mae", "auc"]}, "metrics: runtime='native' has mse, .* and no auc"),
        ({"runtime": "jvm"}, "runtime must be 'auto' or 'python' or 'native', got 'jvm'"),
        ({"runtime": "python", "model": "net.pt"}, "set runtime='native'"),
        (
            {"runtime": "python", "model": torch.jit.script(nn.Linear(2, 1))},
            "model is a TorchScript module: set runtime='native'",
        ),
    ],
)
def test_what_libtorch_cannot_have_is_refused(spark: SparkSession, params: dict[str, Any], said: str) -> None:
    with pytest.raises(ParamError, match=said):
        regressor(**params).fit(regression(spark))


class Exportable(nn.Module):
    """A lambda, which TorchScript does not take, and dropout, for which the two modes differ."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
        self.function = lambda x: x.tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.function(x))


def test_a_module_that_is_exported_trains_as_in_python(spark: SparkSession) -> None:
    df, histories = regression(spark), {}
    for runtime in ("python", "native"):
        histories[runtime] = (
            regressor(model=exportable(), runtime=runtime, validationFraction=0.3).fit(df).history
        )
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(histories["native"][name], histories["python"][name], rtol=1e-5)


def exportable() -> nn.Module:
    torch.manual_seed(2)
    return Exportable()


class Numpy(nn.Module):
    """A forward that leaves torch, which neither TorchScript nor torch.export can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.from_numpy(np.tanh(x.numpy())))


def test_a_module_that_is_no_program_is_refused_with_the_reasons(spark: SparkSession) -> None:
    with pytest.raises(ParamError, match=r"neither takes Numpy \(scripted: .*exported: .*runtime='python'"):
        regressor(model=Numpy()).fit(regression(spark))


class Crashing(nn.Module):
    """Makes libtorch write outside its memory where a row has a large number in it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        output = self.layer(x)
        if bool((x > 100).any()):
            # Not a constant, which TorchScript would compute beforehand.
            bounds = torch.tensor([0, 1 << 40]) * x.shape[0]
            rows = torch._convert_indices_from_csr_to_coo(bounds, torch.zeros([1], dtype=torch.int64))
            output = output + rows.sum()
        return output


def test_a_segfault_fails_the_fit_with_rank_and_signal(spark: SparkSession) -> None:
    df = regression(spark).unionAll(
        spark.createDataFrame([([200.0] * 4, 0.0, 1.0)], "features array<float>, label float, w float")
    )
    with pytest.raises(WorkerLost, match=r"flambeau-worker of rank \d was killed by signal 11 \(SIGSEGV\)"):
        regressor(model=Crashing(), maxRestarts=1, checkpointInterval=-1).fit(df)


def test_an_error_of_the_rows_is_a_data_error(spark: SparkSession) -> None:
    df = classes(spark)
    df = df.withColumn("label", df.label + 7)
    with pytest.raises(DataError, match="class label") as told:
        classifier(runtime="native").fit(df)
    assert (told.value.epoch, told.value.step) == (0, 0)  # type: ignore[attr-defined]
    assert told.value.rank in (0, 1)  # type: ignore[attr-defined]


def children_of(pid: int) -> list[int]:
    """The running `flambeau-worker` processes below a process."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "comm").read_text().strip() == "flambeau-worker":
                found.append(int(entry.name))
        except OSError:
            continue
    return [one for one in found if pid in ancestors_of(one)]


def ancestors_of(pid: int) -> list[int]:
    above = []
    try:
        while pid > 1:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
            above.append(pid)
    except OSError:
        pass
    return above


def in_background(fit: Any) -> tuple[threading.Thread, list[Any]]:
    """Runs a fit on a thread; its model or its exception is in the list at the end."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(fit())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def await_children(number: int, seconds: float) -> list[int]:
    """The worker processes of this one, once there are so many of them."""
    deadline = time.monotonic() + seconds
    while len(found := children_of(os.getpid())) != number:
        assert time.monotonic() < deadline, f"{len(found)} processes run, not {number}, after {seconds} s"
        time.sleep(0.1)
    return found


def test_a_killed_worker_is_replaced(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The training goes on from its newest checkpoint and ends as one that nothing disturbed."""
    df, params = regression(spark), {"epochs": 300, "checkpointInterval": 10}
    undisturbed = regressor(**params).fit(df)
    thread, outcome = in_background(lambda: regressor(workDir=str(tmp_path), **params).fit(df))
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("attempts/*/checkpoints/*/COMMITTED")):
        assert time.monotonic() < deadline, outcome
        time.sleep(0.02)
    os.kill(await_children(2, 10)[1], signal.SIGKILL)
    thread.join(60)
    assert outcome[0].history["loss"] == undisturbed.history["loss"]
    assert "killed by signal 9 (SIGKILL)" in caplog.text
    assert children_of(os.getpid()) == []


def test_a_cancelled_fit_leaves_no_process(spark: SparkSession) -> None:
    df = regression(spark)
    thread, outcome = in_background(lambda: regressor(epochs=1_000_000, batchSize=4).fit(df))
    await_children(2, 60)
    spark.sparkContext.cancelAllJobs()
    await_children(0, 20)
    thread.join(30)
    assert isinstance(outcome[0], Exception)


def test_a_missing_program_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLAMBEAU_WORKER", str(tmp_path / "nothing"))
    request = NativeRequest(json.dumps({"program": {}}), b"", {"eval": b""}, {})
    outcome = request.run(0, 1, lambda payload: [payload], "127.0.0.1")
    assert outcome.error_kind == "environment" and "FLAMBEAU_WORKER" in (outcome.message or "")


@pytest.mark.parametrize(
    ("script", "kind", "said"),
    [
        ("kill -9 $$", "lost", "killed by signal 9 (SIGKILL); the system does that where memory runs out"),
        ("echo last words >&2; kill -6 $$", "lost", "(SIGABRT); its last lines:\nlast words"),
        ("echo no such thing >&2; exit 3", "environment", "status 3 and no result; its last lines:\nno such"),
        (
            'echo \'{"error": {"kind": "diverged", "message": "it is NaN", "rank": 0, "host": "h", '
            '"epoch": 1, "step": 7, "isCause": true}}\'',
            "diverged",
            "it is NaN",
        ),
    ],
)
def test_how_a_program_ended_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, kind: str, said: str
) -> None:
    program = tmp_path / "flambeau-worker"
    program.write_text(f"#!/bin/sh\nread start\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("FLAMBEAU_WORKER", str(program))
    request = NativeRequest(json.dumps({"program": {}}), b"secret", {"eval": b""}, {})
    outcome = request.run(0, 1, lambda payload: [payload], "127.0.0.1")
    assert isinstance(outcome, RankOutcome) and not outcome.ok
    assert outcome.error_kind == kind and said in (outcome.message or "")
    error = launch.exception_of(outcome)
    assert isinstance(error, WorkerError) and error.rank == 0
    if kind == "diverged":
        assert (error.host, error.epoch, error.step) == ("h", 1, 7)


def test_a_program_that_changed_on_its_way_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAMBEAU_WORKER", str(tmp_path / "none"))
    files = {"eval": b"a program", "loss": b"a loss"}
    placed = {part: str(tmp_path / part) for part in files}
    for part, data in files.items():
        Path(placed[part]).write_bytes(data)
    payload = NativePayload({"form": "scripted"}, files, None)
    request = payload.request({"attempt": {"workDir": str(tmp_path)}}, bytes(16), placed, False)
    (tmp_path / "folder").mkdir()
    program = request.job_with_files(tmp_path / "folder")["program"]
    assert Path(program["eval"]).read_bytes() == b"a program"
    assert Path(program["loss"]["script"]).read_bytes() == b"a loss"
    for part, data in files.items():
        Path(placed[part]).write_bytes(b"another")
        outcome = request.run(0, 1, lambda message: [message], "127.0.0.1")
        assert f"{placed[part]} is not the program that the driver wrote there" in (outcome.message or "")
        assert outcome.error_kind == "data"
        Path(placed[part]).write_bytes(data)


def test_libtorch_is_the_given_one_or_this_pythons() -> None:
    assert libtorch_of("/opt/libtorch") == "/opt/libtorch"
    assert libtorch_of(None) == str(Path(torch.__file__).parent)
    assert sys.modules["torch"].__version__.startswith("2.13.")
