"""Runs ranks and a fit on a Spark cluster that believes that it has GPUs, and prints what they were given.

Nothing computes on a GPU. Run as its own process, since a Spark session's master cannot change within one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from pyspark.sql import SparkSession

from flambeau import ClusterError, TorchRegressor
from flambeau._rank.worker import RankOutcome
from flambeau._spark.fit import cluster
from flambeau._spark.fit.launch import run_stage


class TellsItsGpus:
    """A request whose ranks train nothing and answer with the addresses that they were given."""

    meeting_place = None

    def run(
        self,
        rank: int,
        world_size: int,
        all_gather: Callable[[bytes], list[bytes]],
        bind_address: str,
        gpu_addresses: Sequence[str] | None = None,
    ) -> RankOutcome:
        given = None if gpu_addresses is None else list(gpu_addresses)
        return RankOutcome(rank, "host", True, json.dumps(given))


def gpus_of_ranks(spark: SparkSession, num_gpus: int) -> list[list[str] | None]:
    """What each of two ranks was given, where Spark is asked for so many GPUs for each."""
    outcomes = run_stage(spark, TellsItsGpus(), 2, num_gpus)
    return [json.loads(outcome.result_json or "") for outcome in outcomes]


def losses(spark: SparkSession, work_dir: str, **params: Any) -> list[float]:
    """The losses of a small fit on the CPU."""
    rows = spark.range(200).selectExpr("array(float(id) / 200) as features", "float(id) / 100 as label")
    torch.manual_seed(0)
    module = torch.nn.Linear(1, 1)
    estimator = TorchRegressor(
        model=module, numWorkers=2, epochs=2, learningRate=0.01, workDir=work_dir, verbose=0, **params
    )
    history: list[float] = estimator.fit(rows).history["loss"]
    return history


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", required=True)
    parser.add_argument("--discovery", required=True)
    parser.add_argument("--work-dir", required=True)
    parser.add_argument("--per-task", default="")
    arguments = parser.parse_args()
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.worker.resource.gpu.amount": "1",
        "spark.worker.resource.gpu.discoveryScript": arguments.discovery,
        "spark.executor.resource.gpu.amount": "1",
    }
    if arguments.per_task:
        settings["spark.task.resource.gpu.amount"] = arguments.per_task
    builder = SparkSession.builder.master(arguments.master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    num_gpus = 0 if arguments.per_task else 1
    cluster.check_slots(spark, 2, 0, num_gpus)
    outcome: dict[str, Any] = {"gpus": gpus_of_ranks(spark, num_gpus)}
    if num_gpus:
        outcome["gpus without asking"] = gpus_of_ranks(spark, 0)
        work_dir = arguments.work_dir
        outcome["losses"] = losses(spark, work_dir, device="cpu", numGpusPerWorker=1)
        native = {"runtime": "native", "loss": "mse", "optimizer": "adam"}
        outcome["native losses"] = losses(spark, work_dir, device="cpu", numGpusPerWorker=1, **native)
        outcome["losses without asking"] = losses(spark, work_dir, device="cpu")
    try:
        cluster.check_slots(spark, 3, 0, num_gpus)
    except ClusterError as error:
        outcome["refusal"] = str(error)
    spark.stop()
    print("OUTCOME " + json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
