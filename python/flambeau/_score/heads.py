"""How the outputs of a module are written as columns: which kinds they may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flambeau._saved.program import OutputSpec, OutputTensor
from flambeau.errors import ParamError

CLASS_FIELDS = ("prediction", "probability", "rawPrediction")
"""The fields of an output of classes in a struct of several outputs."""


@dataclass(frozen=True)
class Head:
    """How an output of the module is written.

    `name` is that of its column or its field; an empty one leaves it out. `kind` is `number`, which is
    written as it is; `logits`, `probabilities` or `log_probabilities` of classes, of class 1 of two where a
    row is one number; or `labels` (logits) or `label_probabilities`, whose columns are labels of their own.
    `threshold` is what the probability of class 1 of two, or of a label, has to exceed; `thresholds` are
    those of Spark ML, one a class, or one a label.
    """

    name: str
    kind: str = "number"
    threshold: float | None = None
    thresholds: Sequence[float] | None = None


def heads_of(
    output: OutputSpec,
    columns: Sequence[str] | None,
    names: Sequence[str] | None,
    kinds: Sequence[str] | None,
    default: str,
    threshold: float | None,
    thresholds: Sequence[float] | None,
) -> list[Head]:
    """The heads of a module's outputs, by what `outputCols`, `outputNames`, `outputKinds`, `threshold` and
    `thresholds` say; `default` is the kind of all where no kinds are given. Raises ParamError where they do
    not fit the outputs.
    """
    tensors = output.tensors
    if columns and names:
        raise ParamError(
            "outputCols and outputNames are both set: set outputCols for columns, or outputNames for the "
            "fields of predictionCol"
        )
    names = columns or names or [str(tensor.name) for tensor in tensors]
    kinds = kinds or [default] * len(tensors)
    for param, given in (("outputCols" if columns else "outputNames", names), ("outputKinds", kinds)):
        if len(given) != len(tensors):
            raise ParamError(
                f"{param} has {len(given)} entries, {', '.join(given)}, and the module returns "
                f"{len(tensors)} tensors: give one entry for each"
            )
    heads = []
    for name, said, tensor in zip(names, kinds, tensors, strict=True):
        kind = _kind(said, tensor)
        if kind != "number":
            _check_thresholds(tensor, kind, threshold, thresholds)
        heads.append(Head(name, kind, threshold, thresholds))
    return heads


def _kind(given: str, tensor: OutputTensor) -> str:
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


def _check_thresholds(
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
