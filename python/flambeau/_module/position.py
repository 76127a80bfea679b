"""Where a training is, as far as the module's own code may ask."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass
class Position:
    """Counts of what is done. All ranks have the same but for `batch`, which a rank without rows in a batch
    does not count.
    """

    epoch: int = 0
    """The epoch, counted from 0."""
    step: int = 0
    """Steps that the optimizer has taken."""
    epoch_step: int = 0
    """Those of this epoch."""
    batch: int = 0
    """Batches of this epoch that went through training."""
    validation_batch: int = 0
    """Batches of validation rows that were evaluated at this epoch's end."""

    def end_epoch(self) -> None:
        """Goes on to the next epoch."""
        self.epoch += 1
        self.epoch_step = self.batch = self.validation_batch = 0

    def state(self) -> dict[str, Any]:
        """The counts as a checkpoint keeps them."""
        return asdict(self)

    def take(self, state: dict[str, Any]) -> None:
        """Takes back what `state` gave."""
        for field in fields(self):
            setattr(self, field.name, state[field.name])
