"""The history of a training: what its records hold, and the table that is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RECORD_COLUMNS = {
    "epoch": "epoch",
    "steps": "steps",
    "numRows": "num_rows",
    "seconds": "seconds",
    "rowsPerSecond": "rows_per_second",
    "learningRate": "learning_rate",
    "gradientNorm": "gradient_norm",
    "dataSeconds": "data_seconds",
    "modelSeconds": "model_seconds",
    "reduceSeconds": "reduce_seconds",
    "optimizerSeconds": "optimizer_seconds",
    "lossScale": "loss_scale",
    "skippedSteps": "skipped_steps",
    "sentBytes": "sent_bytes",
    "uncompressedBytes": "uncompressed_bytes",
    "cpuPercent": "cpu_percent",
    "peakMemoryBytes": "peak_memory_bytes",
    "loss": "loss",
}
"""The names in Python of what is no metric, by their names in a record of an epoch."""


def metrics_of(record: Mapping[str, Any], is_validated: bool) -> dict[str, float | None]:
    """The losses and metrics in a record of an epoch, by their names in Python; with those of validation rows
    where the epoch `is_validated`.
    """
    found = {"loss": record["loss"], **dict(record.get("metrics") or ())}
    if is_validated:
        found["val_loss"] = record.get("validationLoss")
        found |= {f"val_{name}": value for name, value in record.get("validationMetrics") or ()}
    return found


def row_of(record: Mapping[str, Any], is_validated: bool) -> dict[str, Any]:
    """A record of an epoch by its names in Python."""
    columns = {name: record[key] for key, name in RECORD_COLUMNS.items() if key in record}
    return columns | metrics_of(record, is_validated)


@dataclass(frozen=True)
class Bottleneck:
    """What held a training up most.

    Attributes
    ----------
    part : "data", "model" (forward and backward), "reduce" (averaging gradients), "optimizer" or "slow_rank".
    share : its share of the seconds that a worker spent in steps, from 0 to 1.
    rank : the rank that the others waited for, None where it was not that.
    advice : a sentence that says so, and what to change.
    """

    part: str
    share: float
    rank: int | None
    advice: str

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Bottleneck:
        """What a training's result or a saved model says of it."""
        return cls(told["part"], told["share"], told.get("rank"), told["advice"])


@dataclass(frozen=True)
class TrainingSummary:
    """What a training came to, with the names that Spark ML's summaries have.

    Attributes
    ----------
    objectiveHistory : the mean training loss of each epoch.
    totalIterations : the number of epochs.
    bestEpoch : the epoch, counted from 0, in which `monitor` was best, None where that is not known.
    numSteps : the number of optimizer steps.
    numRows : the number of training rows.
    numValidationRows : the number of validation rows.
    trainingSeconds : seconds that the training took on the workers, None where it is not known.
    bottleneck : what held the training up most, None where it is not known.
    timeline : the URI of the timeline that `profile` asked for, None where there is none, and in a loaded
        model.
    """

    objectiveHistory: list[float]
    totalIterations: int
    bestEpoch: int | None
    numSteps: int
    numRows: int
    numValidationRows: int
    trainingSeconds: float | None
    bottleneck: Bottleneck | None = None
    timeline: str | None = None


def columns(history: Mapping[str, Any], num_validation_rows: int = 0) -> dict[str, list[Any]]:
    """The table of epochs of a history as a training's result has it, `{"epochs": [...]}`: a list of one
    value an epoch, by name.

    The columns of validation rows are there where there were any, or a record has their figures: a loss that
    is not finite is null in JSON, as that of an epoch without validation rows is.
    """
    records = history.get("epochs", [])
    is_validated = num_validation_rows > 0 or any(
        record.get("validationLoss") is not None or record.get("validationMetrics") for record in records
    )
    rows = [row_of(record, is_validated) for record in records]
    names = dict.fromkeys(name for row in rows for name in row) or RECORD_COLUMNS.values()
    return {name: [row.get(name) for row in rows] for name in names}


def best_epoch(history: Mapping[str, Any]) -> int | None:
    """The place among the records of the epoch in which `monitor` was best, None where that is not known."""
    best = history.get("bestEpoch")
    places = [i for i, record in enumerate(history.get("epochs", [])) if record.get("epoch") == best]
    return places[0] if best is not None and places else None


def figures(table: Mapping[str, Sequence[Any]]) -> list[str]:
    """The columns of a history that are losses or metrics."""
    return [name for name in table if name == "loss" or name not in RECORD_COLUMNS.values()]


def watched(table: Mapping[str, Sequence[Any]]) -> str:
    """The column that a training is judged by at a glance: the validation loss, else the loss."""
    return "val_loss" if "val_loss" in table else "loss"
