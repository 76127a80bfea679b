# Databricks notebook source
# MAGIC %md
# MAGIC # What does a ride cost?
# MAGIC
# MAGIC The fares of New York's yellow taxis, from a table of Unity Catalog: `samples.nyctaxi.trips`, unless
# MAGIC the job says another. A small network trains on all of the cluster's machines, MLflow keeps the run
# MAGIC and the model, and a volume the saved model.
# MAGIC
# MAGIC Outside of Databricks it is a program: `python taxi.py TABLE WORKERS`, with a table such as
# MAGIC ``parquet.`/data/trips` ``.

# COMMAND ----------

import os
import sys
import tempfile
from importlib.util import find_spec

import pandas as pd
import torch
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from torch import nn

from flambeau import TorchModel, TorchRegressor

# COMMAND ----------

if "dbutils" in globals():
    dbutils.widgets.text("table", "samples.nyctaxi.trips")  # noqa: F821
    dbutils.widgets.text("workers", "2")  # noqa: F821
    table, workers = (dbutils.widgets.get(name) for name in ("table", "workers"))  # noqa: F821
else:
    table, workers = sys.argv[1:]
if "spark" not in globals():
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master(f"local[{workers}]").getOrCreate()

# COMMAND ----------

# MAGIC %md
# MAGIC ## The rides
# MAGIC
# MAGIC A fifth of them, by a hash, is for the test. Minutes and hour are computed, so `fit` writes the
# MAGIC columns that it trains on to `spark.flambeau.workDir`.

# COMMAND ----------

FEATURES = ["miles", "minutes", "hour", "weekday"]
seconds = "unix_timestamp(tpep_dropoff_datetime) - unix_timestamp(tpep_pickup_datetime)"
rides = (
    spark.table(table)
    .selectExpr(
        "float(fare_amount) as fare",
        "float(trip_distance) as miles",
        f"float({seconds}) / 60 as minutes",
        "hour(tpep_pickup_datetime) as hour",
        "dayofweek(tpep_pickup_datetime) as weekday",
    )
    .where("fare between 1 and 100 and miles between 0.1 and 50 and minutes between 1 and 180")
)
fifth = F.pmod(F.xxhash64("fare", *FEATURES), F.lit(5))
train, test = rides.where(fifth > 0), rides.where(fifth == 0)
print(f"{train.count():,} rides to train on, {test.count():,} to test on")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Training
# MAGIC
# MAGIC A worker takes a slot of `spark.task.cpus`, and a GPU where the cluster gives each task one.

# COMMAND ----------

if find_spec("mlflow"):
    import flambeau.mlflow

    flambeau.mlflow.autolog()

torch.manual_seed(0)
regressor = TorchRegressor(
    model=nn.Sequential(
        nn.BatchNorm1d(len(FEATURES)), nn.Linear(len(FEATURES), 32), nn.ReLU(), nn.Linear(32, 1)
    ),
    optimizer="adam",
    metrics=["mae"],
    featuresCol=FEATURES,
    inputTypes=["float32"],
    labelCol="fare",
    validationFraction=0.1,
    numWorkers=int(workers),
    batchSize=128,
    epochs=10,
    learningRate=0.05,
    lrSchedule="cosine",
    seed=1,
)
model = regressor.fit(train)
pd.DataFrame(model.history)[["epoch", "loss", "val_loss", "val_mae"]].round(3)

# COMMAND ----------

model.plot()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Is it any good?

# COMMAND ----------

for name, value in model.evaluate(test, metrics=["rmse", "mae", "r2"]).items():
    print(f"{name} {value:.4f}")

# COMMAND ----------

path = spark.conf.get("spark.flambeau.workDir", tempfile.mkdtemp()) + "/taxi"
model.write().overwrite().save(path)
some = test.limit(5).toPandas()
print(some.assign(predicted=TorchModel.load(path).predict(some)["prediction"].round(2)))
