"""A Spark session that fits when it is asked to, for `harness.Child`.

    python fit_session.py ROWS SCRATCH [JAR]

The session has run one plain job when it answers its first request, and no Python worker yet. A request names
who fits; the answer has the seconds from a DataFrame to a fitted model, and those of them spent in the loop.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fit_by_hand
import torch
from harness import serve, spark_session
from torch_loops import MODELS

from flambeau import TorchRegressor, save_program

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NUM_RANKS = 2
BATCH_SIZE = 512


def flambeau(df: DataFrame, scratch: Path, epochs: int, **params: Any) -> float:
    """A fit; returns the seconds in the loop."""
    torch.manual_seed(0)
    estimator = TorchRegressor(
        model=MODELS["mlp"](),
        loss="mse",
        featuresCol=df.columns[:-1],
        labelCol=df.columns[-1],
        numWorkers=NUM_RANKS,
        batchSize=BATCH_SIZE,
        epochs=epochs,
        verbose=0,
        **params,
    )
    return seconds_in_loop(estimator.fit(df).summary.trainingSeconds)


def plain(df: DataFrame, scratch: Path, epochs: int) -> float:
    """A fit with torch's plain Adam."""
    return flambeau(df, scratch, epochs, optimizer=torch.optim.Adam)


def native(df: DataFrame, scratch: Path, epochs: int) -> float:
    """The same without Python in the loop."""
    return flambeau(df, scratch, epochs, runtime="native")


def scala(df: DataFrame, scratch: Path, epochs: int) -> float:
    """The same from the JVM, of a program that lies there already."""
    program = scratch / "program"
    if not program.exists():
        save_program(MODELS["mlp"](), str(program), [torch.zeros(2, len(df.columns) - 1)])
    spark: Any = df.sparkSession
    *features, label = df.columns
    names = spark.sparkContext._gateway.new_array(spark._jvm.String, len(features))
    for index, name in enumerate(features):
        names[index] = name
    estimator = spark._jvm.flambeau.TorchRegressor()
    estimator.setModel(str(program)).setLoss("mse").setFeaturesCol(names).setLabelCol(label)
    estimator.setNumWorkers(NUM_RANKS).setBatchSize(BATCH_SIZE).setEpochs(epochs).setVerbose(0)
    return float(estimator.fit(df._jdf).summary().trainingSeconds().get())


def by_hand(df: DataFrame, scratch: Path, epochs: int) -> float:
    """What a user writes: rows to Parquet, a TorchDistributor with DDP, the weights back."""
    from pyspark.ml.torch.distributor import TorchDistributor

    rows, weights = scratch / "rows", scratch / "weights.pt"
    df.write.mode("overwrite").parquet(str(rows))
    distributor = TorchDistributor(num_processes=NUM_RANKS, local_mode=True, use_gpu=False)
    distributor.run(fit_by_hand.__file__, str(rows), str(weights), epochs, BATCH_SIZE)
    MODELS["mlp"]().load_state_dict(torch.load(weights))
    shutil.rmtree(rows)
    return float(Path(f"{weights}.seconds").read_text())


def seconds_in_loop(seconds: float | None) -> float:
    """What a model says that its training took."""
    assert seconds is not None
    return seconds


FITS: dict[str, Callable[[DataFrame, Path, int], float]] = {
    "flambeau": flambeau,
    "plain": plain,
    "native": native,
    "scala": scala,
    "by hand": by_hand,
}


def main(rows: str, scratch: str, *jars: str) -> None:
    spark = spark_session("fit", **({"spark.jars": jars[0]} if jars else {}))
    df = spark.read.parquet(rows)
    df.write.format("noop").mode("overwrite").save()

    def fit(who: str, epochs: int) -> dict[str, float]:
        began = time.perf_counter()
        loop = FITS[who](df, Path(scratch), epochs)
        return {"seconds": time.perf_counter() - began, "loop": loop}

    serve(fit)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
