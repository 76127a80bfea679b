"""The version of the package."""

from __future__ import annotations

import socket
from importlib.metadata import version
from importlib.util import find_spec

from flambeau.errors import EnvironmentMismatchError

HAS_EXTENSION = find_spec("flambeau._native") is not None
"""Whether this installation has the native extension: the wheel for clients of Spark Connect has none."""

NATIVE_PLATFORM = "Linux x86-64 with glibc 2.34 or later"
"""What the native extension is built for."""


def check_extension() -> None:
    """Raises EnvironmentMismatchError where this machine has no extension."""
    if not HAS_EXTENSION:
        raise EnvironmentMismatchError(
            f"the flambeau of {socket.gethostname()} has no native parts: they are for {NATIVE_PLATFORM}"
        )


def _version() -> str:
    if not HAS_EXTENSION:
        return version("flambeau")
    from flambeau import _native

    return _native.__version__


VERSION = _version()
