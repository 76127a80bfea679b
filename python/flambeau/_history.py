"""A training's history by its names in Python."""

from __future__ import annotations

from collections.abc import Mapping
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
"""The columns that are no metrics: their names in Python, by their names in a record of an epoch."""


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
