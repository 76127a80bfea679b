"""Horovod's side of several suites: its estimator and model on Spark, its loop and all-reduce on processes.

    horovod.py [ROWS]

With ROWS, a Spark session has read them once, in the JVM, when it answers its first request.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# This program's directory would hide the package of the same name.
sys.path[0] = str(Path(__file__).resolve().parent.parent)
warnings.filterwarnings("ignore")
os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": sys.path[0]}

import horovod  # noqa: E402
import torch  # noqa: E402
from harness import serve, spark_session  # noqa: E402
from torch_loops import MODELS  # noqa: E402

NUM_PROCESSES = 2


def session() -> Any:
    """On this Python. Petastorm fails on files that are small beside what opening one is said to cost."""
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return spark_session("horovod", **{"spark.sql.files.openCostInBytes": "256k"})


def fit(rows: str, scratch: str, epochs: int, batch_size: int) -> dict[str, float]:
    """Fits an MLP with its TorchEstimator: the seconds from DataFrame to model, and the last epoch's loss."""
    from horovod.spark.common.backend import SparkBackend
    from horovod.spark.common.store import Store
    from horovod.spark.torch import TorchEstimator
    from pyspark.sql import functions as F

    df = session().read.parquet(rows)
    *features, label = df.columns
    began = time.perf_counter()
    torch.manual_seed(0)
    module = MODELS["mlp"]()
    estimator = TorchEstimator(
        backend=SparkBackend(NUM_PROCESSES, use_gloo=True, verbose=0),
        store=Store.create(scratch),
        model=module,
        optimizer=torch.optim.Adam(module.parameters()),
        loss=torch.nn.MSELoss(),
        feature_cols=["features"],
        input_shapes=[[-1, len(features)]],
        label_cols=[label],
        batch_size=batch_size,
        epochs=epochs,
        use_gpu=False,
        verbose=0,
    )
    model = estimator.fit(df.select(F.array(*features).alias("features"), label))
    seconds = time.perf_counter() - began
    shutil.rmtree(scratch)
    return {"seconds": seconds, "loss": float(model.getHistory()[-1]["train"]["loss"])}


def transform(module: str, files: list[str]) -> dict[str, float]:
    """Scores rows with its TorchModel into the `noop` sink: the rows and the seconds."""
    from horovod.spark.torch import TorchModel
    from pyspark.sql import functions as F
    from pyspark.sql.types import DoubleType

    df = session().read.parquet(*files)
    model = TorchModel(
        model=torch.load(module).eval(),
        feature_columns=["features"],
        input_shapes=[[-1, len(df.columns)]],
        label_columns=["label"],
        _metadata={"label": {"spark_data_type": DoubleType}},
    )
    num_rows = df.count()
    began = time.perf_counter()
    scored = model.transform(df.select(F.array(*df.columns).alias("features")))
    scored.write.format("noop").mode("overwrite").save()
    return {"rows": num_rows, "seconds": time.perf_counter() - began}


def loop(shard: str, model: str, batch_size: int, epochs: int) -> dict[str, float]:
    """Trains on slices of a tensor with its DistributedOptimizer, as `torch_loops.run` does with DDP."""

    def train() -> dict[str, float]:
        import horovod.torch as hvd
        from torch_loops import MODELS, from_slices, mean_loss, own_rows, read

        hvd.init()
        torch.set_num_threads(1)
        module = MODELS[model]()
        hvd.broadcast_parameters(module.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(module.parameters()), module.named_parameters())
        rows = own_rows(*read(shard), hvd.rank(), hvd.size())
        num_rows, began = 0, 0.0
        for epoch, batches in enumerate(from_slices(*rows, batch_size, epochs)):
            for x, y in batches:
                optimizer.zero_grad()
                mean_loss(module(x), y).backward()
                optimizer.step()
                num_rows += len(y)
            if epoch == 0:
                num_rows, began = 0, time.perf_counter()
        return {"rows_per_second": num_rows / (time.perf_counter() - began)}

    ranks = horovod.run(train, num_proc=NUM_PROCESSES, use_gloo=True)
    return {"rows_per_second": sum(rank["rows_per_second"] for rank in ranks)}


def all_reduce(bytes: int, count: int, world_size: int) -> dict[str, float]:
    """The median of `count` calls on `bytes` bytes, in microseconds, on rank 0."""

    def median() -> float:
        import statistics

        import horovod.torch as hvd

        hvd.init()
        torch.set_num_threads(1)
        buffer = torch.zeros(bytes // 4)
        times = []
        for _ in range(count):
            hvd.barrier()
            started = time.perf_counter()
            hvd.allreduce_(buffer, name="buffer", op=hvd.Sum)
            times.append(time.perf_counter() - started)
        return statistics.median(times) * 1e6

    return {"us": horovod.run(median, num_proc=world_size, use_gloo=True)[0]}


ANSWERS: dict[str, Callable[..., Mapping[str, Any]]] = {
    "fit": fit,
    "transform": transform,
    "loop": loop,
    "all_reduce": all_reduce,
}


def answer(what: str, **request: Any) -> Mapping[str, Any]:
    """Answers a request with one of the functions above."""
    return ANSWERS[what](**request)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        session().read.parquet(sys.argv[1]).write.format("noop").mode("overwrite").save()
    serve(answer)
