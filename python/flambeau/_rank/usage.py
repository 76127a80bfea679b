"""What a rank uses of its machine, told to the driver in files of the work directory while it trains."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flambeau._store import open_store
from flambeau.errors import FlambeauError

_END_SECONDS = 10.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Usage:
    """The files of one attempt's ranks, `<directory>/<rank>.json`, each with its rank's newest sample."""

    directory: str
    seconds: float
    """From one sample to the next."""
    store_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @contextmanager
    def told(self, rank: int) -> Iterator[None]:
        """Samples this process, with its children, and its machine while the block runs. A store that cannot
        be written costs the sample and nothing else. The end waits for a write that is under way, for ten
        seconds at most.
        """
        over = threading.Event()
        writer = threading.Thread(target=self._write, args=(rank, over), name="flambeau-usage", daemon=True)
        writer.start()
        try:
            yield
        finally:
            over.set()
            writer.join(_END_SECONDS)

    def _write(self, rank: int, over: threading.Event) -> None:
        store: Any = None
        # A machine that does not tell of itself ends this alone.
        with suppress(OSError):
            before, number = _Clocks.now(), 0
            while not over.wait(self.seconds):
                now = _Clocks.now()
                sample = {"kind": "usage", "rank": rank, "number": number, "values": _values(before, now)}
                before, number = now, number + 1
                with suppress(FlambeauError, OSError, ValueError):
                    store = store or open_store(self.store_options)
                    store.put(f"{self.directory}/{rank}.json", json.dumps(sample).encode())


@dataclass(frozen=True)
class _Clocks:
    """Seconds, and the ticks of CPUs up to then."""

    seconds: float
    machine: int
    machine_busy: int
    process: int

    @classmethod
    def now(cls) -> _Clocks:
        # user, nice, system, idle, iowait, irq, softirq and steal; those of guests are among the first two.
        times = [int(ticks) for ticks in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        process = 0
        for pid in _processes():
            with suppress(OSError):  # it has ended
                # utime, stime, and those of its children that have ended.
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                process += sum(map(int, stat[11:15]))
        return cls(time.monotonic(), sum(times), sum(times) - times[3] - times[4], process)


def _values(before: _Clocks, now: _Clocks) -> dict[str, float]:
    """The machine's figures, by the names that MLflow gives them, and those of the process."""
    memory = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    total, available = (int(memory[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    pages = 0
    for pid in _processes():
        with suppress(OSError):  # it has ended
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    busy = (now.machine_busy - before.machine_busy) / max(1, now.machine - before.machine)
    cores = (now.process - before.process) / _TICKS / (now.seconds - before.seconds)
    return {
        "cpu_utilization_percentage": round(100 * busy, 1),
        "system_memory_usage_megabytes": round((total - available) / 1e6, 1),
        "system_memory_usage_percentage": round(100 * (total - available) / total, 1),
        "process_cpu_utilization_percentage": round(100 * max(0.0, cores), 1),
        "process_memory_usage_megabytes": round(pages * _PAGE_BYTES / 1e6, 1),
    }


def _processes() -> list[str]:
    """This process and its children: `runtime="native"` trains in one."""
    found = ["self"]
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found += path.read_text().split()
    return found
