"""Losses and optimizers of torch by name: a name, or {"name", "options"} with keywords of the constructor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from flambeau.errors import ParamError

T = TypeVar("T")


def is_named(value: Any) -> bool:
    """Whether a value is a name, or {"name", "options"}."""
    return isinstance(value, str) or (
        isinstance(value, Mapping) and "name" in value and set(value) <= {"name", "options"}
    )


def name_of(value: Any) -> str | None:
    """The name in such a value; None for anything else."""
    if not is_named(value):
        return None
    return value if isinstance(value, str) else str(value["name"])


def make(what: str, value: Any, known: Mapping[str, Callable[..., T]], *arguments: Any, **keywords: Any) -> T:
    """What `value` names in `known`, called with the arguments, the keywords, and the value's options over
    those.

    `what` is the param. Raises ParamError for an unknown name, and for options that it does not take.
    """
    name = name_of(value)
    maker = known.get(name or "")
    if maker is None:
        raise ParamError(f"{what}: unknown name {name!r}; the names are {', '.join(sorted(known))}")
    options = {} if isinstance(value, str) else dict(value.get("options") or {})
    try:
        return maker(*arguments, **(keywords | options))
    except (TypeError, ValueError) as error:
        if not options:
            raise
        raise ParamError(f"{what}: {name} does not take the options {options}: {error}") from None
