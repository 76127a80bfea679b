"""predict: the numbers of transform without Spark. Oracles: the plain module on numpy, and transform."""

from __future__ import annotations

import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import fitted
import numpy as np
import pandas as pd
import pytest
import torch
from pyspark.ml.linalg import Vectors
from pyspark.sql import SparkSession
from torch import Tensor, nn

from flambeau import DataError, FlambeauError, ParamError, TorchEstimator, TorchModel, TorchRegressor
from flambeau._score.conversion import of_numpy
from flambeau._tensors import TensorColumns

ROWS = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)


def scores(module: nn.Module, *inputs: Any) -> Any:
    with torch.inference_mode():
        return module.eval()(*[torch.as_tensor(value) for value in inputs])


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=2e-6, atol=1e-6)


class Mixed(nn.Module):
    """Two outputs over packed columns, a class number and an image."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.table = nn.Embedding(5, 1)

    def forward(self, x: Tensor, kind: Tensor, image: Tensor) -> dict[str, Tensor]:
        assert kind.dtype == torch.int64 and image.shape[1:] == (2, 3)
        return {"sum": self.table(kind).squeeze(1) + image.sum((1, 2)), "scores": self.layer(x)}


def mixed(folder: Path) -> tuple[Mixed, TorchModel]:
    module = Mixed()
    inputs = [
        TensorColumns("x", ("features",), "float32", (4,)),
        TensorColumns("kind", ("kind",), "int64", ()),
        TensorColumns("image", ("image",), "float32", (2, 3)),
    ]
    estimator = TorchEstimator(
        model=module,
        loss="mse",
        inputCols={"x": "features", "kind": "kind", "image": "image"},
        inputShapes=[[4], [], [2, 3]],
    )
    return module, fitted.fitted(estimator, module, inputs, folder)


KINDS = np.arange(50) % 5
IMAGES = np.random.default_rng(1).normal(size=(50, 2, 3)).astype(np.float32)


def test_an_array_gives_an_array(tmp_path: Path) -> None:
    module = fitted.Scalar()
    model = fitted.regressor(tmp_path, module, inferenceBatchSize=7)
    found = model.predict(ROWS)
    assert isinstance(found, np.ndarray) and found.dtype == np.float64
    close(found, scores(module, ROWS))
    close(model.predict(ROWS.astype(np.float64)), scores(module, ROWS))
    close(model.predict({"features": ROWS[:3]}), scores(module, ROWS[:3]))
    assert model.predict(ROWS[:0]).shape == (0,)


def test_a_frame_gives_what_transform_gives(spark: SparkSession, tmp_path: Path) -> None:
    model = fitted.classifier(tmp_path, inferenceBatchSize=16)
    frame = pd.DataFrame({"id": range(50), "features": list(ROWS)}, index=range(100, 150))
    found = model.predict(frame)
    assert list(found.columns) == ["rawPrediction", "probability", "prediction"]
    assert found.index.equals(frame.index)
    rows = spark.createDataFrame(
        [(i, row.tolist()) for i, row in enumerate(ROWS)], "id long, features array<float>"
    )
    expected = model.transform(rows).orderBy("id").toPandas()
    assert found["prediction"].tolist() == expected["prediction"].tolist()
    for name in ("rawPrediction", "probability"):
        close(np.stack(found[name]), np.stack([vector.toArray() for vector in expected[name]]))
    by_array = model.predict(ROWS)
    assert list(by_array) == list(found.columns)
    close(by_array["probability"], np.stack(found["probability"]))


def test_packed_columns_of_any_number(spark: SparkSession, tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    module = fitted.Scalar()
    inputs = [TensorColumns("features", tuple(names), "float32", (4,))]
    model = fitted.fitted(TorchRegressor(model=module, featuresCols=names), module, inputs, tmp_path)
    frame = pd.DataFrame(
        {
            "a": np.arange(50, dtype=np.int16),
            "b": pd.array(np.arange(50) % 2 == 0, dtype="boolean"),
            "c": [Decimal("0.5") * i for i in range(50)],
            "d": pd.array(ROWS[:, 0].astype(np.float64), dtype="Float64"),
        }
    )
    wanted = np.stack([np.asarray(frame[name].astype(float)) for name in names], 1).astype(np.float32)
    close(model.predict(frame)["prediction"], scores(module, wanted))
    close(model.predict(wanted), scores(module, wanted))
    by_spark = model.transform(spark.createDataFrame(frame.astype({"b": bool, "d": float}))).toPandas()
    close(model.predict(frame)["prediction"], by_spark["prediction"])


def test_several_inputs_and_outputs(tmp_path: Path) -> None:
    module, model = mixed(tmp_path)
    expected = scores(module, ROWS, KINDS, IMAGES)
    frame = pd.DataFrame(
        {"image": [image.tolist() for image in IMAGES], "kind": KINDS.astype(float), "features": list(ROWS)}
    )
    found = model.predict(frame)
    assert list(found.columns) == ["prediction.sum", "prediction.scores"] == [o.name for o in model.outputs]
    close(found["prediction.sum"], expected["sum"])
    close(np.stack(found["prediction.scores"]), expected["scores"])
    for image in (IMAGES, IMAGES.reshape(50, 6)):
        arrays = model.predict({"kind": KINDS, "image": image, "x": ROWS})
        close(arrays["prediction.sum"], expected["sum"])
        close(arrays["prediction.scores"], expected["scores"])
    frame["image"] = list(IMAGES)
    close(model.predict(frame)["prediction.sum"], expected["sum"])
    own = model.copy().setOutputCols(["total", "s"])
    found = own.predict(frame)
    assert list(found.columns) == ["total", "s"] == [o.name for o in own.outputs]
    close(found["total"], expected["sum"])
    close(np.stack(found["s"]), expected["scores"])
    arrays = own.setOutputCols(["", "s"]).predict({"kind": KINDS, "image": IMAGES, "x": ROWS})
    close(arrays, expected["scores"])
    assert [(o.name, o.columnType) for o in own.outputs] == [("s", model.outputs[1].columnType)]


def test_vectors_of_spark_are_read(tmp_path: Path) -> None:
    module = fitted.Scalar()
    model = fitted.regressor(tmp_path, module)
    rows = [Vectors.dense(row.tolist()) for row in ROWS[:3]] + [Vectors.sparse(4, {1: 2.0})]
    wanted = np.vstack([ROWS[:3], [[0, 2, 0, 0]]]).astype(np.float32)
    close(model.predict(pd.DataFrame({"features": rows}))["prediction"], scores(module, wanted))


def test_bytes_are_read(tmp_path: Path) -> None:
    class Sum(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum(1, dtype=torch.float32)

    model = fitted.fitted(
        TorchRegressor(model=Sum(), loss="mse"), Sum(), [fitted.features(6, "uint8")], tmp_path
    )
    rows = np.random.default_rng(2).integers(0, 256, (9, 6), dtype=np.uint8)
    close(
        model.predict(pd.DataFrame({"features": [row.tobytes() for row in rows]}))["prediction"], rows.sum(1)
    )
    close(model.predict(rows), rows.sum(1))


@pytest.mark.parametrize(
    ("columns", "error", "text"),
    [
        ({"feature": [1.0]}, DataError, "no column 'features'.*did you mean 'feature'"),
        ({"features": [[1.0, 2.0, 3.0, 4.0], None]}, DataError, "column 'features' holds a null"),
        ({"features": [[1.0, None, 3.0, 4.0]]}, DataError, "an array with a null in it"),
        ({"features": [[1.0, 2.0]]}, DataError, "holds an array of 2, where 4 were trained on"),
        ({"features": [1.0]}, DataError, "1 numbers in a row, where 4 were trained on"),
        ({"features": ["a"]}, DataError, "column 'features' is string, which cannot be an input"),
        ({"features": pd.to_datetime(["2024-01-01"])}, DataError, "is timestamp.*unix_timestamp"),
        ({"features": [{"a": 1}]}, DataError, "column 'features' is"),
        ({"features": [object()]}, DataError, "column 'features' holds objects"),
    ],
)
def test_frames_that_are_refused(tmp_path: Path, columns: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        fitted.regressor(tmp_path).predict(pd.DataFrame(columns))


def test_transform_refuses_in_the_same_words(spark: SparkSession, tmp_path: Path) -> None:
    model = fitted.regressor(tmp_path)
    frame = pd.DataFrame({"feature": [[1.0, 2.0, 3.0, 4.0]]})
    with pytest.raises(DataError) as by_spark:
        model.transform(spark.createDataFrame(frame))
    with pytest.raises(DataError) as here:
        model.predict(frame)
    assert str(here.value) == str(by_spark.value)


def test_arrays_that_are_refused(tmp_path: Path) -> None:
    _, model = mixed(tmp_path / "mixed")
    with pytest.raises(ParamError, match="3 inputs, x, kind, image: give a dict"):
        model.predict(ROWS)
    with pytest.raises(ParamError, match=r"no input 'imag'.*did you mean 'image'"):
        model.predict({"x": ROWS, "kind": KINDS, "imag": IMAGES})
    with pytest.raises(ParamError, match="no array is given for the input kind"):
        model.predict({"x": ROWS, "image": IMAGES})
    with pytest.raises(DataError, match=r"'image' has shape \[50, 3, 2\], where \['rows', 2, 3\]"):
        model.predict({"x": ROWS, "kind": KINDS, "image": IMAGES.transpose(0, 2, 1)})
    with pytest.raises(DataError, match="different numbers of rows: x 50, kind 49, image 50"):
        model.predict({"x": ROWS, "kind": KINDS[:49], "image": IMAGES})
    with pytest.raises(DataError, match=r"input 'kind' holds 0.5, which is not a whole number"):
        model.predict({"x": ROWS, "kind": np.full(50, 0.5), "image": IMAGES})
    with pytest.raises(DataError, match="is of <U1"):
        model.predict({"x": ROWS, "kind": np.array(["a"] * 50), "image": IMAGES})
    frame = pd.DataFrame({"features": list(ROWS), "kind": [1.5] * 50, "image": list(IMAGES)})
    with pytest.raises(DataError, match=r"column 'kind' holds 1.5, which is not a whole number"):
        model.predict(frame)
    frame = pd.DataFrame({"features": list(ROWS), "kind": KINDS, "image": list(IMAGES.transpose(0, 2, 1))})
    with pytest.raises(DataError, match=r"'image' holds an array that is not of shape \[2, 3\]"):
        model.predict(frame)
    with pytest.raises(ParamError, match="get one from TorchEstimator"):
        TorchModel().predict(ROWS)


def test_a_nan_goes_to_the_module(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    inputs = [TensorColumns("features", tuple(names), "float32", (4,))]
    module = fitted.Scalar()
    model = fitted.fitted(TorchRegressor(model=module, featuresCols=names), module, inputs, tmp_path)
    frame = pd.DataFrame(ROWS, columns=names)
    frame.loc[3, "b"] = np.nan
    assert np.isnan(model.predict(frame)["prediction"]).tolist() == [i == 3 for i in range(50)]
    with pytest.raises(DataError, match="column 'b' holds a null"):
        model.predict(frame.astype({"b": "Float32"}))


def test_threads_and_process_stay_as_they_are(tmp_path: Path) -> None:
    before = torch.get_num_threads(), list(sys.path)
    fitted.regressor(tmp_path).predict(ROWS)
    assert (torch.get_num_threads(), list(sys.path)) == before


def test_a_saved_model_needs_no_session(spark: SparkSession, tmp_path: Path) -> None:
    module = fitted.Scalar()
    fitted.regressor(tmp_path / "fit", module).save(str(tmp_path / "saved"))
    torch.save(torch.from_numpy(ROWS), tmp_path / "rows.pt")
    program = f"""
