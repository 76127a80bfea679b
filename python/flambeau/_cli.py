"""The program `flambeau`: what `flambeau-worker` does, and what needs Python.

Nothing of torch's or Spark's is imported before a command needs it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flambeau.errors import FlambeauError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WORKER = "flambeau-worker"

_MORE = """\

These need Python, and --libtorch is not theirs:

    flambeau doctor [--master URL | --remote URL] [--num-workers N] [--work-dir DIR] [--json]
        Says what this machine has of what Flambeau needs, and what is missing, with what to do. With a
        session of Spark by its master, or of Spark Connect by its address, also what that has: task slots,
        the workers' versions, the work directory. The exit status is 1 where a fit with the default params
        would not run.
    flambeau convert MODEL OUT [--weights]
        Writes a saved model as one file that plain torch loads: OUT.pt for torch.jit.load, OUT.pt2 for
        torch.export.load, and with --weights the state_dict alone, for torch.load."""


def main() -> int:
    """Runs the command line, and returns the exit status: 0 where all went well, 1 after an error, 2 where
    the command line is wrong.
    """
    arguments = sys.argv[1:]
    try:
        match arguments:
            case ["--help" | "-h" | "help" | "doctor" | "convert", *_] if _asks_for_help(arguments):
                print(_help())
                return 0
            case ["doctor", *rest]:
                return _doctor(rest)
            case ["convert", *rest]:
                return _convert(rest)
            case _:
                return _worker(arguments)
    except (FlambeauError, OSError) as error:
        print(f"flambeau: {error}", file=sys.stderr)
        return 1
    except ImportError as error:
        print(f"flambeau: {error}; flambeau doctor says what is missing", file=sys.stderr)
        return 1


def _asks_for_help(arguments: Sequence[str]) -> bool:
    return arguments[0] == "help" or not {"--help", "-h"}.isdisjoint(arguments)


def _help() -> str:
    """What `flambeau-worker --help` prints, which is the one text of its commands, and Python's beside it;
    the latter alone where the former is missing.
    """
    from flambeau._rank.native_runtime import binary

    try:
        program = binary()
    except FlambeauError:
        return f"{_WORKER} is missing, and with it most commands.\n{_MORE}"
    told = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    return told.replace(_WORKER, "flambeau").rstrip("\n") + "\n" + _MORE


def _worker(arguments: Sequence[str]) -> int:
    """Becomes `flambeau-worker`, which takes libtorch from this Python unless it is told otherwise."""
    from flambeau._rank.native_runtime import binary

    program = str(binary())
    os.environ.setdefault("FLAMBEAU_PYTHON", sys.executable)
    os.execv(program, [program, *arguments])  # noqa: S606  the arguments are the user's own


def _doctor(arguments: Sequence[str]) -> int:
    parser = _parser("doctor")
    session = parser.add_mutually_exclusive_group()
    session.add_argument("--master")
    session.add_argument("--remote")
    parser.add_argument("--num-workers", type=int)
    parser.add_argument("--work-dir")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    is_session = given.master is not None or given.remote is not None
    if not is_session and (given.num_workers is not None or given.work_dir is not None):
        parser.error("--num-workers and --work-dir are looked at with a session: give --master or --remote")
    if given.num_workers is not None and given.num_workers < 1:
        parser.error(f"--num-workers is {given.num_workers}, but must be 1 or more")
    from flambeau._doctor import doctor
    from flambeau._reason import first_line
    from flambeau._report import Fact, Report

    spark, failed = None, []
    if is_session:
        try:
            spark = _session(given.master, given.remote)
        except Exception as error:
            failed = [Fact("session", first_line(error), "mend what is told above, or the session's address")]
    report = Report([*doctor(spark, given.num_workers, given.work_dir).facts, *failed])
    print(report.toJson() if given.json else report)
    return 0 if report.isWell else 1


def _session(master: str | None, remote: str | None) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("flambeau doctor")
    if remote is not None:
        return builder.remote(remote).getOrCreate()
    return builder.master(master or "local").getOrCreate()


def _convert(arguments: Sequence[str]) -> int:
    parser = _parser("convert")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("--weights", action="store_true")
    given = parser.parse_args(arguments)
    import flambeau.model  # noqa: F401  the classes that a directory may be of
    from flambeau._spark.saving.plain_torch import convert

    convert(given.model, given.out, weights=given.weights)
    return 0


def _parser(command: str) -> argparse.ArgumentParser:
    """A parser without a help of its own: there is one for all commands."""
    return argparse.ArgumentParser(prog=f"flambeau {command}", add_help=False, allow_abbrev=False)
