"""All-reduce of float32, on one host and over TCP

Each figure is the median time of the blocking call, on rank 0, after a barrier. On one host the buffers lie
in the group's memory, as gradients do, and the limit is a bare loop: processes over one segment that sum
their parts between two barriers, with nothing checked. Over TCP each rank has a network namespace of its own,
all joined by a bridge, and the limit is the time in which as many bytes go one way from one rank to another.
That limit is a network's; here two cores copy every byte of every link. So the same is measured with both
ways busy at once, and where each rank's link is held to less than the cores can copy.

The program that is timed is native/collective/examples/all_reduce_speed, the peers peers/gloo.py and, on one
host, peers/horovod.py, whose ranks are started for each round: its background threads would disturb others.

Compressed gradients are a case of their own: a step of the reducer that training has, on matrices of
1024 x 1024, over links that are held to what a slow network has. The contenders are the kinds of
gradientCompression; native/train/examples/gradient_speed is timed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType

from harness import ROOT, Case, Child, Contender, Goal, Skipped, free_address, peer

KIB, MIB = 1 << 10, 1 << 20
EVERY_SIZE = [4 * KIB << 2 * step for step in range(8)]
"""From 4 KiB to 64 MiB."""
SIZES = {2: [4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB], 4: [64 * KIB, 16 * MIB]}
TCP_SIZES = {2: [64 * KIB, MIB, 64 * MIB], 4: [64 * KIB, 16 * MIB]}
GLOO_GOALS = {64 * KIB: 100.0, MIB: 30.0, 16 * MIB: 30.0, 64 * MIB: 8.0}
"""With two ranks on one host."""
BARE_LOOP, ONE_WAY, BOTH_WAYS = "limit: bare loop", "limit: TCP one way", "limit: TCP both ways"
HELD_TO = 2
"""Gbit/s of each rank's link, where it is held to less than the cores can copy."""

PEERS = ("horovod",)

COMPRESSIONS = {
    "none": "none",
    "bf16": "bf16",
    "fp16": "fp16",
    "topk, 1 %": "topk",
    "powersgd, rank 4": "powersgd",
}
COMPRESSED_AT = [HELD_TO, 10]
"""Gbit/s of each rank's link."""

SPEED = ROOT / "target" / "release" / "examples" / "all_reduce_speed"
GRADIENT_SPEED = SPEED.with_name("gradient_speed")
# Without its warnings that a network namespace has no name service.
GLOO: Argv = ["env", "TORCH_CPP_LOG_LEVEL=ERROR", sys.executable, ROOT / "benchmarks" / "peers" / "gloo.py"]
SECONDS = 0.15
"""How long a contender works in a round, where its calls are short."""

Argv = Sequence[str | Path | int]


def cases(full: bool, scratch: Path) -> Iterator[Case | Skipped]:
    for package, program in [("flambeau-collective", SPEED), ("flambeau-train", GRADIENT_SPEED)]:
        build = ["cargo", "build", "--release", "--locked", "--quiet", "-p", package]
        subprocess.run([ROOT / ".ci/with-tools", *build, "--example", program.name], cwd=ROOT, check=True)
    for world_size in (2, 4):
        yield from on_one_host(world_size, EVERY_SIZE if full else SIZES[world_size])
    for world_size in (2, 4):
        yield from over_tcp(world_size, EVERY_SIZE if full else TCP_SIZES[world_size])
    yield from over_tcp(2, [64 * MIB], HELD_TO)
    for gbit in COMPRESSED_AT:
        yield from compressed(2, 32 * MIB, gbit)


def on_one_host(world_size: int, sizes: Sequence[int]) -> Iterator[Case]:
    with ExitStack() as stack:

        def started(*commands: Argv) -> Team:
            return stack.enter_context(Team(commands))

        ours, gloo = free_address(), free_address()
        everyone = range(world_size)
        ranks: list[Argv] = [
            [SPEED, "rank", rank, world_size, ours, "127.0.0.1", "auto"] for rank in everyone
        ]
        peers: list[Argv] = [[*GLOO, rank, world_size, gloo, "lo"] for rank in everyone]
        contenders: dict[str, Callable[..., float]] = {
            "Flambeau": partial(started(*ranks).median, memory="group"),
            "gloo": started(*peers).median,
            "Horovod": partial(started(peer("horovod")).median, what="all_reduce", world_size=world_size),
            BARE_LOOP: started([SPEED, "bare", world_size]).median,
        }
        for size in sizes:
            goals = [Goal(BARE_LOOP, 1 / 1.3)] if size >= 64 * KIB else []
            if world_size == 2 and size in GLOO_GOALS:
                goals.append(Goal("gloo", GLOO_GOALS[size]))
            yield case(f"{world_size} ranks, shared memory", size, contenders, goals)


def network_in(stack: ExitStack, where: str, world_size: int, gbit: int | None) -> Network | Skipped:
    """A network that the stack takes down, or what is skipped where this machine makes none."""
    try:
        return stack.enter_context(Network(world_size, gbit))
    except (OSError, subprocess.CalledProcessError) as error:
        return Skipped("all_reduce", where, f"network namespaces, which take root and iproute2 ({error})")


