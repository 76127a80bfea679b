"""Training, inside the loop.

Rows a second over both ranks, in the epochs after the first; each rank has one thread. Reading the data,
starting workers and the first epoch count in no figure. All contenders of a case have the same optimizer:
torch's plain Adam, or its fused one, which Flambeau's `optimizer="adam"` is.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch_loops
from harness import FIXED, Case, Child, Contender, Goal, Skipped, peer, spark_session
from PIL import Image
from torch import nn

from flambeau import Callback, TorchEstimator
from flambeau.callbacks import Context

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NUM_RANKS = 2
PEERS = ("horovod",)
LOADER = "TorchDistributor, DDP, DataLoader"
EXPERT = "TorchDistributor, DDP, slices of a tensor"
TORCHRUN = "torchrun, DDP, slices of a tensor"
HOROVOD = "Horovod, slices of a tensor"
LIMIT = "limit: two processes, no communication"
AUTOCAST = f"{LIMIT}, autocast"
IN_STEP = "limit: two processes that wait for each other in each step"
DECODER = "limit: two processes that decode and do no more"
ONE_PERCENT = f"{FIXED}at most 1 % of a step"


@dataclass(frozen=True)
class Work:
    """A model on a shard, whose last column is the label."""

    name: str
    """As `torch_loops.MODELS` has it."""
    text: str
    shard: Path
    batch_size: int
    epochs: int

    @property
    def settings(self) -> dict[str, Any]:
        """The params of each of Flambeau's fits: what the loops beside it do, and no more."""
        return {
            "numWorkers": NUM_RANKS,
            "numThreads": 1,
            "batchSize": self.batch_size,
            "epochs": self.epochs,
            "checkpointInterval": -1,
            "verbose": 0,
        }

    def rows(self, spark: SparkSession) -> DataFrame:
        """The shard's."""
        return spark.read.parquet(str(self.shard))

    def estimator(self, **params: Any) -> TorchEstimator:
        """Flambeau's, with plain Adam where `params` names no other optimizer."""
        *features, label = pq.read_schema(self.shard).names
        return TorchEstimator(
            model=torch_loops.MODELS[self.name](),
            loss="cross_entropy" if self.name == "cnn" else "mse",
            featuresCol=features if len(features) > 1 else features[0],
            labelCol=label,
            **{"optimizer": torch.optim.Adam, **self.settings, **params},
        )

    def flambeau(self, spark: SparkSession, **params: Any) -> Contender:
        """A fit of `estimator`."""
        return partial(rows_per_second, self.estimator(**params), self.rows(spark))

    def of_images(self, spark: SparkSession) -> Contender:
        """A fit that decodes JPEGs, of a model that takes next to no time."""
        estimator = TorchEstimator(
            # Every 32nd pixel: a mean of all took a quarter of the processor's time.
            model=nn.Sequential(nn.AvgPool2d(1, 32), nn.Flatten(), nn.Linear(48, 10)),
            loss="cross_entropy",
            inputCols=["image"],
            preprocess=lambda batch: torch_loops.decoded(batch["image"]),
            labelCol="class",
            **self.settings,
        )
        return partial(rows_per_second, estimator, spark.read.parquet(str(self.shard)))

    def by_hand(self, ranks: Ranks, batches: str, together: str = "ddp", **others: bool) -> Contender:
        """A loop of `torch_loops`."""
        request = {
            "shard": str(self.shard),
            "model": self.name,
            "batches": batches,
            "together": together,
            "batch_size": self.batch_size,
            "epochs": self.epochs,
            **others,
        }
        return lambda: ranks.rows_per_second(request)

    def decoding(self, ranks: Ranks) -> Contender:
        """The decoder alone, in as many processes as there are ranks."""
        request = {"shard": str(self.shard), "batch_size": self.batch_size, "epochs": self.epochs}
        return lambda: ranks.rows_per_second(request)

    def horovod(self, child: Child) -> Contender:
        """Horovod's loop, on processes of its own."""
        request = {"model": self.name, "batch_size": self.batch_size, "epochs": self.epochs}
        return lambda: float(child.call(what="loop", shard=str(self.shard), **request)["rows_per_second"])

    def peers(self, ranks: Ranks, torchrun: Ranks, horovod: Child) -> dict[str, Contender]:
        """What trains the same without Flambeau, with plain Adam."""
        return {
            LOADER: self.by_hand(ranks, "loader"),
            EXPERT: self.by_hand(ranks, "slices"),
            TORCHRUN: self.by_hand(torchrun, "slices"),
            HOROVOD: self.horovod(horovod),
            LIMIT: self.by_hand(ranks, "memory", "nothing"),
            IN_STEP: self.by_hand(ranks, "memory", "meet"),
        }


