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
    "dataSeconds": "data_seconds",
    "modelSeconds": "model_seconds",
    "reduceSeconds": "reduce_seconds",
    "optimizerSeconds": "optimizer_seconds",
    "lossScale": "loss_scale",
    "skippedSteps": "skipped_steps",
    "sentBytes": "sent_bytes",
    "uncompressedBytes": "uncompressed_bytes",
    "loss": "loss",
}
"""The names in Python of what is no metric, by their names in a record of an epoch."""


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
    """

    objectiveHistory: list[float]
    totalIterations: int
    bestEpoch: int | None
    numSteps: int
    numRows: int
    numValidationRows: int
    trainingSeconds: float | None


def columns(history: Mapping[str, Any], num_validation_rows: int = 0) -> dict[str, list[Any]]:
    """The table of epochs of a history as a training's result has it, `{"epochs": [...]}`: a list of one
    value an epoch, by name.

    The columns of validation rows are there where an epoch was validated.
    """
    records = history.get("epochs", [])
    table: dict[str, list[Any]] = {
        name: [record.get(key) for record in records]
        for key, name in RECORD_COLUMNS.items()
        if any(key in record for record in records) or not records
    }
    for name in _names(records, "metrics"):
        table[name] = [dict(record.get("metrics") or ()).get(name) for record in records]
    if any(is_validated(record, num_validation_rows) for record in records):
        table["val_loss"] = [record.get("validationLoss") for record in records]
        for name in _names(records, "validationMetrics"):
            table[f"val_{name}"] = [
                dict(record.get("validationMetrics") or ()).get(name) for record in records
            ]
    return table


def is_validated(record: Mapping[str, Any], num_validation_rows: int = 0) -> bool:
    """Whether an epoch's record is one of an epoch that was validated. A loss that is not finite is null in
    JSON, as that of an epoch without validation rows is, so the number of those rows counts too.
    """
    has_figures = record.get("validationLoss") is not None or bool(record.get("validationMetrics"))
    return has_figures or num_validation_rows > 0


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


def metrics_of(record: Mapping[str, Any], is_validated: bool) -> dict[str, float | None]:
    """The losses and metrics in a record of an epoch, by their names in Python; with those of validation rows
    where the epoch `is_validated`.
    """
    found = {"loss": record["loss"], **dict(record["metrics"])}
    if is_validated:
        found["val_loss"] = record["validationLoss"]
        found |= {f"val_{name}": value for name, value in record["validationMetrics"]}
    return found


def row_of(record: Mapping[str, Any], is_validated: bool) -> dict[str, Any]:
    """A record of an epoch by its names in Python."""
    columns = {name: record[key] for key, name in RECORD_COLUMNS.items() if key in record}
    return columns | metrics_of(record, is_validated)


def _names(records: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    """The names of the metrics in all records, in the order in which they first come."""
    names: dict[str, None] = {}
    for record in records:
        names.update(dict.fromkeys(name for name, _ in record.get(key) or ()))
    return list(names)
