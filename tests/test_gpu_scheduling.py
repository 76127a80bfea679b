"""GPUs as Spark's scheduler hands them to ranks, on a standalone cluster that believes that it has some.

The addresses are made up, so this needs no GPU; that each rank has one of its own is Spark's doing.
"""

from pathlib import Path

import pytest
from spark_program import outcome_of

CLUSTER = "local-cluster[2,1,1024]"
ALL = [["GPU-0"], ["GPU-1"]]


@pytest.fixture
def discovery(tmp_path: Path) -> Path:
    """A script that finds one GPU on each of Spark's workers: `GPU-0` on the first to run it, and so on."""
    script = tmp_path / "discover"
    script.write_text(
        "#!/bin/sh\n"
        "n=0\n"
        f'while ! mkdir "{tmp_path}/worker-$n" 2>/dev/null; do n=$((n + 1)); done\n'
        'echo "{\\"name\\": \\"gpu\\", \\"addresses\\": [\\"GPU-$n\\"]}"\n'
    )
    script.chmod(0o755)
    return script


def test_each_rank_has_a_gpu_of_its_own(discovery: Path, tmp_path: Path) -> None:
    outcome = outcome_of(
        "gpu_fit.py", tmp_path, master=CLUSTER, discovery=discovery, work_dir=tmp_path / "work"
    )
    assert sorted(outcome["gpus"]) == ALL
    assert outcome["gpus without asking"] == [None, None]
    assert outcome["losses"] == outcome["losses without asking"]
    assert outcome["native losses"] == pytest.approx(outcome["losses"], rel=1e-5)
    assert "numWorkers is 3 and the cluster has 2 task slots of 1 GPUs each" in outcome["refusal"]


def test_the_gpus_of_all_tasks_reach_the_ranks(discovery: Path, tmp_path: Path) -> None:
    outcome = outcome_of(
        "gpu_fit.py", tmp_path, master=CLUSTER, discovery=discovery, work_dir=tmp_path / "work", per_task=1
    )
    assert sorted(outcome["gpus"]) == ALL
    assert "2 task slots of 1 GPUs each" in outcome["refusal"]
