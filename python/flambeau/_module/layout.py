"""What a batch is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flambeau._tensors import TensorColumns


@dataclass(frozen=True)
class Layout:
    """The tensors of a batch."""

    inputs: Sequence[TensorColumns]
    labels: Sequence[TensorColumns] = ()
    is_weighted: bool = False
    by_name: bool = False
    """Whether the inputs have names of their own (`inputNames`)."""
    validates: bool = False
    """Whether there are validation rows."""

    @staticmethod
    def of(data: Mapping[str, Any], params: Mapping[str, Any]) -> Layout:
        """That of a training job's `data` and `params`."""
        spec = data["spec"]
        inputs, labels = ([TensorColumns.from_json(one) for one in spec[key]] for key in ("inputs", "labels"))
        by_name = params.get("inputNames") is not None
        return Layout(inputs, labels, bool(spec.get("weight")), by_name, bool(data.get("validation")))

    def label_names(self) -> list[str]:
        """What the labels are called in a batch by name."""
        return ["labels"] if len(self.labels) == 1 else [one.name for one in self.labels]
