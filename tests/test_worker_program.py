"""`flambeau-worker` by itself: how it trains, scores and inspects, and how it ends when something fails."""

import hashlib
import json
import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from networks import two_networks, within
from ports import held_port
from torch import Tensor, nn
from worker_program import (
    LARGE,
    LIBTORCH,
    PROGRAM,
    Rank,
    Ranks,
    job_of,
    launch,
    run,
    save_script,
    start_launch,
    write_rows,
)

import flambeau
from flambeau._libtorch import TORCH
from flambeau._spark.work_directory import WorkDirectory

ENDLESS: dict[str, Any] = {"epochs": 1_000_000, "batchSize": 8, "checkpointInterval": -1}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.parquet")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))
    return save_script(module, tmp_path / "net.pt")


def history(outcome: dict[str, Any]) -> list[float]:
    return [epoch["loss"] for epoch in outcome["result"]["history"]["epochs"]]


def test_two_ranks_train(tmp_path: Path, program: Path, rows: Path) -> None:
    job = job_of(tmp_path, program, [rows], numWorkers=2, batchSize=30, epochs=5, verifyReplicas=True)
    with Ranks(job, 2) as ranks:
        ranks.meet()
        steps = [ranks[0].wait_for("step")["step"] for _ in range(3)]
        first, second = ranks.outcomes()
    assert [step["step"] for step in steps] == [0, 1, 2]
    assert history(first) == history(second)
    assert history(first)[-1] < history(first)[0] / 2
    assert first["result"]["weights"]["size"] > 0 and second["result"]["weights"] is None


def test_weights_that_are_kept_on_the_way_change_nothing(tmp_path: Path, program: Path, rows: Path) -> None:
    def train(name: str, **params: Any) -> dict[str, Any]:
        return launch(job_of(tmp_path, program, [rows], name, batchSize=30, epochs=5, **params))[-1]

    kept, plain = train("kept", restoreBestWeights=True), train("plain")
    assert history(kept) == history(plain)
    assert kept["result"]["history"]["bestEpoch"] == 4
    assert kept["result"]["weights"]["sha256"] == plain["result"]["weights"]["sha256"]


