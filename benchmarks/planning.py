"""What it takes to plan a training, for `harness.Child`: the driver's look at all files and rank 0's, its
order of the rows, and its first batch. A request holds the job; the answer has the seconds, and the MiB that
this process added.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from harness import serve
from rank import forget_peak, status_mib

from flambeau import _native


def plan(job: dict[str, Any]) -> Mapping[str, float]:
    """Plans, from the job to rank 0's first batch."""
    data = job["data"]
    question = {"ask": "inspectRows", **data, "spec": {**data["spec"], "weight": None}}
    text, before, began = json.dumps(job), forget_peak(), time.perf_counter()
    _native.supervise(job["attempt"]["workDir"], json.dumps(question), {})
    reader = _native.BatchReader(text, 0, job["params"]["numWorkers"])
    reader.start(0)
    next(iter(reader))
    return {"seconds": time.perf_counter() - began, "memory": status_mib("VmHWM") - before}


if __name__ == "__main__":
    serve(plan)
