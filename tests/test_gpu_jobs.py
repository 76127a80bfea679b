"""The whole way on GPUs, from a fit in a barrier stage to scored rows, by both of PySpark's runtimes."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pyspark")
from scala import jars  # noqa: E402
from spark_program import outcome_of  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.long,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="SKIPPED: torch can use no GPU here"),
]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    num_workers = min(2, torch.cuda.device_count())
    return outcome_of(
        "gpu_jobs.py", tmp_path_factory.mktemp("gpu-jobs"), jars=jars(), num_workers=num_workers
    )


@pytest.mark.parametrize("runtime", ["python", "native"])
def test_a_fit_and_its_scores_are_those_of_the_cpu(outcome: dict[str, Any], runtime: str) -> None:
    here, there = outcome[f"{runtime} cpu"], outcome[f"{runtime} cuda"]
    assert there["losses"] == pytest.approx(here["losses"], rel=1e-4)
    assert len(here["predictions"]) == 600
    assert there["predictions"] == pytest.approx(here["predictions"], rel=1e-3, abs=1e-4)
