"""Train the model in use further on a new partition, and promote the result where it is the better one.

    python examples/retrain/retrain.py --name flights --partition DIR --holdout DIR
        [--run-id NIGHT] [--work-dir DIR] [--epochs N] [--initial-state previous|none]

The same as Retrain.scala, from PySpark and with MLflow's registry, which MLFLOW_TRACKING_URI names: the model
in use is the version of the registered model with the alias "champion", and promoting is giving that alias to
another version. The first run finds no model, starts from new weights, and promotes what it trained.

The exit status is 0 where a model was promoted or kept, and 75 (EX_TEMPFAIL of sysexits.h) where the same
command may go better later: with the same --run-id and --work-dir it goes on where it was.
After any other error it is another: 2 of arguments that are refused, else 1.
"""

import argparse
import logging
import os
import re
import socket
import sys
from collections.abc import Iterator

import mlflow
import torch
from mlflow.exceptions import MlflowException
from prepare import COLUMNS, DelayNet
from py4j.protocol import Py4JJavaError
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.sql import DataFrame, SparkSession

import flambeau.mlflow
from flambeau import TorchModel, TorchRegressor
from flambeau.errors import FlambeauError

ALIAS = "champion"
RUN = "run-id"  # the tag of a run of MLflow's that names its night
# Names that sort as nights do.
NIGHT = re.compile(r"[0-9]{4}-[0-9]{2}(-[0-9]{2})?([A-Za-z][A-Za-z0-9_-]*)?")
EX_TEMPFAIL = 75
# Java's exceptions where a service does not answer, or not yet.
NO_ANSWER = {
    "java.net.ConnectException",
    "java.net.NoRouteToHostException",
    "java.net.SocketTimeoutException",
    "java.net.UnknownHostException",
    "org.apache.hadoop.hdfs.server.namenode.SafeModeException",
    "org.apache.hadoop.ipc.RetriableException",
    "org.apache.hadoop.ipc.StandbyException",
    "org.apache.hadoop.net.ConnectTimeoutException",
}


def main() -> int:
    """Train, compare, and promote the better one. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description="Train the model in use further, and promote the result where it is better."
    )
    parser.add_argument("--name", required=True, help="the registered model")
    parser.add_argument("--partition", required=True, help="rows to train on")
    parser.add_argument("--holdout", required=True, help="rows to judge by")
    parser.add_argument(
        "--run-id",
        type=night,
        help="this night's name, its date, as 2013-02-28; a second attempt gives it again",
    )
    parser.add_argument("--work-dir", help="a directory that all workers see, which a cluster needs")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument(
        "--initial-state",
        choices=["previous", "none"],
        default="previous",
        help="the optimizer's: that which the night before left (the default), or none",
    )
    options = parser.parse_args()
    # A fit tells there what it goes on from.
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("flambeau").setLevel(logging.INFO)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        retrain(SparkSession.builder.appName("retrain").getOrCreate(), options)
    except Exception as error:
        if not is_transient(error):
            raise
        print(f"try again later: {error}", file=sys.stderr)
        return EX_TEMPFAIL
    return 0


def is_transient(error: BaseException) -> bool:
    """Whether the same command may go better later: Flambeau says so of its errors, and in the job's own
    steps a store, a name node or MLflow's server was not found, or did not answer, or not yet.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, FlambeauError):
            return cause.is_transient
        if isinstance(cause, ConnectionError | TimeoutError | socket.gaierror):
            return True
        if isinstance(cause, Py4JJavaError) and not NO_ANSWER.isdisjoint(of_java(cause)):
            return True
        # PySpark raises its own errors `from None` of Java's.
        cause = cause.__cause__ or cause.__context__
    return False


def of_java(error: Py4JJavaError) -> Iterator[str]:
    """The class of Java's exception, and those of its causes."""
    thrown = error.java_exception
    while thrown is not None:
        name = thrown.getClass().getName()
        yield thrown.getClassName() if name == "org.apache.hadoop.ipc.RemoteException" else name
        thrown = thrown.getCause()


