"""Which device a task of `transform` scores on: the GPU that Spark assigned to it, else one of the machine's,
else the CPU.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flambeau.errors import ParamError

if TYPE_CHECKING:
    from pyspark import TaskContext

log = logging.getLogger("flambeau")

_NVIDIA_DRIVER = Path("/dev/nvidiactl")
"""What is there wherever NVIDIA's driver is."""


@dataclass(frozen=True)
class Visible:
    """The GPUs that torch can use in this process, by their ordinal."""

    uuids: tuple[str, ...] = ()
    reason: str = ""
    """Why there are none, in torch's own words."""


@dataclass(frozen=True)
class Place:
    """A task's GPU, and what is to be known of the task to share it."""

    ordinal: int
    uuid: str
    task: str
    """Names the task among those of this machine."""

    @property
    def device(self) -> str:
        """The GPU as torch calls it."""
        return f"cuda:{self.ordinal}"


def place_of_task(device: str) -> Place | None:
    """The GPU that the running task scores on under the param `device`; None for the CPU.

    Asks nothing of CUDA where that is "cpu". Raises ParamError where there is no such GPU.
    """
    if device == "cpu":
        return None
    context = _running_task()
    number = context.partitionId() if context is not None else 0
    given = context.resources().get("gpu") if context is not None else None
    addresses = given.addresses if given is not None else []
    found = visible()
    ordinal = choose(device, addresses, number, found)
    if ordinal is None:
        if addresses or has_nvidia_driver():
            log.warning(
                "scoring on the CPU, since torch cannot use the GPUs of this machine: %s", found.reason
            )
        return None
    return Place(ordinal, found.uuids[ordinal], name_of(context))


def has_nvidia_driver() -> bool:
    """Whether this machine has NVIDIA's driver."""
    return _NVIDIA_DRIVER.exists()


def choose(device: str, addresses: Sequence[str], number: int, found: Visible) -> int | None:
    """The ordinal of the GPU for a task, None for the CPU.

    `device` is the param ("auto" or "cuda"), `addresses` are those of the GPUs that Spark assigned to the
    task: ordinals among the visible ones, or UUIDs. `number` is the task's own, by which tasks without an
    assigned GPU are dealt out. Raises ParamError where "cuda" finds no GPU, and where the assigned one is not
    there.
    """
    if not found.uuids:
        if device == "cuda":
            raise ParamError(
                f"device is 'cuda', and torch can use no GPU on {socket.gethostname()}: {found.reason}; mend "
                "that on each machine that scores, or set device='cpu', or 'auto', which takes the CPU there"
            )
        return None
    if not addresses:
        return number % len(found.uuids)
    address = addresses[0]
    names = [str(ordinal) for ordinal in range(len(found.uuids))] if address.isdecimal() else found.uuids
    plain = [_plain(name) for name in names]
    if _plain(address) not in plain:
        limit = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise ParamError(
            f"Spark assigned the GPU {address} to a task on {socket.gethostname()}, whose process sees "
            f"{', '.join(names)} (CUDA_VISIBLE_DEVICES is {limit}): mend the script that tells Spark the "
            "addresses, or set device='cpu'"
        )
    return plain.index(_plain(address))


def name_of(context: TaskContext | None) -> str:
    """A name that all Python workers of a task have in common, and no others of this machine."""
    return f"process {os.getpid()}" if context is None else f"task {context.taskAttemptId()} of {_executor()}"


def _running_task() -> TaskContext | None:
    """Spark's task that this process runs; None outside of one."""
    try:
        from pyspark import TaskContext
    except ImportError:
        return None
    return TaskContext.get()


def visible() -> Visible:
    """What torch sees in this process. Starts CUDA's driver where there is one."""
    import torch

    from flambeau._module.devices import cuda_obstacle

    obstacle = cuda_obstacle()
    if obstacle is not None:
        return Visible(reason=obstacle)
    ordinals = range(torch.cuda.device_count())
    return Visible(tuple(str(torch.cuda.get_device_properties(ordinal).uuid) for ordinal in ordinals))


def _plain(name: str) -> str:
    """A UUID without the prefix that nvidia-smi has and torch has not."""
    return name.lower().removeprefix("gpu-")


def _executor() -> str:
    """What Python workers of one executor have in common and those of others don't: their daemon's parent."""
    parent = os.getppid()
    try:
        stat = Path(f"/proc/{parent}/stat").read_text()
    except OSError:
        return f"process {parent}"
    return f"process {stat.rsplit(')', 1)[1].split()[1]}"
