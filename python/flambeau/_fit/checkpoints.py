"""The checkpoints that a fit with `keepCheckpoints` leaves in the work directory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flambeau._workdir import KEPT
from flambeau.errors import FlambeauError

if TYPE_CHECKING:
    from flambeau.model import TorchModel

_WEIGHTS = "weights/weights.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """Where a training was at one moment.

    Attributes
    ----------
    epoch : the epoch, counted from 0, that training goes on with from here.
    step : the number of optimizer steps before it.
    uri : its directory; `weights/weights.safetensors` in it are the weights.
    """

    epoch: int
    step: int
    uri: str
    _weights: Mapping[str, Any] = field(repr=False)
    _history: Mapping[str, Any] = field(repr=False)
    _fitted: TorchModel = field(repr=False)

    def model(self) -> TorchModel:
        """The fitted model with this checkpoint's weights and the history up to it."""
        from flambeau._saved.weights import WeightsRef

        model = self._fitted.copy()
        model._weights = WeightsRef(**self._weights, store_options=self._fitted._weights.store_options)
        model._history = dict(self._history)
        model._counts = {**self._fitted._counts, "numSteps": self.step, "trainingSeconds": None}
        model._checkpoints = ()
        return model


def keep_newest(
    work_dir: str, attempts: Sequence[str], num: int, options: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Deletes all that those attempts left but for their `num` newest checkpoints with weights, and describes
    these, oldest first. Raises StoreError.
    """
    from flambeau import _native

    store = _native.Store(dict(options))
    found: dict[int, dict[str, Any]] = {}
    parts: set[str] = set()
    for attempt in attempts:
        root = f"{work_dir.rstrip('/')}/attempts/{attempt}"
        for uri in store.list(root):
            below = uri.split(f"/{attempt}/", 1)[-1].split("/")
            deep = 2 if below[0] == "checkpoints" else 1
            parts.add("/".join([root, *below[:deep]]))
            if below[0] == "checkpoints" and below[2:] == ["COMMITTED"]:
                # One that is damaged is none.
                told = None
                with suppress(FlambeauError, OSError, ValueError, KeyError):
                    told = _described(store, f"{root}/checkpoints/{below[1]}")
                if told is not None:
                    # A later attempt went on from what an earlier one had.
                    found[told["step"]] = told
    kept = [found[step] for step in sorted(found)][-num:] if num else []
    for part in parts - {told["uri"] for told in kept}:
        store.delete_prefix(part)
    for root in {told["uri"].rsplit("/", 2)[0] for told in kept}:
        store.put(f"{root}/{KEPT}", b"")
    return kept


def _described(store: Any, uri: str) -> dict[str, Any] | None:
    """A checkpoint with weights; None for one without."""
    listed = {part["name"]: part for part in json.loads(store.get(f"{uri}/COMMITTED"))["parts"]}
    if _WEIGHTS not in listed:
        return None
    state = json.loads(store.get(f"{uri}/state.json"))
    weights = {"uri": f"{uri}/{_WEIGHTS}", "size": listed[_WEIGHTS]["size"]}
    return {
        "epoch": state["position"]["epoch"],
        "step": state["position"]["step"],
        "uri": uri,
        "weights": weights | {"sha256": listed[_WEIGHTS]["sha256"]},
        "history": state["history"],
    }
