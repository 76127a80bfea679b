"""What PyTorch itself makes of the programs that the tests run.

`oracle.py make DIR` writes TorchScript programs and, in `expected.json`, reference numbers.
`oracle.py read DIR INPUTS` loads what a training wrote (`program.pt`, `weights.safetensors`) as any user of
PyTorch would and prints the outputs for the inputs.
"""

import hashlib
import json
import sys
import zipfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

DTYPES = {"float32": torch.float32, "float64": torch.float64}
NUM_UPDATES = 100


class Linear(nn.Module):
    """Three parameters whose gradients are the inputs of a batch of one row."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.linspace(-1, 1, 5))
        self.b = nn.Parameter(torch.linspace(1, -2, 12).reshape(3, 4))
        self.c = nn.Parameter(torch.linspace(0.5, 0.9, 17))

    def forward(self, x):
        a, b, c = x[:, :5], x[:, 5:17], x[:, 17:]
        return (a * self.a).sum(1) + (b * self.b.reshape(-1)).sum(1) + (c * self.c).sum(1)


class Output(nn.Module):
    """A loss that is the output, one value a row."""

    def forward(self, output, label):
        return output


class Mean(nn.Module):
    """A loss that is a scalar."""

    def forward(self, output, label):
        return (output - label).abs().mean()


class OfInputs(nn.Module):
    """A loss that takes the inputs too, and one argument that may be left out."""

    def forward(self, output, label, x, power: float = 1.0):
        return (output - label - x).abs().pow(power).mean()


class Scale(nn.Module):
    """Its gradient tells the gradient of a loss by the output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x):
        return x * self.scale


class Net(nn.Module):
    """Batch normalization, dropout, tied weights, a buffer outside of state_dict, an unused parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.3)
        self.second = nn.Linear(8, 8)
        self.third = nn.Linear(8, 8)
        self.third.weight = self.second.weight
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(3))
        self.head = nn.Linear(8, 2)
        self.register_buffer("shift", torch.full((8,), 0.25), persistent=False)

    def forward(self, x):
        x = self.drop(torch.relu(self.norm(self.first(x))))
        x = torch.tanh(self.second(x)) + self.shift
        x = torch.tanh(self.third(x)) + self.frozen(x)
        return self.head(x)


class Several(nn.Module):
    def forward(self, x, y):
        return {"sum": x + y, "is_larger": x > y, "first": x[:, 0]}


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 1, sparse=True)

    def forward(self, x):
        return self.table(x)


class Traced(nn.Module):
    """A trace of it has a tensor and a device as constants."""

    FACTORS = torch.tensor([1.0, -2.0, 0.5])

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.linspace(0.5, 1.5, 3))

    def forward(self, x):
        return x * self.FACTORS + self.shift + torch.ones(3, device=x.device)


class OnThePresentGpu(nn.Module):
    """Adds the number of the GPU that `cuda` without one is."""

    def forward(self, x):
        if x.is_cuda:
            return x + torch.ones(3, device="cuda").get_device()
        return x


class Writing(nn.Module):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, x):
        torch.save(x, self.path)
        return x


class WritingOnLoad(nn.Module):
    """Writes a file in what a load runs."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    @torch.jit.export
    def __getstate__(self):
        return self.path, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]):
        torch.save(1, state[0])
        self.path = state[0]
        self.training = state[1]

    def forward(self, x):
        return x


class Elsewhere(nn.Module):
    """Returns what has no memory."""

    def forward(self, x):
        return x.to("meta")


class Defaulted(nn.Module):
    def forward(self, x, k: int = 12345):
        return x + k


def flat(tensor):
    return tensor.detach().to(torch.float64).reshape(-1).tolist()


def save(module, path, fixed=()):
    extra = {"flambeau_fixed.json": json.dumps(list(fixed))}
    torch.jit.save(torch.jit.script(module), path, _extra_files=extra)


