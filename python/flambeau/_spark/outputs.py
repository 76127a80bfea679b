"""The types of the columns that a module's outputs are written as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    LongType,
    StructField,
    StructType,
)

from flambeau._saved.program import OutputSpec, OutputTensor
from flambeau._score.heads import CLASS_FIELDS, Head


@dataclass(frozen=True)
class OutputColumn:
    """A column that `transform` adds.

    `param` is the param that names it, `field` what it is called in the struct that the module's outputs are
    scored as; None where it is all that is scored.
    """

    param: str
    name: str
    field: str | None


def result_type(output: OutputSpec, heads: Sequence[Head]) -> DataType:
    """Spark's type of all outputs: that of a single one, a struct of several."""
    fields = [
        StructField(
            head.name,
            column_type(tensor) if head.kind == "number" else class_type(head.kind, CLASS_FIELDS),
        )
        for tensor, head in zip(output.tensors, heads, strict=True)
        if head.name
    ]
    return StructType(fields) if output.single is None else fields[0].dataType


def class_type(kind: str, fields: Sequence[str]) -> StructType:
    """The struct of an output of classes."""
    vector = ArrayType(DoubleType(), False)
    types: dict[str, DataType] = {
        "prediction": vector if kind.startswith("label") else DoubleType(),
        "rawPrediction": vector,
        "probability": vector,
    }
    return StructType([StructField(name, types[name]) for name in fields])


def column_type(tensor: OutputTensor) -> DataType:
    """Spark's type of a column with this output: double for one number a row, (nested) arrays otherwise."""
    if tensor.is_scalar:
        return DoubleType()
    kind: DataType = FloatType()
    if tensor.dtype == "float64":
        kind = DoubleType()
    elif tensor.dtype == "bool":
        kind = BooleanType()
    elif "float" not in tensor.dtype:
        kind = LongType()
    for _ in tensor.shape:
        kind = ArrayType(kind, False)
    return kind
