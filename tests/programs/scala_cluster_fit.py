"""Fits in Scala on a Spark master given on the command line, disturbs the fit if asked to, and prints what a
test needs as one JSON line.

    scala_cluster_fit.py --master MASTER --jar JAR --data FILE --net FILE --work-dir DIR --behaviour train
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))


def workers() -> dict[int, int]:
    """The worker processes below this one, each with its parent, the executor."""
    parents, names = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue  # it has ended
        state, parent = stat.rsplit(")", 1)[1].split()[:2]
        if state != "Z":
            parents[int(entry.name)] = int(parent)
            names[int(entry.name)] = stat.split("(", 1)[1].rsplit(")", 1)[0]

    def below(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    return {pid: parents[pid] for pid, name in names.items() if name == "flambeau-worker" and below(pid)}


def disturb(work: Path, killed: list[int]) -> None:
    """Kills an executor once there is a checkpoint to go on from."""
    deadline = time.monotonic() + 120
    while not list(work.glob("attempts/*/checkpoints/*/COMMITTED")) and time.monotonic() < deadline:
        time.sleep(0.02)
    for worker, executor in sorted(workers().items())[:1]:
        os.kill(executor, signal.SIGKILL)
        killed.append(worker)


def main() -> None:
    from local_session import session
    from scala import Scala

    parser = argparse.ArgumentParser()
    for name in ("master", "jar", "data", "net", "work-dir", "behaviour"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    spark = session(options.jar, options.master)
    estimator = Scala(spark).estimator(
        "TorchRegressor",
        model=options.net,
        optimizer="adam",
        stepSize=0.001,
        inputCols=["x"],
        labelCol="y",
        numWorkers=2,
        numThreads=1,
        batchSize=50,
        epochs=5,
        checkpointSteps=10,
        workDir=options.work_dir,
    )
    killed: list[int] = []
    watcher = threading.Thread(target=disturb, args=(Path(options.work_dir), killed), daemon=True)
    if options.behaviour == "kill":
        watcher.start()
    outcome: dict[str, object] = {}
    try:
        model = estimator.fitOnParquet(options.data)
        model.write().save(f"file://{Path.cwd()}/model")
    except Exception as error:
        outcome["message"] = str(error)
    outcome["killed"] = len(killed)
    outcome["left"] = list(workers())
    spark.stop()
    print("OUTCOME " + json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