OPTIMIZERS = [
    ("sgd", {}),
    ("sgd", {"lr": 0.05, "momentum": 0.9}),
    ("sgd", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    ("sgd", {"lr": 0.02, "momentum": 0.8, "nesterov": True, "weight_decay": 0.02}),
    ("sgd", {"lr": 0.02, "maximize": True, "weight_decay": 0.02}),
    ("adam", {}),
    ("adam", {"lr": 0.01, "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.05}),
    ("adam", {"lr": 0.01, "amsgrad": True, "maximize": True}),
    ("adamw", {}),
    ("adamw", {"lr": 0.02, "betas": [0.7, 0.9], "eps": 1e-4, "weight_decay": 0.3, "amsgrad": True}),
    ("rmsprop", {}),
    ("rmsprop", {"lr": 0.01, "alpha": 0.9, "eps": 1e-5, "weight_decay": 0.1}),
    ("rmsprop", {"lr": 0.01, "centered": True, "momentum": 0.5}),
    ("rmsprop", {"lr": 0.01, "momentum": 0.7, "weight_decay": 0.1, "maximize": True}),
]
CLASSES = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}


def optimizers(directory):
    """Updates by a sequence of gradients, which the inputs of `linear-*.pt` are."""
    gradients, cases = {}, []
    for dtype_name, dtype in DTYPES.items():
        save(Linear().to(dtype), directory / f"linear-{dtype_name}.pt")
        sequence = torch.randn(NUM_UPDATES, 34, generator=torch.Generator().manual_seed(1), dtype=dtype)
        gradients[dtype_name] = flat(sequence)
        for name, options in OPTIMIZERS:
            module = Linear().to(dtype)
            fused = {} if name == "rmsprop" else {"fused": True}
            optimizer = CLASSES[name](module.parameters(), **options, **fused)
            for row in sequence:
                a, b, c = row.split([5, 12, 17])
                module.a.grad, module.b.grad, module.c.grad = a.clone(), b.reshape(3, 4).clone(), c.clone()
                optimizer.step()
            final = torch.cat([parameter.reshape(-1) for parameter in module.parameters()])
            cases.append({"name": name, "options": options, "dtype": dtype_name, "final": flat(final)})
    return {"gradients": gradients, "cases": cases}


def losses():
    """Values, denominators and gradients of losses for `scale-*.pt`, with and without row weights."""
    generator = torch.Generator().manual_seed(2)
    elementwise = {
        "mse": (functional.mse_loss, [{}]),
        "l1": (functional.l1_loss, [{}]),
        "mae": (functional.l1_loss, [{}]),
        "huber": (functional.huber_loss, [{}, {"delta": 0.4}]),
        "smooth_l1": (functional.smooth_l1_loss, [{}, {"beta": 0.3}, {"beta": 0}]),
        "bce_with_logits": (functional.binary_cross_entropy_with_logits, [{}, {"pos_weight": [2.5]}]),
        "bce": (functional.binary_cross_entropy, [{}]),
        "poisson_nll": (
            functional.poisson_nll_loss,
            [{}, {"full": True}, {"log_input": False, "eps": 1e-3}],
        ),
        "soft_margin": (functional.soft_margin_loss, [{}]),
    }
    rows, width = 7, 3
    cases = []
    for dtype_name, dtype in DTYPES.items():
        weight = torch.rand(rows, generator=generator, dtype=dtype) * 2
        for name, (function, variants) in elementwise.items():
            x = torch.rand(rows, width, generator=generator, dtype=dtype) * 0.5 + 0.05
            label = torch.rand(rows, width, generator=generator, dtype=dtype)
            if name == "soft_margin":
                label = label.round() * 2 - 1
            if name == "poisson_nll":
                label = (label * 6).round()
            for options in variants:
                given = {
                    k: torch.tensor(v, dtype=dtype) if k == "pos_weight" else v for k, v in options.items()
                }
                for weights in (None, weight):
                    scale = Scale(width).to(dtype)
                    output = scale(x)
                    if weights is None:
                        value, denominator = function(output, label, **given), float(rows)
                    else:
                        per_row = function(output, label, reduction="none", **given).flatten(1).mean(1)
                        value, denominator = (per_row * weights).sum() / weights.sum(), weights.sum().item()
                    value.backward()
                    cases.append(
                        case(name, options, dtype_name, x, label, weights, value, denominator, scale)
                    )
        classes = torch.tensor([0, 2, 1, -100, 2, 0, 1])
        ones = torch.ones(rows, dtype=dtype)
        for name, options in [
            ("cross_entropy", {}),
            ("cross_entropy", {"label_smoothing": 0.2}),
            ("cross_entropy", {"ignore_index": 1}),
            ("cross_entropy", {"weight": [0.5, 2.0, 1.25]}),
            ("nll", {}),
            ("nll", {"weight": [0.5, 2.0, 1.25], "ignore_index": 2}),
        ]:
            ignored = options.get("ignore_index", -100)
            label = torch.where(classes == -100, torch.tensor(ignored), classes)
            function = functional.cross_entropy if name == "cross_entropy" else functional.nll_loss
            given = {k: torch.tensor(v, dtype=dtype) if k == "weight" else v for k, v in options.items()}
            class_weight = given.get("weight", torch.ones(width, dtype=dtype))
            x = torch.rand(rows, width, generator=generator, dtype=dtype)
            counted = label != ignored
            per_class = class_weight[torch.where(counted, label, 0)] * counted
            for weights in (None, weight):
                scale = Scale(width).to(dtype)
                row_weights = ones if weights is None else weights
                denominator = (per_class * row_weights).sum().item()
                if weights is None:
                    value = function(scale(x), label, **given)
                else:
                    per_row = function(scale(x), label, reduction="none", **given)
                    value = (per_row * weights).sum() / denominator
                value.backward()
                cases.append(case(name, options, dtype_name, x, label, weights, value, denominator, scale))
    return cases


def case(name, options, dtype, x, label, weight, value, denominator, scale):
    return {
        "name": name,
        "options": options,
        "dtype": dtype,
        "x": flat(x),
        "label": flat(label),
        "is_class": label.dtype == torch.int64,
        "weight": None if weight is None else flat(weight),
        "value": value.item(),
        "denominator": denominator,
        "gradient": flat(scale.scale.grad),
    }


def metrics():
    """Metrics by plain loops over rows, for outputs `x * scale`."""
    generator = torch.Generator().manual_seed(3)
    rows = 40
    weight = [round(w, 3) for w in torch.rand(rows, generator=generator, dtype=torch.float64).tolist()]
    scale = torch.linspace(0.5, 1.5, 3, dtype=torch.float64)
    x = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    classes = torch.randint(0, 3, (rows,), generator=generator).tolist()
    scores = (x * scale).tolist()
    cases = []
    for weights in (None, weight):
        w = weights or [1.0] * rows
        total = sum(w)
        hit = {k: 0.0 for k in (1, 2)}
        for row, label, one in zip(scores, classes, w, strict=True):
            ranked = sorted(range(3), key=lambda c: -row[c])
            for k in hit:
                hit[k] += one * (label in ranked[:k])
        cases += [
            {
                "metric": "accuracy",
                "weight": weights,
                "x": flat(x),
                "label": classes,
                "value": hit[1] / total,
            },
            {
                "metric": "top2_accuracy",
                "weight": weights,
                "x": flat(x),
                "label": classes,
                "value": hit[2] / total,
            },
        ]
        one = torch.randn(rows, generator=generator, dtype=torch.float64)
        truth = [int(v > 0.3) for v in torch.randn(rows, generator=generator).tolist()]
        guess = [int(v > 0) for v in one.tolist()]
        both = sum(a for a, t, g in zip(w, truth, guess, strict=True) if t and g)
        said, real = (
            sum(a for a, g in zip(w, guess, strict=True) if g),
            sum(a for a, t in zip(w, truth, strict=True) if t),
        )
        for metric, value in (
            ("precision", both / said),
            ("recall", both / real),
            ("f1", 2 * both / (said + real)),
            ("accuracy", sum(a for a, t, g in zip(w, truth, guess, strict=True) if t == g) / total),
        ):
            cases.append(
                {"metric": metric, "weight": weights, "x": flat(one), "label": truth, "value": value}
            )
        target = [
            v + 0.5 * e
            for v, e in zip(one.tolist(), torch.randn(rows, generator=generator).tolist(), strict=True)
        ]
        squares = sum(a * (y - p) ** 2 for a, y, p in zip(w, target, one.tolist(), strict=True))
        mean = sum(a * y for a, y in zip(w, target, strict=True)) / total
        spread = sum(a * (y - mean) ** 2 for a, y in zip(w, target, strict=True))
        absolute = sum(a * abs(y - p) for a, y, p in zip(w, target, one.tolist(), strict=True))
        for metric, value in (
            ("mse", squares / total),
            ("rmse", (squares / total) ** 0.5),
            ("mae", absolute / total),
            ("r2", 1 - squares / spread),
        ):
            cases.append(
                {"metric": metric, "weight": weights, "x": flat(one), "label": target, "value": value}
            )
    return cases


def training(directory):
    """An eager loop over `net-*.pt`: its losses, its tensors and what it returns in evaluation mode."""
    cases = []
    precisions = [("float32", "float32"), ("float64", "float32"), ("float32", "bf16")]
    for dtype_name, precision in precisions:
        dtype = DTYPES[dtype_name]
        for name, options in (("adam", {"lr": 0.01}), ("sgd", {"lr": 0.05, "momentum": 0.9})):
            torch.manual_seed(5)
            module = Net().to(dtype)
            save(module, directory / f"net-{dtype_name}.pt", fixed=["shift"])
            optimizer = CLASSES[name](module.parameters(), **options, fused=True)
            generator = torch.Generator().manual_seed(6)
            x = torch.randn(8, 16, 6, generator=generator, dtype=dtype)
            y = torch.randn(8, 16, 2, generator=generator, dtype=dtype)
            digest = hashlib.sha256(b"11:0:0").digest()
            torch.manual_seed(int.from_bytes(digest[:8], "little"))
            module.train()
            values = []
            for inputs, labels in zip(x, y, strict=True):
                optimizer.zero_grad(set_to_none=True)
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
                    value = functional.mse_loss(module(inputs), labels)
                value.backward()
                optimizer.step()
                values.append(value.item())
            module.eval()
            with torch.no_grad():
                output = module(x[0])
            state = {key: flat(value) for key, value in module.state_dict().items()}
            cases.append(
                {
                    "name": name,
                    "options": options,
                    "dtype": dtype_name,
                    "precision": precision,
                    "x": flat(x),
                    "y": flat(y),
                    "losses": values,
                    "state": state,
                    "output": flat(output),
                }
            )
    return cases


def classifiers(directory):
    """Spark ML's columns of a classifier's output."""
    x = torch.randn(9, 3, generator=torch.Generator().manual_seed(8)) * torch.linspace(0.5, 1.5, 3)
    probability = torch.softmax(x.double(), 1)
    return {
        "x": flat(x / torch.linspace(0.5, 1.5, 3)),
        "output": flat(x),
    } | {"probability": flat(probability), "prediction": flat(x.argmax(1))}


def traced(directory):
    """Outputs of a module that is traced and not scripted."""
    x = (torch.arange(21) * 0.125 - 1.0).reshape(7, 3)
    module = Traced().eval()
    torch.jit.save(torch.jit.trace(module, x), directory / "traced.pt")
    return flat(module(x))


def with_source(path, old, new):
    """The archive with another source."""
    with zipfile.ZipFile(path) as archive:
        entries = {entry: archive.read(entry) for entry in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for entry, data in entries.items():
            archive.writestr(entry, data.replace(old, new) if entry.endswith(".py") else data)


def with_pickle(path, target, old, new):
    """The archive at another path with other bytes in its pickle."""
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(target, "w") as changed:
        for entry in archive.namelist():
            data = archive.read(entry)
            assert not entry.endswith("data.pkl") or data.count(old) == 1
            changed.writestr(entry, data.replace(old, new) if entry.endswith("data.pkl") else data)


def unbounded(directory):
    """A program of one parameter of three float32, and it with tensors that reach beyond what the archive holds."""
    save(Scale(3), directory / "bounded.pt")
    # The elements of the storage, the offset, the sizes and the strides; numbers of a byte and of two.
    whole = b"K\x03tQq\x07K\x00(K\x03t(K\x01t"
    for name, other in {
        "storage": b"M\x00\x10tQq\x07K\x00(M\x00\x10t(K\x01t",
        "sizes": b"K\x03tQq\x07K\x00(M\x00\x10t(K\x01t",
        "strides": b"K\x03tQq\x07K\x00(K\x03t(M\x00\x10t",
        "offset": b"K\x03tQq\x07M\x00\x10(K\x03t(K\x01t",
    }.items():
        with_pickle(directory / "bounded.pt", directory / f"unbounded-{name}.pt", whole, other)


class Hungry(torch.nn.Module):
    """Twice its rows. Asks for more memory than there are addresses for, where it gets more than `most` at once."""

    def __init__(self, most: int):
        super().__init__()
        self.most = most

    def forward(self, x):
        factor = torch.empty([(1 << 48) if x.size(0) > self.most else 1], dtype=torch.uint8)
        return x * factor[0].fill_(2)


class Unrecorded(torch.nn.Module):
    def forward(self, x):
        torch.set_grad_enabled(False)
        return x


def impure(directory):
    """Programs that write the file `written`, each at another time."""
    written = str(directory / "written")
    save(Writing(written), directory / "writing.pt")
    save(WritingOnLoad(written), directory / "writing-on-load.pt")
    save(Defaulted(), directory / "default.pt")
    save(Defaulted(), directory / "writing-default.pt")
    call = f"torch.from_file('{written}', True, 4)"
    with_source(directory / "writing-default.pt", b"k: int=12345", f"k: Tensor={call}".encode())


def make(directory):
    torch.set_num_threads(1)
    impure(directory)
    unbounded(directory)
    save(Unrecorded(), directory / "unrecorded.pt")
    save(Elsewhere(), directory / "elsewhere.pt")
    for most in (0, 5):
        save(Hungry(most), directory / f"hungry-{most}.pt")
    save(OnThePresentGpu(), directory / "on-the-present-gpu.pt")
    for width in (1, 3):
        for dtype_name, dtype in DTYPES.items():
            save(Scale(width).to(dtype), directory / f"scale-{width}-{dtype_name}.pt")
    save(Output(), directory / "output-loss.pt")
    save(Mean(), directory / "mean-loss.pt")
    save(OfInputs(), directory / "inputs-loss.pt")
    save(Several(), directory / "several.pt")
    save(Sparse(), directory / "sparse.pt")
    expected = {
        "optimizers": optimizers(directory),
        "losses": losses(),
        "metrics": metrics(),
        "training": training(directory),
        "classifier": classifiers(directory),
        "traced": traced(directory),
    }
    (directory / "expected.json").write_text(json.dumps(expected))


def read(directory, inputs):
    from safetensors.torch import load_file, safe_open

    torch.set_num_threads(1)
    module = torch.jit.load(str(directory / "program.pt"))
    hollow = [
        name for name, value in module.state_dict().items() if value.numel() > 1 and value.stride()[-1] != 0
    ]
    path = str(directory / "weights.safetensors")
    weights = load_file(path)
    with safe_open(path, framework="pt") as file:
        aliases = {alias: name for alias, name in file.metadata().items() if name in weights}
    with torch.no_grad():
        for name, target in module.state_dict(keep_vars=True).items():
            if name in weights or name in aliases:
                target.data = weights[aliases.get(name, name)]
    module.eval()
    given = json.loads(Path(inputs).read_text())
    x = torch.tensor(given["x"], dtype=DTYPES[given["dtype"]]).reshape(given["shape"])
    with torch.no_grad():
        output = module(x)
    print(json.dumps({"output": flat(output), "not_hollow": hollow, "aliases": aliases}))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        read(Path(sys.argv[2]), sys.argv[3])
