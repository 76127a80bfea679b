"""A hint at the name that was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(name: str, names: Iterable[str]) -> str:
    """A hint at the one of `names` that is close to `name`, empty where none is."""
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
