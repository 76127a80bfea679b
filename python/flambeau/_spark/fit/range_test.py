"""A learning rate range test: a fit that grows its rate from step to step, and leaves no model."""

from __future__ import annotations

import math
from operator import index

from flambeau._range_test import RangeTest
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
    test = {"minRate": _number(low), "maxRate": _number(high), "numSteps": index(num_steps)}
    fit = trial_of(estimator, rows, test, emaDecay=None, syncEvery=1, epochs=_MOST_EPOCHS)
    found = session.interruptible(rows.spark, fit.result)["rangeTest"]
    rates, losses, smoothed = (
        [step[name] for step in found["steps"]] for name in ("rate", "loss", "smoothed")
    )
    return RangeTest(rates, losses, smoothed, found["suggestion"])


def _number(value: float) -> float | str:
    """A number for the job, whose JSON has none that is not finite: such a one goes by name."""
    value = float(value)
    return value if math.isfinite(value) else str(value)
