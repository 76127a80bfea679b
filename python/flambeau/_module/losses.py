"""Losses as a value and a denominator.

The gradient that is applied is that of the global batch, so a rank must say not only its loss but over what
it is the mean. A loss here is called as `loss(output, labels, weight, num_rows)` and returns `(value,
denominator)`: `value` is a scalar tensor, the mean numerator / denominator as torch itself computes it (so
that its bits are torch's), and `denominator` is a float: rows, sums of weights, non-ignored targets or sums
of class weights. Where the denominator is zero (every target ignored, every weight zero) `value` means
nothing, and the batch has no gradient.

On a device a number that Python wants to know has to be waited for. So what can be known from labels and
weights alone is found before they go there, by `on_host`, and given to the call as `facts`.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from flambeau._module import captured
from flambeau._module.named import is_named, make
from flambeau._store import local_path
from flambeau.errors import DataError, ParamError


@dataclass(frozen=True)
class HostFacts:
    """What labels and weights in main memory tell of a batch."""

    denominator: float | None = None
    """That of its loss, where it is known without the module's output."""
    classes: tuple[int, int] | None = None
    """The least and the greatest class label that counts, where the labels are such."""


class Loss(Protocol):
    """A loss as the module's docstring describes it."""

    threshold: float
    """What separates the two classes of a one-column output that it takes."""
    several: bool
    """Whether the columns of an output are labels of their own."""
    tells: bool
    """Whether it tells logits from probabilities; else the module's last operation does."""

    @property
    def ignore_index(self) -> int | None:
        """The label that does not count."""

    def __call__(
        self,
        output: Any,
        labels: list[Tensor],
        weight: Tensor | None,
        num_rows: int,
        facts: HostFacts | None = None,
    ) -> tuple[Tensor, float]:
        """Value and denominator of a batch."""

    def on_host(self, labels: list[Tensor], weight: Tensor | None) -> tuple[list[Tensor], HostFacts]:
        """The labels as they are to go to a device, and what they tell before they do."""

    def to(self, device: torch.device) -> None:
        """Moves what the loss itself holds, such as the weights of classes."""


_ELEMENTWISE: dict[str, type[nn.Module]] = {
    "bce": nn.BCELoss,
    "bce_with_logits": nn.BCEWithLogitsLoss,
    "huber": nn.HuberLoss,
    "l1": nn.L1Loss,
    "mae": nn.L1Loss,
    "mse": nn.MSELoss,
    "poisson_nll": nn.PoissonNLLLoss,
    "smooth_l1": nn.SmoothL1Loss,
    "soft_margin": nn.SoftMarginLoss,
}
_CLASSES: dict[str, type[nn.Module]] = {"cross_entropy": nn.CrossEntropyLoss, "nll": nn.NLLLoss}
_FUNCTIONS: dict[Callable[..., Tensor], str] = {
    functional.binary_cross_entropy: "bce",
    functional.binary_cross_entropy_with_logits: "bce_with_logits",
    functional.cross_entropy: "cross_entropy",
    functional.huber_loss: "huber",
    functional.l1_loss: "l1",
    functional.mse_loss: "mse",
    functional.nll_loss: "nll",
    functional.poisson_nll_loss: "poisson_nll",
    functional.smooth_l1_loss: "smooth_l1",
    functional.soft_margin_loss: "soft_margin",
}

NAMES: tuple[str, ...] = tuple(sorted(_ELEMENTWISE | _CLASSES))
"""The names that `loss` accepts."""


def build(loss: Any) -> Loss:
    """The loss for what the user gave: a name, `{"name", "options"}`, a module, a callable, or `{"script"}`
    with the path of a TorchScript archive. Raises `ParamError` for anything else.
    """
    if is_named(loss):
        return build(make("loss", _with_tensors(loss), _ELEMENTWISE | _CLASSES))
    if isinstance(loss, Mapping) and set(loss) == {"script"}:
        return build(torch.jit.load(str(local_path(loss["script"]) or loss["script"])))
    if not callable(loss):
        raise ParamError(f"loss: expected a name, a module or a callable, got {type(loss).__name__}")
    if isinstance(loss, nn.Module):
        return _of_module(loss)
    name = _FUNCTIONS.get(loss)
    return build(name) if name else _of_callable(loss, getattr(loss, "__name__", type(loss).__name__))


