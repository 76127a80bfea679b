"""What a fit would take, as short trainings tell it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flambeau._history import Bottleneck
from flambeau._shown import lines, page, table

_GAIN = 1.1
"""A larger value is worth it where it trains so many times as many rows a second."""

_TRIED = {
    "numWorkers": "workers with the same batchSize make a larger global batch",
    "numThreads": "",
    "batchSize": "another batch size is another training: find the learning rate anew",
}
"""The params that trials differ in, and what to mind in taking another value."""


@dataclass(frozen=True)
class Trial:
    """A short training, of which nothing was kept.

    Attributes
    ----------
    numWorkers : the number of workers.
    numThreads : torch's threads in each worker, None for an even share of the machine's cores.
    batchSize : the rows of a worker's batch.
    rowsPerSecond : the training rows a second of all workers, None where it failed, for want of
        memory or of slots.
    error : what the workers said of that, else None.
    """

    numWorkers: int
    numThreads: int | None
    batchSize: int
    rowsPerSecond: float | None = None
    error: str | None = None

    def gains_on(self, other: Trial) -> bool:
        """Whether it was faster by a tenth or more."""
        return (self.rowsPerSecond or 0.0) >= _GAIN * (other.rowsPerSecond or 0.0)

    def value(self, name: str) -> float:
        """A param that trials differ in, larger where it takes more of the machine."""
        found = getattr(self, name)
        return math.inf if found is None else float(found)


@dataclass(frozen=True)
class Plan:
    """What a fit of an estimator on a DataFrame would take: the rows are counted, and the rest is estimated
    from trials. Seconds of a step and of an epoch are those after a first epoch, which warms up.

    Attributes
    ----------
    numRows : the number of training rows.
    numValidationRows : the number of validation rows.
    numBytes : bytes of the shards that the fit writes where it does not read the rows in place, by those of
        the trials' rows; 0 with `inPlace` always.
    peakMemoryBytes : the largest memory that a worker's process has had by the end of the first trial, what
        it held before included. A fit keeps decoded rows beside it, in each worker up to `memoryBudget`.
    epochs : the epochs of the fit.
    stepsPerEpoch : optimizer steps in an epoch.
    secondsPerStep : seconds of a step.
    dataSeconds : those in which the first worker waited for rows.
    modelSeconds : those of forward, loss and backward.
    reduceSeconds : those of averaging gradients, waiting for slower workers included.
    optimizerSeconds : those of clipping and the optimizer.
    validationSeconds : seconds an epoch for the validation rows: each waits for data as a training row does,
        and takes a third of its `modelSeconds`.
    startSeconds : seconds of the first trial's workers outside its steps, where they read the first rows and
        make the model.
    bottleneck : what held up the steps of the first trial most, None where that is not known.
    trials : the trials, that of the estimator's own params first.
    """

    numRows: int
    numValidationRows: int
    numBytes: int
    peakMemoryBytes: int
    epochs: int
    stepsPerEpoch: int
    secondsPerStep: float
    dataSeconds: float
    modelSeconds: float
    reduceSeconds: float
    optimizerSeconds: float
    validationSeconds: float
    startSeconds: float
    bottleneck: Bottleneck | None
    trials: tuple[Trial, ...]

    @property
    def expectedSeconds(self) -> float:
        """Seconds that the training would take on the workers, as `summary.trainingSeconds` counts them, with
        all `epochs`: `startSeconds`, and for each epoch its steps and its validation. Writing the rows comes
        before that, and checkpoints come on top.
        """
        an_epoch = self.stepsPerEpoch * self.secondsPerStep + self.validationSeconds
        return self.startSeconds + self.epochs * an_epoch

    def suggestions(self) -> dict[str, int | None]:
        """The value to take of `numWorkers`, `numThreads` and `batchSize` each, as `setParams` takes them:
        the smallest that trained within a tenth of the most rows a second. Params were tried one at a time:
        taken together their gains may be others.
        """
        return {name: getattr(self._suggested(name), name) for name in _TRIED}

    def _suggested(self, name: str) -> Trial:
        """The trial with the value to take of a param."""
        own = self.trials[0]
        others = [trial for trial in self.trials if _differ(own, trial) == [name]]
        fit = [trial for trial in (own, *others) if trial.rowsPerSecond is not None]
        best = max(fit, key=lambda trial: trial.rowsPerSecond or 0.0)
        return min(
            (trial for trial in fit if trial is best or not best.gains_on(trial)),
            key=lambda trial: trial.value(name),
        )

    def __str__(self) -> str:
        return "\n".join(f"{heading}: {text}" for heading, texts in self._told() for text in texts)

    def _repr_html_(self) -> str:
        """The plan as a notebook shows it."""
        rows = [[_named(name, trial) for name in _TRIED] + [_rate(trial)] for trial in self.trials]
        told = [(heading, lines(texts)) for heading, texts in self._told()]
        return page("Plan", [*told, ("trials", table([*_TRIED, "rows a second"], rows))])

    def _told(self) -> list[tuple[str, Sequence[str]]]:
        """What it says, by headings."""
        parts = ("data", "model", "reduce", "optimizer")
        shares = [f"{part} {1000 * getattr(self, f'{part}Seconds'):,.1f} ms" for part in parts]
        steps = f"{self.epochs} epochs, {self.stepsPerEpoch:,} steps in each"
        own = self.trials[0]
        suggested = []
        for name in _TRIED:
            trial = self._suggested(name)
            text = f"{name} {_named(name, trial)}, {_rate(trial)} rows a second"
            if trial is not own:
                note = f"; {_TRIED[name]}" if _TRIED[name] else ""
                text += f" in place of {_rate(own)} with {name} {_named(name, own)}{note}"
            suggested.append(text)
        return [
            ("rows", [f"{self.numRows:,}, and {self.numValidationRows:,} for validation"]),
            ("to write", [f"about {self.numBytes / 1e6:,.2f} MB, unless the rows are read in place"]),
            ("memory of a worker", [f"{self.peakMemoryBytes / 1e6:,.0f} MB, and rows up to memoryBudget"]),
            ("a step", [f"{1000 * self.secondsPerStep:,.1f} ms ({', '.join(shares)})"]),
            ("training", [f"about {self.expectedSeconds:,.2f} s for {steps}"]),
            ("held up by", [] if self.bottleneck is None else [self.bottleneck.advice]),
            ("suggestion", suggested),
            ("failed", [trial.error for trial in self.trials if trial.error is not None]),
        ]


def _differ(one: Trial, other: Trial) -> list[str]:
    """The params that two trials differ in."""
    return [name for name in _TRIED if getattr(one, name) != getattr(other, name)]


def _named(name: str, trial: Trial) -> str:
    """A param of a trial as it is shown."""
    found = getattr(trial, name)
    return "not set" if found is None else str(found)


def _rate(trial: Trial) -> str:
    return "failed" if trial.rowsPerSecond is None else f"{trial.rowsPerSecond:,.0f}"
