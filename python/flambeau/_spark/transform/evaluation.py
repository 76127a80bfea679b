"""The driver's side of `evaluate`: one job, whose tasks score their rows and add up, and the sums of all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import pyarrow as pa

from flambeau._spark.columns import REFUSAL, REFUSAL_END, expressions
from flambeau._spark.rows import shards
from flambeau.errors import DataError, FlambeauError, ParamError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from flambeau._score.evaluation import Evaluator
    from flambeau._score.scoring import Scorer

_SCHEMA = "sums array<double>, state binary"


def evaluated(
    dataset: DataFrame,
    scorer: Scorer,
    columns: Sequence[Column],
    labels: shards.DataColumns,
    objects: Mapping[str, Any],
) -> dict[str, float | None]:
    """Loss and metrics, which `objects` has by these names, on a DataFrame: `columns` are those of the
    scorer's inputs, `labels` names the labels and the weight.
    """
    from flambeau._module import metrics
    from flambeau._score.evaluation import Evaluator, Judge

    judge = Judge(objects)
    metrics.check(objects.get("metrics"), labels.weight is not None, validates=True)
    labels = shards.with_nested_shapes(dataset, labels)
    read = [*columns]
    for tensor, role in labels.tensors():
        read += expressions(dataset.schema, tensor, role)
    task = _task(Evaluator(scorer, labels.labels, labels.weight, _pickled(objects)))
    # Two tensors may be of one column.
    selected = dataset.select(*[column.alias(f"c{place}") for place, column in enumerate(read)])
    with shards.refusals():
        found = selected.mapInArrow(task, _SCHEMA).collect()
    if not found:
        raise DataError("there are no rows to evaluate on")
    sums = np.sum([row["sums"] for row in found], axis=0)
    states = [bytes(row["state"]) for row in found if row["state"] is not None]
    return judge.finish(sums.tolist(), states)


def _task(evaluator: Evaluator) -> Any:
    """What a task does: it gives one row, or none where it had none."""

    def evaluate(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            found = evaluator.evaluate(batch.columns for batch in batches)
        except FlambeauError as error:
            raise DataError(f"{REFUSAL}{error}{REFUSAL_END}") from error
        if found is not None:
            sums, state = found
            arrays = [pa.array([sums], pa.list_(pa.float64())), pa.array([state], pa.binary())]
            yield pa.RecordBatch.from_arrays(arrays, ["sums", "state"])

    return evaluate


def _pickled(objects: Mapping[str, Any]) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(dict(objects))
    except Exception as error:
        raise ParamError(
            f"{' or '.join(objects)} cannot be pickled to be sent to the workers: {error}"
        ) from error
    return data
