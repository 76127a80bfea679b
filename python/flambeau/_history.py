"""The columns of a training's history that are no metrics."""

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
"""Their names in Python, by their names in a record of an epoch."""
