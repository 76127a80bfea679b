"""What the numbers of an output mean."""

from __future__ import annotations

from typing import Any

from flambeau._module.named import name_of

_OF_ACTIVATION = {
    "softmax": "probabilities",
    "log_softmax": "log_probabilities",
}


def kind_of(loss: Any, activation: str | None, is_single: bool) -> str:
    """How a classifier's output reads under its loss: `logits`, `probabilities` or `log_probabilities`, which
    are those of class 1 of two where it is a single number a row; `labels` or `label_probabilities` where its
    columns are labels of their own.

    A loss of torch's says what it takes; of any other, the last operation of the module does.
    """
    name = name_of(loss) or getattr(loss, "__name__", type(loss).__name__)
    if name in ("bce", "BCELoss", "binary_cross_entropy"):
        return "probabilities" if is_single else "label_probabilities"
    if name in ("bce_with_logits", "BCEWithLogitsLoss", "binary_cross_entropy_with_logits"):
        return "logits" if is_single else "labels"
    if name in ("nll", "NLLLoss", "nll_loss"):
        return "log_probabilities"
    if name in ("cross_entropy", "CrossEntropyLoss"):
        return "logits"
    if activation == "sigmoid":
        return "probabilities" if is_single else "label_probabilities"
    return _OF_ACTIVATION.get(activation or "", "logits")
