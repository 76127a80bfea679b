"""Runs programs one after the other in one process, where they share a session of Spark's, and prints what
each failed with, as one JSON line: by name, null where it did not.

    pages.py --programs JSON

`--programs` maps names to files. Each runs as the main module of its own, in the directory of this process.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from pathlib import Path
from types import ModuleType


def failure(path: str) -> str | None:
    """What a program fails with."""
    main = ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    try:
        exec(compile(Path(path).read_text(), path, "exec"), main.__dict__)  # noqa: S102
    except BaseException:
        return traceback.format_exc()
    return None


def run() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=json.loads, required=True)
    programs = parser.parse_args().programs
    print("OUTCOME", json.dumps({name: failure(path) for name, path in programs.items()}))


if __name__ == "__main__":
    run()
