"""Writes saved models, pipelines and estimators of this version, and what they predict, into a new directory.

    PYTHONPATH=tests python tests/golden/make.py tests/golden/format-N [--jars A.jar,B.jar]

`DIRECTORY/python` holds what PySpark saves, `DIRECTORY/scala` what Scala saves (with the jar), and
`DIRECTORY/expected.json` the predictions, row by row, for `rows` of `golden.py`. Once made for a released
format, a directory stays as it is: later versions must read it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import modules
import torch
from golden import CATEGORIES, predictions, rows, with_numbers
from local_session import session
from pyspark.ml import Pipeline
from pyspark.ml.feature import StringIndexer, VectorAssembler
from pyspark.sql import DataFrame
from scala import Scala

from flambeau import TorchClassifier, TorchEstimator, TorchRegressor


def delay() -> torch.nn.Module:
    torch.manual_seed(1)
    return modules.Delay(len(CATEGORIES))


def stages() -> list[Any]:
    """What makes the columns `numbers` and `category` in a pipeline."""
    return [
        StringIndexer(inputCol="carrier", outputCol="category"),
        VectorAssembler(inputCols=["a", "b"], outputCol="numbers"),
    ]


def in_python(frame: DataFrame) -> dict[str, Any]:
    """The stages that PySpark saves, by name."""
    common: dict[str, Any] = {"batchSize": 6, "verbose": 0}
    numbers = with_numbers(frame)
    torch.manual_seed(1)
    regressor = TorchRegressor(
        model=delay(), inputCols=["numbers", "category"], metrics=["mae"], epochs=2, **common
    )
    return {
        "regressor": TorchRegressor(model=torch.nn.Linear(2, 1), featuresCol="numbers", **common).fit(
            numbers
        ),
        "classifier": TorchClassifier(
            model=modules.Classes(), featuresCol="numbers", labelCol="class", **common
        ).fit(numbers),
        "several": TorchEstimator(
            model=modules.Several(), loss=several_loss, featuresCol="numbers", **common
        ).fit(numbers),
        "pickled": TorchRegressor(model=modules.Unwritable(), featuresCol="numbers", **common).fit(numbers),
        "pipeline": Pipeline(stages=[*stages(), Pipeline(stages=[regressor])]).fit(frame),
        "estimator": regressor,
    }


def several_loss(output: Any, label: torch.Tensor) -> torch.Tensor:
    return (output[0] - label).square() + output[1].square().mean(dim=1)


def in_scala(scala: Scala, frame: DataFrame, folder: Path) -> dict[str, Any]:
    """The stages that Scala saves, by name: JVM objects."""
    programs = {"delay": delay(), "classes": modules.Classes(), "line": torch.nn.Linear(2, 1)}
    for name, module in programs.items():
        torch.jit.script(module).save(str(folder / f"{name}.pt"))
    numbers = with_numbers(frame)
    common: dict[str, Any] = {"batchSize": 6, "verbose": 0}
    regressor = scala.estimator(
        "TorchRegressor",
        model=str(folder / "delay.pt"),
        inputCols=["numbers", "category"],
        metrics=["mae"],
        epochs=2,
        **common,
    )
    line = {"model": str(folder / "line.pt"), "featuresCol": "numbers", **common}
    classes = {"model": str(folder / "classes.pt"), "featuresCol": "numbers", "labelCol": "class"}
    return {
        "regressor": scala.estimator("TorchRegressor", **line).fit(numbers._jdf),
        "classifier": scala.estimator("TorchClassifier", **classes, **common).fit(numbers._jdf),
        "pipeline": scala.pipeline([*stages(), scala.pipeline([regressor])]).fit(frame._jdf),
        "estimator": regressor,
    }


def shorn(directory: Path) -> None:
    """Removes the checksums that Hadoop's local file system keeps beside its files."""
    for path in [*directory.rglob("*.crc"), *directory.rglob("_SUCCESS")]:
        path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--jars")
    options = parser.parse_args()
    directory = options.directory.resolve()
    directory.mkdir(parents=True)
    spark = session(options.jars)
    frame = rows(spark)
    expected: dict[str, Any] = {"python": {}, "scala": {}}
    for name, stage in in_python(frame).items():
        stage.save(str(directory / "python" / name))
        if name != "estimator":
            expected["python"][name] = predictions(stage.transform(with_numbers(frame, name)))
    if options.jars:
        scala = Scala(spark)
        programs = directory / "scala" / "programs"
        programs.mkdir(parents=True)
        for name, stage in in_scala(scala, frame, programs).items():
            stage.write().save(f"file://{directory}/scala/{name}")
            if name != "estimator":
                scored = stage.transform(with_numbers(frame, name)._jdf)
                expected["scala"][name] = predictions(DataFrame(scored, spark))
        for path in programs.iterdir():
            path.unlink()
        programs.rmdir()
    (directory / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    shorn(directory)
    spark.stop()


if __name__ == "__main__":
    main()
