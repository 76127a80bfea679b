"""The version of the package."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec

HAS_EXTENSION = find_spec("flambeau._native") is not None
"""Whether this installation has the native extension: the wheel for clients of Spark Connect has none."""

NATIVE_PLATFORM = "Linux x86-64 with glibc 2.34 or later"
"""What the native extension is built for."""


def _version() -> str:
    if not HAS_EXTENSION:
        return version("flambeau")
    from flambeau import _native

    return _native.__version__


VERSION = _version()
