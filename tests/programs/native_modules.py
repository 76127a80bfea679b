"""Common modules, each with its rows and its loss, for the table of what trains and scores without Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

NUM_IDS = 20


@dataclass(frozen=True, eq=False)
class Case:
    """A module to train.

    `inputs` and `label` are shapes of a row; integers are ids below 20, labels of integers classes. `refused`
    has, for each form that does not take the module, the reason as the docs tell it and what torch says.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    loss: str = "mse"
    num_classes: int = 0
    label: tuple[int, ...] = ()
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def features(*shape: int) -> tuple[str, tuple[int, ...]]:
    """An input of numbers."""
    return "float32", shape


def ids(*shape: int) -> tuple[str, tuple[int, ...]]:
    """An input of ids."""
    return "int64", shape


class BagOfIds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(NUM_IDS, 8, mode="mean")
        self.output = nn.Linear(8, 1)

    def forward(self, bag: Tensor) -> Tensor:
        return self.output(self.bag(bag))


class WideAndDeep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(6, 1)
        self.table = nn.Embedding(NUM_IDS, 4)
        self.deep = nn.Sequential(nn.Linear(6 + 3 * 4, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        joined = torch.cat([numbers, self.table(categories).flatten(1)], 1)
        return self.wide(numbers) + self.deep(joined)


class Dlrm(nn.Module):
    """Dense features and categories meet in the products of all pairs of their vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.tables = nn.ModuleList([nn.Embedding(NUM_IDS, 8) for _ in range(3)])
        self.top = nn.Sequential(nn.Linear(8 + 6, 16), nn.ReLU(), nn.Linear(16, 1))
        self.pairs: Tensor
        self.register_buffer("pairs", torch.triu_indices(4, 4, 1), persistent=False)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        vectors = [dense]
        for i, table in enumerate(self.tables):
            vectors.append(table(categories[:, i]))
        stacked = torch.stack(vectors, 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        return self.top(torch.cat([dense, products[:, self.pairs[0], self.pairs[1]]], 1)).squeeze(1)


class FactorizationMachine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))
        self.linear = nn.Embedding(NUM_IDS, 1)
        self.factors = nn.Embedding(NUM_IDS, 5)

    def forward(self, categories: Tensor) -> Tensor:
        vectors = self.factors(categories)
        pairs = vectors.sum(1).square() - vectors.square().sum(1)
        return self.bias + self.linear(categories).sum((1, 2)) + 0.5 * pairs.sum(1)


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))
        self.item = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return 5 * nn.functional.cosine_similarity(self.user(user), self.item(item))


class Temporal(nn.Module):
    """Dilated causal convolutions over a series."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(2, 6, 3, dilation=1)
        self.second = nn.Conv1d(6, 6, 3, dilation=2)
        self.output = nn.Linear(6, 1)

    def forward(self, series: Tensor) -> Tensor:
        hidden = torch.relu(self.first(nn.functional.pad(series, (2, 0))))
        hidden = torch.relu(self.second(nn.functional.pad(hidden, (4, 0))))
        return self.output(hidden[:, :, -1])


class ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 8, num_layers=2, batch_first=True, dropout=0.2)
        self.output = nn.Linear(8, 1)

    def forward(self, series: Tensor) -> Tensor:
        return self.output(self.lstm(series)[0][:, -1])


class Gru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 6, batch_first=True, bidirectional=True)
        self.output = nn.Linear(12, 1)

    def forward(self, series: Tensor) -> Tensor:
        return self.output(self.gru(series)[0].mean(1))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(NUM_IDS, 8)
        self.position = nn.Parameter(torch.zeros(6, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.encoder(self.table(tokens) + self.position).mean(1))


class CausalAttention(nn.Module):
    """One layer of a language model, whose output is tied to its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(NUM_IDS, 8)
        self.qkv = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, NUM_IDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        heads = self.qkv(self.norm(x)).reshape(x.shape[0], x.shape[1], 3, 2, 4)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x + mixed.transpose(1, 2).flatten(2))[:, -1]


class Experts(nn.Module):
    """A mixture of experts with a soft gate."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(6, 3) for _ in range(4)])
        self.gate = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        return (torch.softmax(self.gate(x), 1).unsqueeze(2) * outputs).sum(1)


class FrozenTarget(nn.Module):
    """A part of forward without gradients, and a moving average that it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.output = nn.Linear(4, 1)
        self.average: Tensor
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.layer(x))
        if self.training:
            with torch.no_grad():
                self.average.mul_(0.9).add_(0.1 * hidden.mean(0))
        return self.output(hidden - self.average)


class ManyOutputs(nn.Module):
    """A prediction and its scale, for a loss that takes both."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        self.mean = nn.Linear(8, 1)
        self.scale = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x)
        return self.mean(hidden).squeeze(1), nn.functional.softplus(self.scale(hidden)).squeeze(1) + 0.1


