"""Fits on a Spark master given on the command line and prints what a test needs as one JSON line.

Run as its own process, since a Spark session's master cannot change within one.
"""

import argparse
import hashlib
import json
import os
import signal
import time
from pathlib import Path

import torch
from pyspark.sql import SparkSession

from flambeau import TorchRegressor


class KillsItsExecutor(torch.nn.Module):
    """Ends its executor's JVM, once, in the `fatal_forward`-th training forward of one rank."""

    def __init__(self, marker: str, fatal_forward: int) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(3, 16),
            torch.nn.BatchNorm1d(16),
            torch.nn.Tanh(),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(16, 1),
        )
        self.marker = marker
        self.fatal_forward = fatal_forward
        self.forwards = 0

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.forwards += 1
            if self.forwards == 1:
                network = os.stat("/proc/self/ns/net").st_ino
                (Path(self.marker).parent / f"network-{network}").touch()
            if self.forwards == self.fatal_forward and self.claims_marker():
                os.kill(executor_pid(), signal.SIGKILL)
                time.sleep(60)
        return self.net(features)

    def claims_marker(self) -> bool:
        """True for the one process that creates the marker file."""
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class RaisesInForward(torch.nn.Module):
    """Records that it trained, then raises: what a bug in a user's module does."""

    def __init__(self, marker: str) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)
        self.marker = marker

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if self.training:
            Path(f"{self.marker}-{os.getpid()}").touch()
            raise LookupError("no such embedding: 'ZZ'")
        return self.linear(features)


def executor_pid() -> int:
    """The pid of the JVM above this Python worker."""
    pid = os.getpid()
    while pid > 1:
        with open(f"/proc/{pid}/stat") as stat:
            pid = int(stat.read().rsplit(")", 1)[1].split()[1])
        if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
            return pid
    raise RuntimeError("no JVM above this process")


def digest(module: torch.nn.Module) -> str:
    """SHA-256 over the names and bytes of the module's state."""
    sha = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        sha.update(name.encode())
        sha.update(tensor.contiguous().numpy().tobytes())
    return sha.hexdigest()


def fit(behaviour: str, data: str, directory: Path) -> dict[str, object]:
    """How one fit ends; its work directory and its markers are below `directory`."""
    torch.manual_seed(5)
    marker = directory / f"{behaviour}-marker"
    if behaviour == "raise":
        module: torch.nn.Module = RaisesInForward(str(marker))
    else:
        module = KillsItsExecutor(str(marker), 25 if behaviour == "kill" else -1)
    estimator = TorchRegressor(
        model=module,
        loss="mse",
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        inputCols=["features"],
        labelCol="label",
        numWorkers=2,
        batchSize=32,
        epochs=4,
        seed=11,
        workDir=str(directory / behaviour),
        verbose=0,
    )
    outcome: dict[str, object] = {}
    try:
        model = estimator.fitOnParquet(data)
    except Exception as error:
        outcome.update(error=type(error).__name__, message=str(error))
    else:
        outcome.update(digest=digest(model.module()), history=model.history)
    outcome["networks"] = len(list(directory.glob("network-*")))
    return outcome | {"markers": len(list(directory.glob(f"{marker.name}*")))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--behaviours", required=True, help="of train, raise and kill, by commas")
    arguments = parser.parse_args()
    spark = (
        SparkSession.builder.master(arguments.master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", os.environ["SPARK_LOCAL_IP"])
        .config("spark.driver.bindAddress", os.environ["SPARK_LOCAL_IP"])
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    behaviours = arguments.behaviours.split(",")
    outcome = {behaviour: fit(behaviour, arguments.data, arguments.directory) for behaviour in behaviours}
    spark.stop()
    print("OUTCOME " + json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
