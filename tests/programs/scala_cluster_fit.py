"""Fits in Scala on a Spark master given on the command line, one after the other, and prints what a test
needs of each as one JSON line. The models lie in directories of their behaviours.

    scala_cluster_fit.py --master MASTER --jars JARS --data FILE --net FILE --behaviours score,gpus,kill
        [--gpu-script FILE]

A fit that is to `score` does so with the model, loaded from where Hadoop alone reads it, in both languages.
One with `gpus` asks for one with each worker, and needs the script, which tells Spark of them. One that is to
`kill` loses an executor, and so comes last. Any other trains, and no more.
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
from typing import Any

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


def watch_gpus(assigned: dict[int, str]) -> None:
    """Notes the GPUs that each worker process is told of, by its command line."""
    while len(assigned) < 2:
        for pid in workers():
            try:
                command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            except OSError:
                continue  # it has ended
            if "--gpus" in command:
                assigned[pid] = command[command.index("--gpus") + 1]
        time.sleep(0.02)


def scored(spark: Any, scala: Any, model: Any, data: str) -> dict[str, list[float]]:
    """What each way predicts for the first rows, with models loaded from a file system of Hadoop's, twice.

    This process alone knows of that file system beforehand.
    """
    from flambeau import TorchModel

    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("fs.viewfs.mounttable.models.link./data", f"file://{Path.cwd()}")
    model.write().save("viewfs://models/data/remote")
    path = "viewfs://models/data/remote"
    frame = spark.read.parquet(data)
    predictions: dict[str, list[float]] = {}
    for again in ("", " again"):
        read, loaded = scala.flambeau.TorchModel.load(path), TorchModel.load(path)
        ways = {
            "scala": scala.scored(read, frame),
            "python": loaded.transform(frame),
            "native": loaded.copy().setRuntime("native").transform(frame),
            "from java": TorchModel._from_java(read).transform(frame),
        }
        for way, rows in ways.items():
            predictions[way + again] = [row[0] for row in rows.select("prediction").collect()][::40]
    return predictions


def gpu_confs(script: str) -> dict[str, str]:
    """What lets Spark know of the GPUs that a script tells of."""
    return {
        "spark.worker.resource.gpu.amount": "1",
        "spark.worker.resource.gpu.discoveryScript": script,
        "spark.executor.resource.gpu.amount": "1",
    }


def fit(spark: Any, scala: Any, behaviour: str, options: argparse.Namespace, fetched: Path) -> dict[str, Any]:
    """What comes of a fit with that behaviour."""
    directory = Path.cwd() / behaviour
    work = directory / "work"
    estimator = scala.estimator(
        "TorchRegressor",
        model=options.net,
        optimizer="adam",
        learningRate=0.001,
        inputCols=["x"],
        labelCol="y",
        numWorkers=2,
        numThreads=1,
        batchSize=50,
        epochs=5,
        checkpointSteps=10,
        workDir=str(work),
        device="cpu",
        numGpusPerWorker=1 if behaviour == "gpus" else 0,
    )
    killed: list[int] = []
    assigned: dict[int, str] = {}
    if behaviour == "kill":
        threading.Thread(target=disturb, args=(work, killed), daemon=True).start()
    if behaviour == "gpus":
        threading.Thread(target=watch_gpus, args=(assigned,), daemon=True).start()
    outcome: dict[str, Any] = {}
    try:
        model = estimator.fitOnParquet(options.data)
        model.write().save(f"file://{directory}/model")
        if behaviour == "score":
            outcome["scored"] = scored(spark, scala, model, options.data)
            outcome["fetched"] = len(list(fetched.glob("flambeau-cache-*/*")))
    except Exception as error:
        outcome["message"] = str(error)
    outcome["killed"] = len(killed)
    outcome["gpus"] = list(assigned.values())
    outcome["left"] = list(workers())
    return outcome


def main() -> None:
    from local_session import session
    from scala import Scala

    parser = argparse.ArgumentParser()
    for name in ("master", "jars", "data", "net", "behaviours"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--gpu-script")
    options = parser.parse_args()
    script = options.gpu_script
    # What executors fetch, they have not fetched before.
    fetched = Path.cwd() / "fetched"
    fetched.mkdir()
    confs = {"spark.executor.extraJavaOptions": f"-Djava.io.tmpdir={fetched}"}
    spark = session(options.jars, options.master, confs | (gpu_confs(script) if script else {}))
    scala = Scala(spark)
    behaviours = options.behaviours.split(",")
    outcomes = {name: fit(spark, scala, name, options, fetched) for name in behaviours}
    spark.stop()
    print("OUTCOME " + json.dumps(outcomes), flush=True)


if __name__ == "__main__":
    main()
