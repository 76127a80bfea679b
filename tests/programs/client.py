"""Fits by a client of Spark Connect, whose Flambeau may lack the native parts that its workers' has.

    client.py DIRECTORY

The workers' Python is PYSPARK_PYTHON. The outcome says whether the client has an extension, what fits, models
and refusals came to, and the largest difference between predictions of `transform` and of `predict`.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import torch
from pyspark.sql import SparkSession
from torch import nn

import flambeau
from flambeau import FlambeauError, TorchModel, TorchRegressor


def refusal(**params: Any) -> str:
    """What the estimator says of such params."""
    try:
        estimator(**params).fit(rows)
    except FlambeauError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def estimator(**params: Any) -> TorchRegressor:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    settings: dict[str, Any] = {
        "model": net,
        "optimizer": "adam",
        "featuresCol": ["a", "b"],
        "metrics": ["mae"],
        "validationFraction": 0.2,
        "workDir": f"{directory}/work",
        "epochs": 3,
        "batchSize": 32,
        "numWorkers": 2,
    }
    return TorchRegressor(**(settings | params))


directory = sys.argv[1]
builder: Any = SparkSession.builder
spark = builder.remote("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
rows = spark.range(0, 400, 1, 2).selectExpr("sin(id) a", "cos(id) b", "sin(id) * 2 - cos(id) + 1 label")
model = estimator(runId="nightly", keepCheckpoints=1).fit(rows)
model.write().overwrite().save(f"{directory}/model")
spark.conf.set("spark.flambeau.allowPickle", "false")
loaded = TorchModel.load(f"{directory}/model")
frame = rows.limit(50).toPandas()
scored = loaded.transform(spark.createDataFrame(frame)).toPandas()["prediction"]
with ThreadPoolExecutor(1) as pool:  # whose thread knows no session
    threaded = pool.submit(lambda: estimator(epochs=1).fit(rows)).result()
outcome = {
    "from": flambeau.__file__,
    "extension": find_spec("flambeau._native") is not None,
    "losses": model.history["loss"],
    "threaded": threaded.history["loss"],
    "runId": loaded.lineage.runId,
    "more": estimator(initialModel=loaded, initialState=loaded.lineage.checkpoint, epochs=1)
    .fit(rows)
    .history["loss"],
    "mae": loaded.evaluate(rows, metrics=["mae"])["mae"],
    "difference": float((scored - loaded.predict(frame)["prediction"]).abs().max()),
    "refusals": [refusal(batchSize=10, dataLanes=3), refusal(initialState=f"{directory}/none")],
}
print("OUTCOME " + json.dumps(outcome), flush=True)
spark.stop()
