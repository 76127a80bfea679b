"""One rank of a training without Spark.

As a program, for `harness.Child`, it tells what the training costs its process: a request holds the job, the
program, the place among the ranks and where they meet; the answer has the seconds of processor that the
training took here, the memory that it added at its peak, and the epochs of its history.
"""

from __future__ import annotations

import base64
import json
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import torch._dynamo  # noqa: F401  optimizers import it at first use
from harness import serve

from flambeau import _native
from flambeau._module.adapter import ModuleModel
from flambeau._module.layout import Layout

SECRET = b"ranks of a benchmark, on loopback"


def train(
    job: Mapping[str, Any], program: Mapping[str, Any], rank: int, world_size: int, address: str
) -> dict[str, Any]:
    """Trains a rank to its end and returns the training's result. The ranks meet at `address`."""

    def all_gather(payload: bytes) -> list[bytes]:
        return _native.TcpRendezvous(address, rank, world_size, SECRET, 60.0).all_gather(payload)

    params = job["params"]
    layout = Layout.of(job["data"], params)
    adapter = ModuleModel(program, layout, precision=params.get("precision", "float32"))
    text = _native.train(json.dumps(job), rank, world_size, all_gather, SECRET, "127.0.0.1", adapter)
    result: dict[str, Any] = json.loads(text)
    return result


def cost(job: dict[str, Any], program: str, rank: int, world_size: int, address: str) -> dict[str, Any]:
    """Trains a rank; `program` is a cloudpickle in base64. Memory is in MiB, beyond what was there before."""
    objects = cloudpickle.loads(base64.b64decode(program))
    before = forget_peak()
    used = processor_seconds()
    result = train(job, objects, rank, world_size, address)
    return {
        "processor_seconds": processor_seconds() - used,
        "memory": status_mib("VmHWM") - before,
        "epochs": result["history"]["epochs"],
    }


def processor_seconds() -> float:
    """What this process has used of all processors so far, in itself and in the kernel."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def forget_peak() -> float:
    """Sets the peak of the resident memory back to what it is now, and returns that in MiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return status_mib("VmRSS")


def status_mib(name: str) -> float:
    """A size in /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


if __name__ == "__main__":
    serve(cost)