def _with_tensors(loss: Any) -> Any:
    """The named loss with its lists of numbers, such as the weights of classes, as tensors."""
    if isinstance(loss, str):
        return loss
    options = dict(loss.get("options") or {})
    lists = {key: torch.tensor(value) for key, value in options.items() if isinstance(value, list | tuple)}
    return {"name": loss["name"], "options": options | lists}


_OPTIONS: dict[str, tuple[str, ...]] = {
    "bce": ("weight",),
    "bce_with_logits": ("weight", "pos_weight"),
    "cross_entropy": ("weight", "ignore_index", "label_smoothing"),
    "huber": ("delta",),
    "nll": ("weight", "ignore_index"),
    "poisson_nll": ("log_input", "full", "eps"),
    "smooth_l1": ("beta",),
}
"""The keywords of torch's losses, `reduction` apart; those that are not here have none."""


def named(loss: Any) -> dict[str, Any] | None:
    """One of torch's own losses, a module or a function, as `{"name", "options"}` in JSON; None for any
    other.
    """
    names = {kind: name for name, kind in (_ELEMENTWISE | _CLASSES).items() if name != "mae"}
    if isinstance(loss, nn.Module):
        name = names.get(type(loss))
    else:
        name = _FUNCTIONS.get(loss) if callable(loss) else None
    if name is None:
        return None
    given = {key: getattr(loss, key, None) for key in _OPTIONS.get(name, ())}
    options = {key: value.tolist() if isinstance(value, Tensor) else value for key, value in given.items()}
    return {"name": name, "options": {key: value for key, value in options.items() if value is not None}}


def _of_module(module: nn.Module) -> Loss:
    name = type(module).__name__
    trainable = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    if trainable:
        raise ParamError(
            f"loss: {name} has trainable parameters of its own ({', '.join(trainable)}); "
            "make them part of the model, so that they are trained, averaged and saved with it"
        )
    reduction = getattr(module, "reduction", None)
    if reduction == "sum":
        raise ParamError(
            f"loss: {name}(reduction='sum') would make a step depend on how many rows its "
            "batch has; use reduction='mean'"
        )
    if type(module) in _ELEMENTWISE.values():
        return ElementwiseLoss(module)
    if type(module) in _CLASSES.values():
        return ClassLoss(module)
    return _of_callable(module, name)


def _of_callable(function: Callable[..., Any], name: str) -> CallableLoss:
    """A user's callable, with the inputs where it has a parameter `inputs`, or a third one without a
    default.
    """
    try:
        called = function.forward if isinstance(function, nn.Module) else function
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        return CallableLoss(function, name)
    if any(one.name == "inputs" and one.kind in _BY_NAME for one in parameters[2:]):
        return InputsLoss(function, name, "inputs")
    needed = [one for one in parameters if one.kind in _BY_POSITION and one.default is one.empty]
    return InputsLoss(function, name) if len(needed) == 3 else CallableLoss(function, name)


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def brief(tensor: Tensor) -> str:
    """Shape and dtype, for messages."""
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def single_output(output: Any, name: str) -> Tensor:
    """The output where it must be one tensor; `name` is that of the loss or metric that says so."""
    if isinstance(output, Mapping) and len(output) == 1:
        (output,) = output.values()
    if isinstance(output, Tensor):
        return output
    raise DataError(
        f"{name} takes one tensor, but the model returns {_kind(output)}; "
        "return one tensor, or give a callable that takes what the model returns"
    )


def _kind(output: Any) -> str:
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of {len(output)}"
    return f"a {type(output).__name__}"


def target_dtype(output: Tensor) -> torch.dtype:
    """The dtype that targets of an output take: its own, but float32 where autocast made it a half."""
    half = output.dtype in (torch.bfloat16, torch.float16)
    return torch.float32 if half and torch.is_autocast_enabled(output.device.type) else output.dtype


