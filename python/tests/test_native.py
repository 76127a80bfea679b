"""The native module at its border: batches, errors, kinds of failure, signals."""

from __future__ import annotations

import gc
import json
import os
import pickle
import resource
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from harness import Ranks, make_job, run_ranks, tensor, train, write_shards
from heap import Heap
from torch import nn
from torch.utils.dlpack import from_dlpack

from flambeau import _native
from flambeau._spark.fit.launch import exception_of
from flambeau._spark.work_directory import WorkDirectory
from flambeau.errors import DataError, DivergedError, ParamError, StoreError


@pytest.fixture
def columns() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((100, 3)).astype(np.float32)
    return {
        "x": x,
        "y": x.sum(1),
        "id": np.arange(100),
        "flag": np.arange(100) % 2 == 0,
        "double": generator.standard_normal(100),
        "weight": generator.random(100),
    }


def job_over(tmp_path: Path, columns: dict[str, np.ndarray], **params) -> dict:
    shards = write_shards(tmp_path / "data", columns, num_shards=2, rows_per_group=30)
    return make_job(tmp_path, shards, [tensor("x")], [tensor("y")], numThreads=1, **params)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def program(loss="mse", model=None, **rest) -> dict:
    return {"model": model or linear(), "loss": loss, "optimizer": "sgd", **rest}


def test_batches_are_the_columns(tmp_path: Path, columns: dict[str, np.ndarray]) -> None:
    shards = write_shards(tmp_path / "data", columns, num_shards=2, rows_per_group=30)
    job = make_job(
        tmp_path,
        shards,
        [tensor("x", shape=[3]), tensor("id", dtype="int64"), tensor("both", "id", "double")],
        [tensor("flag", dtype="bool")],
        weight=tensor("weight", dtype="float64"),
        numWorkers=2,
        batchSize=8,
        seed=3,
    )
    reader = _native.BatchReader(json.dumps(job), 1, 2)
    assert reader.batches_per_epoch == 7
    seen: list[int] = []
    for epoch in range(2):
        reader.start(epoch)
        for batch in reader:
            ids = batch["row_ids"]
            x, id_, both = map(from_dlpack, batch["inputs"])
            (flag,) = map(from_dlpack, batch["labels"])
            assert x.shape == (len(ids), 3) and x.data_ptr() % 64 == 0
            assert x.numpy().tolist() == columns["x"][ids].tolist()
            assert id_.tolist() == ids and id_.dtype == torch.int64
            assert both.numpy().tolist() == np.stack([ids, columns["double"][ids]], 1).astype("f4").tolist()
            assert flag.tolist() == columns["flag"][ids].tolist() and flag.dtype == torch.bool
            weight = from_dlpack(batch["weight"])
            assert weight.tolist() == columns["weight"][ids].tolist() and weight.dtype == torch.float64
            seen += ids
    # Each epoch has the same half of the rows, in another order; the other rank has the other half.
    first, second = seen[:50], seen[50:]
    assert first != second and sorted(first) == sorted(second)
    others = _native.BatchReader(json.dumps(job), 0, 2)
    others.start(0)
    assert sorted([*first, *(id for batch in others for id in batch["row_ids"])]) == list(range(100))


def test_a_batch_is_asked_by_name(tmp_path: Path, columns) -> None:
    reader = _native.BatchReader(json.dumps(job_over(tmp_path, columns, batchSize=30, shuffle=False)), 0, 1)
    reader.start(0)
    batches = list(reader)
    assert [(batch["index"], batch["num_rows"]) for batch in batches] == [(0, 30), (1, 30), (2, 30), (3, 10)]
    assert batches[3]["row_ids"] == list(range(90, 100))
    assert len(batches[0]["inputs"]) == len(batches[0]["labels"]) == 1 and batches[0]["weight"] is None
    with pytest.raises(KeyError, match="nothing"):
        batches[0]["nothing"]  # type: ignore[call-overload]


