"""Programs that are killed while they train."""

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

_SECONDS = 600


def killed_while_it_trains(work: Path, /, **program: Any) -> Path:
    """Starts a program, as `Popen` takes it, and kills its process group once its training has written a
    checkpoint to that work directory: the attempt's directory, whose newest checkpoint is to be gone on from.
    """

    def attempts() -> set[Path]:
        return {committed.parents[2] for committed in work.glob("attempts/*/checkpoints/*/COMMITTED")}

    known = attempts()
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(**program, stdout=log, stderr=subprocess.STDOUT, start_new_session=True) as started,
    ):
        deadline = time.monotonic() + _SECONDS
        try:
            while not (new := attempts() - known):
                if started.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise AssertionError(f"no checkpoint; {started.returncode}: {log.read()[-6000:]}")
                time.sleep(0.02)
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
    assert started.returncode == -signal.SIGKILL
    (attempt,) = new
    return attempt
