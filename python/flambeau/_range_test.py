"""What a learning rate range test found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flambeau._plot import axes_of
from flambeau.errors import ParamError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    _suggestion: float | None = field(default=None, repr=False)

    def suggestion(self) -> float:
        """The rate at which the smoothed loss falls most steeply, as Lightning's `lr_find` has it, the first
        10 steps and the last one left out. Raises ParamError for a test of fewer than 13 steps.
        """
        if self._suggestion is None:
            raise ParamError(
                f"a test of {len(self.rates)} steps suggests no rate: take more numSteps, or a smaller "
                "maxRate where the loss diverged before"
            )
        return self._suggestion

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