def rows_per_second(estimator: TorchEstimator, rows: DataFrame) -> float:
    """A fit's speed in the epochs after the first."""
    history = estimator.fit(rows).history
    return float(sum(history["num_rows"][1:]) / sum(history["seconds"][1:]))


def percent_in_callbacks(estimator: TorchEstimator, rows: DataFrame) -> float:
    """Of the first worker's steps, how many percent go to callbacks and to TensorBoard, by the medians of a
    timeline: rows a second of two fits differ by more than is asked for here.
    """
    timeline = estimator.fit(rows).summary.timeline
    assert timeline is not None
    spans = defaultdict(list)
    for event in json.loads(Path(timeline).read_text())["traceEvents"]:
        if event["ph"] == "X" and event["pid"] == 0:
            spans["step" if event["cat"] == "step" else event["name"]].append(event["dur"])
    # A step's span ends before those who are told of it.
    steps = len(spans["step"])
    told = sum(median(spans[name]) * len(spans[name]) / steps for name in ("a callback", "logging"))
    return 100 * told / (median(spans["step"]) + told)


def watching() -> Callback:
    """A callback with a hook at everything that it is told of, each as often as by default."""

    class Watching(Callback):
        def __init__(self) -> None:
            self.told = 0

        def note(self, context: Context) -> None:
            self.told += len(context.metrics)

        on_train_begin = on_epoch_begin = on_step_end = on_validation_end = note
        on_checkpoint = on_epoch_end = on_train_end = note

    return Watching()


def distributor(*program: str) -> None:
    """Runs a program on the ranks of a TorchDistributor, which needs an active session."""
    from pyspark.ml.torch.distributor import TorchDistributor

    TorchDistributor(num_processes=NUM_RANKS, local_mode=True, use_gpu=False).run(*program)


def torchrun(*program: str) -> None:
    """Runs a program on ranks without Spark."""
    command = [str(Path(sys.executable).with_name("torchrun")), "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, f"--nproc-per-node={NUM_RANKS}", *program], check=True, env=environment)


class Ranks:
    """Ranks that run one loop after another."""

    def __init__(self, connections: list[Connection]) -> None:
        self._connections = connections
        self._threads = ThreadPoolExecutor(len(connections))

    def rows_per_second(self, request: dict[str, Any]) -> float:
        """The sum of the ranks' speeds."""

        def ask(connection: Connection) -> float:
            connection.send(request)
            answer = connection.recv()
            return float(answer["rows"] / answer["seconds"])

        return sum(self._threads.map(ask, self._connections))

    @classmethod
    @contextmanager
    def started(cls, launch: Callable[..., None] = distributor) -> Iterator[Ranks]:
        """Ranks that wait for requests, as `launch` starts them."""
        key = secrets.token_bytes(16)
        with Listener(("127.0.0.1", 0), authkey=key) as listener:
            host, port = listener.address
            arguments = (torch_loops.__file__, f"{host}:{port}", key.hex())
            # A rank that fails ends the thread, and then no answer comes.
            thread = threading.Thread(target=launch, args=arguments, daemon=True)
            thread.start()
            connections = [listener.accept() for _ in range(NUM_RANKS)]
            yield cls(connections)
            for connection in connections:
                connection.send(None)
            thread.join()


def write_flights(path: Path, num_rows: int) -> Path:
    """Rows like those of the flights: ten numbers, and a delay that depends on them."""
    random = np.random.default_rng(0)
    x = random.standard_normal((num_rows, 10), dtype=np.float32)
    noise = random.standard_normal(num_rows, dtype=np.float32)
    columns = {f"x{column}": x[:, column] for column in range(10)}
    pq.write_table(pa.table({**columns, "delay": np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * noise}), path)
    return path


def write_digits(path: Path, num_rows: int) -> Path:
    """Rows like those of the handwritten digits: 28 x 28 numbers and a class."""
    random = np.random.default_rng(0)
    classes = random.integers(0, 10, num_rows)
    prototypes = random.standard_normal((10, 784), dtype=np.float32)
    images = prototypes[classes] + random.standard_normal((num_rows, 784), dtype=np.float32)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(images.reshape(-1)), 784)
    pq.write_table(pa.table({"image": rows.cast(pa.list_(pa.float32())), "digit": classes}), path)
    return path


