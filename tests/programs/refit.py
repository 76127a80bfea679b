"""Trains, in one language, the estimators that the other one saved; prints what they predict as one JSON
line.

    refit.py --saved DIRECTORY --jar JAR
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pyspark.ml import Pipeline

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "golden")]


def main() -> None:
    from golden import predictions, rows
    from local_session import session
    from make import stages
    from scala import Scala

    from flambeau import TorchRegressor

    parser = argparse.ArgumentParser()
    parser.add_argument("--saved", type=Path, required=True)
    parser.add_argument("--jar")
    options = parser.parse_args()
    spark = session(options.jar)
    scala, frame = Scala(spark), rows(spark)
    outcome: dict[str, Any] = {}

    theirs = TorchRegressor.load(str(options.saved / "scala" / "estimator"))
    prepared = Pipeline(stages=[*stages(), theirs])
    outcome["scala estimator in python"] = predictions(prepared.fit(frame).transform(frame))

    read = scala.flambeau.TorchRegressor.load(str(options.saved / "scala" / "estimator"))
    whole = scala.pipeline([*stages(), read])
    whole.write().save(f"file://{Path.cwd()}/pipeline")
    fitted = Pipeline.load("file://" + str(Path.cwd() / "pipeline")).fit(frame)
    outcome["scala pipeline by PySpark's reader"] = predictions(fitted.transform(frame))

    theirs.save(str(Path.cwd() / "estimator"))
    ours = scala.flambeau.TorchRegressor.load(str(Path.cwd() / "estimator"))
    model = scala.pipeline([*stages(), ours]).fit(frame._jdf)
    outcome["python estimator in scala"] = predictions(scala.scored(model, frame))

    try:
        scala.flambeau.TorchRegressor.load(str(options.saved / "python" / "estimator"))
    except Exception as error:
        outcome["refused"] = str(error)
    spark.stop()
    print("OUTCOME " + json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
