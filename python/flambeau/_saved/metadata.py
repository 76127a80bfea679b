"""What the metadata of a saved model or estimator say of it: which class, and who wrote it."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from typing import Any

from flambeau._version import VERSION
from flambeau.errors import FlambeauError

FORMAT_VERSION = 1


def class_of(metadata: Mapping[str, Any], path: str, base: type[Any], what: str | None = None) -> type[Any]:
    """The class that the metadata names, `base` or one that derives from it; `what` is such a one's name.

    Raises FlambeauError for another class, and for another version of the format.
    """
    package, _, name = metadata["class"].rpartition(".")
    known = {cls.__name__: cls for cls in _with_derived(base)} if package == "flambeau" else {}
    if name not in known:
        raise FlambeauError(f"{path} holds a {metadata['class']}, not a {what or base.__name__}")
    ours = metadata.get("flambeau") or {}
    version = ours.get("formatVersion")
    if version != FORMAT_VERSION:
        raise FlambeauError(
            f"{path} has format {version}, written by Flambeau {ours.get('flambeauVersion')}; "
            f"this version reads {FORMAT_VERSION}"
        )
    return known[name]


def _with_derived(base: type[Any]) -> Iterator[type[Any]]:
    """The classes of Flambeau's among a class and those that derive from it: they put themselves in line by
    being defined.
    """
    if base.__module__ == "flambeau":
        yield base
    for derived in base.__subclasses__():
        yield from _with_derived(derived)


def written_by() -> dict[str, Any]:
    """What wrote a directory."""
    import torch

    return {
        "formatVersion": FORMAT_VERSION,
        "flambeauVersion": VERSION,
        "pythonVersion": platform.python_version(),
        "torchVersion": str(torch.__version__),
    }
