"""transform: what it gives for each kind of column and output, what it reads, and what it refuses. The oracle
is the module.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import fitted
import numpy as np
import pytest
import torch
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.linalg import DenseVector, SparseVector, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    ShortType,
    StructField,
    StructType,
)
from torch import Tensor, nn

from flambeau import DataError, ParamError, TorchClassifier, TorchEstimator, TorchModel, TorchRegressor
from flambeau._tensors import TensorColumns

ROWS = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def array_rows(spark: SparkSession) -> DataFrame:
    return arrays_of(spark)


def arrays_of(spark: SparkSession) -> DataFrame:
    schema = StructType([StructField("id", LongType()), StructField("features", ArrayType(FloatType()))])
    return spark.createDataFrame([(i, row.tolist()) for i, row in enumerate(ROWS)], schema).repartition(
        2, "id"
    )


def scores(module: nn.Module, *inputs: Any) -> Any:
    with torch.inference_mode():
        return module.eval()(*[torch.as_tensor(value) for value in inputs])


def column(frame: DataFrame, name: str = "prediction") -> list[Any]:
    return columns(frame, name)[0]


def columns(frame: DataFrame, *names: str) -> list[list[Any]]:
    """Columns in the order of the ids. Spark's own sort would score twice, once to sample."""
    rows = sorted(frame.select("id", *names).collect(), key=lambda row: row[0])
    return [[row[number] for row in rows] for number in range(1, 1 + len(names))]


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(
        np.asarray(actual, dtype=np.float64), np.asarray(expected, dtype=np.float64), rtol=2e-6, atol=1e-6
    )


def test_scalar_outputs_are_doubles(any_spark: SparkSession, tmp_path: Path) -> None:
    module = fitted.Scalar()
    result = fitted.regressor(tmp_path, module).transform(arrays_of(any_spark))
    assert result.schema["prediction"].dataType == DoubleType()
    close(column(result), scores(module, ROWS))


def test_classifier_columns_suit_sparks_evaluators(any_spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.ml.evaluation import MulticlassClassificationEvaluator

    model = fitted.classifier(tmp_path)
    result = model.transform(arrays_of(any_spark))
    assert [f.name for f in result.schema][-3:] == ["rawPrediction", "probability", "prediction"]
    assert isinstance(result.schema["probability"].dataType, VectorUDT)
    logits = scores(model.module(), ROWS).double()
    close([v.toArray() for v in column(result, "rawPrediction")], logits)
    close([v.toArray() for v in column(result, "probability")], torch.softmax(logits, 1))
    assert column(result) == logits.argmax(1).double().tolist()
    labelled = result.withColumn("label", F.col("prediction"))
    assert MulticlassClassificationEvaluator(metricName="accuracy").evaluate(labelled) == 1.0
    by_spark = MulticlassClassificationEvaluator(metricName="logLoss")  # type: ignore[arg-type]  # its types lack it
    loss = by_spark.evaluate(labelled)
    assert loss == pytest.approx(-torch.log_softmax(logits, 1).max(1).values.mean().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "positive", "width"),
    [("bce_with_logits", torch.sigmoid, 0), ("bce", lambda z: z, 1), (torch.nn.BCELoss(), lambda z: z, 0)],
    ids=["logits", "bce", "BCELoss"],
)
def test_one_logit_is_a_binary_classifier(
    array_rows: DataFrame, tmp_path: Path, loss: Any, positive: Any, width: int
) -> None:
    class Binary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)
            self.is_probability = loss != "bce_with_logits"

        def forward(self, x: Tensor) -> Tensor:
            z = self.layer(x) if width else self.layer(x).squeeze(1)
            return torch.sigmoid(z) if self.is_probability else z

    module = Binary()
    model = fitted.fitted(TorchClassifier(model=module, loss=loss), module, [fitted.features(4)], tmp_path)
    result = model.transform(array_rows)
    p = positive(scores(module, ROWS).reshape(-1).double())
    close([v.toArray() for v in column(result, "probability")], torch.stack([1 - p, p], 1))
    assert column(result) == (p > 0.5).double().tolist()
    if loss == "bce_with_logits":
        z = torch.logit(p)
        close([v.toArray() for v in column(result, "rawPrediction")], torch.stack([-z, z], 1))
    assert model.numClasses == 2


