"""The notebooks run from top to bottom, and are committed as they came out."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))

# The others take longer.
FIRST, *OTHERS = NOTEBOOKS


@pytest.mark.parametrize(
    "path",
    [FIRST, *(pytest.param(path, marks=pytest.mark.long) for path in OTHERS)],
    ids=lambda path: path.stem,
)
def test_runs_from_top_to_bottom(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that raises fails the run."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=500, resources={"metadata": {"path": str(tmp_path)}}).execute()


_FOUND = """
import os
from pyspark.sql import SparkSession
os.mkdir("shared")
builder = SparkSession.builder.master("local[2]").appName("found").config("spark.ui.enabled", "false")
spark = builder.config("spark.flambeau.workDir", os.path.abspath("shared")).getOrCreate()
"""
_KEPT = """
assert spark.sparkContext.appName == "found" and spark.range(3).count() == 3
assert os.listdir() == ["shared"], os.listdir()
spark.stop()
"""


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_on_a_session_that_it_finds(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook of Databricks, which has a `spark`: it is used, and goes on after the last cell. Files
    are written to its work directory alone.
    """
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    notebook = nbformat.read(path, as_version=4)
    found, kept = map(nbformat.v4.new_code_cell, (_FOUND, _KEPT))
    notebook.cells = [found, *notebook.cells, kept]
    NotebookClient(notebook, timeout=500, resources={"metadata": {"path": str(tmp_path)}}).execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_committed_with_its_outputs(path: Path) -> None:
    """Every code cell has run, in order, and the plots are there."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs)


_FOLLOWS = """
import threading
from flambeau._spark.fit.display import display_of

start = {"kind": "start", "epoch": 0, "step": 0, "epochs": 3, "stepsPerEpoch": 2}
epoch = {"kind": "epoch", "rowsPerSecond": 1.0, "validationLoss": None}
display = display_of(1)

def follow():
    display.show(start)
    for number, loss in enumerate([4.0, 2.0, 1.0]):
        display.show(epoch | {"epoch": number, "steps": 2 * number + 2, "loss": loss})
        if number == 1:  # started again from the first epoch's checkpoint
            display.show(start | {"epoch": 1, "step": 2})
            display.show(epoch | {"epoch": 1, "steps": 4, "loss": 3.0})
    display.close()

thread = threading.Thread(target=follow)  # as a fit has it
thread.start()
thread.join()
"""


def test_a_curve_grows_in_its_place_beside_the_bar(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(_FOLLOWS)])
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output.get("data", {}).get("text/html", "") for output in notebook.cells[0].outputs]
    [curve] = [html for html in shown if "<svg" in html]
    root = ElementTree.fromstring(curve)  # noqa: S314  our own
    [line] = root.iter("{http://www.w3.org/2000/svg}polyline")
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    assert len(points) == 3 and xs[1] - xs[0] == xs[2] - xs[1] > 0
    # 4, 3 and 1, from the top down.
    assert ys[2] - ys[1] == pytest.approx(2 * (ys[1] - ys[0]), abs=0.2)