def resident_bytes() -> int:
    """The memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("is_consumed", [False, True])
def test_a_capsule_gives_its_memory_back(tmp_path: Path, is_consumed: bool) -> None:
    """Whether the tensor that it became goes away, or the capsule that nobody made one of."""
    x = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
    job = job_over(tmp_path, {"x": x, "y": x[:, 0]}, batchSize=256, shuffle=False)
    reader = _native.BatchReader(json.dumps(job), 0, 1)
    after = []
    for _ in range(20):
        reader.start(0)
        capsules = [batch["inputs"][0] for batch in reader]
        if is_consumed:
            tensors = [from_dlpack(capsule) for capsule in capsules]
            del capsules
            gc.collect()
            assert torch.cat(tensors).numpy().tobytes() == x.tobytes()
            del tensors
        else:
            del capsules
        after.append(resident_bytes())
    # Half of what would stay of eighteen epochs: an allocator keeps some megabytes of its own.
    assert after[-1] - after[1] < 9 * x.nbytes


def unreachable() -> _native.Store:
    """An object store at a port where nobody listens."""
    options = {"aws_endpoint": "http://127.0.0.1:1", "aws_allow_http": "true", "aws_region": "nowhere"}
    return _native.Store({**options, "aws_access_key_id": "id", "aws_secret_access_key": "secret"})


def test_store(tmp_path: Path) -> None:
    store = _native.Store()
    uri = f"{tmp_path}/some/file"
    assert store.size(uri) is None
    store.put(uri, b"0123456789")
    assert store.get(uri) == b"0123456789" and store.get_range(uri, 2, 5) == b"234" and store.size(uri) == 10
    store.get_to_file(uri, tmp_path / "copy")
    store.put_file(f"{tmp_path}/some/other", tmp_path / "copy")
    assert len(store.list(f"{tmp_path}/some")) == 2
    store.delete(uri)
    store.delete_prefix(f"{tmp_path}/some")
    assert store.list(f"{tmp_path}/some") == []
    with pytest.raises(StoreError, match="nowhere") as missing:
        store.get(f"{tmp_path}/nowhere")
    assert not missing.value.is_transient
    with pytest.raises(StoreError, match="refused") as refused:
        unreachable().get("s3://bucket/key")
    assert refused.value.is_transient
    with pytest.raises(StoreError, match="ftp"):
        store.get("ftp://host/file")


def test_jobs_are_checked(tmp_path: Path) -> None:
    job = make_job(tmp_path, ["a.parquet"], [tensor("x")], [tensor("y")])
    _native.validate_job(json.dumps(job))
    job["params"]["batchSize"] = 0
    with pytest.raises(ParamError, match="batchSize"):
        _native.validate_job(json.dumps(job))
    assert json.loads(_native.job_schema())["title"] == "TrainingJob"


def test_inspection(tmp_path: Path, columns) -> None:
    shards = write_shards(tmp_path / "data", columns)
    work = WorkDirectory(str(tmp_path), ())
    spec: dict[str, Any] = {"inputs": [tensor("x")], "labels": [tensor("y")], "weight": None}
    found = work.ask("inspectRows", train=shards, validation=[], spec=spec)
    assert found["numRows"] == 100 and found["spec"]["inputs"][0]["shape"] == [3]
    assert found["objection"] is None
    (tmp_path / "rows").write_bytes(bytes([0b101]))
    rows = {"uri": f"{tmp_path}/rows", "offset": 0, "length": 1}
    some = [{"uri": shards[0], "rows": rows}]
    found = work.ask("inspectRows", train=shards, validation=some, spec=spec)
    assert (found["numRows"], found["numValidationRows"], found["objection"]) == (100, 2, None)
    found = work.ask("inspectRows", train=[], validation=some, spec=spec)
    assert (found["numRows"], found["numValidationRows"]) == (0, 2)
    assert found["objection"] == "they are 2% of the rows of their row groups"
    found = work.ask("inspectRows", train=[], validation=[], spec=spec)
    assert (found["numRows"], found["numValidationRows"], found["objection"]) == (0, 0, None)
    spec["inputs"][0]["columns"] = ["z"]
    with pytest.raises(DataError, match="`z`"):
        work.ask("inspectRows", train=shards, validation=[], spec=spec)


def test_a_users_exception_comes_back_as_itself(tmp_path: Path, columns) -> None:
    class Unlucky(Exception):
        def __init__(self, number: int) -> None:
            super().__init__(f"number {number}")
            self.number = number

    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(3, 1)
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            if self.calls == 3 and x[0, 0] == x[0, 0]:
                raise Unlucky(13)
            return self.line(x)

    began = time.monotonic()
    job = job_over(tmp_path, columns, numWorkers=2, batchSize=5, epochs=2)
    outcomes = run_ranks(job, program(model=Fails()), 2, tmp_path / "ranks")
    assert time.monotonic() - began < 60
    causes = [outcome for outcome in outcomes if outcome.is_cause]
    assert causes and not any(outcome.ok for outcome in outcomes)
    outcome = causes[0]
    assert (outcome.error_kind, outcome.epoch, outcome.step) == ("model", 0, 2)
    assert "raise Unlucky(13)" in (outcome.traceback or "")
    assert (outcome.error_type or "").endswith(".Unlucky") and outcome.message == "number 13"


def test_a_failure_on_one_rank_frees_the_others(tmp_path: Path, columns) -> None:
    class FailsOnce(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(3, 1)

        def forward(self, x):
            if (x == 1000).any():
                raise ValueError("a thousand")
            return self.line(x)

    columns["x"][70] = 1000
    job = job_over(tmp_path, columns, numWorkers=2, batchSize=5, shuffle=False)
    outcomes = run_ranks(job, program(model=FailsOnce()), 2, tmp_path / "ranks")
    assert [outcome.is_cause for outcome in outcomes] == [False, True]
    assert outcomes[1].error_kind == "model" and outcomes[1].error_type == "builtins.ValueError"
    assert outcomes[0].error_kind == "collective" and "rank 1" in (outcomes[0].message or "")


def test_a_killed_rank_is_named(tmp_path: Path, columns) -> None:
    def slow(output, label):
        time.sleep(0.05)
        return ((output - label) ** 2).mean()

    job = job_over(tmp_path, columns, numWorkers=2, batchSize=2, epochs=50)
    ranks = Ranks(job, program(loss=slow), 2, tmp_path / "ranks")
    events = tmp_path / "attempts" / "a1" / "events"
    deadline = time.monotonic() + 60
    while not events.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    ranks.processes[1].kill()
    began = time.monotonic()
    outcomes = ranks.wait(30)
    assert time.monotonic() - began < 20
    assert outcomes[1] is None and outcomes[0] is not None
    assert outcomes[0].error_kind == "collective" and "rank 1" in (outcomes[0].message or "")
    assert outcomes[0].error_type == "flambeau.errors.WorkerLost"


def test_ctrl_c_ends_a_wait(tmp_path: Path, columns) -> None:
    """Rank 1 sleeps for long; rank 0, which waits for it, is interrupted."""

    def loss(output, label):
        if (label > 0.5).all():
            time.sleep(60)
        (tmp_path / "waiting").touch()
        return ((output - label) ** 2).mean()

    columns["y"] = (np.arange(100) >= 50).astype(np.float32)
    job = job_over(tmp_path, columns, numWorkers=2, batchSize=5, shuffle=False)
    ranks = Ranks(job, program(loss=loss), 2, tmp_path / "ranks")
    deadline = time.monotonic() + 60
    while not (tmp_path / "waiting").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    for _ in range(3):
        # The first one may come before rank 0 waits.
        time.sleep(0.5)
        os.kill(ranks.processes[0].pid or 0, signal.SIGINT)
        ranks.processes[0].join(3)
        if not ranks.processes[0].is_alive():
            break
    assert not ranks.processes[0].is_alive()
    outcome = pickle.loads(ranks.outcomes[0].read_bytes())
    ranks.kill()
    assert (outcome.error_kind, outcome.error_type) == ("cancelled", "builtins.KeyboardInterrupt")


def test_a_diverged_loss_names_its_step(tmp_path: Path, columns) -> None:
    job = job_over(tmp_path, columns, numWorkers=2, batchSize=5, epochs=30, learningRate=1e20)
    outcomes = run_ranks(job, program(), 2, tmp_path / "ranks")
    assert {outcome.error_kind for outcome in outcomes} == {"diverged"}
    error = exception_of(outcomes[0])
    assert isinstance(error, DivergedError) and error.step == outcomes[0].step is not None
    assert len({outcome.step for outcome in outcomes}) == 1


def test_bad_labels_and_shapes_are_data_errors(tmp_path: Path, columns) -> None:
    columns["y"] = np.arange(100) % 4
    job = job_over(tmp_path, columns)
    job["data"]["spec"]["labels"][0]["dtype"] = "int64"
    torch.manual_seed(0)
    (outcome,) = run_ranks(job, program("cross_entropy", nn.Linear(3, 3)), 1, tmp_path / "one")
    assert outcome.error_kind == "data" and "label 3 lies outside the 3 classes" in (outcome.message or "")
    (outcome,) = run_ranks(job, program("mse", nn.Linear(3, 3)), 1, tmp_path / "two")
    assert outcome.error_kind == "data" and "[32, 3] and the label [32]" in (outcome.message or "")


def test_what_a_worker_lacks_is_named(tmp_path: Path, columns) -> None:
    job = job_over(tmp_path, columns)
    (outcome,) = run_ranks(job, program(), 1, tmp_path / "one", versions={"torch": "1.0"})
    assert outcome.error_kind == "environment" and "torch 1.0" in (outcome.message or "")
    assert torch.__version__.split("+")[0] in (outcome.message or "")
    missing = cloudpickle.dumps(program()).replace(b"torch.nn.modules.linear", b"torch.nn.modules.limear")
    (outcome,) = run_ranks(job, missing, 1, tmp_path / "two")
    assert outcome.error_kind == "environment" and "torch.nn.modules.limear" in (outcome.message or "")


def test_metrics_inputs_and_outputs_of_all_kinds(tmp_path: Path, columns) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(3, 1)
            self.table = nn.Embedding(100, 1)

        def forward(self, x, index):
            return {"sum": self.line(x) + self.table(index), "index": index}

    def loss(output, labels):
        y, flag = labels
        return (output["sum"][:, 0] - y) ** 2 + flag * 0.0

    def error(output, labels):
        return (output["sum"][:, 0] - labels[0]).abs()

    shards = write_shards(tmp_path / "data", columns)
    job = make_job(
        tmp_path,
        shards,
        [tensor("x"), tensor("id", dtype="int64")],
        [tensor("y"), tensor("flag", dtype="bool")],
        validation=shards,
        numWorkers=2,
        epochs=2,
        numThreads=1,
    )
    result, weights = train(job, program(loss, Two(), metrics={"error": error}), 2, tmp_path / "ranks")
    module = Two()
    module.load_state_dict(weights)
    output = module.eval()(torch.from_numpy(columns["x"]), torch.from_numpy(columns["id"]))
    last = result["history"]["epochs"][-1]
    label = (torch.from_numpy(columns["y"]), torch.from_numpy(columns["flag"]))
    assert last["validationLoss"] == pytest.approx(loss(output, label).mean().item(), rel=1e-5)
    assert dict(last["validationMetrics"])["error"] == pytest.approx(
        error(output, label).mean().item(), rel=1e-5
    )
    assert dict(last["metrics"])["error"] > 0


class NotesHeap(nn.Module):
    """A layer of 48 MB that writes down, at each call, what memory the process has before and after it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.layer = nn.Linear(3, 4_000_000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = Heap.now()
        output = self.layer(x)
        after = Heap.now()
        with self.path.open("a") as file:
            file.write(json.dumps([before.heaps, after.heaps, after.blocks - before.blocks]) + "\n")
        return output.mean(1)


def test_gradients_reuse_the_memory_of_those_before(tmp_path: Path, columns) -> None:
    job = job_over(tmp_path, columns, batchSize=5)
    notes = tmp_path / "notes"
    train(job, program(model=NotesHeap(notes)), 1, tmp_path / "run")
    steps = [json.loads(line) for line in notes.read_text().splitlines()]
    assert len(steps) == 20
    # Left to itself, glibc gives an output of 80 MB pages of its own, or returns its heap's after a step.
    assert {blocks for _, _, blocks in steps} == {0}
    heaps = [size for before, after, _ in steps for size in (before, after)]
    assert heaps[-1] > 80e6
    assert min(later - earlier for earlier, later in pairwise(heaps)) > -40e6
