"""The modules of the golden models. A pickle of one names it here, so it is to stay as it is."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Delay(nn.Module):
    """One number from two numbers and a category."""

    def __init__(self, num_categories: int) -> None:
        super().__init__()
        self.category = nn.Embedding(num_categories, 2)
        self.norm = nn.BatchNorm1d(2)
        self.hidden = nn.Linear(4, 4)
        self.output = nn.Linear(4, 1)

    def forward(self, numbers: Tensor, category: Tensor) -> Tensor:
        joined = torch.cat([self.norm(numbers), self.category(category)], dim=1)
        return self.output(torch.tanh(self.hidden(joined))).squeeze(1)


class Classes(nn.Module):
    """Logits of three classes from two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(2, 3)

    def forward(self, numbers: Tensor) -> Tensor:
        return self.output(numbers)


class Several(nn.Module):
    """A number, a vector and whole numbers from two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Linear(2, 1)
        self.vector = nn.Linear(2, 3)

    def forward(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        vector = self.vector(numbers)
        return self.number(numbers).squeeze(1), vector, vector.argmax(dim=1)


class Unwritable(nn.Module):
    """A module that neither TorchScript nor torch.export takes."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(2, 1)
        self.sign = {True: 1.0, False: -1.0}

    def forward(self, numbers: Tensor) -> Tensor:
        return self.output(numbers) * self.sign[bool(numbers.sum() > 1e30)] * len([y for y in (1,) if y])
