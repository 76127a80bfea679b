"""Runs the programs of `programs/` as processes, since a session's master cannot change within one."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyspark

PROGRAMS = Path(__file__).parent / "programs"
SPARK_HOME = Path(pyspark.__file__).parent
SECONDS = 400


def environment_on(host: str) -> dict[str, str]:
    """The environment of Spark's processes on that address."""
    spark = {"SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": host}
    return {**os.environ, **spark}


def outcome_of(
    program: str,
    directory: Path,
    host: str = "127.0.0.1",
    within: Sequence[str] = (),
    seconds: float = SECONDS,
    /,
    **options: object,
) -> dict[str, Any]:
    """What the program printed behind `OUTCOME`, as JSON.

    It runs in `directory`, with `--name value` for each option, by the command `within`, and its session is
    on the address `host`. Fails the test, with the program's output, where it printed none within so many
    seconds.
    """
    command = [*within, sys.executable, str(PROGRAMS / program)]
    for name, value in options.items():
        command += ["--" + name.replace("_", "-"), str(value)]
    done = subprocess.run(
        command, env=environment_on(host), cwd=directory, capture_output=True, text=True, timeout=seconds
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("OUTCOME ")]
    assert lines, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr[-6000:]}"
    outcome: dict[str, Any] = json.loads(lines[-1].removeprefix("OUTCOME "))
    return outcome
