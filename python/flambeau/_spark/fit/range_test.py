"""A learning rate range test: a fit that grows its rate from step to step, and leaves no model."""

from __future__ import annotations

from dataclasses import replace

from flambeau._range_test import RangeTest, growth_of
from flambeau._spark import session
from flambeau._spark.fit.trainable import Trainable
from flambeau._spark.fit.trial import trial_of
from flambeau._spark.rows.sources import Rows

_MOST_EPOCHS = 1_000_000
"""As many as its steps take."""


def range_test(estimator: Trainable, rows: Rows, low: float, high: float, num_steps: int) -> RangeTest:
    """Tests the rates from `low` to `high`, in at most so many steps. Raises ParamError for what is no
    range. An interrupt of this thread cancels the Spark jobs.
    """
    growth = growth_of(low, high, num_steps)
    own = {"emaDecay": None, "syncEvery": 1, "epochs": _MOST_EPOCHS, "learningRate": low}
    trial = trial_of(estimator, rows, **own)
    fit = replace(trial, range_test={"growth": growth, "numSteps": num_steps})
    steps = session.interruptible(rows.spark, fit.result)["rangeTest"]
    return RangeTest(
        [low * growth ** step["step"] for step in steps],
        [step["loss"] for step in steps],
        [step["smoothed"] for step in steps],
    )
