"""Reads saved stages by one or more of the ways there are and prints what they predict, as one JSON line.

    predict.py --reads JSON [--refit DIRECTORY] [--jars JARS]

`--reads` maps labels to `{"by", "paths"}`: one of load_pipeline, PipelineModels, PipelineModel and
JvmPipelineModel, and directories by their names. The outcome maps each label to what each name comes to:
`{"predictions"}`, or `{"error"}` where the stage was refused. An estimator, in a directory of that name, is
fitted to the rows first. `--refit` is the directory whose estimators `refit.py` trains, as `refit`, and
`prepared.py` on prepared rows, as `prepared`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.ml import PipelineModel
from pyspark.sql import DataFrame

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "golden")]


def is_estimator(path: str) -> bool:
    return Path(path).name == "estimator"


def main() -> None:
    from golden import predictions, rows, with_numbers
    from local_session import session
    from prepared import crossed
    from refit import refitted
    from scala import Scala

    import flambeau

    parser = argparse.ArgumentParser()
    parser.add_argument("--reads", type=json.loads, required=True)
    parser.add_argument("--refit", type=Path)
    parser.add_argument("--jars")
    options = parser.parse_args()
    spark = session(options.jars)
    scala = Scala(spark)

    def in_the_jvm(load: Callable[[str], Any]) -> Callable[[str, DataFrame], DataFrame]:
        def scored(path: str, frame: DataFrame) -> DataFrame:
            stage = load(path)
            return scala.scored(stage.fit(frame._jdf) if is_estimator(path) else stage, frame)

        return scored

    def load_pipeline(path: str, frame: DataFrame) -> DataFrame:
        stage: Any = flambeau.load_pipeline(path)
        return (stage.fit(frame) if is_estimator(path) else stage).transform(frame)

    ways: dict[str, Callable[[str, DataFrame], DataFrame]] = {
        "load_pipeline": load_pipeline,
        "PipelineModel": lambda path, frame: PipelineModel.load(path).transform(frame),
        "PipelineModels": in_the_jvm(lambda path: scala.flambeau.PipelineModels.loadStage(path)),
        "JvmPipelineModel": in_the_jvm(lambda path: scala.jvm.org.apache.spark.ml.PipelineModel.load(path)),
    }
    frame = rows(spark)
    outcome: dict[str, Any] = {}
    for label, read in options.reads.items():
        outcome[label] = {}
        for name, path in read["paths"].items():
            try:
                scored = ways[read["by"]](path, with_numbers(frame, Path(path).name))
                outcome[label][name] = {"predictions": predictions(scored)}
            except Exception as error:
                outcome[label][name] = {"error": str(error)}
    if options.refit is not None:
        outcome["refit"] = refitted(spark, options.refit)
        outcome["prepared"] = crossed(spark, options.refit)
    spark.stop()
    print("OUTCOME " + json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