def night(name: str) -> str:
    """The name of a night."""
    if not NIGHT.fullmatch(name):
        raise argparse.ArgumentTypeError(
            f"{name!r}: a night's name is its date, 2013-02 or 2013-02-28, and what follows begins with a "
            "letter, 2013-02-28b"
        )
    return name


def retrain(spark: SparkSession, options: argparse.Namespace, version: str | None = None) -> None:
    """Trains the model in use further, and gives its alias to the result where that is better. `version` is
    a result that was compared with another model, which is not in use any more.
    """
    registry = mlflow.MlflowClient()
    in_use = champion(registry, options.name)
    current = None if in_use is None else flambeau.mlflow.load_model(f"models:/{options.name}/{in_use}")
    current_night = None if current is None else current.lineage.runId
    if current_night is not None and options.run_id is not None and NIGHT.fullmatch(current_night):
        if options.run_id == current_night:
            print("this run's model is in use")
            return
        if options.run_id < current_night:
            print(f"kept version {in_use}, which is a later night's")
            return
    version = version or version_of(options.name, options.run_id) or trained(spark, options, current)
    candidate = flambeau.mlflow.load_model(f"models:/{options.name}/{version}")

    holdout = spark.read.parquet(options.holdout)
    before = None if current is None else rmse(current, holdout)
    after = rmse(candidate, holdout)
    print(f"current {'none' if before is None else f'{before:.4f}'}, candidate {after:.4f}")
    if champion(registry, options.name) != in_use:
        print("another model came into use meanwhile")
        retrain(spark, options, version)
    elif before is None or after < before:
        registry.set_registered_model_alias(options.name, ALIAS, version)
        print(f"promoted version {version}")
    else:
        print(f"kept version {in_use}")


def trained(spark: SparkSession, options: argparse.Namespace, current: TorchModel | None) -> str:
    """Trains the model in use further, or a first one; the version that is made of it."""
    torch.manual_seed(0)
    regressor = TorchRegressor(
        model=DelayNet(),
        featuresCol=COLUMNS,
        labelCol="arr_delay",
        loss="mse",
        optimizer={"name": "adamw", "options": {"lr": 1e-2}},
        numWorkers=2,
        batchSize=256,
        epochs=options.epochs,
        seed=1,
        initialModel=current,
        initialState=current.lineage.checkpoint if current and options.initial_state == "previous" else None,
        # The next night's initialState; a temporary work directory is gone by then.
        keepCheckpoints=1 if options.work_dir else 0,
        runId=options.run_id,
        workDir=options.work_dir,
    )
    model = regressor.fit(spark.read.parquet(options.partition))
    with mlflow.start_run(tags={RUN: options.run_id} if options.run_id is not None else None):
        logged = flambeau.mlflow.log_model(model, "model", registered_model_name=options.name)
    return str(logged.registered_model_version)


def version_of(name: str, run_id: str | None) -> str | None:
    """The version that an earlier attempt of this night made; None where there is none."""
    if run_id is None:
        return None
    runs = mlflow.search_runs(filter_string=f"tags.`{RUN}` = '{run_id}'", output_format="list")
    made = {run.info.run_id for run in runs}
    versions = mlflow.search_model_versions(filter_string=f"name = '{name}'") if made else []
    return next((str(one.version) for one in versions if one.run_id in made and one.status == "READY"), None)


def champion(registry: mlflow.MlflowClient, name: str) -> str | None:
    """The version in use; None where none was promoted yet."""
    try:
        return str(registry.get_model_version_by_alias(name, ALIAS).version)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise


def rmse(model: TorchModel, holdout: DataFrame) -> float:
    """Root mean squared error on the hold-out, in minutes."""
    evaluator = RegressionEvaluator(labelCol="arr_delay", metricName="rmse")
    return evaluator.evaluate(model.transform(holdout))


if __name__ == "__main__":
    sys.exit(main())
