"""libtorch, which `runtime="native"` runs on: its version, and where it is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

TORCH = "2.13"
"""The version of libtorch that `flambeau-worker` runs on."""

WAY_OUT = "or take runtime='python'"


def libtorch_of(given: str | None) -> str | None:
    """The directory of libtorch: the given one, else this Python's torch where that is the right version,
    else None, which leaves it to `flambeau-worker` to look for one.
    """
    if given:
        return given
    try:
        torch = distribution("torch")
    except PackageNotFoundError:
        return None
    directory = Path(str(torch.locate_file("torch")))
    return str(directory) if torch.version.startswith(f"{TORCH}.") and directory.is_dir() else None