def write_images(path: Path, num_rows: int) -> Path:
    """JPEGs of 128 x 128 pixels, and a class."""
    random = np.random.default_rng(0)
    images = []
    for _ in range(num_rows):
        coarse = Image.fromarray(random.integers(0, 256, (16, 16, 3), np.uint8))
        file = io.BytesIO()
        coarse.resize((128, 128)).save(file, "JPEG", quality=90)
        images.append(file.getvalue())
    pq.write_table(pa.table({"image": images, "class": random.integers(0, 10, num_rows)}), path)
    return path


def has_bf16() -> bool:
    """Whether the processor multiplies in bfloat16 faster than in float32."""
    flags = Path("/proc/cpuinfo").read_text().split()
    return "amx_bf16" in flags or "avx512_bf16" in flags


def cases(full: bool, scratch: Path) -> Iterator[Case | Skipped]:
    spark = spark_session("training")
    # Workers do not find it by its name.
    cloudpickle.register_pickle_by_value(torch_loops)
    scale = 4 if full else 1
    flights = write_flights(scratch / "flights.parquet", 120_000)
    few = write_flights(scratch / "few.parquet", 1_600)
    pictures = write_images(scratch / "images.parquet", 4_000)
    mlp = Work("mlp", "MLP 10-256-256-1, Adam, batch 512", flights, 512, 4 * scale)
    wide = Work("wide", "8 M parameters, Adam, batch 32", few, 32, 3 * scale)
    with Ranks.started() as ranks, Ranks.started(torchrun) as others, Child(peer("horovod")) as horovod:
        fit = mlp.flambeau(spark)
        yield case(mlp.text, fit, mlp.peers(ranks, others, horovod), {LOADER: 2.5, LIMIT: 0.98})
        limit = {LIMIT: mlp.by_hand(ranks, "memory", "nothing", fused=True)}
        board = str(scratch / "tensorboard")
        fused = mlp.flambeau(spark, optimizer="adam")
        expert = {EXPERT: mlp.by_hand(ranks, "slices", fused=True)}
        yield case(f"{mlp.text}, fused", fused, expert | limit, {LIMIT: 1.0})
        watched = mlp.estimator(
            optimizer="adam", callbacks=[watching()], tensorBoardDir=board, profile="steps 118-471"
        )
        yield Case(
            suite="training",
            work=f"{mlp.text}, fused: a callback with every hook, beside TensorBoard",
            unit="% of a step",
            contenders={
                "Flambeau": partial(percent_in_callbacks, watched, mlp.rows(spark)),
                ONE_PERCENT: lambda: 1.0,
            },
            goals=[Goal(ONE_PERCENT, 1.0)],
            higher_is_better=False,
        )
        images = Work("images", "JPEGs of 128 x 128 pixels, decoded by preprocess, batch 64", pictures, 64, 4)
        alone = images.decoding(ranks)
        yield case(images.text, images.of_images(spark), {DECODER: alone}, {DECODER: 0.9})
        text = f'{mlp.text}, fused, `precision="bf16"`'
        if has_bf16():
            fused = mlp.flambeau(spark, optimizer="adam", precision="bf16")
            autocast = {AUTOCAST: mlp.by_hand(ranks, "memory", "nothing", fused=True, autocast=True)}
            yield case(text, fused, limit | autocast, {LIMIT: 1.5})
        else:
            yield Skipped("training", text, "the processor has no instructions for bfloat16")
        peers = wide.peers(ranks, others, horovod)
        yield case(wide.text, wide.flambeau(spark), peers, {LOADER: 2.5, EXPERT: 1.9})
        if full:
            digits = write_digits(scratch / "digits.parquet", 20_000)
            cnn = Work("cnn", "CNN on 28 x 28 images, Adam, batch 64", digits, 64, 4)
            peers = cnn.peers(ranks, others, horovod)
            yield case(cnn.text, cnn.flambeau(spark), peers, {LIMIT: 0.98})
    spark.stop()


def case(work: str, ours: Callable[[], float], peers: dict[str, Contender], goals: dict[str, float]) -> Case:
    """Flambeau beside its peers, by their names."""
    return Case(
        suite="training",
        work=work,
        unit="rows/s",
        contenders={"Flambeau": ours, **peers},
        goals=[Goal(against, at_least) for against, at_least in goals.items()],
    )
