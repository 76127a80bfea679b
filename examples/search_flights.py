"""Search for the width, the learning rate and the batch size of the network of flights.py, with Optuna.

Trials are fits on Spark, two at a time on two task slots. Each tells Optuna of its validation loss after
every epoch, and one that is worse by then than the median of the trials before it is ended. The best is
trained once more for longer, and compared with predicting the mean.

    python examples/search_flights.py [--trials 10] [--rows 100000] [--output build/search]
"""

import argparse
import os
import sys
import time
from pathlib import Path

import optuna
from flights import CATEGORIES, NUMBERS, ROOT, DelayNet, indexed, preparation, read_flights, test_rmse
from pyspark.ml import Pipeline
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from flambeau import TorchRegressor
from flambeau.optuna import PruningCallback

EPOCHS = 6


def main() -> None:
    """Search, then train the best."""
    parser = argparse.ArgumentParser(description="Search for params of a network for the flights' delays.")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--rows", type=int, default=100_000, help="search on about this many flights")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "search")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("search")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    flights = read_flights(spark, options.output).sample(fraction=min(1.0, options.rows / 327_346), seed=1)
    # Prepared and written once: each trial reads what is there.
    stages = Pipeline(stages=preparation()).fit(flights)
    prepared = str(options.output / "prepared.parquet")
    stages.transform(flights).write.mode("overwrite").parquet(prepared)
    train, test = spark.read.parquet(prepared).randomSplit([0.8, 0.2], seed=42)
    train, test = train.cache(), test.cache()
    print(f"{train.count():,} flights to train on, {test.count():,} to test on")
    counts = [train.select(name).distinct().count() + 1 for name in CATEGORIES]

    def regressor(width: int, **params) -> TorchRegressor:
        return TorchRegressor(
            model=DelayNet(len(NUMBERS), counts, width),
            optimizer="adamw",
            inputCols=["features", *indexed(CATEGORIES)],
            labelCol="arr_delay",
            validationFraction=0.1,
            numWorkers=1,
            numThreads=1,
            seed=1,
            verbose=0,
            **params,
        )

    def objective(trial: optuna.Trial) -> float:
        estimator = regressor(
            width=trial.suggest_int("width", 16, 128, log=True),
            learningRate=trial.suggest_float("learningRate", 1e-5, 1e-1, log=True),
            batchSize=trial.suggest_categorical("batchSize", [128, 512]),
            epochs=EPOCHS,
            callbacks=[PruningCallback(trial, monitor="val_loss")],
        )
        return min(estimator.fit(train).history["val_loss"])

    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(seed=1),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=1),
    )
    started = time.monotonic()
    study.optimize(objective, n_trials=options.trials, n_jobs=2)
    print(f"\n{options.trials} trials in {time.monotonic() - started:.0f} s")
    print(f"{'trial':>5} {'state':<9} {'epochs':>6} {'valid RMSE':>11}  params")
    for trial in study.trials:
        losses = trial.intermediate_values.values()
        rmse = min(losses) ** 0.5
        print(f"{trial.number:>5} {trial.state.name:<9} {len(losses):>6} {rmse:>11.3f}  {trial.params}")

    best = dict(study.best_params)
    model = regressor(best.pop("width"), epochs=2 * EPOCHS, restoreBestWeights=True, **best).fit(train)
    mean = train.agg(F.avg("arr_delay")).collect()[0][0]
    scores = {
        "predicting the mean": test_rmse(test.withColumn("prediction", F.lit(mean))),
        "the best trial": test_rmse(model.transform(test)),
    }
    print("\ntest RMSE in minutes")
    for name, value in scores.items():
        print(f"  {name:<20} {value:8.3f}")
    spark.stop()
    if scores["the best trial"] >= scores["predicting the mean"]:
        sys.exit("the best trial should beat predicting the mean")


if __name__ == "__main__":
    main()
