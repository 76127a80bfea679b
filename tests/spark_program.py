"""Runs the programs of `programs/` as processes, since a session's master cannot change within one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark

PROGRAMS = Path(__file__).parent / "programs"
_SECONDS = 400


def outcome_of(program: str, directory: Path, /, **options: object) -> dict[str, Any]:
    """What the program printed behind `OUTCOME`, as JSON.

    It runs in `directory`, with `--name value` for each option. Fails the test, with the program's output,
    where it printed none within 400 seconds.
    """
    environment = {
        **os.environ,
        "SPARK_HOME": os.path.dirname(pyspark.__file__),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, str(PROGRAMS / program)]
    for name, value in options.items():
        command += ["--" + name.replace("_", "-"), str(value)]
    done = subprocess.run(
        command, env=environment, cwd=directory, capture_output=True, text=True, timeout=_SECONDS
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("OUTCOME ")]
    assert lines, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr[-6000:]}"
    outcome: dict[str, Any] = json.loads(lines[-1].removeprefix("OUTCOME "))
    return outcome
