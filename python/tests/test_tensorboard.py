"""TensorBoard's files, as its own reader has them, against plain torch loops and the model's history."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_callbacks import Dies, regressor, rows
from torch import nn

from flambeau import StoreError

Points = dict[str, list[tuple[int, float]]]


def points(run: Path) -> Points:
    """The scalars of a run by their tags, each with its step."""
    accumulator = EventAccumulator(str(run)).Reload()
    tags = accumulator.Tags()["scalars"]
    return {tag: [(point.step, point.value) for point in accumulator.Scalars(tag)] for tag in tags}


def only_run(directory: Path) -> Path:
    (run,) = directory.iterdir()
    return run


def loop(df: DataFrame, epochs: int) -> tuple[list[float], list[float], list[float]]:
    """Each step's loss, learning rate and gradient norm, of torch on two workers' batches at once."""
    train = df.where(~F.col("held_out")).toPandas()
    x, y = torch.tensor([list(xs) for xs in train["x"]]), torch.tensor(train["label"].to_numpy())[:, None]
    torch.manual_seed(1)
    module = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3 * epochs)
    losses, rates, norms = [], [], []
    for _ in range(epochs):
        for start in range(0, 24, 8):
            taken = [*range(start, start + 8), *range(24 + start, 32 + start)]
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(module(x[taken]), y[taken])
            loss.backward()
            losses.append(loss.item())
            rates.append(optimizer.param_groups[0]["lr"])
            norms.append(float(nn.utils.clip_grad_norm_(module.parameters(), float("inf"))))
            optimizer.step()
            scheduler.step()
    return losses, rates, norms


@pytest.mark.parametrize("runtime", ["python", "native"])
def test_a_fit_is_there_as_torch_has_it(spark: SparkSession, tmp_path: Path, runtime: str) -> None:
    df = rows(spark)
    settings: dict[str, Any] = {
        "shuffle": False,
        "epochs": 4,
        "lrSchedule": "cosine",
        "logGradientNorm": True,
        "logEveryNSteps": 1,
        "tensorBoardDir": str(tmp_path / "board"),
        "runtime": runtime,
    }
    estimator = regressor(**settings)
    history = estimator.fit(df).history
    read = points(only_run(tmp_path / "board"))

    steps = range(1, 13)
    for tag, expected in zip(
        ["train/loss_step", "train/learning_rate", "train/gradient_norm"], loop(df, 4), strict=True
    ):
        assert [step for step, _ in read[tag]] == list(steps)
        assert [value for _, value in read[tag]] == pytest.approx(expected, rel=1e-5, abs=1e-7), tag
    norms = np.reshape(loop(df, 4)[2], (4, 3)).mean(axis=1)
    assert history["gradient_norm"] == pytest.approx(norms.tolist(), rel=1e-5)
    assert all(rate > 0 for _, rate in read["train/rows_per_second"])
    for tag, name in {
        "train/loss_epoch": "loss",
        "train/mae": "mae",
        "validation/loss": "val_loss",
        "validation/mae": "val_mae",
    }.items():
        assert [step for step, _ in read[tag]] == history["steps"], tag
        assert [value for _, value in read[tag]] == pytest.approx(history[name], rel=1e-6), tag

    # Another fit is another run, and writing is none of what is trained.
    again = copy.copy(estimator).fit(df, {estimator.logEveryNSteps: 5}).history
    assert again["val_loss"] == history["val_loss"]
    assert len(list((tmp_path / "board").iterdir())) == 2


class Objects(BaseHTTPRequestHandler):
    """Keeps what is put into a bucket of S3 as files of the directory `below`, and lists none."""

    protocol_version = "HTTP/1.1"
    below: ClassVar[Path]

    def do_PUT(self) -> None:
        file = self.below / self.path.partition("?")[0].lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(b"")

    def do_GET(self) -> None:
        self.answer(b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("ETag", '"tag"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture
def bucket(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of the objects that the session's fits put into `s3://bucket`."""
    monkeypatch.setattr(Objects, "below", tmp_path, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Objects) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        confs = {
            "spark.flambeau.store.aws_endpoint": f"http://127.0.0.1:{server.server_port}",
            "spark.flambeau.store.aws_allow_http": "true",
            "spark.flambeau.store.aws_skip_signature": "true",
            "spark.flambeau.store.aws_region": "us-east-1",
        }
        for name, value in confs.items():
            spark.conf.set(name, value)
        try:
            yield tmp_path / "bucket"
        finally:
            for name in confs:
                spark.conf.unset(name)
            server.shutdown()


def test_the_objects_of_a_bucket_are_there_too(spark: SparkSession, bucket: Path) -> None:
    history = regressor(tensorBoardDir="s3://bucket/the/board", logEveryNSteps=2).fit(rows(spark)).history
    read = points(only_run(bucket / "the" / "board"))
    assert [step for step, _ in read["train/loss_step"]] == [2, 4, 6]
    for tag, name in {"train/loss_epoch": "loss", "validation/loss": "val_loss"}.items():
        assert [step for step, _ in read[tag]] == history["steps"], tag
        assert [value for _, value in read[tag]] == pytest.approx(history[name], rel=1e-6), tag


def test_a_fit_that_was_restarted_is_one_run(spark: SparkSession, tmp_path: Path) -> None:
    board = tmp_path / "board"

    def has_steps() -> bool:
        written = b"".join(path.read_bytes() for path in board.rglob("*tfevents*"))
        return written.count(b"train/loss_step") >= 4

    model = regressor(
        callbacks=[Dies(tmp_path / "died", has_steps)],
        epochs=3,
        tensorBoardDir=str(board),
        logEveryNSteps=1,
    ).fit(rows(spark))
    assert (tmp_path / "died").exists()
    run = only_run(board)
    # The first attempt has written its steps too, and those after its last checkpoint are dropped.
    kept = EventAccumulator(str(run), purge_orphaned_data=False).Reload()
    assert [point.step for point in kept.Scalars("train/loss_step")][:4] == [1, 2, 3, 4]
    read = points(run)
    assert [step for step, _ in read["train/loss_step"]] == list(range(1, 10))
    validated = read["validation/loss"]
    assert [step for step, _ in validated] == model.history["steps"]
    assert [value for _, value in validated] == pytest.approx(model.history["val_loss"], rel=1e-6)


def test_a_directory_that_cannot_be_written_fails_the_fit(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "board").write_text("in the way")
    with pytest.raises(StoreError, match=r"tensorBoardDir .*board"):
        regressor(tensorBoardDir=str(tmp_path / "board")).fit(rows(spark))
