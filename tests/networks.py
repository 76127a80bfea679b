"""Network namespaces: hosts as different as one machine can make them."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest


@contextmanager
def two_networks(addresses: Sequence[str], rate: str | None = None) -> Iterator[list[str]]:
    """Two network namespaces, each with one of the addresses, with a cable between them, which is held to
    `rate` each way, in the words of tc. Skips the test where the system has none, and where this process may
    not make them.
    """
    names = [f"flambeau-{os.getpid()}-{side}" for side in "ab"]
    devices = [f"fl{os.getpid()}{side}" for side in "ab"]
    with ExitStack() as stack:
        for name in names:
            _run(f"ip netns add {name}")
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=True)
        _run(f"ip link add {devices[0]} netns {names[0]} type veth peer name {devices[1]} netns {names[1]}")
        for name, device, address in zip(names, devices, addresses, strict=True):
            _run(f"ip -n {name} addr add {address}/24 dev {device}")
            _run(f"ip -n {name} link set {device} up")
            _run(f"ip -n {name} link set lo up")
            if rate:
                shape = f"tbf rate {rate} burst 64kb latency 50ms"
                _run(f"ip netns exec {name} tc qdisc add dev {device} root {shape}")
        yield names


def within(network: str) -> list[str]:
    """What runs a command in a namespace."""
    return ["ip", "netns", "exec", network]


def _run(command: str) -> None:
    try:
        done = subprocess.run(command.split(), capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"SKIPPED: no network namespaces here: {error}")
    if done.returncode != 0:
        pytest.skip(f"SKIPPED: no network namespaces here: {command}: {done.stderr.strip()}")
