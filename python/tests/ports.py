"""Ports of loopback for servers that have to be told theirs before they start."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """A port of loopback that nobody else is given meanwhile.

    A socket is bound to it and does not listen: the system then hands the port to no one who asks for any,
    and whoever names it, with SO_REUSEADDR, as servers do, may listen there.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])