def over_tcp(world_size: int, sizes: Sequence[int], gbit: int | None = None) -> Iterator[Case | Skipped]:
    where = f"{world_size} ranks, TCP" + (f" at {gbit} Gbit/s" if gbit else "")
    with ExitStack() as stack:
        network = network_in(stack, where, world_size, gbit)
        if isinstance(network, Skipped):
            yield network
            return

        def started(*commands: Argv) -> Team:
            return stack.enter_context(
                Team([[*network.inside(rank), *command] for rank, command in enumerate(commands)])
            )

        def at(port: int) -> str:
            return f"{network.address(0)}:{port}"

        ranks: list[Argv] = [
            [SPEED, "rank", rank, world_size, at(29400), network.address(rank), "tcp"]
            for rank in range(world_size)
        ]
        peers: list[Argv] = [
            [*GLOO, rank, world_size, at(29500), Network.DEVICE] for rank in range(world_size)
        ]
        listener = f"{network.address(1)}:29600"
        link = started([SPEED, "link", "connect", listener], [SPEED, "link", "listen", listener])
        contenders: dict[str, Callable[..., float]] = {
            "Flambeau": partial(started(*ranks).median, memory="group"),
            "gloo": started(*peers).median,
            ONE_WAY: partial(link.median, ways=1),
            BOTH_WAYS: partial(link.median, ways=2),
        }
        for size in sizes:
            # Both fill a link that is slower than they are.
            goals = [] if gbit else [Goal("gloo", 1.5)]
            if size == 64 * MIB:
                goals.append(Goal(ONE_WAY, 0.85))
            yield case(where, size, contenders, goals, rounds=3 if gbit else 5)


def compressed(world_size: int, size: int, gbit: int) -> Iterator[Case | Skipped]:
    where = f"gradients of {world_size} ranks, TCP at {gbit} Gbit/s"
    with ExitStack() as stack:
        network = network_in(stack, where, world_size, gbit)
        if isinstance(network, Skipped):
            yield network
            return
        at = f"{network.address(0)}:29400"
        ranks: list[Argv] = [
            [*network.inside(rank), GRADIENT_SPEED, rank, world_size, at, network.address(rank)]
            for rank in range(world_size)
        ]
        team = stack.enter_context(Team(ranks))
        contenders = {name: partial(team.median, compression=kind) for name, kind in COMPRESSIONS.items()}
        yield case(where, size, contenders, [], rounds=3)


def case(
    where: str,
    size: int,
    contenders: Mapping[str, Callable[[int], float]],
    goals: Sequence[Goal],
    rounds: int = 5,
) -> Case:
    runs: dict[str, Contender] = {name: partial(run, size) for name, run in contenders.items()}
    text = f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"
    return Case(
        suite="all_reduce",
        work=f"{text}, {where}",
        unit="µs",
        contenders=runs,
        goals=goals,
        higher_is_better=False,
        rounds=rounds,
        curve=f"all-reduce, {where}",
        x=size,
        x_label="bytes",
    )


class Team:
    """Processes that time something together. The first answers requests; at its end the others end too."""

    def __init__(self, commands: Sequence[Argv]) -> None:
        first, *others = ([str(part) for part in command] for command in commands)
        self._others = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for command in others]
        self._first = Child(first)
        self._last: dict[tuple[object, ...], float] = {}

    def median(self, size: int, **request: object) -> float:
        """The median time of a call on `size` bytes, in µs, over as many calls as take `SECONDS`."""
        kind = (size, *request.values())
        count = max(5, min(2000, round(SECONDS * 1e6 / self._last.get(kind, 1e5))))
        figure = float(self._first.call(bytes=size, count=count, **request)["us"])
        self._last[kind] = figure
        return figure

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._first.close()
        for process in self._others:
            process.wait(timeout=60)


class Network:
    """A network namespace for each rank, joined by a bridge in one more; `gbit` holds each rank's link to as
    many Gbit/s each way. Gone at the end, with all that runs in it.

    Raises OSError or CalledProcessError where the system has no namespaces or this process may not make them.
    """

    DEVICE = "eth0"

    def __init__(self, world_size: int, gbit: int | None) -> None:
        self._hosts = [f"flambeau-{os.getpid()}-{rank}" for rank in range(world_size)]
        self._bridge = f"flambeau-{os.getpid()}-bridge"
        self._gbit = gbit

    def address(self, rank: int) -> str:
        return f"10.84.0.{rank + 1}"

    def inside(self, rank: int) -> Argv:
        """What runs a command as `rank`'s host."""
        return ["ip", "netns", "exec", self._hosts[rank]]

    def __enter__(self) -> Network:
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self) -> None:
        bridge = self._bridge
        run(f"ip netns add {bridge}")
        run(f"ip -n {bridge} link add bridge type bridge")
        run(f"ip -n {bridge} link set bridge up")
        for rank, host in enumerate(self._hosts):
            port = f"port{rank}"
            run(f"ip netns add {host}")
            run(f"ip link add {self.DEVICE} netns {host} type veth peer name {port} netns {bridge}")
            run(f"ip -n {bridge} link set {port} master bridge up")
            run(f"ip -n {host} addr add {self.address(rank)}/24 dev {self.DEVICE}")
            run(f"ip -n {host} link set {self.DEVICE} up")
            run(f"ip -n {host} link set lo up")
            if self._gbit:
                shape = f"rate {self._gbit}gbit burst 1mb latency 50ms"
                run(f"ip netns exec {host} tc qdisc add dev {self.DEVICE} root tbf {shape}")

    def __exit__(self, *_: object) -> None:
        for name in [self._bridge, *self._hosts]:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)


def run(command: str) -> None:
    subprocess.run(command.split(), check=True, stderr=subprocess.PIPE)
