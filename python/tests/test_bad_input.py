"""Bad input: each is refused, and the message names the column or the param and how to mend it."""

from __future__ import annotations

import math
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from flambeau import (
    ClusterError,
    DataError,
    DivergedError,
    EnvironmentMismatchError,
    ParamError,
    TorchClassifier,
    TorchRegressor,
    WorkerError,
)


def rows(spark: SparkSession, count: int = 40) -> DataFrame:
    df = spark.range(0, count, 1, 2)
    return df.select("id", (F.col("id") / 10).alias("x"), (F.col("id") % 2).cast("double").alias("label"))


def regressor(**params: Any) -> TorchRegressor:
    settings: dict[str, Any] = {
        "model": nn.Linear(1, 1),
        "inputCols": ["x"],
        "inputShapes": [[1]],
        "verbose": 0,
    }
    return TorchRegressor(**(settings | params))


class AsksTheDatabase(nn.Module):
    """A module whose own exception must come back, and come back once."""

    def __init__(self, marker: str) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.marker = marker

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with open(self.marker, "a") as file:
                file.write("x")
            raise LookupError("no such embedding: 'ZZ'")
        return self.linear(x)


class ThreeClasses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class TwoArguments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.linear(a) + b


def test_a_null(spark: SparkSession) -> None:
    df = rows(spark).withColumn("x", F.when(F.col("id") != 30, F.col("x")))
    with pytest.raises(DataError, match=r"column 'x' holds a null: fill it"):
        regressor().fit(df)


def test_a_null_inside_an_array(spark: SparkSession) -> None:
    df = rows(spark).withColumn("x", F.array("x", F.when(F.col("id") != 30, F.col("x"))))
    with pytest.raises(DataError, match=r"column `x` holds a null at row 10 of"):
        regressor(model=nn.Linear(2, 1), inputShapes=None).fit(df)


def test_a_nan_label(spark: SparkSession) -> None:
    df = rows(spark).withColumn("label", F.when(F.col("id") == 30, F.lit(math.nan)).otherwise(F.col("label")))
    with pytest.raises(DataError, match="column 'label' is the label and holds a NaN"):
        regressor().fit(df)


def test_a_negative_weight(spark: SparkSession) -> None:
    df = rows(spark).withColumn("w", F.lit(5) - F.col("id"))
    with pytest.raises(
        DataError, match="column 'w' is the weight and holds a value that is not a finite number >= 0"
    ):
        regressor(weightCol="w").fit(df)


def test_a_ragged_array(spark: SparkSession) -> None:
    df = rows(spark).withColumn("x", F.when(F.col("id") < 30, F.array("x", "x")).otherwise(F.array("x")))
    with pytest.raises(DataError, match=r"column `x` holds 1 elements at row 10 of .* where 2 are expected"):
        regressor(model=nn.Linear(2, 1), inputShapes=None).fit(df)


def test_a_string_column(spark: SparkSession) -> None:
    with pytest.raises(DataError, match="column 'x' is string, which cannot be an input: index it"):
        regressor().fit(rows(spark).withColumn("x", F.lit("a")))
    with pytest.raises(DataError, match="column 'label' is string, which cannot be a label"):
        regressor().fit(rows(spark).withColumn("label", F.lit("a")))


def test_a_date_column(spark: SparkSession) -> None:
    with pytest.raises(DataError, match=r"column 'x' is date.*unix_date"):
        regressor().fit(rows(spark).withColumn("x", F.current_date()))


def test_a_missing_column(spark: SparkSession) -> None:
    with pytest.raises(DataError, match=r"no column 'lable' for the label: .* did you mean 'label'\?"):
        regressor(labelCol="lable").fit(rows(spark))


def test_a_missing_column_is_found_before_slots_are_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    rows(spark).write.parquet(str(tmp_path / "rows"))
    estimator = regressor(labelCol="lable", numWorkers=3, slotTimeout=600.0)
    start = time.monotonic()
    with pytest.raises(DataError, match="no column 'lable'"):
        estimator.fit(rows(spark))
    with pytest.raises(DataError, match="no column 'lable'"):
        estimator.fitOnParquet(str(tmp_path / "rows"))
    assert time.monotonic() - start < 60


def test_a_class_that_is_not_a_whole_number(spark: SparkSession) -> None:
    df = rows(spark).withColumn("label", F.col("id") / 2)
    with pytest.raises(DataError, match=r"column 'label' holds \d+\.5, which is not a whole number"):
        TorchClassifier(model=ThreeClasses(), inputCols=["x"], inputShapes=[[1]], verbose=0).fit(df)


def test_an_empty_dataframe(spark: SparkSession) -> None:
    with pytest.raises(DataError, match="there are no rows"):
        regressor().fit(rows(spark).limit(0))
    with pytest.raises(DataError, match="all rows are for validation"):
        regressor(validationIndicatorCol="v").fit(rows(spark).withColumn("v", F.lit(True)))


def test_fewer_rows_than_workers(spark: SparkSession) -> None:
    with pytest.raises(DataError, match=r"1 rows to train on, fewer than numWorkers \(2\)"):
        regressor(numWorkers=2).fit(rows(spark, 1))


def test_more_workers_than_slots(spark: SparkSession) -> None:
    start = time.monotonic()
    with pytest.raises(ClusterError, match="numWorkers is 3 and the cluster has 2 task slots"):
        regressor(numWorkers=3).fit(rows(spark))
    assert time.monotonic() - start < 20


def test_an_indicator_that_is_not_boolean(spark: SparkSession) -> None:
    with pytest.raises(
        DataError, match="column 'id' is bigint; validationIndicatorCol names a boolean column"
    ):
        regressor(validationIndicatorCol="id").fit(rows(spark))


