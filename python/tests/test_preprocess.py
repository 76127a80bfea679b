"""preprocess: rows that are not numbers. Oracles: torch's DataLoader with the same function as collate_fn in
a plain loop, Pillow, and the trained module called by hand.
"""

from __future__ import annotations

import io
import os
import pickle
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from harness import one_thread
from lightning_stub import LightningModule
from PIL import Image
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from test_seeing import jobs
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from flambeau import (
    CrossValidator,
    DataError,
    FlambeauError,
    ParamError,
    PreparedData,
    TorchEstimator,
    TorchModel,
)
from flambeau._module.preprocessor import Ahead, PreprocessSpec
from flambeau._spark.rows.sources import FrameRows, Reading
from flambeau._spark.site import Site
from flambeau._spark.work_directory import WorkDirectory
from flambeau._tensors import TensorColumns
from flambeau.preprocessing import Batch, Pad, as_tensors, padded, row_seeds

SIZE = 4
NUM_ROWS, NUM_TRAINED = 23, 17
WORDS = ["ember", "torch", "spark", "flame"]


def png(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, size=(SIZE, SIZE, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def decoded(image: bytes) -> Tensor:
    with Image.open(io.BytesIO(image)) as opened:
        return torch.from_numpy(np.array(opened)).to(torch.float64).flatten() / 255


def row(number: int) -> dict[str, Any]:
    random = np.random.default_rng(1000 + number)
    return {
        "id": number,
        "image": png(number),
        "word": WORDS[number % len(WORDS)],
        "ids": [int(one) for one in random.integers(1, 9, size=1 + number % 5)],
        "x": float(random.normal()),
        "y": float(random.normal()),
        "held": number >= NUM_TRAINED,
    }


ROWS = [row(number) for number in range(NUM_ROWS)]
SCHEMA = "id long, image binary, word string, ids array<int>, x double, y double, held boolean"


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    data = [tuple(one.values()) for one in ROWS]
    return spark.createDataFrame(data, SCHEMA).coalesce(1)


class Pictures(nn.Module):
    """A number of a picture, a word and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.picture = nn.Linear(SIZE * SIZE * 3, 1, dtype=torch.float64)
        self.word = nn.Embedding(len(WORDS), 1, dtype=torch.float64)

    def forward(self, word: Tensor, image: Tensor, x: Tensor) -> Tensor:
        return (self.picture(image) + self.word(word)).squeeze(1) + x


def pictures(batch: Any) -> dict[str, Tensor]:
    """Of a batch of ours, or of a dict of lists."""
    return {
        "x": torch.as_tensor(batch["x"], dtype=torch.float64),
        "image": torch.stack([decoded(image) for image in batch["image"]]),
        "word": torch.tensor([WORDS.index(word) for word in batch["word"]]),
    }


def dimmed(batch: Any) -> dict[str, Tensor]:
    """What tells training from validation."""
    made = pictures(batch)
    return {**made, "image": made["image"] * 0.5}


def trained_by_torch(
    module: nn.Module,
    collate: Callable[[dict[str, list[Any]]], dict[str, Tensor]],
    epochs: int = 2,
    batch_size: int = 5,
    data: Sequence[dict[str, Any]] = ROWS[:NUM_TRAINED],
) -> nn.Module:
    """A plain loop over torch's DataLoader."""

    def together(some: list[dict[str, Any]]) -> tuple[dict[str, Tensor], Tensor]:
        columns = {name: [one[name] for one in some] for name in some[0]}
        return collate(columns), torch.tensor(columns["y"], dtype=torch.float64)

    module = pickle.loads(pickle.dumps(module))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    loader: Any = DataLoader(data, batch_size, collate_fn=together)  # type: ignore[arg-type]
    with one_thread():
        for _ in range(epochs):
            for inputs, label in loader:
                optimizer.zero_grad()
                nn.functional.mse_loss(module(**inputs), label).backward()
                optimizer.step()
    return module


def estimator(module: nn.Module, **params: Any) -> TorchEstimator:
    settings: dict[str, Any] = {
        "loss": "mse",
        "optimizer": "sgd",
        "learningRate": 0.05,
        "labelCol": "y",
        "validationIndicatorCol": "held",
        "epochs": 2,
        "batchSize": 5,
        "numWorkers": 1,
        "shuffle": False,
        "verbose": 0,
    }
    return TorchEstimator(model=module, **(settings | params))


def same_weights(model: TorchModel, expected: nn.Module) -> None:
    for name, value in model.module().state_dict().items():
        torch.testing.assert_close(value, expected.state_dict()[name], rtol=0, atol=1e-12)


@pytest.fixture(scope="module")
def module() -> nn.Module:
    torch.manual_seed(0)
    return Pictures()


@pytest.fixture(scope="module")
def model(rows: DataFrame, module: nn.Module) -> TorchModel:
    wanted = {"preprocess": dimmed, "validationPreprocess": pictures, "preprocessThreads": 3}
    return estimator(
        module, inputCols=["image", "word", "x"], inputTypes=["auto", "auto", "float64"], **wanted
    ).fit(rows)


def test_strings_and_images_train_as_with_a_data_loader(model: TorchModel, module: nn.Module) -> None:
    expected = trained_by_torch(module, dimmed)
    same_weights(model, expected)
    held = {name: [one[name] for one in ROWS[NUM_TRAINED:]] for name in ROWS[0]}
    with torch.no_grad():
        loss = nn.functional.mse_loss(
            expected(**pictures(held)), torch.tensor(held["y"], dtype=torch.float64)
        )
    assert model.history["val_loss"][-1] == pytest.approx(loss.item(), rel=1e-12)


def by_hand(model: TorchModel) -> list[float]:
    columns = {name: [one[name] for one in ROWS] for name in ROWS[0]}
    with torch.no_grad():
        found: list[float] = model.module()(**pictures(columns)).tolist()
    return found


def test_scoring_takes_the_preprocess_of_validation(
    model: TorchModel, rows: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    expected = by_hand(model)
    assert model.inputs[1].dtype == "string"
    model.write().overwrite().save(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"))
    for one in (model, loaded):
        found = one.transform(rows).orderBy("id").collect()
        assert [row.prediction for row in found] == pytest.approx(expected, rel=1e-12)
    frame = rows.toPandas()
    assert loaded.predict(frame)["prediction"].tolist() == pytest.approx(expected, rel=1e-12)
    assert len(loaded.predict(frame.head(0))) == 0
    squares = [(p - one["y"]) ** 2 for p, one in zip(expected, ROWS, strict=True)]
    assert model.evaluate(rows)["loss"] == pytest.approx(np.mean(squares), rel=1e-12)
    renamed = rows.withColumnRenamed("image", "picture")
    again = loaded.copy().setInputCols(["picture", "word", "x"])
    found = again.transform(renamed).orderBy("id").collect()
    assert [row.prediction for row in found] == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ParamError, match="pandas DataFrame"):
        model.predict(np.zeros((2, 3)))
    spark.conf.set("spark.flambeau.allowPickle", "false")
    try:
        with pytest.raises(FlambeauError, match="preprocess"):
            TorchModel.load(str(tmp_path / "model"), module=Pictures())
    finally:
        spark.conf.unset("spark.flambeau.allowPickle")


def of_arrow(batch: Any) -> dict[str, Tensor]:
    """As `dimmed`, by Arrow's own arrays."""
    arrow = batch.arrow
    words = pc.index_in(arrow["word"], pa.array(WORDS))
    images = torch.stack([decoded(image.as_buffer()) for image in arrow["image"]])
    x = torch.from_numpy(arrow["x"].to_numpy().copy())
    return {"x": x, "image": images * 0.5, "word": torch.tensor(words.to_pylist())}


def test_a_function_of_arrow_is_one_of_the_columns(rows: DataFrame, module: nn.Module) -> None:
    inputs = {"inputCols": ["image", "word", "x"], "inputTypes": ["auto", "auto", "float64"]}
    model = estimator(module, preprocess=of_arrow, **inputs).fit(rows)
    same_weights(model, trained_by_torch(module, dimmed))
    made = dimmed({name: [one[name] for one in ROWS] for name in ROWS[0]})
    with torch.no_grad():
        expected = model.module()(**made).tolist()
    found = [row.prediction for row in model.transform(rows).orderBy("id").collect()]
    assert found == pytest.approx(expected, rel=1e-12)


_pair = threading.Barrier(2, timeout=30)


class Paired:
    """Waits, where a worker trains, until a second batch is in it too."""

    def __init__(self) -> None:
        self._driver = os.getpid()

    def __call__(self, batch: Any) -> dict[str, Tensor]:
        if batch.is_training and os.getpid() != self._driver:
            _pair.wait()
        return pictures(batch)


def test_two_batches_are_in_preprocess_at_once(rows: DataFrame, module: nn.Module) -> None:
    inputs = {"inputCols": ["image", "word", "x"], "inputTypes": ["auto", "auto", "float64"]}
    # Four batches an epoch.
    model = estimator(module, preprocess=Paired(), preprocessThreads=2, epochs=1, **inputs).fit(rows)
    same_weights(model, trained_by_torch(module, pictures, epochs=1))


class Tokens(nn.Module):
    """The mean of the embeddings of the tokens that there are."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 3, dtype=torch.float64)
        self.line = nn.Linear(3, 1, dtype=torch.float64)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask[:, :, None].to(torch.float64)
        return self.line((self.table(ids) * mask).sum(1) / mask.sum(1)).squeeze(1)


def test_lists_are_padded_as_torch_pads_them(rows: DataFrame, tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = Tokens()

    def collate(columns: dict[str, list[Any]]) -> dict[str, Tensor]:
        lists = [torch.tensor(one) for one in columns["ids"]]
        mask = pad_sequence([torch.ones_like(one) for one in lists], batch_first=True)
        return {"ids": pad_sequence(lists, batch_first=True), "attention_mask": mask}

    expected = trained_by_torch(module, collate)
    pad = Pad({"ids": 0}, mask="attention_mask")
    path = str(tmp_path / "rows")
    rows.where("not held").write.parquet(path)
    common = {"preprocess": pad, "inputCols": ["ids"], "validationIndicatorCol": None}
    model = estimator(module, **common).fitOnParquet(path)
    same_weights(model, expected)
    columns = {"ids": [one["ids"] for one in ROWS]}
    with torch.no_grad():
        wanted = model.module()(**collate(columns)).tolist()
    found = model.transform(rows).orderBy("id").collect()
    assert [row.prediction for row in found] == pytest.approx(wanted, rel=1e-12)


def noisy(batch: Batch) -> Tensor:
    made = torch.stack([decoded(image) for image in batch["image"]])
    if batch.is_training:
        for place in range(batch.num_rows):
            made[place] += torch.randn(made.shape[1], generator=batch.generator(place), dtype=torch.float64)
    return made


def test_augmentation_is_the_same_for_any_number_of_workers(rows: DataFrame) -> None:
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(SIZE * SIZE * 3, 1, dtype=torch.float64), nn.Flatten(0))
    common = {"preprocess": noisy, "inputCols": ["image"], "shuffle": True, "dataLanes": 2, "seed": 5}
    one = estimator(module, batchSize=6, numWorkers=1, preprocessThreads=1, **common).fit(rows)
    two = estimator(module, batchSize=3, numWorkers=2, preprocessThreads=4, **common).fit(rows)
    same_weights(one, two.module())
    assert len({round(value, 9) for value in one.history["loss"]}) == 2


def test_a_row_that_fails_in_a_worker_is_named(rows: DataFrame, spark: SparkSession) -> None:
    broken = [{**one, "image": b"no picture" if one["id"] == 11 else one["image"]} for one in ROWS]
    df = spark.createDataFrame([tuple(one.values()) for one in broken], SCHEMA).coalesce(1)
    module = nn.Sequential(nn.Linear(SIZE * SIZE * 3, 1, dtype=torch.float64), nn.Flatten(0))
    failing = estimator(module, preprocess=noisy, inputCols=["image"])
    with pytest.raises(
        DataError, match=r"column 'image', row 1 of a batch of 5 rows \(row id 11\).*Unidentified"
    ):
        failing.fit(df)


def fails(rows: DataFrame, match: str, module: nn.Module | None = None, **params: Any) -> None:
    module = module or nn.Sequential(nn.Linear(SIZE * SIZE * 3, 1, dtype=torch.float64), nn.Flatten(0))
    with pytest.raises((ParamError, DataError), match=match):
        estimator(module, **({"inputCols": ["image"], "preprocess": noisy} | params)).fit(rows)


def test_what_cannot_train_is_refused_before_work_starts(rows: DataFrame) -> None:
    fails(rows, "preprocess must be a callable", preprocess="decode")
    fails(
        rows,
        "validationPreprocess is set, and preprocess is not",
        preprocess=None,
        validationPreprocess=noisy,
    )
    fails(rows, "returns list as input 1", preprocess=lambda batch: ([1, 2],))
    fails(rows, r"shape \[3\] for 2 rows", preprocess=lambda batch: torch.zeros(3))
    fails(rows, "fails at column 'image', row 0", preprocess=lambda batch: batch["image"][0].decode("ascii"))
    fails(rows, "no column 'imag' in the batch, which has image", preprocess=lambda batch: batch["imag"])
    fails(rows, "no seeds", preprocess=noisy, validationPreprocess=lambda batch: batch.seeds)
    fails(rows, "forward", preprocess=lambda batch: (torch.zeros(2, 2), torch.zeros(2, 2)))
    fails(rows, "runtime='native' trains without Python", runtime="native")
    fails(rows, "device is 'cuda'", device="cuda")
    fails(rows, "inputNames is set", inputCols={"input": "image"})
    fails(
        rows,
        "returns image, but must name the first of forward's arguments, in any order: input",
        preprocess=lambda batch: {"image": noisy(batch)},
    )
    fails(rows, "forward fails on inputs", preprocess=lambda batch: torch.zeros(2, 5, dtype=torch.float64))


class Predicting(LightningModule):
    """Scores by its predict_step, which gets a batch and no names of arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(SIZE * SIZE * 3, 1, dtype=torch.float64)

    def training_step(self, batch: dict[str, Tensor], *_: Any) -> Tensor:
        return nn.functional.mse_loss(self.predict_step(batch), batch["labels"])

    def validation_step(self, batch: dict[str, Tensor], *_: Any) -> None:
        self.training_step(batch)

    def predict_step(self, batch: dict[str, Tensor], *_: Any) -> Tensor:
        return self.line(batch["image"]).squeeze(1)


def test_a_predict_step_gets_no_names_of_preprocess(rows: DataFrame) -> None:
    fails(
        rows,
        "preprocess .* returns a dict, .* Predicting has a predict_step and no forward",
        Predicting(),
        preprocess=lambda batch: {"image": noisy(batch)},
        loss=None,
    )


NUM_TOKENS = 9


class Counts(nn.Module):
    """A line of how often there is which token, given sparse or dense."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(NUM_TOKENS, 1, dtype=torch.float64)

    def forward(self, counts: Tensor) -> Tensor:
        if counts.layout == torch.strided:
            return (counts @ self.table.weight).squeeze(1)
        bags = nn.functional.embedding_bag(
            counts.col_indices(),
            self.table.weight,
            counts.crow_indices(),
            mode="sum",
            per_sample_weights=counts.values().double(),
            include_last_offset=True,
        )
        return bags.squeeze(1)


def counted(ids: Sequence[int]) -> list[float]:
    return np.bincount(ids, minlength=NUM_TOKENS).astype(float).tolist()


def as_vector(ids: Sequence[int]) -> Any:
    """Some dense and some sparse."""
    counts = np.array(counted(ids))
    places = np.flatnonzero(counts)
    return Vectors.sparse(NUM_TOKENS, places, counts[places]) if len(ids) % 2 else Vectors.dense(counts)


@pytest.mark.parametrize("kind", ["vector", "array"])
def test_sparse_features_train_and_score_as_dense_ones(rows: DataFrame, tmp_path: Path, kind: str) -> None:
    torch.manual_seed(3)
    module = Counts()

    def collate(columns: dict[str, list[Any]]) -> dict[str, Tensor]:
        return {"counts": torch.tensor([counted(ids) for ids in columns["ids"]], dtype=torch.float64)}

    made = F.udf(as_vector, VectorUDT()) if kind == "vector" else F.udf(counted, "array<double>")
    df = rows.withColumn("counts", made("ids"))
    sparse = {"inputCols": ["counts"], "inputTypes": ["sparse"], "preprocess": as_tensors}
    model = estimator(module, **sparse).fit(df)
    same_weights(model, trained_by_torch(module, collate))
    with torch.no_grad():
        expected = model.module()(**collate({"ids": [one["ids"] for one in ROWS]})).tolist()
    model.save(str(tmp_path / "model"))
    for one in (model, TorchModel.load(str(tmp_path / "model"))):
        found = one.transform(df).orderBy("id").collect()
        assert [row.prediction for row in found] == pytest.approx(expected, rel=1e-12)
        frame = df.select("counts").toPandas()
        assert one.predict(frame)["prediction"].tolist() == pytest.approx(expected, rel=1e-12)
        assert len(one.predict(frame.head(0))) == 0
    scored = df.select(model.udf()("counts").alias("one")).collect()
    assert [row.one for row in scored] == pytest.approx(expected, rel=1e-12)


def test_sparse_features_are_written_without_their_zeros(rows: DataFrame, tmp_path: Path) -> None:
    size = 1 << 22
    wide = F.udf(lambda ids: Vectors.sparse(size, sorted(set(ids)), [1.0] * len(set(ids))), VectorUDT())
    made = estimator(nn.Linear(1, 1), inputCols=["v"], inputTypes=["sparse"], preprocess=as_tensors)
    source = FrameRows(rows.withColumn("v", wide("ids")))
    reading, site = Reading(made, "float32", False), Site(source.spark, WorkDirectory(str(tmp_path)), True)
    columns = source.columns(reading)
    [vectors] = as_tensors(Batch(source.first(columns), columns.raw)).values()
    assert (vectors.layout, tuple(vectors.shape)) == (torch.sparse_csr, (2, size))
    with source.shards(columns, reading, site, nullcontext) as shards:
        assert shards.num_rows == NUM_TRAINED
        assert sum(file.stat().st_size for file in tmp_path.rglob("*.parquet")) < 100_000


def test_what_is_no_sparse_feature(rows: DataFrame) -> None:
    sparse = {"inputTypes": ["sparse"], "preprocess": as_tensors}
    fails(
        rows, "column 'word' is string, and inputTypes gives 'sparse'", Counts(), inputCols=["word"], **sparse
    )
    fails(
        rows,
        "inputTypes gives 'sparse' to input 'ids'",
        Counts(),
        inputCols=["ids"],
        **(sparse | {"preprocess": None}),
    )
    fails(rows, "column 'ids' holds vectors of several sizes", Counts(), inputCols=["ids"], **sparse)


def test_a_grid_computes_its_rows_once(
    rows: DataFrame, spark: SparkSession, module: nn.Module, tmp_path: Path
) -> None:
    counter = spark.sparkContext.accumulator(0)

    def count(value: float) -> float:
        counter.add(1)
        return value

    counted = rows.withColumn("y", F.udf(count, "double")("y"))
    made = estimator(
        nn.Sequential(nn.Linear(SIZE * SIZE * 3, 1, dtype=torch.float64), nn.Flatten(0)),
        preprocess=noisy,
        inputCols=["image"],
        epochs=1,
        workDir=str(tmp_path),
    )
    maps: list[Any] = [{made.learningRate: rate} for rate in (0.1, 0.2)]
    assert len(list(made.fitMultiple(counted, maps))) == 2
    assert counter.value == len(ROWS)
    assert not list(tmp_path.glob("shards/*"))
    told = [told for _, told in jobs(spark) if told and told.startswith(f"{made.uid}: ")]
    assert told.count(f"{made.uid}: train, attempt 1") == 2
    assert told.count(f"{made.uid}: read the rows") == 1


def test_prepared_rows_train_as_the_dataframe(
    model: TorchModel, rows: DataFrame, module: nn.Module, tmp_path: Path
) -> None:
    """To the bit, by the function that they were prepared with; by another one too."""
    inputs = {"inputCols": ["image", "word", "x"], "inputTypes": ["auto", "auto", "float64"]}
    made = estimator(module, preprocess=dimmed, validationPreprocess=pictures, **inputs)
    made.prepare(rows, str(tmp_path / "there"))
    prepared = PreparedData.open(str(tmp_path / "there"), rows.sparkSession)
    again = made.fit(prepared)
    for name, value in again.module().state_dict().items():
        assert torch.equal(value, model.module().state_dict()[name])
    assert again.history["val_loss"] == model.history["val_loss"]
    same_weights(
        estimator(module, preprocess=of_arrow, **inputs).fit(prepared), trained_by_torch(module, dimmed)
    )
    cases: list[tuple[dict[str, Any], str]] = [
        ({"inputCols": ["image", "word", "ids"]}, "no column 'ids' for the input.*was prepared of"),
        (
            {"inputTypes": ["auto", "auto", "float32"]},
            'column "x" was prepared as input of preprocess in float64.*as input of preprocess in float32',
        ),
        (
            {"inputCols": ["x"], "inputTypes": ["float64"], "preprocess": None},
            'column "x" was prepared as input of preprocess in float64 .* read as input in float64',
        ),
    ]
    for params, told in cases:
        with pytest.raises((DataError, ParamError), match=told):
            estimator(module, **({"preprocess": pictures, **inputs} | params)).fit(prepared)


def test_a_preprocess_that_fails_is_refused_before_rows_are_written(rows: DataFrame, tmp_path: Path) -> None:
    made = estimator(nn.Linear(1, 1), preprocess=lambda batch: batch["imag"], inputCols=["image"])
    with pytest.raises(DataError, match="no column 'imag' in the batch"):
        made.prepare(rows, str(tmp_path / "there"))
    assert not (tmp_path / "there").exists()


def test_cross_validation_trains_on_the_other_folds(rows: DataFrame, module: nn.Module) -> None:
    inputs = {"inputCols": ["image", "word", "x"], "inputTypes": ["auto", "auto", "float64"]}
    made = estimator(module, preprocess=pictures, validationIndicatorCol=None, **inputs)
    search = CrossValidator(
        estimator=made,
        estimatorParamMaps=[{}],
        evaluator=RegressionEvaluator(labelCol="y"),
        numFolds=2,
        foldCol="fold",
    ).fit(rows.withColumn("fold", (F.col("id") % 2).cast("int")))
    errors = []
    for fold in range(2):
        train, out = ([one for one in ROWS if (one["id"] % 2 == fold) is held] for held in (False, True))
        expected = trained_by_torch(module, pictures, data=train)
        with torch.no_grad():
            scored = expected(**pictures({name: [one[name] for one in out] for name in ROWS[0]}))
        errors.append((scored - torch.tensor([one["y"] for one in out])).square().mean().sqrt().item())
    assert search.avgMetrics == pytest.approx([np.mean(errors)], rel=1e-6)


def columns_of(*columns: tuple[str, str, tuple[int, ...] | None]) -> list[TensorColumns]:
    return [TensorColumns(name, (name,), dtype, shape) for name, dtype, shape in columns]


def test_a_batch_has_what_each_column_is() -> None:
    arrow = pa.RecordBatch.from_pydict(
        {
            "number": pa.array([1, 2], pa.int32()),
            "pair": pa.array([[1.5, 2], [3, 4]], pa.list_(pa.float32())),
            "list": pa.array([[1, 2, 3], []], pa.list_(pa.int64())),
            "text": pa.array(["a", "ü"]),
            "bytes": pa.array([b"\0", b""]),
        }
    )
    columns = columns_of(
        ("number", "float32", ()), ("pair", "float64", (2,)), ("list", "int64", None), ("text", "string", ()),
        ("bytes", "binary", ()),
    )  # fmt: skip
    for place in (0, 1):
        batch = Batch(arrow.slice(place), columns)
        assert list(batch) == arrow.schema.names
        torch.testing.assert_close(batch["number"], torch.tensor([1.0, 2.0][place:]))
        pairs = torch.tensor([[1.5, 2], [3, 4]], dtype=torch.float64)
        torch.testing.assert_close(batch["pair"], pairs[place:])
        assert [one.tolist() for one in batch["list"]] == [[1, 2, 3], []][place:]
        assert batch["text"] == ["a", "ü"][place:]
        assert batch["bytes"] == [b"\0", b""][place:]
        with pytest.raises(ParamError, match="no seeds"):
            batch.generator(0)


def test_a_batch_of_a_worker_has_the_names_of_the_dataframe() -> None:
    """Prepared files may have a column under another name, where they have it in two types."""
    columns = tuple(columns_of(("text", "string", ()), ("x", "float64", ())))
    arrow = pa.RecordBatch.from_pydict({"text as string raw": ["ab", "c"], "x": [1.0, 2.0]})

    def lengths(batch: Batch) -> Tensor:
        return torch.tensor([len(text) for text in batch["text"]]) * batch["x"]

    spec = PreprocessSpec(columns, tuple(columns_of(("input", "float64", ()))), by_name=False)
    with Ahead(spec, (lengths, lengths), 1, 0) as ahead:
        made = ahead.submit(arrow, [], None, [0, 1], 0, is_training=True).result()
    assert made.inputs[0].tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("array", "column", "match"),
    [
        (pa.array([[1, None]]), ("x", "int64", None), "an array with a null"),
        (pa.array([["a", None]]), ("x", "string", None), "an array with a null"),
        (pa.array([1]), ("x", "int64", None), "single numbers, where arrays were trained on"),
        (pa.array([[1.5]]), ("x", "int64", None), "1.5, which is not a whole number"),
        (pa.array([1.5]), ("x", "int64", ()), "1.5, which is not a whole number"),
        (pa.array([[1.0, 2.0]]), ("x", "float32", (3,)), "an array of 2, where 3 were trained on"),
    ],
)
def test_values_that_are_not_what_the_column_holds_are_refused(
    array: Any, column: tuple[str, str, tuple[int, ...] | None], match: str
) -> None:
    batch = Batch(pa.RecordBatch.from_arrays([array], ["x"]), columns_of(column))
    with pytest.raises(DataError, match=match):
        batch["x"]


def test_rows_are_padded() -> None:
    lists = [torch.tensor([1, 2, 3]), torch.tensor([], dtype=torch.int64), torch.tensor([4])]
    expected = pad_sequence(lists, batch_first=True, padding_value=7)
    torch.testing.assert_close(padded(lists, 7), expected)
    torch.testing.assert_close(padded(lists, 7, 4)[:, :3], expected)
    with pytest.raises(DataError, match="more than the length 2"):
        padded(lists, 0, 2)
    torch.testing.assert_close(padded(lists, 7, np.int64(4)), padded(lists, 7, 4))
    for length in (0, 2.5, True):
        with pytest.raises(
            ParamError, match=f"ids: length is {length}, but must be a whole number of at least 1"
        ):
            padded(lists, 7, length, "ids")  # type: ignore[arg-type]
    with pytest.raises(ParamError, match=r"ids: .* of int64 are padded with 0\.5, but must be .*whole"):
        padded(lists, 0.5, name="ids")
    halves = padded([one.double() for one in lists], 0.5)
    torch.testing.assert_close(halves[1], torch.full((3,), 0.5, dtype=torch.float64))
    with pytest.raises(ParamError, match=r"length is 2\.5, but must be a whole number"):
        Pad({"ids": 0}, length=2.5)  # type: ignore[arg-type]
    arrow = pa.RecordBatch.from_pydict({"ids": [[1, 2, 3], [], [4]], "x": [1.0, 2.0, 3.0]})
    batch = Batch(arrow, columns_of(("ids", "int64", None), ("x", "float32", ())))
    made = Pad({"ids": 7}, mask="mask", lengths="lengths")(batch)
    torch.testing.assert_close(made["ids"], expected)
    assert made["mask"].tolist() == [[1, 1, 1], [0, 0, 0], [1, 0, 0]]
    assert made["lengths"].tolist() == [3, 0, 1]
    assert made["x"].tolist() == [1, 2, 3]


def test_seeds_are_of_the_row_alone() -> None:
    """The finalizer's constants are SplitMix64's, whose first output for the seed 0 is well known."""
    from flambeau.preprocessing import _mixed

    first = _mixed(np.array([0x9E3779B97F4A7C15], np.uint64))
    assert int(first[0]) == 0xE220A8397B1DCDAF
    ids = list(range(1000))
    seeds = row_seeds(3, 0, ids)
    assert row_seeds(3, 0, ids[::-1]) == seeds[::-1]
    assert row_seeds(3, 0, [17]) == [seeds[17]]
    others = {*row_seeds(4, 0, ids), *row_seeds(3, 1, ids), *seeds}
    assert len(others) == 3000
    assert all(0 <= seed < 2**63 for seed in others)


def test_an_estimator_is_saved_with_it(tmp_path: Path, module: nn.Module) -> None:
    made = estimator(module, preprocess=Pad({"ids": 0}), preprocessThreads=3, inputCols=["ids"])
    made.write().overwrite().save(str(tmp_path / "estimator"))
    loaded = TorchEstimator.load(str(tmp_path / "estimator"))
    assert loaded.getPreprocess() == Pad({"ids": 0})
    assert loaded.getPreprocessThreads() == 3
