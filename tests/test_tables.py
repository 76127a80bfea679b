"""Fits on Delta and Iceberg tables that are read where they lie, with the formats' own libraries; what Spark
reads of a table, and a loop of torch's on that, are the oracles.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scala import jars as of_flambeau
from spark_program import outcome_of

JARS = Path(__file__).resolve().parent.parent / "build" / "tables"


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    jars = sorted(JARS.glob("*.jar"))
    assert len(jars) == 3, f"{JARS} has {jars}: run `gradle tables`"
    directory = tmp_path_factory.mktemp("tables")
    return outcome_of("tables.py", directory, jars=",".join([*map(str, jars), of_flambeau()]))


@pytest.mark.parametrize("case", ["now", "first", "filtered", "partition column"])
def test_rows_of_a_delta_table(outcome: dict[str, Any], case: str) -> None:
    """With deletion vectors, an update, as of its first version, and with the values that partitions have."""
    assert outcome["delta"]["has deletion vectors"]
    found = outcome["delta"][case]
    _are_those_of_spark(found, case)
    assert found.get("years") is (True if case == "partition column" else None)


@pytest.mark.parametrize("case", ["now", "first", "filtered", "pushed down", "unrelated column"])
def test_rows_of_an_iceberg_table(outcome: dict[str, Any], case: str) -> None:
    """With position deletes, an update, of its first snapshot, and where the scan itself filters."""
    assert outcome["iceberg"]["has delete files"]
    _are_those_of_spark(outcome["iceberg"][case], case)


def _are_those_of_spark(found: dict[str, Any], case: str) -> None:
    """Files whose rows are all there have no bitmap: before the deletes each, after them those that came
    later, or were written anew.
    """
    assert found.get("refusal") is None
    assert found["same"] and found["rows"] == found["count"] > 1000
    assert (found["bitmaps"] == 0) == (case == "first")
    assert found["whole files"] > 0 or case in ("filtered", "pushed down")


@pytest.mark.parametrize("case", ["fit", "fit of the first"])
@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_fit_on_a_table(outcome: dict[str, Any], format: str, case: str) -> None:
    """In both languages, as `inPlace` is where nobody sets it: of the rows that deletes have left, and of the
    first version of the table.
    """
    fit = outcome[format][case]
    assert fit["written"] == (["bitmaps"] if case == "fit" else [])
    assert fit["loss"] == pytest.approx(fit["expected"], rel=1e-4)
    assert fit["scala"] == pytest.approx(fit["expected"], rel=1e-4)


def test_columns_that_had_other_names_are_not_read_in_place(outcome: dict[str, Any]) -> None:
    assert "have other names (column mapping)" in outcome["delta"]["mapped"]["refusal"]
    assert "column 'z' had another name once" in outcome["iceberg"]["renamed"]["refusal"]
    assert "column 'x' was another once" in outcome["iceberg"]["name of another"]["refusal"]
    assert "former schemas are forgotten" in outcome["iceberg"]["forgotten"]["refusal"]


def test_what_is_no_row_of_a_file(outcome: dict[str, Any]) -> None:
    assert "but rows about them" in outcome["iceberg"]["metadata"]["refusal"]