def single_label(labels: list[Tensor], output: Tensor, name: str) -> Tensor:
    """The label where it must be one tensor. Several scalar labels are the columns of one, if the output has
    that many.
    """
    if len(labels) == 1:
        return labels[0]
    if not labels:
        raise DataError(
            f"{name} needs a label: set labelCol, or give a callable, which is called with the output alone"
        )
    if output.dim() == 2 and output.shape[1] == len(labels) and all(label.dim() == 1 for label in labels):
        return torch.stack([label.to(target_dtype(output)) for label in labels], dim=1)
    raise DataError(
        f"{name} takes one label, but there are {len(labels)} and the output has shape {brief(output)}; "
        "give a callable, which gets the tuple of labels"
    )


def same_shape(output: Tensor, label: Tensor) -> Tensor | None:
    """The label in the output's shape where the two differ by a trailing 1 only; None where they differ
    otherwise.
    """
    if label.shape == output.shape:
        return label
    longer, shorter = (output, label) if output.dim() > label.dim() else (label, output)
    if longer.dim() == shorter.dim() + 1 and longer.shape[-1] == 1 and longer.shape[:-1] == shorter.shape:
        return label.reshape(output.shape)
    return None


def regression_target(output: Any, labels: list[Tensor], name: str) -> tuple[Tensor, Tensor]:
    """Output and label with equal shapes, the label of `target_dtype`, or a `DataError` that says how they
    differ.
    """
    output = single_output(output, name)
    label = single_label(labels, output, name)
    if label.shape != output.shape:
        fitted = same_shape(output, label)
        if fitted is None:
            raise DataError(
                f"{name}: the model's output has shape {list(output.shape)} and the label "
                f"{list(label.shape)}; "
                "they must be equal, but for a trailing 1"
            )
        label = fitted
    return output, label if label.dtype == output.dtype else label.to(target_dtype(output))


def class_target(output: Any, labels: list[Tensor], name: str) -> tuple[Tensor, Tensor]:
    """Output [rows, classes, ...] and class labels [rows, ...] as int64, or class probabilities in the
    output's shape.
    """
    output = single_output(output, name)
    label = single_label(labels, output, name)
    if output.dim() < 2:
        raise DataError(
            f"{name}: the model's output has shape {list(output.shape)}, but must be [rows, classes, ...]; "
            "for one logit per row use bce_with_logits"
        )
    if label.is_floating_point() and label.shape == output.shape:
        return output, label if label.dtype == output.dtype else label.to(target_dtype(output))
    expected = output.shape[:1] + output.shape[2:]
    if label.shape != expected:
        if label.shape != (*expected, 1):
            raise DataError(
                f"{name}: the model's output has shape {list(output.shape)}, so the label must have shape "
                f"{list(expected)}, but it has {list(label.shape)}"
            )
        label = label.reshape(expected)
    return output, class_labels(label, name)


def class_labels(label: Tensor, name: str) -> Tensor:
    """Class labels as int64. Raises `DataError` for one that is no whole number."""
    if label.dtype == torch.int64:
        return label
    classes = label.to(torch.int64)
    if label.is_floating_point() and not torch.equal(classes.to(label.dtype), label):
        value = label[classes.to(label.dtype) != label].reshape(-1)[0].item()
        raise DataError(f"{name}: class labels must be whole numbers, but one is {value}")
    return classes


def _per_row(values: Tensor) -> Tensor:
    return values if values.dim() == 1 else values.flatten(1).mean(1)


def _weighted(per_row: Tensor, weight: Tensor, facts: HostFacts | None) -> tuple[Tensor, float]:
    known = facts.denominator if facts is not None else None
    denominator = _sum(weight) if known is None else known
    numerator = (per_row * weight.to(per_row.dtype)).sum()
    return numerator / denominator, denominator


def _sum(weight: Tensor) -> float:
    return float(weight.sum(dtype=torch.float64).item())


def _weight_facts(weight: Tensor | None) -> HostFacts:
    return HostFacts(denominator=None if weight is None else _sum(weight))


def _reducing(module: nn.Module, reduction: str) -> nn.Module:
    """The same loss module with another reduction; the user's stays as it is."""
    clone = copy.copy(module)
    clone.reduction = reduction  # type: ignore[assignment]
    return clone


class _TorchLoss:
    """A loss module of torch's, in two forms that share their buffers: its mean, and one value a target."""

    def __init__(self, module: nn.Module) -> None:
        self.name = f"loss {type(module).__name__}"
        self._unreduced = _reducing(module, "none")
        self._mean = _reducing(module, "mean")

    def to(self, device: torch.device) -> None:
        self._unreduced.to(device)
        self._mean.to(device)