def test_the_loop_without_a_launcher_meets_over_tcp(tmp_path: Path, program: Path, rows: Path) -> None:
    """Three ranks learn what one rank with three lanes learns: the same batches."""
    torch.manual_seed(0)
    save_script(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double(), program)

    def train(name: str, world_size: int, **params: Any) -> dict[str, Any]:
        job = job_of(tmp_path, program, [rows], name, dataLanes=3, epochs=4, **params)
        for tensor in [*job["data"]["spec"]["inputs"], *job["data"]["spec"]["labels"]]:
            tensor["dtype"] = "float64"
        (tmp_path / "job.json").write_text(json.dumps(job))
        (tmp_path / "secret").write_text("a secret of all ranks")
        command = [PROGRAM, "train", "--job", tmp_path / "job.json", "--world-size", world_size]
        command += ["--secret-file", tmp_path / "secret", "--libtorch", LIBTORCH]
        with held_port() as port:
            command += ["--rendezvous", f"127.0.0.1:{port}"]
            ranks = [
                subprocess.Popen(
                    list(map(str, [*command, "--rank", rank])), stdout=subprocess.PIPE, text=True
                )
                for rank in range(world_size)
            ]
            last = [rank.communicate(timeout=60)[0].splitlines()[-1] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * world_size
        return json.loads(last[0])

    three = train("three", 3, numWorkers=3, batchSize=10)
    one = train("one", 1, numWorkers=1, batchSize=30)
    assert three["result"]["worldSize"] == 3
    assert history(three) == pytest.approx(history(one), rel=1e-12)


def test_a_slow_network_is_what_held_a_training_up(tmp_path: Path, rows: Path) -> None:
    """Two ranks with 4 MB of gradients, and 12.5 MB a second between them."""
    wide = nn.Sequential(nn.Linear(4, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 1))
    program = save_script(wide, tmp_path / "wide.pt")
    job = tmp_path / "job.json"
    job.write_text(json.dumps(job_of(tmp_path, program, [rows], numWorkers=2, batchSize=100, epochs=1)))
    (tmp_path / "secret").write_text("a secret of all ranks")
    hosts = ["10.85.0.1", "10.85.0.2"]
    command = [PROGRAM, "train", "--job", job, "--world-size", 2, "--rendezvous", f"{hosts[0]}:29400"]
    command += ["--secret-file", tmp_path / "secret", "--libtorch", LIBTORCH, "--transport", "tcp"]
    with two_networks(hosts, rate="100mbit") as networks:
        ranks = [
            subprocess.Popen(
                [*within(network), *map(str, command), "--rank", str(rank), "--bind-address", host],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, (network, host) in enumerate(zip(networks, hosts, strict=True))
        ]
        try:
            last = [rank.communicate(timeout=120)[0].splitlines()[-1] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    found = json.loads(last[0])["result"]["bottleneck"]
    assert found["part"] == "reduce" and found["share"] > 0.5, found
    assert "gradientCompression sends less" in found["advice"]


def weights_of(outcome: dict[str, Any]) -> str:
    sha256: str = outcome["result"]["weights"]["sha256"]
    return sha256


def pids_of(launcher: subprocess.Popen[str]) -> list[int]:
    """The processes that a running launch has started, by rank."""
    return list(map(int, Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def end(pid: int, by: signal.Signals) -> None:
    """Sends a signal; SIGSEGV until the process ends.

    Rust's own handler lets the first one pass that no instruction caused, and two may arrive as one.
    """
    os.kill(pid, by)
    deadline = time.monotonic() + 20
    while by == signal.SIGSEGV and is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)
        with suppress(ProcessLookupError):
            os.kill(pid, by)


LAUNCHED: dict[str, Any] = {"numWorkers": 2, "batchSize": 10, "epochs": 40, "checkpointSteps": 20}


@pytest.mark.parametrize("ends", ["SIGKILL", "SIGSEGV", pytest.param("SIGSTOP", marks=pytest.mark.long)])
def test_a_launch_goes_on_after_a_rank_that_ended(
    tmp_path: Path, program: Path, rows: Path, ends: str
) -> None:
    undisturbed = launch(job_of(tmp_path, program, [rows], "undisturbed", **LAUNCHED))[-1]
    more = {"heartbeatTimeout": 4.0} if ends == "SIGSTOP" else {}
    job = job_of(tmp_path, program, [rows], "job", **more, **LAUNCHED)
    with start_launch(job, "--report-steps") as launcher:
        try:
            assert launcher.stdout is not None and launcher.stderr is not None
            lines: list[dict[str, Any]] = []
            victim = 0
            for text in launcher.stdout:
                lines.append(json.loads(text))
                if not victim and lines[-1].get("step", {}).get("step") == 100:
                    victim = pids_of(launcher)[1]
                    end(victim, signal.Signals[ends])
            assert launcher.wait(10) == 0
            said = launcher.stderr.read()
        finally:
            launcher.kill()
    steps = [line["step"]["step"] for line in lines if "step" in line]
    # A rank that was given up says less than one that noticed.
    reason = "lost rank 1 on " if ends == "SIGSTOP" else "its process ended by signal"
    assert said.count(f"training is started again (1 of at most 3 restarts): {reason}") == 1
    assert steps.count(0) == 1 and steps[-1] == 40 * 600 // 20 - 1
    assert weights_of(lines[-1]) == weights_of(undisturbed)


def test_a_failed_launch_says_what_another_goes_on_from(tmp_path: Path, program: Path, rows: Path) -> None:
    undisturbed = launch(job_of(tmp_path, program, [rows], "undisturbed", **LAUNCHED))[-1]
    job = job_of(tmp_path, program, [rows], "job", maxRestarts=0, **LAUNCHED)
    with start_launch(job, "--report-steps") as launcher:
        assert launcher.stdout is not None
        for text in launcher.stdout:
            line = json.loads(text)
            if line.get("step", {}).get("step") == 100:
                os.kill(pids_of(launcher)[0], signal.SIGKILL)
        assert launcher.wait(10) == 1
    found = re.search(r"the newest checkpoint is (\S+): a launch whose attempt has it as resume", text)
    assert found is not None, text
    # What it left is kept from the sweeps of others.
    assert len(list(tmp_path.glob("leases/*"))) == 1
    job["attempt"]["resume"] = found[1]
    *lines, last = launch(job, "--report-steps")
    steps = [line["step"]["step"] for line in lines if "step" in line]
    assert steps[0] == int(Path(found[1]).name) > 0
    assert weights_of(last) == weights_of(undisturbed)


def test_a_launch_needs_no_reader_and_leaves_what_is_kept(tmp_path: Path, program: Path, rows: Path) -> None:
    job = job_of(tmp_path, program, [rows], "job", keepCheckpoints=1, **LAUNCHED)
    with start_launch(job, "--report-steps") as launcher:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        launcher.stdout.close()
        assert launcher.wait(60) == 0
    assert len(list(tmp_path.glob("models/*/*.safetensors"))) == 1
    assert {path.name for path in tmp_path.glob("attempts/*/*")} == {"checkpoints", "KEPT"}
    assert not list(tmp_path.glob("leases/*"))


def test_a_launch_whose_result_cannot_be_written_fails(tmp_path: Path, program: Path, rows: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps(job_of(tmp_path, program, [rows])))
    command = [str(PROGRAM), "launch", "--job", str(tmp_path / "job.json"), "--libtorch", str(LIBTORCH)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1 and "the last line cannot be written: No space left on device" in done.stderr
    assert weights_of(json.loads(done.stderr[done.stderr.index('{"result"') :]))


def test_a_launch_ends_after_as_many_restarts(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.parquet", large_row=590)
    program = save_script(Crashing(), tmp_path / "crashing.pt")
    job = job_of(tmp_path, program, [rows], numWorkers=2, batchSize=10, shuffle=False, maxRestarts=1)
    with start_launch(job) as launcher:
        output, said = launcher.communicate(timeout=60)
    error = json.loads(output.splitlines()[-1])["error"]
    assert launcher.returncode == 1 and said.count("training is started again") == 1
    assert (error["kind"], error["rank"], error["isCause"]) == ("lost", 1, True)
    assert "its process ended by signal: 11 (SIGSEGV)" in error["message"]


@pytest.mark.parametrize("ends", [signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_its_launch(tmp_path: Path, program: Path, rows: Path, ends: signal.Signals) -> None:
    with start_launch(job_of(tmp_path, program, [rows], numWorkers=2, **ENDLESS)) as launcher:
        assert launcher.stdout is not None
        assert "progress" in json.loads(launcher.stdout.readline())
        pids = pids_of(launcher)
        launcher.send_signal(ends)
        launcher.wait(10)
    assert len(pids) == 2
    deadline = time.monotonic() + 20
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, pids))


def test_a_launch_refuses_what_it_cannot_do(tmp_path: Path, program: Path, rows: Path) -> None:
    def refusal(**params: Any) -> str:
        error = launch(job_of(tmp_path, program, [rows], **params))[-1]["error"]
        assert (error["kind"], error["isCause"]) == ("job", True)
        return str(error["message"])

    assert "epochs" in refusal(epochs=0)
    assert 'runId is "nightly", but a launch without Spark keeps no runs' in refusal(runId="nightly")
    missing = run("launch", "--job", tmp_path / "none.json", "--libtorch", LIBTORCH)
    assert missing.returncode == 1 and "none.json cannot be read: No such file" in missing.stderr


def test_ranks_with_other_jobs_are_refused(tmp_path: Path, program: Path, rows: Path) -> None:
    """Before they train, and on both sides: replicas would part without a word."""
    jobs = [
        job_of(tmp_path, program, [rows], numWorkers=2, seed=seed, learningRate=rate)
        for seed, rate in [(0, 0.01), (1, 0.02)]
    ]
    with Ranks(jobs[0], 0) as ranks:
        ranks.all = [Rank(job, rank, 2) for rank, job in enumerate(jobs)]
        errors = [outcome["error"] for outcome in ranks.meet().outcomes()]
    for error in errors:
        assert error["kind"] == "job" and error["isCause"]
        assert re.search(r"rank 1 on \S+ differs from rank 0 on \S+ in learningRate, seed;", error["message"])


def test_a_rank_that_is_killed_frees_the_other(tmp_path: Path, program: Path, rows: Path) -> None:
    job = job_of(tmp_path, program, [rows], numWorkers=2, **ENDLESS)
    with Ranks(job, 2) as ranks:
        ranks.meet()[0].wait_for("progress")
        began = time.monotonic()
        ranks[1].process.kill()
        error = ranks[0].outcome(30)["error"]
        assert time.monotonic() - began < 20
    assert error["kind"] == "collective" and not error["isCause"]
    assert "rank 1" in error["message"] and error["rank"] == 0 and error["step"] > 0


class Crashing(nn.Module):
    """Makes libtorch write outside its memory where a row has a large number in it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.large = LARGE

    def forward(self, x: Tensor) -> Tensor:
        output = self.layer(x)
        if bool((x > self.large).any()):
            # Not a constant, which TorchScript would compute beforehand. So far away that nothing is
            # overwritten, whose owner would abort.
            bounds = torch.tensor([1 << 38, (1 << 38) + 1]) * x.shape[0]
            rows = torch._convert_indices_from_csr_to_coo(bounds, torch.zeros([1], dtype=torch.int64))
            output = output + rows.sum()
        return output


def test_a_rank_that_segfaults_in_libtorch_frees_the_other(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.parquet", large_row=590)
    program = save_script(Crashing(), tmp_path / "crashing.pt")
    job = job_of(tmp_path, program, [rows], numWorkers=2, batchSize=10, shuffle=False)
    with Ranks(job, 2) as ranks:
        error = ranks.meet()[0].outcome(20)["error"]
        assert ranks[1].process.wait(10) == -signal.SIGSEGV
    assert error["kind"] == "collective" and not error["isCause"]
    assert "rank 1" in error["message"] and error["step"] == 29


class Hungry(nn.Module):
    """Asks for 16 GiB in the forward of a large batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        much = torch.ones([4 << 30]) if x.shape[0] > 2 else torch.ones([1])
        return self.layer(x) + much[0]


def test_a_rank_without_memory_says_so(tmp_path: Path, rows: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))

    job = job_of(tmp_path, save_script(Hungry(), tmp_path / "hungry.pt"), [rows], numWorkers=2, batchSize=8)
    with Ranks(job, 2, preexec_fn=limit) as ranks:
        errors = [outcome["error"] for outcome in ranks.meet().outcomes()]
    causes = [error for error in errors if error["isCause"]]
    assert causes and all(re.search("memory", error["message"]) for error in causes)
    assert {error["kind"] for error in causes} == {"model"} and causes[0]["step"] == 0


@pytest.mark.parametrize("when", ["meeting", "training"])
def test_it_is_gone_when_standard_input_closes(tmp_path: Path, program: Path, rows: Path, when: str) -> None:
    with Ranks(job_of(tmp_path, program, [rows], numWorkers=2, **ENDLESS), 2) as ranks:
        if when == "training":
            ranks.meet()
        ranks[0].wait_for("gather" if when == "meeting" else "progress")
        stdin = ranks[0].process.stdin
        assert stdin is not None
        stdin.close()
        assert ranks[0].process.wait(10) == 1


def test_a_cancelled_training_ends_after_the_same_step(tmp_path: Path, program: Path, rows: Path) -> None:
    job = job_of(tmp_path, program, [rows], numWorkers=2, **ENDLESS)
    with Ranks(job, 2) as ranks:
        ranks.meet()[0].wait_for("progress")
        ranks[1].tell({"cancel": True})
        errors = [outcome["error"] for outcome in ranks.outcomes(30)]
    assert {error["kind"] for error in errors} == {"cancelled"}
    assert errors[0]["step"] == errors[1]["step"]


def test_a_rank_that_left_before_the_meeting_is_named(tmp_path: Path, program: Path, rows: Path) -> None:
    with Ranks(job_of(tmp_path, program, [rows], numWorkers=2), 2) as ranks:
        ranks[0].wait_for("gather")
        ranks[0].tell({"left": {"rank": 1}})
        error = ranks[0].outcome(30)["error"]
    assert not error["isCause"] and "rank 1" in error["message"]


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        ({"params": {"epochs": 0}}, "job", "epochs"),
        ({"program": None}, "job", "program"),
        ({"store": {"no_such_option": "1"}}, "data", "no_such_option"),
    ],
)
def test_a_bad_job_is_refused(
    tmp_path: Path, program: Path, rows: Path, change: dict[str, Any], kind: str, said: str
) -> None:
    job = job_of(tmp_path, program, [rows]) | change
    with Ranks(job, 1) as ranks:
        error = ranks[0].outcome(20)["error"]
    assert (error["kind"], error["isCause"]) == (kind, True)
    assert said in error["message"] and error["epoch"] is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="SKIPPED: there is a GPU")
def test_without_a_gpu_cuda_is_refused_with_what_each_rank_lacks(
    tmp_path: Path, program: Path, rows: Path
) -> None:
    message = launch(job_of(tmp_path, program, [rows], numWorkers=2, device="cuda"))[-1]["error"]["message"]
    assert "no worker can use a GPU" in message
    assert all(f"worker {rank} on" in message for rank in range(2)) and "driver" in message


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="SKIPPED: torch can use no GPU here")
@pytest.mark.skipif(not PROGRAM.exists(), reason="SKIPPED: there is no flambeau-worker")
@pytest.mark.skipif(not torch.__version__.startswith(f"{TORCH}."), reason=f"SKIPPED: torch is not {TORCH}")
def test_a_gpu_learns_what_the_cpu_does(tmp_path: Path, program: Path, rows: Path) -> None:
    def train(device: str, gpus: Sequence[str] = (), **params: Any) -> list[float]:
        job = job_of(tmp_path, program, [rows], device, batchSize=30, epochs=5, device=device, **params)
        with Ranks(job, 1, gpus=gpus) as ranks:
            return history(ranks.outcomes(120)[0])

    # The program leaves the GPU for a moment after each epoch, to be kept.
    assert train("cuda", ["0"], restoreBestWeights=True) == pytest.approx(train("cpu"), rel=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="SKIPPED: there are no two GPUs")
@pytest.mark.skipif(not PROGRAM.exists(), reason="SKIPPED: there is no flambeau-worker")
@pytest.mark.skipif(not torch.__version__.startswith(f"{TORCH}."), reason=f"SKIPPED: torch is not {TORCH}")
@pytest.mark.parametrize("compression", ["fp16", pytest.param("bf16", marks=pytest.mark.long)])
def test_two_gpus_compress_what_the_cpu_does(tmp_path: Path, rows: Path, compression: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    program = save_script(module, tmp_path / "net.pt")
    params: dict[str, Any] = {"numWorkers": 2, "batchSize": 30, "epochs": 5, "verifyReplicas": True}
    params["gradientCompression"] = compression

    def train(device: str) -> tuple[list[float], list[int]]:
        job = job_of(tmp_path, program, [rows], device, device=device, **params)
        outcome = launch(job, seconds=120)[-1]
        sent = [epoch["sentBytes"] for epoch in outcome["result"]["history"]["epochs"]]
        return history(outcome), sent

    losses, sent = train("cuda")
    expected_losses, expected_sent = train("cpu")
    assert losses == pytest.approx(expected_losses, rel=1e-3)
    assert sent == expected_sent


def test_a_program_is_checked_without_a_training(tmp_path: Path, program: Path, rows: Path) -> None:
    def check(path: Path) -> tuple[int, dict[str, Any]]:
        job = job_of(tmp_path, path, [rows])
        job["data"]["spec"]["inputs"][0]["shape"] = [4]
        (tmp_path / "job.json").write_text(json.dumps(job))
        done = run("check", "--job", tmp_path / "job.json", "--libtorch", LIBTORCH)
        return done.returncode, json.loads(done.stdout)

    status, told = check(program)
    parameters = torch.jit.load(str(program)).parameters()
    assert status == 0 and told["check"]["numParameters"] == sum(one.numel() for one in parameters)
    assert [output["dtype"] for output in told["check"]["output"]] == ["float32"]
    status, told = check(save_script(nn.Linear(5, 1), tmp_path / "five.pt"))
    assert status == 1 and told["error"]["kind"] == "job"
    assert "forward fails on inputs of the columns' shapes" in told["error"]["message"]


def test_a_loss_or_optimizer_that_is_not_known_is_refused(tmp_path: Path, program: Path, rows: Path) -> None:
    job = job_of(tmp_path, program, [rows])
    job["program"]["optimizer"] = {"name": "lbfgs"}
    error = launch(job)[-1]["error"]
    assert error["kind"] == "job" and "lbfgs" in error["message"]


def test_a_program_without_its_weights_is_refused(tmp_path: Path, rows: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    flambeau.save_program(module, str(tmp_path / "program"), [torch.zeros(2, 4)])
    for form, name in (("scripted", "program.pt"), ("exported", "program.pt2")):
        job = job_of(tmp_path, tmp_path / "program" / name, [rows])
        job["program"]["form"] = form
        error = launch(job)[-1]["error"]
        assert error["kind"] == "job" and "has no weights in it (0.weight is empty)" in error["message"]


class Talkative(nn.Module):
    """Prints in its forward, as TorchScript does: to standard output, from C++."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        print("rows:", x.shape[0])
        return self.layer(x)


def test_what_native_code_prints_is_not_in_the_lines(tmp_path: Path, rows: Path) -> None:
    job = job_of(tmp_path, save_script(Talkative(), tmp_path / "talkative.pt"), [rows], batchSize=100)
    with Ranks(job, 1) as ranks:
        assert "result" in ranks[0].outcome()
        assert "rows: 100" in ranks[0].end()


def test_two_trainings_at_once(tmp_path: Path, program: Path, rows: Path) -> None:
    jobs = [
        job_of(tmp_path, program, [rows], f"a{i}", numWorkers=2, batchSize=30, epochs=5) for i in range(2)
    ]
    with Ranks(jobs[0], 2) as first, Ranks(jobs[1], 2) as second:
        first.meet()
        second.meet()
        outcomes = [*first.outcomes(), *second.outcomes()]
    assert len({tuple(history(outcome)) for outcome in outcomes}) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "a command is missing"),
        (["learn"], "there is no command learn"),
        (["train", "--rank", "0"], "--job is missing"),
        (["score", "model"], "score needs a model"),
        (["inspect"], "inspect needs a path"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_status_2(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1


def test_help_and_version_need_no_libtorch() -> None:
    for option in ("--help", "--version"):
        done = run(option, LIBTORCH="/nowhere")
        assert done.returncode == 0 and "flambeau-worker" in done.stdout


def another_version(directory: Path) -> Path:
    (directory / "lib").mkdir(parents=True)
    for library in ("libc10.so", "libtorch_cpu.so"):
        (directory / "lib" / library).write_bytes(b"")
    (directory / "build-version").write_text("2.5.0+cpu\n")
    return directory


def test_libtorch_is_found_or_missed_in_one_sentence(tmp_path: Path) -> None:
    found = json.loads(run("libtorch", LIBTORCH=str(LIBTORCH)).stdout)
    assert found["version"].startswith("2.13.")
    assert [Path(path).name for path in found["libraries"]] == ["libc10.so", "libtorch_cpu.so"]
    assert all(Path(path).is_file() for path in found["libraries"])
    assert found["cuda"] == (torch.version.cuda is not None)
    python = {"LIBTORCH": "", "FLAMBEAU_PYTHON": os.environ.get("PYSPARK_PYTHON", "python3")}
    assert json.loads(run("libtorch", **python).stdout) == found
    for directory, said in [
        (tmp_path, "has no lib/libc10.so"),
        (another_version(tmp_path / "old"), "is 2.5.0, and Flambeau needs 2.13"),
    ]:
        for done in (run("libtorch", LIBTORCH=str(directory)), run("libtorch", "--libtorch", directory)):
            assert done.returncode == 1 and done.stdout == ""
            assert said in done.stderr and len(done.stderr.splitlines()) == 1
    nowhere = run("libtorch", LIBTORCH="", FLAMBEAU_PYTHON="/nowhere/python")
    assert nowhere.returncode == 1 and "install torch 2.13" in nowhere.stderr


def test_a_launcher_is_told_of_a_missing_libtorch(tmp_path: Path) -> None:
    done = run("train", "--launcher", "--libtorch", another_version(tmp_path / "old"))
    error = json.loads(done.stdout)["error"]
    assert done.returncode == 1 and error["kind"] == "environment" and error["isCause"]
    assert "2.5.0" in error["message"]


def test_rows_are_scored_as_the_module_does(tmp_path: Path, program: Path, rows: Path) -> None:
    done = run("score", program, rows, tmp_path / "scores.parquet", "--input", "x", "--libtorch", LIBTORCH)
    assert done.returncode == 0, done.stderr
    x = torch.tensor(pq.read_table(rows)["x"].to_pylist())
    with torch.inference_mode():
        expected = torch.jit.load(str(program)).eval()(x)[:, 0]
    scores = pq.read_table(tmp_path / "scores.parquet")["prediction"].to_numpy()
    np.testing.assert_allclose(scores, expected, rtol=1e-6)
    missing = run("score", program, rows, tmp_path / "none.parquet", "--input", "z", "--libtorch", LIBTORCH)
    assert missing.returncode == 1 and "no column z" in missing.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="SKIPPED: torch can use no GPU here")
def test_rows_are_scored_on_a_gpu(tmp_path: Path, program: Path, rows: Path) -> None:
    scores = []
    for name, gpu in (("cpu", []), ("cuda", ["--gpu", torch.cuda.device_count() - 1])):
        path = tmp_path / f"{name}.parquet"
        done = run("score", program, rows, path, "--input", "x", "--libtorch", LIBTORCH, *gpu)
        assert done.returncode == 0, done.stderr
        scores.append(pq.read_table(path)["prediction"].to_numpy())
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-5)
    beyond = ["--input", "x", "--gpu", torch.cuda.device_count(), "--libtorch", LIBTORCH]
    missing = run("score", program, rows, tmp_path / "none.parquet", *beyond)
    assert missing.returncode == 1 and "invalid device ordinal" in missing.stderr


class TwoOutputs(nn.Module):
    """Two outputs of two inputs; a `lambda`, which TorchScript does not take, where it is to be exported."""

    def __init__(self, exported: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.function = (lambda x: x.tanh()) if exported else nn.Tanh()

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.function(self.layer(x)), x.sum(1) > y


@pytest.mark.parametrize("exported", [False, True])
def test_a_saved_program_is_scored_and_told_of(tmp_path: Path, rows: Path, exported: bool) -> None:
    module = TwoOutputs(exported)
    flambeau.save_program(module, str(tmp_path / "program"), [torch.zeros(2, 4), torch.zeros(2)])
    scores = tmp_path / "scores.parquet"
    inputs = ["--input", "x", "--input", "y", "--batch-size", 64, "--libtorch", LIBTORCH]
    done = run("score", tmp_path / "program", rows, scores, *inputs)
    assert done.returncode == 0, done.stderr
    table, scored = pq.read_table(rows), pq.read_table(scores)
    with torch.inference_mode():
        first, second = module(torch.tensor(table["x"].to_pylist()), torch.tensor(table["y"].to_numpy()))
    np.testing.assert_allclose(scored["_1"].to_pylist(), first, rtol=1e-6)
    assert scored["_2"].to_pylist() == second.tolist()
    told = run("inspect", tmp_path / "program", "--libtorch", LIBTORCH).stdout
    assert ("a program, exported" if exported else "a program, scripted") in told
    assert "layer.weight: float32 [3, 4], parameter" in told


def test_it_tells_what_programs_and_shards_hold(tmp_path: Path, program: Path, rows: Path) -> None:
    shards = run("inspect", rows, "--libtorch", LIBTORCH)
    assert "600 rows, 3 row groups" in shards.stdout and "x: array<float> (float32)" in shards.stdout
    net = run("inspect", program, "--libtorch", LIBTORCH)
    assert "0.weight: float32 [8, 4], parameter" in net.stdout
    nothing = run("inspect", tmp_path / "nothing", "--libtorch", LIBTORCH)
    assert nothing.returncode == 1 and "is no model" in nothing.stderr


def test_it_tells_what_checkpoints_and_runs_hold(tmp_path: Path, program: Path, rows: Path) -> None:
    params: dict[str, Any] = {"batchSize": 30, "epochs": 3, "numWorkers": 2, "keepCheckpoints": 2}
    result = launch(job_of(tmp_path, program, [rows], **params))[-1]["result"]
    (attempt,) = (tmp_path / "attempts").iterdir()
    earlier, checkpoint = sorted((attempt / "checkpoints").iterdir())
    told = run("inspect", checkpoint, "--libtorch", LIBTORCH).stdout.splitlines()
    assert told[0] == f"{checkpoint}: a checkpoint, committed"
    steps = 3 * 600 // 60
    assert int(checkpoint.name) == steps and f"step: {steps}" in told and "world size: 2" in told
    assert "epoch: 3, from batch 0 on, after 0 of its 600 rows" in told
    assert f"before it: step {int(earlier.name)} of attempt {attempt.name}" in told
    assert f"  loss: {result['history']['epochs'][2]['loss']}" in told
    files = {path for path in checkpoint.rglob("*") if path.is_file()}
    sizes = {f"  {path.relative_to(checkpoint)}: {path.stat().st_size} bytes" for path in files}
    assert set(told[told.index("files:") + 1 :]) == sizes

    what = {"job": {"batchSize": 30, "seed": 7, "model": "a digest"}, "rows": ["one"], "readsAll": True}
    work = WorkDirectory(str(tmp_path))
    work.ask("writeRun", id="nightly", attempts=[attempt.name, "another"], what=what)
    run_file = tmp_path / "runs/nightly.json"
    told = run("inspect", run_file, "--libtorch", LIBTORCH).stdout.splitlines()
    digest = hashlib.sha256(json.dumps(what["rows"]).encode()).hexdigest()
    assert told[1] == f"rows: {digest} (SHA-256 of all of them)"
    assert {"  batchSize: 30", "  seed: 7", '  model: "a digest"', "  another: no checkpoint"} <= set(told)
    assert told[-3:-1] == [f"    step {int(path.name)}: {path}" for path in (earlier, checkpoint)]

    (checkpoint / "shared.bin").unlink()
    told = run("inspect", checkpoint, "--libtorch", LIBTORCH).stdout.splitlines()
    assert told[0].endswith("that nothing goes on from: its part shared.bin is gone")
    assert run("inspect", run_file, "--libtorch", LIBTORCH).stdout.count("not whole") == 1
    (checkpoint / "COMMITTED").unlink()
    assert "it was never finished" in run("inspect", checkpoint, "--libtorch", LIBTORCH).stdout
    missing = run("inspect", tmp_path / "runs/none.json", "--libtorch", LIBTORCH)
    assert missing.returncode == 1 and "there is no run at" in missing.stderr


def test_the_secret_is_in_no_argument_and_no_environment(tmp_path: Path, program: Path, rows: Path) -> None:
    with Ranks(job_of(tmp_path, program, [rows], **ENDLESS), 1) as ranks:
        rank: Rank = ranks[0]
        rank.wait_for("progress")
        process = Path(f"/proc/{rank.process.pid}")
        for file in ("cmdline", "environ"):
            assert b"a secret of sixteen" not in (process / file).read_bytes()
        assert "a secret of sixteen" not in rank.end()
