"""The flights example in Scala on two native workers, against the same fit in PySpark on two of Python's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scala import jars
from spark_program import outcome_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


# Scala's own tests hold its losses against Python's, and test_crossing.py has pipelines cross.
@pytest.mark.long
def test_scala_learns_what_python_learns_and_the_pipelines_cross(tmp_path: Path) -> None:
    outcome = outcome_of("flights_both.py", tmp_path, output=tmp_path, jars=jars())
    losses = outcome["losses"]
    assert len(losses["python"]) == 100 and losses["python"][-1] < 0.9 * losses["python"][0]
    np.testing.assert_allclose(losses["scala"], losses["python"], rtol=1e-4)
    # TensorBoard's own reader finds the losses of Scala's fit, of which each epoch is a step.
    (run,) = (tmp_path / "board").iterdir()
    accumulator = EventAccumulator(str(run)).Reload()
    for tag in ("train/loss_step", "train/loss_epoch"):
        read = accumulator.Scalars(tag)
        assert [point.step for point in read] == list(range(1, 101)), tag
        np.testing.assert_allclose([point.value for point in read], losses["scala"], rtol=1e-6, err_msg=tag)
    np.testing.assert_allclose(outcome["rmse"]["scala"], outcome["rmse"]["python"], rtol=1e-3)
    for pipeline in ("python pipeline", "scala pipeline"):
        sides = outcome[pipeline]
        assert len(sides["python"]) == 2000 and np.std(sides["python"]) > 1
        np.testing.assert_allclose(sides["scala"], sides["python"], rtol=1e-6, atol=1e-5, err_msg=pipeline)
