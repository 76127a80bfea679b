"""How a module's outputs are written as columns: which kinds they may be, and of what types Spark's columns
are.
"""

from __future__ import annotations

from collections.abc import Sequence

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

from flambeau._saved.program import OutputTensor
from flambeau.errors import ParamError


def checked_kind(given: str, tensor: OutputTensor) -> str:
    """A kind that `outputKinds` gives to an output, as `Head` has it. Raises ParamError where it is not one
    of such an output.
    """
    single = {"logit": "logits", "probability": "probabilities"}
    what = f"outputKinds: {given!r} is for an output of {{}}, and {tensor.name or 'the output'} has "
    what += f"{list(('rows', *tensor.shape))}"
    if given in single and not tensor.is_scalar:
        raise ParamError(what.format("one number a row"))
    if given in ("labels", "label_probabilities") and (len(tensor.shape) != 1 or tensor.is_scalar):
        raise ParamError(what.format("several labels, [rows, labels]"))
    if given != "number" and len(tensor.shape) > 1:
        raise ParamError(what.format("one number or one dimension a row"))
    return single.get(given, given)


def check_thresholds(
    tensor: OutputTensor, kind: str, threshold: float | None, thresholds: Sequence[float] | None
) -> None:
    """Raises ParamError where they do not fit an output of classes."""
    num_classes = 2 if tensor.is_scalar else tensor.shape[0]
    if threshold is not None and thresholds is not None:
        raise ParamError("threshold and thresholds are both set: unset one of them, with None")
    if threshold is not None and num_classes > 2 and not kind.startswith("label"):
        raise ParamError(
            f"threshold is for two classes or for labels, and there are {num_classes} classes: set "
            "thresholds, one for each"
        )
    if thresholds is not None and len(thresholds) != num_classes:
        raise ParamError(f"thresholds has {len(thresholds)} entries, and there are {num_classes} classes")


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