class ElementwiseLoss(_TorchLoss):
    """A loss module of torch's whose mean is over all elements of output and label, which have one shape."""

    ignore_index: int | None = None

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.threshold = 0.5 if isinstance(module, nn.BCELoss) else 0.0
        self.several = isinstance(module, nn.BCELoss | nn.BCEWithLogitsLoss)
        self.tells = self.several or isinstance(module, nn.SoftMarginLoss)

    def __call__(
        self,
        output: Any,
        labels: list[Tensor],
        weight: Tensor | None,
        num_rows: int,
        facts: HostFacts | None = None,
    ) -> tuple[Tensor, float]:
        output, label = regression_target(output, labels, self.name)
        if weight is None:
            return self._mean(output, label), float(num_rows)
        return _weighted(_per_row(self._unreduced(output, label)), weight, facts)

    def on_host(self, labels: list[Tensor], weight: Tensor | None) -> tuple[list[Tensor], HostFacts]:
        return labels, _weight_facts(weight)


class ClassLoss(_TorchLoss):
    """Cross entropy or negative log likelihood: the mean is over the targets that count, each by its class's
    weight.
    """

    threshold = 0.0
    several = False
    tells = True

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.ignore_index = int(module.ignore_index)  # type: ignore[arg-type]
        self._class_weight: Tensor | None = module.weight  # type: ignore[assignment]
        self._class_weight_on_host = self._class_weight

    def __call__(
        self,
        output: Any,
        labels: list[Tensor],
        weight: Tensor | None,
        num_rows: int,
        facts: HostFacts | None = None,
    ) -> tuple[Tensor, float]:
        output, label = class_target(output, labels, self.name)
        if facts is not None and facts.classes is not None:
            # A device would only say that an assertion failed, and be of no use from then on.
            for value in facts.classes:
                self._check_label(value, output)
        try:
            return self._evaluate(output, label, weight, num_rows, facts)
        except IndexError as error:
            self._refuse_label(output, label)
            raise error

    def on_host(self, labels: list[Tensor], weight: Tensor | None) -> tuple[list[Tensor], HostFacts]:
        if len(labels) != 1 or (labels[0].dim() != 1 and labels[0].is_floating_point()):
            return labels, HostFacts()  # they may be probabilities: the output's shape will tell
        label = class_labels(labels[0], self.name)
        counted = label[label != self.ignore_index]
        classes = (int(counted.min()), int(counted.max())) if counted.numel() else None
        if self._class_weight_on_host is not None and classes is not None:
            last = len(self._class_weight_on_host) - 1
            if classes[0] < 0 or classes[1] > last:
                return [label], HostFacts(classes=classes)
        target_weights = self._target_weights(label, self._class_weight_on_host)
        if weight is not None:
            per_row = target_weights.flatten(1).sum(1) if label.dim() > 1 else target_weights
            target_weights = per_row.to(torch.float64) * weight
        return [label], HostFacts(_sum(target_weights), classes)

    def to(self, device: torch.device) -> None:
        super().to(device)
        self._class_weight = self._mean.weight  # type: ignore[assignment]

    def _evaluate(
        self,
        output: Tensor,
        label: Tensor,
        weight: Tensor | None,
        num_rows: int,
        facts: HostFacts | None,
    ) -> tuple[Tensor, float]:
        known = facts.denominator if facts is not None else None
        if label.is_floating_point():
            # Class probabilities: torch divides by the rows, whatever the class weights.
            if weight is None:
                return self._mean(output, label), float(num_rows)
            return _weighted(_per_row(self._unreduced(output, label)), weight, facts)
        if weight is None:
            value = self._mean(output, label)
            if known is not None:
                return value, known
            if self._class_weight is None:
                counted = label != self.ignore_index
                return value, float(counted.sum().item())
            return value, _sum(self._target_weights(label, self._class_weight))
        per_target = self._unreduced(output, label)
        if label.dim() > 1:
            per_target = per_target.flatten(1).sum(1)
        numerator = (per_target * weight.to(per_target.dtype)).sum()
        if known is None:
            target_weights = self._target_weights(label, self._class_weight)
            if label.dim() > 1:
                target_weights = target_weights.flatten(1).sum(1)
            known = (target_weights.to(torch.float64) * weight).sum().item()
        return numerator / known, known

    def _target_weights(self, label: Tensor, class_weight: Tensor | None) -> Tensor:
        """What each target adds to the denominator: its class's weight, or 1; 0 where it is ignored. In the
        label's shape.
        """
        counted = label != self.ignore_index
        if class_weight is None:
            return counted.to(torch.float64)
        return class_weight[torch.where(counted, label, 0)] * counted

    def _refuse_label(self, output: Tensor, label: Tensor) -> None:
        outside = ((label < 0) | (label >= output.shape[1])) & (label != self.ignore_index)
        if outside.any():
            self._check_label(label[outside].reshape(-1)[0].item(), output)

    def _check_label(self, value: float, output: Tensor) -> None:
        num_classes = output.shape[1]
        if 0 <= value < num_classes:
            return
        hint = "; for one logit per row use bce_with_logits" if num_classes == 1 else ""
        raise DataError(
            f"{self.name}: the class label {value} lies outside the {num_classes} classes of "
            "the model's output "
            f"{list(output.shape)}: labels must be 0 to {num_classes - 1}{hint}"
        ) from None