class GaussianLoss(nn.Module):
    """The negative log-likelihood of a label under a normal distribution, one value a row."""

    def forward(self, output: tuple[Tensor, Tensor], label: Tensor) -> Tensor:
        mean, scale = output
        return torch.log(scale) + 0.5 * ((label - mean) / scale).square()


class Branch(nn.Module):
    """Takes one of two ways by what the rows hold."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 1)
        self.other = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            return self.one(x)
        return self.other(x)


class NamedColumns(nn.Module):
    """Any number of inputs, joined by a rule of Python's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 1)

    def forward(self, *columns: Tensor) -> Tensor:
        return self.layer(torch.cat([column.sort(1).values for column in columns], 1))


class Lambdas(nn.Module):
    """Calls a function that a user may exchange, and loops while the data asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.activation: Callable[[Tensor], Tensor] = lambda x: x.abs().sqrt()

    def forward(self, x: Tensor) -> Tensor:
        while float(x.abs().max()) > 1.0:
            x = self.activation(x) * 0.5
        return self.layer(x)


MLP = nn.Sequential
CASES = [
    Case(
        "MLP",
        lambda: MLP(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.SiLU(), nn.Linear(8, 1)),
        (features(6),),
    ),
    Case("logistic regression", lambda: MLP(nn.Linear(6, 1)), (features(6),), "bce_with_logits", 2),
    Case("embedding bag", BagOfIds, (ids(5),)),
    Case("wide & deep", WideAndDeep, (features(6), ids(3)), "bce_with_logits", 2),
    Case("DLRM", Dlrm, (features(6), ids(3)), "bce_with_logits", 2),
    Case("factorization machine", FactorizationMachine, (ids(4),)),
    Case("two towers (several inputs)", TwoTowers, (features(5), features(3)), "huber"),
    Case(
        "CNN",
        lambda: MLP(
            nn.Conv2d(1, 4, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(6, 3),
        ),
        (features(1, 8, 8),),
        "cross_entropy",
        3,
    ),
    Case("temporal convolutions", Temporal, (features(2, 10),)),
    Case(
        "residual network with batch norm",
        lambda: MLP(
            nn.Conv2d(1, 4, 3),
            ResidualBlock(4),
            ResidualBlock(4),
            nn.AvgPool2d(6),
            nn.Flatten(),
            nn.Linear(4, 3),
        ),
        (features(1, 8, 8),),
        "cross_entropy",
        3,
    ),
    Case("LSTM with dropout", Lstm, (features(7, 3),)),
    Case("bidirectional GRU", Gru, (features(7, 3),)),
    Case("transformer encoder", Transformer, (ids(6),), "cross_entropy", 3),
    Case("causal attention, tied weights", CausalAttention, (ids(6),), "cross_entropy", NUM_IDS),
    Case(
        "batch norm",
        lambda: MLP(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 1)),
        (features(6),),
    ),
    Case(
        "layer norm",
        lambda: MLP(nn.LayerNorm(6), nn.Linear(6, 12), nn.GELU(), nn.LayerNorm(12), nn.Linear(12, 1)),
        (features(6),),
    ),
    Case(
        "group and instance norm",
        lambda: MLP(
            nn.Conv2d(2, 6, 3),
            nn.GroupNorm(3, 6),
            nn.ReLU(),
            nn.InstanceNorm2d(6, affine=True),
            nn.Flatten(),
            nn.Linear(6 * 9, 1),
        ),
        (features(2, 5, 5),),
    ),
    Case(
        "dropout",
        lambda: MLP(
            nn.Dropout(0.1), nn.Linear(6, 16), nn.Tanh(), nn.AlphaDropout(0.2), nn.Linear(16, 1), nn.RReLU()
        ),
        (features(6),),
    ),
    Case("mixture of experts", Experts, (features(6),), "cross_entropy", 3),
    Case(
        "autoencoder",
        lambda: MLP(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 6)),
        (features(6),),
        "l1",
        label=(6,),
    ),
    Case("no_grad and a moving average in forward", FrozenTarget, (features(4),)),
    Case("several outputs, loss of one's own", ManyOutputs, (features(4),), "scripted"),
    Case(
        "branch on the data",
        Branch,
        (features(4),),
        refused={"exported": ("the way through forward depends on the rows", "data-dependent")},
    ),
    Case(
        "any number of inputs (`*columns`)",
        NamedColumns,
        (features(3), features(2)),
        refused={"scripted": ("TorchScript has no `*columns`", "variable number of arguments")},
    ),
    Case(
        "branch on the data through a function of Python's",
        Lambdas,
        (features(4),),
        refused={
            "scripted": ("TorchScript cannot call the function", "activation|could not get source|lambda"),
            "exported": ("the way through forward depends on the rows", "data-dependent"),
        },
    ),
]
