"""A trial: a short training that keeps nothing and tells nobody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flambeau._spark.fit.fit import Fit
from flambeau._spark.fit.listener_bus import ListenerBus
from flambeau._spark.fit.trainable import Trainable
from flambeau._spark.rows.sources import Rows

_PARAMS: dict[str, Any] = {
    "callbacks": None,
    "checkpointInterval": -1,
    "checkpointSteps": None,
    "earlyStoppingPatience": None,
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
"""What a trial sets of an estimator's params."""


def trial_of(
    estimator: Trainable, rows: Rows, range_test: Mapping[str, Any] | None = None, **params: Any
) -> Fit:
    """A trial of the estimator with some params in place of its own. Raises as `Fit.of` does."""
    tried = estimator.copy()
    tried._set(**_PARAMS | params)
    # Callbacks of every fit, such as MLflow's, are not told either: it is none.
    bus = ListenerBus.of((), tried, rows.dataset)
    return replace(Fit.of(tried, rows, range_test=range_test), bus=bus, is_trial=True)