def test_lanes_that_do_not_divide_the_batch(spark: SparkSession) -> None:
    with pytest.raises(ParamError, match="dataLanes"):
        regressor(dataLanes=3).fit(rows(spark))


@pytest.mark.parametrize("runtime", ["python", "native"])
def test_a_gradient_group_of_a_parameter_that_is_not_trained(spark: SparkSession, runtime: str) -> None:
    """Before slots are waited for, of which there are none."""
    module = nn.Linear(1, 1)
    module.bias.requires_grad_(False)
    trained = "but must be the name of a parameter that is trained, such as weight"
    for name in ("wieght", "bias"):
        grouped = regressor(model=module, runtime=runtime, gradientGroups=[[name]], numWorkers=64)
        with pytest.raises(ParamError, match=re.escape(f'gradientGroups[0][0] is "{name}", {trained}')):
            grouped.fit(rows(spark))


def test_forward_with_other_arguments(spark: SparkSession) -> None:
    with pytest.raises(DataError, match=r"forward.*can't be called with the 1 input tensors x"):
        regressor(model=TwoArguments()).fit(rows(spark))


def test_forward_with_another_shape(spark: SparkSession) -> None:
    with pytest.raises(ParamError, match=r"forward fails on inputs of the columns' shapes \(x: \[2, 1\]"):
        regressor(model=nn.Linear(3, 1)).fit(rows(spark))


def test_a_label_outside_the_logits(spark: SparkSession) -> None:
    df = rows(spark).withColumn("label", F.col("id") % 5)
    with pytest.raises(DataError, match=r"label.*3|3.*label") as refusal:
        TorchClassifier(model=ThreeClasses(), inputCols=["x"], inputShapes=[[1]], verbose=0).fit(df)
    assert refusal.value.step is not None  # type: ignore[attr-defined]


def test_a_loss_of_the_wrong_shape(spark: SparkSession) -> None:
    with pytest.raises(DataError, match=r"the model's output has shape \[32, 2\] and the label \[32\]"):
        regressor(model=nn.Linear(1, 2)).fit(rows(spark))
    with pytest.raises(ParamError, match=r"loss <lambda> returned shape \[3, 3\] for 32 rows"):
        regressor(loss=lambda output, label: torch.zeros(3, 3, requires_grad=True)).fit(rows(spark))


def test_a_diverged_loss_says_where(spark: SparkSession) -> None:
    estimator = regressor(
        optimizer=lambda p: torch.optim.SGD(p, lr=1e18), epochs=20, batchSize=8, numWorkers=2
    )
    with pytest.raises(DivergedError) as failure:
        estimator.fit(rows(spark, 400))
    assert failure.value.step is not None and failure.value.epoch is not None


def test_a_users_exception_comes_back_once(spark: SparkSession, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    with pytest.raises(LookupError, match="no such embedding: 'ZZ'") as failure:
        regressor(model=AsksTheDatabase(str(marker))).fit(rows(spark))
    assert (failure.value.rank, failure.value.epoch, failure.value.step) == (0, 0, 0)  # type: ignore[attr-defined]
    assert "in forward" in failure.value.__notes__[0]
    assert marker.read_text() == "x"


def test_objects_of_the_wrong_kind(spark: SparkSession) -> None:
    df = rows(spark)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"model": None}, "model must be a torch.nn.Module, got NoneType"),
        ({"model": "linear"}, "model is the path 'linear'"),
        ({"loss": "msee"}, "loss: unknown name 'msee'"),
        ({"optimizer": "adm"}, "optimizer: unknown name 'adm'"),
        ({"optimizer": lambda p: torch.optim.LBFGS(p)}, "optimizer: LBFGS evaluates the loss several times"),
        ({"metrics": ["f2"]}, "metrics: unknown name 'f2'"),
    ]
    for params, said in cases:
        with pytest.raises(ParamError, match=said):
            regressor(**params).fit(df)


def test_a_module_that_cannot_be_pickled(spark: SparkSession) -> None:
    module = nn.Linear(1, 1)
    module.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(ParamError, match=r"model \(Linear with 2 parameters\) cannot be pickled"):
        regressor(model=module).fit(rows(spark))


def test_a_class_whose_file_workers_lack(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("from torch import nn\nclass Net(nn.Linear):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here  # type: ignore[import-not-found]

    estimator = regressor(model=only_here.Net(1, 1))
    with monkeypatch.context() as patch:
        # On a cluster of other machines the driver's directories are not there.
        patch.setattr("flambeau._spark.session.shares_machine", lambda _: False)
        with pytest.raises(EnvironmentMismatchError, match=r"'only_here'.*register_pickle_by_value"):
            estimator.fit(rows(spark))
    estimator.fit(rows(spark))
    sys.modules.pop("only_here")


def test_another_torch_version(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flambeau._spark.fit.python_program.versions", lambda: {"torch": "2.4.0"})
    with pytest.raises(EnvironmentMismatchError, match=r"torch 2\.4\.0"):
        regressor().fit(rows(spark))


def test_a_work_directory_in_the_way(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Exception, match=re.escape(f"not a directory: file:{tmp_path}/file")):
        regressor(workDir=str(tmp_path / "file")).fit(rows(spark))


def test_an_exception_that_stays_on_the_worker_is_told(spark: SparkSession) -> None:
    class Unpicklable(Exception):
        def __init__(self, first: str, second: str) -> None:
            super().__init__(f"{first} and {second}")

        def __reduce__(self) -> Any:
            raise TypeError("no")

    class Raises(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(1, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                raise Unpicklable("this", "that")
            return self.linear(x)

    with pytest.raises(WorkerError, match=r"Unpicklable: this and that \(on worker 0") as failure:
        regressor(model=Raises()).fit(rows(spark))
    assert "in forward" in str(failure.value)
