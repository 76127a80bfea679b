"""A learning rate range test: a fit that grows its rate from step to step, and leaves no model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flambeau._range_test import RangeTest, growth_of
from flambeau._spark.fit.fit import Fit
from flambeau._spark.fit.listener_bus import ListenerBus
from flambeau._spark.fit.trainable import Trainable
from flambeau._spark.rows.sources import Rows

_PARAMS: dict[str, Any] = {
    "callbacks": None,
    "checkpointInterval": -1,
    "checkpointSteps": None,
    "earlyStoppingPatience": None,
    "emaDecay": None,
    # As many as its steps take.
    "epochs": 1_000_000,
    "keepCheckpoints": 0,
    "lrSchedule": "constant",
    "lrScheduler": None,
    "lrSchedulerInterval": None,
    "profile": None,
    "restoreBestWeights": False,
    "runId": None,
    "tensorBoardDir": None,
    "verbose": 0,
    "warmupEpochs": 0.0,
}
"""What a test sets of an estimator's params: it has a schedule of its own, and keeps nothing."""


def range_test(estimator: Trainable, rows: Rows, low: float, high: float, num_steps: int) -> RangeTest:
    """Tests the rates from `low` to `high`, in at most so many steps. Raises ParamError for what is no
    range.
    """
    growth = growth_of(low, high, num_steps)
    tested = estimator.copy()
    tested._set(**_PARAMS, learningRate=low)
    fit = replace(
        Fit.of(tested, rows),
        # Callbacks of every fit, such as MLflow's, are not told either: it is none.
        bus=ListenerBus.of((), tested, rows.dataset),
        range_test={"growth": growth, "numSteps": num_steps},
    )
    steps = fit.test()
    return RangeTest(
        [low * growth ** step["step"] for step in steps],
        [step["loss"] for step in steps],
        [step["smoothed"] for step in steps],
    )