class CallableLoss:
    """A user's callable: a scalar is the mean over its rows; otherwise its first dimension must be the rows.

    It is called as `loss(output, label)`, with the tuple of labels where there are several, or with the
    output alone where there is none. A single label takes a single output's shape where they differ by a
    trailing 1.
    """

    threshold = 0.0
    ignore_index: int | None = None
    several = False
    tells = False

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.name = f"loss {name}"
        self._name = name
        self._function = function

    def __call__(
        self,
        output: Any,
        labels: list[Tensor],
        weight: Tensor | None,
        num_rows: int,
        facts: HostFacts | None = None,
    ) -> tuple[Tensor, float]:
        value = call_with_labels(self._function, output, labels)
        if not isinstance(value, Tensor):
            raise ParamError(f"{self.name} returned {_kind(value)}; it must return a tensor")
        if value.dim() == 0 or (value.numel() == 1 and num_rows != 1):
            if weight is not None:
                raise ParamError(
                    f"{self.name} returns a scalar, which cannot be weighted by weightCol; return one "
                    "value per row"
                )
            return value.reshape(()), float(num_rows)
        if value.shape[0] != num_rows:
            raise ParamError(
                f"{self.name} returned shape {list(value.shape)} for {num_rows} rows; it must "
                "return a scalar or one value per row"
            )
        per_row = _per_row(value)
        return (per_row.mean(), float(num_rows)) if weight is None else _weighted(per_row, weight, facts)

    def on_host(self, labels: list[Tensor], weight: Tensor | None) -> tuple[list[Tensor], HostFacts]:
        return labels, _weight_facts(weight)

    def to(self, device: torch.device) -> None:
        captured.move(self._function, device)


class InputsLoss(CallableLoss):
    """A user's callable that takes the inputs too, as the third argument or as the keyword of that name."""

    def __init__(self, function: Callable[..., Any], name: str, keyword: str | None = None) -> None:
        super().__init__(function, name)
        self._keyword = keyword

    def of(self, inputs: Any) -> CallableLoss:
        """The loss of a batch with these inputs."""
        function = self._function
        if self._keyword is not None:
            return CallableLoss(functools.partial(function, **{self._keyword: inputs}), self._name)
        return CallableLoss(lambda *others: function(*others, inputs), self._name)


def call_with_labels(function: Callable[..., Any], output: Any, labels: list[Tensor]) -> Any:
    """Calls a user's loss or metric with the output and its label or labels, a trailing 1 of a single label
    made to fit.
    """
    if len(labels) != 1:
        return function(output, tuple(labels)) if labels else function(output)
    label = labels[0]
    if isinstance(output, Tensor):
        fitted = same_shape(output, label)
        if fitted is not None:
            label = fitted
        if label.dtype != output.dtype and label.is_floating_point() and output.is_floating_point():
            label = label.to(target_dtype(output))
    return function(output, label)
