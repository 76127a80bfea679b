"""The page of figures is made of one run: results of several commits or kinds are refused."""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


# What the benchmarks name as the tests name theirs, and what imports it.
MODULES = ("harness", "page", "pictures", "fit_by_hand", "flights", "gpu")


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    others = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("page")
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.modules.update(others)


def stored(commit: str = "aaaa", dirty: bool = False, full: bool = False, rounds: int | None = None) -> Any:
    return {"commit": {"hash": commit, "dirty": dirty}, "full": full, "rounds": rounds, "results": []}


def test_results_of_one_run_make_the_page(page: Any) -> None:
    found = {"fit": stored(), "reading": stored()}
    assert page.of_one_run(found) == found


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (stored(commit="bbbb"), "reading: commit bbbb; the telling sizes"),
        (stored(dirty=True), "reading: commit aaaa, with changes that are in no commit"),
        (stored(full=True), "reading: commit aaaa; every size"),
        (stored(rounds=1), "reading: commit aaaa; the telling sizes; 1 rounds"),
        ({"date": "2026-11-21", "full": True, "results": []}, "reading: of no commit"),
        (None, "reading: not measured"),
    ],
)
def test_a_suite_of_another_run_is_refused_with_what_to_run(page: Any, other: Any, what: str) -> None:
    with pytest.raises(page.SeveralRuns) as refused:
        page.of_one_run({"fit": stored(), "training": stored(), "reading": other})
    assert "fit: commit aaaa; the telling sizes" in str(refused.value)
    assert what in str(refused.value)
    assert "At aaaa: python benchmarks/run.py --only reading\n" in str(refused.value)


def test_what_to_run_is_of_the_kind_that_most_are_of(page: Any) -> None:
    most = stored(full=True, rounds=2)
    with pytest.raises(page.SeveralRuns, match=r"run\.py --only fit --full --rounds 2\n"):
        page.of_one_run({"fit": stored(), "training": most, "reading": most})


def test_goals_against_peers_are_told_apart_from_those_against_itself(page: Any, tmp_path: Path) -> None:
    def result(work: str, against: str, theirs: float) -> Any:
        figures = {"Flambeau": [2.0], against: [theirs]}
        return page.Result(work, "s", False, figures, {against: 1.0}, date="2026-11-22").to_json()

    machine = {"processor": "p", "cores": 2, "memory": "m", "system": "s", "versions": {"torch": "2"}}
    shared = {"title": "A suite.", "machine": machine, "peers": {"gloo": {"torch": "1"}}}
    results = [result("a", "gloo", 3.0), result("b", "gloo", 1.0), result("c", "itself: smaller", 3.0)]
    page.HERE, page.FIGURES = tmp_path, tmp_path / "figures"
    anatomy = {name: value for name, value in stored().items() if name != "results"}
    page.write({"fit": {**stored(), **shared, "results": results}, "anatomy": anatomy})
    text = (tmp_path / "RESULTS.md").read_text()
    assert "| goals met, against | peers | limits | set figures | itself |" in text
    assert "| [fit](#fit) | 1 of 2 |  |  | 1 of 1 |" in text
    assert "- b: 0.50 times gloo, the goal is 1\n" in text
    assert "- a: " not in text
    assert "2026-11-22, 1 rounds" in text
    assert "in an environment of its own: torch 1." in text


def test_the_command_refuses_and_leaves_the_page(page: Any, tmp_path: Path) -> None:
    """The program itself, on a copy whose results lack a suite."""
    for name in ("run.py", "page.py", "pictures.py", "harness.py"):
        (tmp_path / name).write_bytes((BENCHMARKS / name).read_bytes())
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "fit.json").write_text(json.dumps(stored()))
    refused = subprocess.run([sys.executable, tmp_path / "run.py", "--page"], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "reading: not measured" in refused.stdout
    assert not (tmp_path / "RESULTS.md").exists()


def test_ranks_read_equal_shares_of_the_rows(page: Any, tmp_path: Path) -> None:
    """Over files and row groups that end anywhere, each row once but for what does not divide."""
    fit_by_hand = importlib.import_module("fit_by_hand")

    values = np.arange(101, dtype=np.float32)
    for part, (first, end) in enumerate([(0, 7), (7, 60), (60, 101)]):
        table = pa.table({"x": values[first:end], "y": -values[first:end]})
        pq.write_table(table, tmp_path / f"part-{part}.parquet", row_group_size=10)
    shares = [fit_by_hand.read_own(str(tmp_path), rank, 3) for rank in range(3)]
    assert [x.squeeze(1).tolist() for x, _ in shares] == [values[s : s + 33].tolist() for s in (0, 33, 66)]
    assert all((x == -y).all() for x, y in shares)
