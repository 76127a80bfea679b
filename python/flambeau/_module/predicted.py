"""What metrics of classes compare: predicted classes, class labels and the weights of rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flambeau._module.losses import class_target, regression_target, single_label, single_output
from flambeau.errors import DataError


def row_weights(weight: Tensor | None, like: Tensor) -> Tensor:
    """One float64 weight per element of `like`, whose first dimension is the rows."""
    if weight is None:
        return torch.ones((), dtype=torch.float64, device=like.device).expand(like.shape)
    return weight.to(torch.float64).reshape(-1, *([1] * (like.dim() - 1))).expand(like.shape)


def predicted_classes(
    output: Any, labels: list[Tensor], name: str, threshold: float, top: int = 1
) -> tuple[Tensor, Tensor]:
    """The predicted classes [rows, top, ...] and the class labels [rows, ...]; one-column outputs are cut at
    `threshold`.
    """
    output = single_output(output, name)
    if output.dim() < 2 or output.shape[1] == 1:
        output, label = regression_target(output, labels, name)
        return (output > threshold).to(torch.int64).unsqueeze(1), label.to(torch.int64)
    label = single_label(labels, output, name)
    if label.shape == output.shape:  # class probabilities, or one-hot
        label = label.argmax(1)
    output, label = class_target(output, [label], name)
    return output.topk(min(top, output.shape[1]), dim=1).indices, label


def refuse_several_labels(output: Any, name: str, instead: str) -> None:
    """Raises DataError for outputs of several labels a row, where `name` is for one."""
    if isinstance(output, Tensor) and output.dim() >= 2 and output.shape[1] > 1:
        raise DataError(
            f"{name} is for one label a row, and the loss takes the output, of shape "
            f"{list(output.shape)}, as {output.shape[1]} labels: take {instead}, or a metric of torchmetrics"
        )