import sys, torch
from flambeau import TorchModel
from pyspark.sql import SparkSession
model = TorchModel.load({str(tmp_path / "saved")!r})
rows = torch.load({str(tmp_path / "rows.pt")!r}).numpy()
found = model.predict(rows)
from pyspark import SparkContext
assert SparkContext._active_spark_context is None and SparkSession.getActiveSession() is None
print(repr(model), len(model.history["loss"]), model.summary.numRows)
torch.save(torch.from_numpy(found), {str(tmp_path / "found.pt")!r})
"""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
    # Without a JVM none can be started unseen.
    environment |= {"JAVA_HOME": "/nowhere", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("TorchRegressionModel: uid=") and done.stdout.split()[-2:] == ["2", "100"]
    close(torch.load(tmp_path / "found.pt"), scores(module, ROWS))


def test_of_a_pickle_a_session_says_whether_it_is_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = fitted.Branching()
    fitted.regressor(tmp_path / "fit", module).save(str(tmp_path / "saved"))
    path = str(tmp_path / "saved")
    # Where none runs, one is begun for it.
    monkeypatch.setattr("flambeau._spark.saving.stages.is_running", lambda: False)
    close(TorchModel.load(path).predict(ROWS), scores(module, ROWS).squeeze(1))
    spark.conf.set("spark.flambeau.allowPickle", "false")
    try:
        with pytest.raises(FlambeauError, match=r"allowPickle is false.*module="):
            TorchModel.load(path)
    finally:
        spark.conf.unset("spark.flambeau.allowPickle")
    close(TorchModel.load(path, fitted.Branching()).predict(ROWS), scores(module, ROWS).squeeze(1))


def test_bytes_are_whole_numbers_to_255(tmp_path: Path) -> None:
    tensor = TensorColumns("image", ("image",), "uint8", (4,))
    given = np.array([[0, 1, 254, 255]])
    assert of_numpy(given, tensor) == of_numpy(given.astype("float32"), tensor)
    for wrong in (given + 1, given / 2, -given):
        with pytest.raises(DataError, match="bytes are asked for"):
            of_numpy(wrong, tensor)


def test_no_rows_are_no_predictions(tmp_path: Path) -> None:
    model = fitted.regressor(tmp_path, fitted.Scalar())
    frame = pd.DataFrame({"features": list(ROWS)})
    assert list(model.predict(frame[:0]).columns) == list(model.predict(frame).columns)
    assert len(model.predict(frame[:0])) == 0


def test_a_model_whose_params_do_not_fit_shows_why(tmp_path: Path) -> None:
    model = fitted.regressor(tmp_path, fitted.Scalar())
    model.set(model.outputNames, ["a", "b"])
    assert "outputNames has 2 entries" in repr(model)


class Hungry(nn.Module):
    """Asks for more memory than there is addresses for, where it gets more than some rows at once."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.most = most

    def forward(self, x: Tensor) -> Tensor:
        torch.empty((1 << 48) if len(x) > self.most else 1, dtype=torch.uint8)
        return self.layer(x).squeeze(1)


def test_batches_are_halved_where_memory_runs_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    module = Hungry(5)
    model = fitted.regressor(tmp_path, fitted.Scalar(), inferenceBatchSize=32)
    model._use_module(Hungry(5))
    module.layer = model.module().layer
    close(model.predict(ROWS), scores(module.layer, ROWS).squeeze(1))
    warned = [record.getMessage() for record in caplog.records if "inferenceBatchSize" in record.getMessage()]
    assert len(warned) == 1 and "32 rows at once" in warned[0]


def test_a_row_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    model = fitted.regressor(tmp_path, fitted.Scalar())
    model._use_module(Hungry(0))
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        model.predict(ROWS)


def test_a_batch_takes_no_more_than_64_mib(tmp_path: Path) -> None:
    class Sizes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.full((len(x),), float(len(x)))

    model = fitted.fitted(
        TorchRegressor(model=Sizes(), loss="mse"), Sizes(), [fitted.features(1 << 20)], tmp_path
    )
    # A row is 4 MiB.
    assert model.predict(np.zeros((20, 1 << 20), np.float32)).tolist() == [16.0] * 16 + [4.0] * 4