def test_log_probabilities_of_nll(array_rows: DataFrame, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1))
    model = fitted.fitted(TorchClassifier(model=module, loss="nll"), module, [fitted.features(4)], tmp_path)
    close(
        [v.toArray() for v in column(model.transform(array_rows), "probability")], scores(module, ROWS).exp()
    )


def test_vector_and_deeper_outputs_are_arrays(array_rows: DataFrame, tmp_path: Path) -> None:
    class Deep(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x, 2 * x], dim=1)

    flat, deep = nn.Linear(4, 2), Deep()
    result = fitted.regressor(tmp_path, flat).transform(array_rows)
    assert result.schema["prediction"].dataType.simpleString() == "array<float>"
    close(column(result), scores(flat, ROWS))
    result = fitted.regressor(tmp_path / "deep", deep).transform(array_rows)
    assert result.schema["prediction"].dataType.simpleString() == "array<array<float>>"
    close(column(result), scores(deep, ROWS))


def test_several_outputs_are_a_struct(any_spark: SparkSession, tmp_path: Path) -> None:
    class Several(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"mean": x.mean(1), "top": x.topk(2, dim=1).indices}

    model = fitted.fitted(
        TorchEstimator(model=Several(), loss="mse"), Several(), [fitted.features(4)], tmp_path
    )
    result = model.transform(arrays_of(any_spark))
    assert result.schema["prediction"].dataType.simpleString() == "struct<mean:double,top:array<bigint>>"
    close(column(result, "prediction.mean"), ROWS.mean(1))
    assert column(result, "prediction.top") == np.argsort(-ROWS, 1)[:, :2].tolist()


class Labels(nn.Module):
    """Several labels a row, as logits or as probabilities."""

    def __init__(self, sigmoid: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.sigmoid = sigmoid

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).sigmoid() if self.sigmoid else self.layer(x)


def focal(output: Tensor, label: Tensor) -> Tensor:
    return (output - label).abs() ** 3


@pytest.mark.parametrize(
    ("loss", "sigmoid"), [("bce_with_logits", False), (nn.BCELoss(), True), (focal, True)]
)
def test_several_labels_a_row(any_spark_long: SparkSession, tmp_path: Path, loss: Any, sigmoid: bool) -> None:
    torch.manual_seed(0)
    module = Labels(sigmoid)
    model = fitted.fitted(TorchClassifier(loss=loss), module, [fitted.features(4)], tmp_path / "fit")
    raw = scores(module, ROWS)
    probability = raw if sigmoid else raw.sigmoid()
    path = str(tmp_path / "saved")
    model.save(path)
    for each in (model, TorchModel.load(path)):
        out = each.transform(arrays_of(any_spark_long))
        assert out.schema["prediction"].dataType == ArrayType(DoubleType(), False)
        close([v.toArray() for v in column(out, "rawPrediction")], raw)
        close([v.toArray() for v in column(out, "probability")], probability)
        assert column(out) == (probability > 0.5).double().tolist()
    out = model.setThresholds([0.2, 0.5, 0.9]).transform(arrays_of(any_spark_long))
    assert column(out) == (probability > torch.tensor([0.2, 0.5, 0.9])).double().tolist()


