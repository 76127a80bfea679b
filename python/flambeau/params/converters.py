"""Checks of a param's value: each turns a value into the param's type, or raises a ParamError that says what
is allowed.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.ml import Model

from flambeau._suggest import suggestion
from flambeau.errors import ParamError

KINDS = (
    "number",
    "logit",
    "logits",
    "probability",
    "probabilities",
    "log_probabilities",
    "labels",
    "label_probabilities",
)
INPUT_TYPES = ("auto", "float32", "float64", "int64", "bool", "uint8", "sparse")


@dataclass(frozen=True)
class Integer:
    """Whole numbers from `minimum` to `maximum` (None for no end), except `without`."""

    minimum: int
    maximum: int | None = None
    without: int | None = None

    def __call__(self, value: Any) -> int:
        """The value as an int; a float counts where it is whole."""
        if isinstance(value, numbers.Real) and not isinstance(value, bool) and float(value).is_integer():
            number = int(float(value)) if isinstance(value, float) else int(value)  # type: ignore[call-overload]
            within = number >= self.minimum and (self.maximum is None or number <= self.maximum)
            if within and number != self.without:
                return number
        raise ParamError(f"must be {self}, got {value!r}")

    def __str__(self) -> str:
        end = "" if self.maximum is None else f" and at most {self.maximum}"
        other = "" if self.without is None else f", but not {self.without}"
        return f"a whole number of at least {self.minimum}{end}{other}"


@dataclass(frozen=True)
class Number:
    """Finite numbers from `minimum` to `maximum` (None for no end); an end that is open is itself not
    allowed.
    """

    minimum: float
    maximum: float | None = None
    open_below: bool = False
    open_above: bool = False

    def __call__(self, value: Any) -> float:
        """The value as a float."""
        if isinstance(value, numbers.Real) and not isinstance(value, bool):
            number = float(value)
            above = number > self.minimum if self.open_below else number >= self.minimum
            end = float("inf") if self.maximum is None else self.maximum
            below = number < end if self.open_above or self.maximum is None else number <= end
            if above and below:
                return number
        raise ParamError(f"must be {self}, got {value!r}")

    def __str__(self) -> str:
        start = f"a number {'above' if self.open_below else 'of at least'} {self.minimum:g}"
        if self.maximum is None:
            return start
        return f"{start} and {'below' if self.open_above else 'at most'} {self.maximum:g}"


def boolean(value: Any) -> bool:
    """True or False only: a number is refused."""
    if isinstance(value, bool):
        return value
    raise ParamError(f"must be True or False, got {value!r}")


def text(value: Any) -> str:
    """A string that is not empty."""
    if isinstance(value, str) and value:
        return str(value)
    raise ParamError(f"must be a string that is not empty, got {value!r}")


def saved_model(value: Any) -> Any:
    """The directory of a saved model, or a fitted model."""
    if isinstance(value, str) and value:
        return str(value)
    if isinstance(value, Model) and type(value).__module__ == "flambeau":
        return value
    raise ParamError(f"must be the directory of a saved model, or a fitted model, got {value!r}")


def function(value: Any) -> Any:
    """What can be called."""
    if callable(value):
        return value
    raise ParamError(f"must be a callable, got {value!r}")


def text_or_empty(value: Any) -> str:
    """A string, which may be empty."""
    if isinstance(value, str):
        return value
    raise ParamError(f"must be a string, got {value!r}")


def text_list(value: Any) -> list[str]:
    """A list of different strings, at least one."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, str) and item for item in value):
        if len(set(value)) == len(value):
            return list(value)
        raise ParamError(f"must not name a column twice, got {list(value)!r}")
    raise ParamError(f"must be a list of column names, got {value!r}")


def output_columns(value: Any) -> list[str]:
    """A list of different strings, at least one of them not empty; others may be."""
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        named = [item for item in value if item]
        if named and len(set(named)) == len(named):
            return list(value)
    raise ParamError(f"must be a list of different column names, not all of them empty, got {value!r}")


def shapes(value: Any) -> list[list[int]]:
    """A list of shapes, each a list of sizes of at least 1; a single shape is not a list of shapes."""
    if (
        isinstance(value, (list, tuple))
        and value
        and all(isinstance(shape, (list, tuple)) for shape in value)
    ):
        size = Integer(1)
        return [[size(item) for item in shape] for shape in value]
    raise ParamError(f"must be a list with a shape for each input, such as [[3, 32, 32]], got {value!r}")


def groups_of_names(value: Any) -> list[list[str]]:
    """A list of lists of strings, at least one in each, all of them different."""
    if (
        isinstance(value, (list, tuple))
        and value
        and all(isinstance(group, (list, tuple)) and group for group in value)
    ):
        names = [name for group in value for name in group]
        if all(isinstance(name, str) and name for name in names):
            if len(set(names)) == len(names):
                return [list(group) for group in value]
            raise ParamError(f"must name each parameter once, got {value!r}")
    raise ParamError(
        "must be a list of groups, each a list of names of parameters, such as "
        f"[['encoder.weight', 'encoder.bias']], got {value!r}"
    )


def input_types(value: Any) -> list[str]:
    """A list of tensor types."""
    if isinstance(value, (list, tuple)) and value and all(item in INPUT_TYPES for item in value):
        return list(value)
    raise ParamError(f"must be a list with one of {', '.join(INPUT_TYPES)} for each input, got {value!r}")


def output_kinds(value: Any) -> list[str]:
    """A list of kinds of outputs."""
    if isinstance(value, (list, tuple)) and value and all(item in KINDS for item in value):
        return list(value)
    raise ParamError(f"must be a list with one of {', '.join(KINDS)} for each output, got {value!r}")


def threshold_list(value: Any) -> list[float]:
    """Numbers of at least 0, of which one at most is 0, as Spark ML wants them."""
    if isinstance(value, (list, tuple)) and value:
        number = Number(0.0)
        limits = [number(item) for item in value]
        if limits.count(0.0) <= 1:
            return limits
    raise ParamError(
        f"must be a list of a number of at least 0 for each class, one of them 0 at most, got {value!r}"
    )


def one_of(*allowed: str) -> Callable[[Any], str]:
    """A converter that takes one of several words."""

    def convert(value: Any) -> str:
        if value in allowed:
            return str(value)
        hint = suggestion(value, allowed) if isinstance(value, str) else ""
        raise ParamError(f"must be {' or '.join(map(repr, allowed))}, got {value!r}{hint}")

    return convert
