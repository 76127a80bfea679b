"""What a learning rate range test found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flambeau._plot import axes_of
from flambeau.errors import ParamError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SKIPPED_FIRST, _SKIPPED_LAST = 10, 1
"""Steps at both ends that no suggestion comes from: the running mean warms up, and the loss may leap."""


@dataclass(frozen=True)
class RangeTest:
    """How the loss went while the learning rate grew: three lists with one entry a step.

    Attributes
    ----------
    rates : the learning rate, before `scaleLearningRate` multiplies it.
    losses : the mean loss over the batches of all workers, as it was before the step.
    smoothed : the running mean of the losses, in which each counts 0.98 of the next one.
    """

    rates: list[float]
    losses: list[float]
    smoothed: list[float]

    def suggestion(self) -> float:
        """The rate at which the smoothed loss falls most steeply, as Lightning's `lr_find` has it, the first
        10 steps and the last one left out. Raises ParamError for a test of fewer than 13 steps.
        """
        last = len(self.smoothed) - _SKIPPED_LAST
        smoothed = self.smoothed[_SKIPPED_FIRST:last]
        if len(smoothed) < 2:
            raise ParamError(
                f"a test of {len(self.rates)} steps suggests no rate: take more numSteps, or a smaller "
                "maxRate where the loss diverged before"
            )
        ends = [smoothed[0], *smoothed, smoothed[-1]]
        # Central differences, one-sided at both ends.
        slopes = [(after - before) / 2 for before, after in zip(ends, ends[2:], strict=False)]
        slopes[0], slopes[-1] = slopes[0] * 2, slopes[-1] * 2
        return self.rates[_SKIPPED_FIRST + slopes.index(min(slopes))]

    def plot(self, ax: Axes | None = None) -> Axes:
        """The smoothed losses over the rates, and the suggestion where there is one. Raises FlambeauError
        where there is no matplotlib.
        """
        ax = axes_of(ax)
        ax.plot(self.rates, self.smoothed)
        ax.set_xscale("log")
        ax.set_xlabel("learning rate")
        ax.set_ylabel("loss, smoothed")
        try:
            found = self.suggestion()
        except ParamError:
            return ax
        ax.axvline(found, color="gray", linestyle=":", label=f"suggestion {found:.3g}")
        ax.legend()
        return ax


def growth_of(low: float, high: float, num_steps: int) -> float:
    """What the rate is multiplied by from step to step. Raises ParamError for what is no range."""
    if not (0 < low < high < math.inf):
        raise ParamError(f"minRate is {low} and maxRate {high}, but must be above 0, the latter the larger")
    if num_steps < 2:
        raise ParamError(f"numSteps is {num_steps}, but must be at least 2")
    return float((high / low) ** (1 / (num_steps - 1)))
