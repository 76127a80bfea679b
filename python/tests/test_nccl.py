"""NCCL as the ranks of a barrier stage find it: the real library, with no GPU."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession


def wheel() -> tuple[str, str]:
    """The directory of the `nvidia-nccl` wheel's library, and its version; skips where there is none."""
    names = [name for name in packages_distributions().get("nvidia", []) if name.startswith("nvidia-nccl")]
    spec = find_spec("nvidia.nccl") if names else None
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("SKIPPED: there is no nvidia-nccl wheel")
    return str(Path(next(iter(spec.submodule_search_locations))) / "lib"), version(names[0])


def test_the_ranks_of_a_barrier_stage_hold_one_identity(spark: SparkSession) -> None:
    directory, expected = wheel()

    def task(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        from pyspark import BarrierTaskContext

        from flambeau import _native
        from flambeau._spark.fit.launch import StageRendezvous

        for _ in batches:
            pass
        context = BarrierTaskContext.get()
        all_gather = StageRendezvous(context, range(2)).all_gather
        found, identity = _native.nccl_meeting(
            [directory], context.partitionId(), 2, all_gather, bytes(16), "127.0.0.1"
        )
        yield pa.RecordBatch.from_pydict({"version": [found], "identity": [identity]})

    stage = spark.range(0, 2, 1, 2).mapInArrow(task, "version string, identity binary", barrier=True)
    first, second = stage.collect()
    assert first["version"] == second["version"] == expected
    assert first["identity"] == second["identity"]
    assert len(first["identity"]) == 128 and any(first["identity"])


def test_a_rank_without_nccl_is_named_on_all(spark: SparkSession) -> None:
    directory, expected = wheel()

    def task(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        import os

        from pyspark import BarrierTaskContext

        from flambeau import _native
        from flambeau._spark.fit.launch import StageRendezvous
        from flambeau.errors import CollectiveError

        for _ in batches:
            pass
        context = BarrierTaskContext.get()
        rank = context.partitionId()
        if rank == 1:
            os.environ["FLAMBEAU_NCCL"] = "/nowhere/libnccl.so.2"
        try:
            all_gather = StageRendezvous(context, range(2)).all_gather
            _native.nccl_meeting([directory], rank, 2, all_gather, bytes(16), "127.0.0.1")
            told = "met"
        except CollectiveError as error:
            told = str(error)
        finally:
            # Spark keeps the process for later tasks.
            os.environ.pop("FLAMBEAU_NCCL", None)
        yield pa.RecordBatch.from_pydict({"told": [told]})

    rows = spark.range(0, 2, 1, 2).mapInArrow(task, "told string", barrier=True).collect()
    told = {row["told"] for row in rows}
    assert len(told) == 1
    (message,) = told
    assert f"has {expected} ({directory}/libnccl.so.2); rank 1 on " in message
    assert "has none (FLAMBEAU_NCCL: /nowhere/libnccl.so.2 cannot be opened" in message