def test_a_module_that_ends_in_a_sigmoid_gives_probabilities(array_rows: DataFrame, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
    model = fitted.fitted(TorchClassifier(loss=focal), module, [fitted.features(4)], tmp_path)
    out, p = model.transform(array_rows), scores(module, ROWS).reshape(-1)
    assert column(out) == (p > 0.5).double().tolist() and 0 < sum(column(out)) < len(ROWS)
    close([v[1] for v in column(out, "probability")], p)
    out = model.copy({model.outputKinds: ["logit"]}).transform(array_rows)
    close([v[1] for v in column(out, "probability")], p.sigmoid())
    assert column(model.copy({model.threshold: 0.7}).transform(array_rows)) == (p > 0.7).double().tolist()
    for params, said in (
        ({"outputKinds": ["labels"]}, "'labels' is for an output of several labels"),
        ({"outputKinds": ["logit", "logit"]}, "outputKinds has 2 entries"),
        ({"outputKinds": ["number"]}, "a classifier's output is no number"),
        ({"threshold": 0.5, "thresholds": [1, 1]}, "both set"),
        ({"thresholds": [1, 1, 1]}, "thresholds has 3 entries, and there are 2 classes"),
        ({"outputKinds": ["scores"]}, "outputKinds must be a list with one of number, logit"),
    ):
        with pytest.raises(ParamError, match=said):
            fitted.fitted(
                TorchClassifier(loss=focal, **params), module, [fitted.features(4)], tmp_path / "refused"
            )


@pytest.mark.parametrize("num_classes", [2, 3])
def test_thresholds_are_spark_mls(spark: SparkSession, tmp_path: Path, num_classes: int) -> None:
    labels = (ROWS[:, 0] > 0).astype(int) + (ROWS[:, 1] > 0.5 if num_classes == 3 else 0)
    given = zip(range(50), ROWS, labels, strict=True)
    rows = [(i, DenseVector(row.astype(float)), float(label)) for i, row, label in given]
    df = spark.createDataFrame(rows, ["id", "features", "label"])
    theirs = LogisticRegression(family="multinomial", regParam=0.1, maxIter=5).fit(df)
    module = nn.Linear(4, num_classes, dtype=torch.float64)
    with torch.no_grad():
        module.weight.copy_(torch.as_tensor(theirs.coefficientMatrix.toArray()))
        module.bias.copy_(torch.as_tensor(theirs.interceptVector.toArray()))
    inputs = [fitted.features(4, "float64")]
    ours = fitted.fitted(TorchClassifier(loss="cross_entropy"), module, inputs, tmp_path)
    for thresholds in ([0.7, 0.3, 0.4], [0.1, 0.0, 0.9], [0.5, 0.5, 0.5]):
        theirs.setThresholds(thresholds[:num_classes])
        ours.setThresholds(thresholds[:num_classes])
        assert column(ours.transform(df)) == column(theirs.transform(df))


class Arrival(NamedTuple):
    delay: Tensor
    kind: Tensor


class Heads(nn.Module):
    """A number and three classes."""

    def __init__(self, form: type) -> None:
        super().__init__()
        self.delay, self.kind = nn.Linear(4, 1), nn.Linear(4, 3)
        self.form = form

    def forward(self, x: Tensor) -> Any:
        delay, kind = self.delay(x), self.kind(x)
        return {"delay": delay, "kind": kind} if self.form is dict else self.form(delay, kind)


def pair(*parts: Tensor) -> tuple[Tensor, ...]:
    return parts


@pytest.mark.parametrize("form", [dict, Arrival, pair])
def test_two_heads_of_different_kinds(any_spark_long: SparkSession, tmp_path: Path, form: Any) -> None:
    torch.manual_seed(0)
    module = Heads(form)
    estimator = TorchEstimator(loss=focal, outputKinds=["number", "logits"])
    if form is pair:
        estimator.setOutputNames(["delay", "kind"])
    model = fitted.fitted(estimator, module, [fitted.features(4)], tmp_path / "fit")
    path = str(tmp_path / "saved")
    model.save(path)
    x = torch.as_tensor(ROWS)
    with torch.inference_mode():
        delay, logits = module.delay(x).reshape(-1), module.kind(x)
    for each in (model, TorchModel.load(path)):
        out = each.transform(arrays_of(any_spark_long))
        names = ["prediction", "probability", "rawPrediction"]
        found = columns(out, "prediction.delay", *(f"prediction.kind.{name}" for name in names))
        close(found[0], delay)
        assert found[1] == logits.argmax(1).double().tolist()
        close(found[2], logits.softmax(1))
        close(found[3], logits)
    own = model.copy().setOutputNames(None).setOutputCols(["delay", "a kind"])
    own.write().overwrite().save(path)
    out = TorchModel.load(path).transform(arrays_of(any_spark_long))
    assert out.columns == ["id", "features", "delay", "a kind"]
    found = columns(out, "delay", "`a kind`.prediction", "`a kind`.probability", "`a kind`.rawPrediction")
    close(found[0], delay)
    assert found[1] == logits.argmax(1).double().tolist()
    close(found[2], logits.softmax(1))
    close(found[3], logits)
    for param, value in (("outputNames", ["delay"]), ("outputCols", ["delay"])):
        wrong = own.copy().setOutputCols(None)
        wrong.set(wrong.getParam(param), value)
        with pytest.raises(
            ParamError, match=f"{param} has 1 entries, delay, and the module returns 2 tensors"
        ):
            wrong.transform(arrays_of(any_spark_long))


def test_output_columns_come_of_one_pass_and_are_refused_by_name(
    array_rows: DataFrame, tmp_path: Path
) -> None:
    estimator = TorchEstimator(loss=focal, outputCols=["delay", "kind"])
    model = fitted.fitted(estimator, Heads(Arrival), [fitted.features(4)], tmp_path / "two")
    out = model.transform(array_rows)
    assert out.schema["delay"].dataType.simpleString() == "double"
    assert out.schema["kind"].dataType.simpleString() == "array<float>"
    for asked in (out, out.select("kind"), out.selectExpr("delay + kind[0] AS sum", "kind")):
        plan = str(asked._jdf.queryExecution().optimizedPlan().toString())
        assert plan.count("flambeau_score(") == 1, plan
    one = fitted.fitted(
        TorchRegressor(outputCols=["y"]), fitted.Scalar(), [fitted.features(4)], tmp_path / "one"
    )
    assert one.transform(array_rows).columns == ["id", "features", "y"]
    some = model.copy().setOutputCols(["", "kind"]).transform(array_rows)
    assert some.columns == ["id", "features", "kind"]
    assert columns(some, "kind") == columns(out, "kind")

    for names, text in (
        (["delay", "ID"], "outputCols: the DataFrame has a column 'id' already"),
        (["delay", "Delay"], "outputCols: the DataFrame has 'delay' as another output"),
        (["a", "b", "c"], "outputCols has 3 entries, a, b, c, and the module returns 2 tensors"),
    ):
        with pytest.raises(ParamError, match=text):
            model.copy().setOutputCols(names).transform(array_rows)
    with pytest.raises(ParamError, match="outputCols and outputNames are both set"):
        model.copy().setOutputNames(["c", "d"]).transform(array_rows)
    with pytest.raises(ParamError, match="outputCols: a classifier's columns are rawPredictionCol"):
        fitted.classifier(tmp_path / "classes", outputCols=["classes"])


def test_vectors_dense_and_sparse(any_spark: SparkSession, tmp_path: Path) -> None:
    module = fitted.Scalar()
    data = [(0, DenseVector([1.0, 0.0, 0.5, 0.1])), (1, SparseVector(4, {1: 2.0}))]
    result = fitted.regressor(tmp_path, module).transform(any_spark.createDataFrame(data, ["id", "features"]))
    close(column(result), scores(module, np.array([[1, 0, 0.5, 0.1], [0, 2, 0, 0]], np.float32)))


class Wide(nn.Module):
    """Takes an input of each kind."""

    def forward(self, packed: Tensor, ids: Tensor, flag: Tensor, image: Tensor, exact: Tensor) -> Tensor:
        assert packed.dtype == torch.float32 and packed.shape[1:] == (3,)
        assert ids.dtype == torch.int64 and ids.dim() == 1
        assert flag.dtype == torch.bool
        assert image.dtype == torch.uint8 and image.shape[1:] == (2, 2)
        assert exact.dtype == torch.float64
        return packed.double().sum(1) + 10 * ids + 1000 * flag + image.sum(dim=(1, 2)) * 1e4 + exact


def test_each_kind_of_input(any_spark: SparkSession, tmp_path: Path) -> None:
    schema = StructType(
        [
            StructField("id", LongType()),
            StructField("short", ShortType()),
            StructField("price", DecimalType(10, 2)),
            StructField("double", DoubleType()),
            StructField("flag", BooleanType()),
            StructField("image", BinaryType()),
        ]
    )
    from decimal import Decimal

    data = [
        (0, 3, Decimal("1.50"), 0.25, True, bytes([1, 2, 3, 4])),
        (1, -2, Decimal("2.25"), 1e-9, False, bytes(4)),
    ]
    frame = any_spark.createDataFrame(data, schema)
    inputs = [
        TensorColumns("packed", ("short", "price", "double"), "float32", (3,)),
        TensorColumns("ids", ("short",), "int64", ()),
        TensorColumns("flag", ("flag",), "bool", ()),
        TensorColumns("image", ("image",), "uint8", (2, 2)),
        TensorColumns("exact", ("double",), "float64", ()),
    ]
    packed = any_spark.createDataFrame(data, schema).withColumn(
        "packed",
        F.array(F.col("short").cast("float"), F.col("price").cast("float"), F.col("double").cast("float")),
    )
    estimator = TorchRegressor(
        model=Wide(),
        inputCols=["packed", "short", "flag", "image", "double"],
        inputShapes=[[3], [], [], [2, 2], []],
        inputTypes=["auto", "auto", "auto", "auto", "float64"],
    )
    inputs[0] = TensorColumns("packed", ("packed",), "float32", (3,))
    result = fitted.fitted(estimator, Wide(), inputs, tmp_path).transform(packed)
    exact = [
        float(np.float32(3) + np.float32(1.5) + np.float32(0.25)) + 30 + 1000 + 1e5 + 0.25,
        float(np.float64(np.float32(-2)) + 2.25 + np.float64(np.float32(1e-9))) - 20 + 1e-9,
    ]
    close(column(result), exact)
    assert frame.count() == 2


def test_a_list_of_columns_is_packed(array_rows: DataFrame, tmp_path: Path) -> None:
    names = ["a", "b.c", "d", "e"]
    frame = array_rows.select(
        "id", *[F.col("features")[i].cast("double").alias(name) for i, name in enumerate(names)]
    )
    module = fitted.Scalar()
    estimator = TorchRegressor(model=module, featuresCol=names)
    inputs = [TensorColumns("features", tuple(names), "float32", (4,))]
    close(column(fitted.fitted(estimator, module, inputs, tmp_path).transform(frame)), scores(module, ROWS))


def test_indexed_categories_go_to_embeddings(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.ml.feature import StringIndexer

    frame = spark.createDataFrame([(i, "abca"[i % 4]) for i in range(8)], ["id", "word"])
    indexed = (
        StringIndexer(inputCol="word", outputCol="index", stringOrderType="alphabetAsc")
        .fit(frame)
        .transform(frame)
    )
    module = nn.Sequential(nn.Embedding(3, 1), nn.Flatten(0))
    estimator = TorchRegressor(model=module, inputCols=["index"])
    model = fitted.fitted(estimator, module, [TensorColumns("index", ("index",), "int64", ())], tmp_path)
    expected = scores(module, [0, 1, 2, 0] * 2)
    close(column(model.transform(indexed)), expected)
    # The same numbers without the metadata, as after a round trip through a file that keeps none.
    plain = indexed.select("id", F.col("index").alias("index", metadata={}))
    close(column(model.transform(plain)), expected)


def test_only_the_inputs_reach_python(spark: SparkSession, array_rows: DataFrame, tmp_path: Path) -> None:
    frame = array_rows.withColumn("other", F.lit("text")).withColumn("more", F.col("id") * 2)
    result = fitted.classifier(tmp_path).transform(frame)

    def plan(part: DataFrame) -> str:
        return str(part._jdf.queryExecution().executedPlan().toString())

    evaluated = [line for line in plan(result).splitlines() if "ArrowEvalPython" in line]
    assert len(evaluated) == 1
    assert "features" in evaluated[0] and "other" not in evaluated[0] and "more" not in evaluated[0]
    assert "ArrowEvalPython" not in plan(result.select("other", "more"))
    assert plan(result.select("prediction")).count("ArrowEvalPython") == 1
    filtered = plan(result.filter(F.col("more") > 10).select("prediction"))
    assert filtered.index("ArrowEvalPython") < filtered.index("Filter")


def test_older_sparks_take_the_pandas_path(
    spark: SparkSession, array_rows: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, deep = fitted.classifier(tmp_path), fitted.regressor(tmp_path / "flat", nn.Linear(4, 2))
    frame = array_rows.coalesce(1)
    packed = array_rows.select("id", *[F.col("features")[i].alias(f"c{i}") for i in range(4)]).coalesce(1)
    several = fitted.fitted(
        TorchRegressor(model=fitted.Scalar(), featuresCol=[f"c{i}" for i in range(4)]),
        fitted.Scalar(),
        [TensorColumns("features", tuple(f"c{i}" for i in range(4)), "float32", (4,))],
        tmp_path / "packed",
    )
    cases = [(model, frame, "probability"), (deep, frame, "prediction"), (several, packed, "prediction")]
    on_arrow = [column(case.transform(rows), name) for case, rows, name in cases]
    monkeypatch.delattr(F, "arrow_udf", raising=False)
    assert [column(case.transform(rows), name) for case, rows, name in cases] == on_arrow
    broken = frame.withColumn("features", F.expr("if(id = 3, array(1f, null, 2f, 3f), features)"))
    with pytest.raises(Exception, match="column 'features' holds an array with a null"):
        model.transform(broken).collect()


def test_batches_are_no_larger_than_asked(array_rows: DataFrame, tmp_path: Path) -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(x), torch.full((len(x),), float(len(x)))

    module = Rows()
    estimator = TorchEstimator(loss="mse", outputCols=["out", "rows"])
    model = fitted.fitted(estimator, module, [fitted.features(4)], tmp_path)
    with torch.inference_mode():
        expected = module.layer(torch.as_tensor(ROWS)).reshape(-1)
    # A row's four floats are the widest of its tensors.
    for sizes in ({"inferenceBatchSize": 7}, {"inferenceBatchBytes": 7 * 16 + 15}):
        out = model.copy({model.getParam(name): value for name, value in sizes.items()}).transform(array_rows)
        found, rows = columns(out, "out", "rows")
        close(found, expected)
        assert max(rows) == 7.0


def test_mode_and_gradients(array_rows: DataFrame, tmp_path: Path) -> None:
    class Modes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            flags = 100 * self.training + 10 * torch.is_grad_enabled() + torch.get_num_threads()
            return torch.full((len(x),), float(flags))

    assert set(column(fitted.regressor(tmp_path, Modes()).transform(array_rows))) == {1.0}


def test_a_worker_loads_a_module_once(spark: SparkSession, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    class Marked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.folder = str(marks)

        def __setstate__(self, state: dict[str, Any]) -> None:
            import os
            import tempfile

            super().__setstate__(state)
            tempfile.mkstemp(prefix=f"{os.getpid()}-", dir=self.folder)

        def forward(self, x: Tensor) -> Tensor:
            return x.sum(1)

    model = fitted.regressor(tmp_path / "model", Marked())
    for mark in marks.iterdir():
        mark.unlink()
    frame = arrays_of(spark).repartition(6)
    for _ in range(3):
        model.transform(frame).write.format("noop").mode("overwrite").save()
    workers = [mark.name.split("-")[0] for mark in marks.iterdir()]
    assert workers and len(set(workers)) == len(workers)


def test_empty_and_nan_rows(array_rows: DataFrame, tmp_path: Path) -> None:
    model = fitted.classifier(tmp_path)
    assert model.transform(array_rows.filter("id < 0")).count() == 0
    assert model.transform(array_rows.filter("id < 0")).select("probability").collect() == []
    one = array_rows.filter("id = 0").withColumn(
        "features", F.array(*[F.lit(float("nan")).cast("float")] * 4)
    )
    assert np.isnan(model.transform(one).first()["rawPrediction"].toArray()).all()


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("if(id = 3, null, features)", "column 'features' holds a null"),
        ("if(id = 3, array(1f, null, 2f, 3f), features)", "column 'features' holds an array with a null"),
        (
            "if(id = 3, array(1f, 2f), features)",
            "column 'features' holds an array of 2, where 4 were trained on",
        ),
    ],
)
def test_rows_that_make_no_tensor_name_the_column(
    spark: SparkSession, tmp_path: Path, expression: str, message: str
) -> None:
    frame = arrays_of(spark).coalesce(1).withColumn("features", F.expr(expression))
    with pytest.raises(Exception, match=message):
        fitted.classifier(tmp_path).transform(frame).collect()


def test_null_vectors_name_the_column(spark: SparkSession, tmp_path: Path) -> None:
    schema = StructType([StructField("features", VectorUDT())])
    # One task: Spark may take the Python worker of a killed second one from the task that has it next.
    frame = spark.createDataFrame([(DenseVector([1.0, 2.0, 3.0, 4.0]),), (None,)], schema).coalesce(1)
    with pytest.raises(Exception, match="column 'features' holds a null"):
        fitted.classifier(tmp_path).transform(frame).collect()


def test_frames_that_do_not_fit_are_refused_at_once(array_rows: DataFrame, tmp_path: Path) -> None:
    model = fitted.classifier(tmp_path)
    with pytest.raises(DataError, match="no column 'features'"):
        model.transform(array_rows.select("id"))
    with pytest.raises(DataError, match="column 'features' is string"):
        model.transform(array_rows.withColumn("features", F.lit("x")))
    with pytest.raises(DataError, match="has 1 numbers in a row, where 4"):
        model.transform(array_rows.withColumn("features", F.lit(1.0)))
    with pytest.raises(ParamError, match="predictionCol: the DataFrame has a column 'prediction' already"):
        model.transform(array_rows.withColumn("prediction", F.lit(1.0)))
    with pytest.raises(
        ParamError, match=r"has a column 'Prediction' already; drop it or .* than 'prediction'"
    ):
        model.transform(array_rows.withColumn("Prediction", F.lit(1.0)))
    with pytest.raises(ParamError, match="'probability' as another output"):
        model.copy({model.predictionCol: "Probability"}).transform(array_rows)
    with pytest.raises(ParamError, match="name 2 inputs, and the model was trained on 1"):
        model.copy({model.inputCols: ["features", "id"]}).transform(array_rows)


def test_fields_of_structs_are_inputs(array_rows: DataFrame, tmp_path: Path) -> None:
    model = fitted.classifier(tmp_path)
    nested = array_rows.select("id", F.struct(F.struct("features").alias("in.ner")).alias("s"))
    named = model.copy({model.featuresCol: "s.in.ner.features"})
    assert column(named.transform(nested)) == column(model.transform(array_rows))
    # A column of the whole name comes first, as in Spark.
    both = array_rows.withColumnRenamed("features", "s.x").withColumn("s", F.struct(F.lit("y").alias("x")))
    named = model.copy({model.featuresCol: "s.x"})
    assert column(named.transform(both)) == column(model.transform(array_rows))
    with pytest.raises(DataError, match=r"no column 's\.z'"):
        model.copy({model.featuresCol: "s.z"}).transform(nested)


def test_columns_can_be_renamed_on_the_model(array_rows: DataFrame, tmp_path: Path) -> None:
    model = fitted.classifier(tmp_path)
    model.setFeaturesCol("x").setPredictionCol("p").setRawPredictionCol("r").setProbabilityCol("q")
    assert model.transform(array_rows.withColumnRenamed("features", "x")).columns == [
        "id",
        "x",
        "r",
        "q",
        "p",
    ]


def test_an_empty_name_leaves_a_column_out(array_rows: DataFrame, tmp_path: Path) -> None:
    model = fitted.classifier(tmp_path).setRawPredictionCol("").setProbabilityCol("")
    assert model.transform(array_rows).columns == ["id", "features", "prediction"]
    model = fitted.classifier(tmp_path / "vector").setPredictionCol("")
    result = model.transform(array_rows)
    assert result.columns == ["id", "features", "rawPrediction", "probability"]
    assert len(column(result, "probability")[0]) == model.numClasses


def test_an_output_that_changed_is_named(array_rows: DataFrame, tmp_path: Path) -> None:
    class Fickle(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if bool((x != 0).any()) else x[:, :2]

    with pytest.raises(
        Exception, match=r"a tensor of \[\d+, 4\] for a batch of \d+ rows, where a tensor of \[\d+, 2\]"
    ):
        fitted.regressor(tmp_path, Fickle()).transform(array_rows.coalesce(1)).collect()


def test_native_needs_the_jar_and_a_classic_session(any_spark: SparkSession, tmp_path: Path) -> None:
    model = fitted.regressor(tmp_path).setRuntime("native")
    what = "which a Spark Connect client does not reach: use a classic session"
    if hasattr(any_spark, "_jvm"):
        what = r"which has no Flambeau: start it with .*config\(map=flambeau.spark_config\(\)\)"
    with pytest.raises(ParamError, match="runtime: 'native' scores in Spark's JVM, " + what) as refused:
        model.transform(arrays_of(any_spark))
    assert str(refused.value).endswith("or take runtime='python'")
    close(column(model.setRuntime("python").transform(arrays_of(any_spark))), scores(model.module(), ROWS))
