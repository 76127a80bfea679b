"""Lightning's base class as far as a fit asks for it, for tests in an environment without Lightning. What the
real one does, `test_trainers.py` shows.
"""

from __future__ import annotations

from typing import Any

from torch import nn


class LightningModule(nn.Module):
    """Known by its own name and its module's."""

    __module__ = "lightning.pytorch"

    def training_step(self, *_: Any) -> Any: ...
    def validation_step(self, *_: Any) -> Any: ...
    def predict_step(self, *_: Any) -> Any: ...
    def configure_optimizers(self) -> Any: ...
