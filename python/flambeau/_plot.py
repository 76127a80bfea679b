"""A training's history as a picture, by matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flambeau._history import figures
from flambeau._suggest import suggestion
from flambeau.errors import FlambeauError, ParamError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plotted(
    history: Mapping[str, Sequence[Any]], columns: Sequence[str] | None, best: int | None, ax: Axes | None
) -> Axes:
    """The columns of a history over its epochs: those of the loss where none are given. `best` is the place
    of the best epoch, which is marked.

    Raises ParamError for a column that there is not, and FlambeauError where there is no matplotlib.
    """
    names = [name for name in ("loss", "val_loss") if name in history] if columns is None else list(columns)
    for name in names:
        if name not in history:
            raise ParamError(
                f"the history has no column {name!r}, but {', '.join(figures(history))}"
                f"{suggestion(name, history)}"
            )
    ax = axes_of(ax)
    from matplotlib.ticker import MaxNLocator

    epochs = history["epoch"]
    for name in names:
        values = [float("nan") if value is None else value for value in history[name]]
        ax.plot(epochs, values, label=name, marker="o", markersize=3)
    if best is not None:
        ax.axvline(epochs[best], color="gray", linestyle=":", label="best epoch")
    ax.set_xlabel("epoch")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(names) == 1:
        ax.set_ylabel(names[0])
    if names:
        ax.legend()
    return ax


def axes_of(ax: Axes | None) -> Axes:
    """The axes to draw on: those that are given, else new ones. Raises FlambeauError where there is no
    matplotlib.
    """
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise FlambeauError("plot needs matplotlib: pip install flambeau[plot]") from error
    return pyplot.subplots()[1] if ax is None else ax
