"""A plan: trials on the first rows of a DataFrame, which tell what a fit would take, and what would be
faster.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flambeau._history import Bottleneck
from flambeau._plan import Plan, Trial
from flambeau._reason import first_line
from flambeau._spark import session
from flambeau._spark.fit import cluster
from flambeau._spark.fit.trainable import Trainable
from flambeau._spark.fit.trial import trial_of
from flambeau._spark.rows.prepared import PreparedData
from flambeau._spark.rows.shards import DataColumns, ShardSet, Split, flag_of, refusals, refuse_none
from flambeau._spark.rows.sources import FrameRows
from flambeau._spark.site import Site
from flambeau._version import HAS_EXTENSION
from flambeau.errors import ClusterError, ParamError, WorkerLost

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RATE = 1e-12
"""A learning rate that hardly moves the weights, so that no trial diverges; a step takes as long with any."""

_MOST_DOUBLINGS = 3
"""Of the batch size: with one trial each of other workers and threads, six trials in all."""

_FORWARD = 1 / 3
"""The share of forward in `modelSeconds`: backward computes about twice as much (Kaplan et al. 2020,
arXiv:2001.08361, 2.1).
"""

_LEAST_BUDGET = 1 << 20
"""The least `memoryBudget`."""

_PARTS = ("dataSeconds", "modelSeconds", "reduceSeconds", "optimizerSeconds")

_MEMORY_TEXTS = ("out of memory", "allocate memory")
"""How torch tells of memory that does not suffice, on GPUs and on the CPU."""


@dataclass(frozen=True)
class _Sample(FrameRows):
    """Some rows of a DataFrame, as shards whose bytes are noted each time that they are written."""

    num_bytes: list[int] = field(default_factory=list)

    def _written(self, columns: DataColumns, site: Site, directory: str) -> ShardSet:
        """The shards."""
        shards = super()._written(columns, site, directory)
        self.num_bytes.append(shards.num_bytes)
        return shards


@dataclass(frozen=True)
class _Trials:
    """The trials of an estimator on a sample, each of `num_steps` steps after a first epoch. `num_rows` are
    the training rows of the sample, and `scale` is how many times as many the DataFrame has.
    """

    estimator: Trainable
    sample: _Sample
    num_steps: int
    num_rows: int
    scale: float

    def run(self, **params: Any) -> tuple[Trial, Mapping[str, Any]]:
        """A trial with some params in place of the estimator's, and the training's result. Raises what a fit
        does.
        """
        from flambeau._module.assembly import configures

        # An interrupt cancels the jobs that there are, and those that follow are begun here.
        session.pause(0)
        own = self.estimator
        # A schedule of the module's own sets its rate.
        rate = {} if configures(own.getModel()) else {"learningRate": _RATE}
        # So that as much is kept of the sample, and decoded again, as would be of all rows.
        budget = max(_LEAST_BUDGET, int(own.getMemoryBudget() / self.scale))
        tried = own.copy()
        tried._set(**rate | {"inPlace": "never", "maxRestarts": 0, "memoryBudget": budget} | params)
        steps = _steps(tried, self.num_rows)
        fit = trial_of(tried, self.sample, epochs=1 + math.ceil(self.num_steps / max(steps, 1)))
        result = fit.result()
        epochs = result["history"]["epochs"][1:]
        trial = _trial(tried, num_rows=_sum(epochs, "numRows"), seconds=_sum(epochs, "seconds"))
        return trial, result

    def attempt(self, **params: Any) -> Trial:
        """A trial for whose params the memory or the slots may not suffice, which ends it."""
        try:
            # What is left of a batch at the end of an epoch would count for a larger part of these few.
            return self.run(dropLast=True, **params)[0]
        except Exception as error:
            # An interpreter of programs tells its cause last.
            told = [line for line in str(error).splitlines() if any(text in line for text in _MEMORY_TEXTS)]
            if not (told or isinstance(error, ClusterError | MemoryError | WorkerLost)):
                raise
            tried = self.estimator.copy()
            tried._set(**params)
            return _trial(tried, error=told[0] if told else first_line(error))

    def has_batches(self, **params: Any) -> bool:
        """Whether the sample has two batches with those params, or more."""
        tried = self.estimator.copy()
        tried._set(**params)
        return 2 * _global_batch(tried) <= self.num_rows

    def others(self, own: Trial) -> list[Trial]:
        """Trials of other params, one at a time: of the batch size doubled while that is faster, of twice the
        workers where there are slots, else of half of them, and of other threads.
        """
        estimator, trials, last = self.estimator, list[Trial](), own
        for doublings in range(1, _MOST_DOUBLINGS + 1):
            size = own.batchSize << doublings
            if not self.has_batches(batchSize=size):
                break
            trials.append(self.attempt(batchSize=size))
            if not trials[-1].gains_on(last):
                break
            last = trials[-1]
        slots = cluster.count_slots(self.sample.spark, estimator.getNumGpusPerWorker())
        workers = own.numWorkers * 2 if own.numWorkers * 2 <= slots else own.numWorkers // 2
        if workers and self.has_batches(numWorkers=workers):
            # Lanes are a number that the estimator's own workers share.
            trials.append(self.attempt(numWorkers=workers, dataLanes=None))
        threads = own.numThreads
        # Without a number, workers of this machine may have one each. A client without native parts has none.
        is_here = threads is None and HAS_EXTENSION and session.shares_machine(self.sample.spark)
        has_one = is_here and len(os.sched_getaffinity(0)) < 2 * own.numWorkers
        if self.has_batches() and not has_one:
            trials.append(self.attempt(numThreads=1 if threads is None else threads // 2 or None))
        return trials


def plan(estimator: Trainable, df: DataFrame | PreparedData, num_steps: int) -> Plan:
    """What a fit of the estimator on `df` would take, by trials of so many steps. Raises what a fit raises
    before and in its first steps, and ParamError for no steps and for prepared data. An interrupt of this
    thread cancels the Spark jobs.
    """
    if num_steps < 1:
        raise ParamError(f"numSteps is {num_steps}, but must be at least 1")
    if isinstance(df, PreparedData):
        raise ParamError(
            "plan takes a DataFrame, and this is prepared data: give the DataFrame that it was prepared of; "
            "prepared data tells its numRows and numBytes itself"
        )
    return session.interruptible(df.sparkSession, lambda: _planned(estimator, df, num_steps))


def _planned(estimator: Trainable, df: DataFrame, num_steps: int) -> Plan:
    # Before rows are counted: what is wrong with params and columns.
    columns = trial_of(estimator, FrameRows(df)).columns()
    df, split = columns.valid(df), columns.split
    num_rows, num_validation_rows = _count(df, split)
    refuse_none(num_rows, num_validation_rows)
    num_sampled = min(num_rows, num_steps * _global_batch(estimator))
    # Of several trials, and the rows may take long to compute.
    frame = _sample(df, split, num_sampled, num_validation_rows / num_rows).persist()
    try:
        sample = _Sample(frame)
        trials = _Trials(estimator, sample, num_steps, num_sampled, num_rows / num_sampled)
        own, result = trials.run()
        others = trials.others(own)
    finally:
        frame.unpersist()
    written = result["numRows"] + result["numValidationRows"]
    in_place = estimator.getInPlace() == "always"
    first, *epochs = result["history"]["epochs"]
    steps, rows = epochs[-1]["steps"] - first["steps"], _sum(epochs, "numRows")
    parts = {part: _sum(epochs, part) for part in _PARTS}
    a_row = (parts["dataSeconds"] + _FORWARD * parts["modelSeconds"]) / rows
    bottleneck = result["bottleneck"]
    return Plan(
        numRows=num_rows,
        numValidationRows=num_validation_rows,
        numBytes=0 if in_place else round(sample.num_bytes[0] / written * (num_rows + num_validation_rows)),
        peakMemoryBytes=epochs[-1]["peakMemoryBytes"],
        epochs=estimator.getEpochs(),
        stepsPerEpoch=_steps(estimator, num_rows),
        secondsPerStep=_sum(epochs, "seconds") / steps,
        **{part: seconds / steps for part, seconds in parts.items()},
        validationSeconds=a_row * num_validation_rows,
        startSeconds=result["seconds"] - _sum([first, *epochs], "seconds"),
        bottleneck=None if bottleneck is None else Bottleneck.of(bottleneck),
        trials=(own, *others),
    )


def _steps(estimator: Trainable, num_rows: int) -> int:
    """Optimizer steps in an epoch of so many training rows."""
    batch = estimator.getBatchSize() * estimator.getNumWorkers()
    batches = num_rows // batch if estimator.getDropLast() else math.ceil(num_rows / batch)
    return math.ceil(batches / estimator.getGradientAccumulationSteps())


def _global_batch(estimator: Trainable) -> int:
    """The rows of a step."""
    rows: int = estimator.getBatchSize() * estimator.getNumWorkers()
    return rows * int(estimator.getGradientAccumulationSteps())


def _trial(estimator: Trainable, num_rows: float = 0, seconds: float = 0, error: str | None = None) -> Trial:
    """What a trial of those params came to."""
    rate = None if error is not None else num_rows / max(seconds, 1e-9)
    return Trial(estimator.getNumWorkers(), estimator.getNumThreads(), estimator.getBatchSize(), rate, error)


def _sum(epochs: list[Mapping[str, Any]], name: str) -> float:
    """The sum of a figure over records of epochs."""
    return math.fsum(epoch[name] for epoch in epochs)


def _count(df: DataFrame, split: Split | None) -> tuple[int, int]:
    """The numbers of training and validation rows that a fit splits the DataFrame into."""
    with refusals():
        if split is None:
            return df.count(), 0
        rows = df.groupBy(flag_of(split).alias("flag")).count().collect()
    counts = {bool(flag): int(count) for flag, count in rows}
    return counts.get(False, 0), counts.get(True, 0)


def _sample(df: DataFrame, split: Split | None, num_rows: int, share: float) -> DataFrame:
    """The first rows, of which about `num_rows` are trained on, with `share` times as many for validation;
    of those that a column names no more than there are of the others.
    """
    num_validation_rows = math.ceil(num_rows * share)
    if split is None:
        return df.limit(num_rows)
    if split.indicator is None:
        # Of which each is drawn by itself, so that there may be fewer for training than their share.
        return df.limit(math.ceil(1.25 * (num_rows + num_validation_rows)) + 16)
    flag = flag_of(split)
    # They may lie apart.
    return df.filter(~flag).limit(num_rows).union(df.filter(flag).limit(min(num_rows, num_validation_rows)))
