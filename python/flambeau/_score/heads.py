"""How the outputs of a module are written as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CLASS_FIELDS = ("prediction", "probability", "rawPrediction")
"""The fields of an output of classes in a struct of several outputs."""


@dataclass(frozen=True)
class Head:
    """How an output of the module is written.

    `name` is that of its field where there are several. `kind` is `number`, which is written as it is;
    `logits`, `probabilities` or `log_probabilities` of classes, of class 1 of two where a row is one number;
    or `labels` (logits) or `label_probabilities`, whose columns are labels of their own. `threshold` is what
    the probability of class 1 of two, or of a label, has to exceed; `thresholds` are those of Spark ML, one a
    class, or one a label.
    """

    name: str
    kind: str = "number"
    threshold: float | None = None
    thresholds: Sequence[float] | None = None
