"""Reading: shuffled batches of Parquet rows as torch tensors, in one process.

All contenders read the same files, which Spark wrote with the options of Flambeau's own shards (zstd level 1,
floats without dictionaries, row groups of 16 MiB), and end with torch tensors of 512 rows.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import flights
import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from harness import Case, Child, Contender, Goal, peer, spark_session
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.dlpack import from_dlpack

from flambeau import _native
from flambeau._spark.rows import shards
from flambeau._tensors import TensorColumns

BATCH = 512
OURS, LIMIT, LOADER = "Flambeau", "limit: pyarrow, one thread", "DataLoader over pyarrow"
PETASTORM = "Petastorm BatchedDataLoader"
BUCKET = "s3://bench"
PEERS = ("petastorm",)

# A DataLoader is timed on this many rows: it would be minutes for all of them.
LOADER_ROWS = 100_000
LOADER_BUFFER = 10_000

NOTE = (
    f"{LOADER}: an IterableDataset that reads {LOADER_BUFFER:,} rows, shuffles them and yields each one "
    f"to the default collate; timed on {LOADER_ROWS:,} rows. {LIMIT.removeprefix('limit: ')}: "
    "pyarrow.parquet.read_table(use_threads=False), its columns stacked to one matrix a tensor, unshuffled."
)


@dataclass(frozen=True)
class Rows:
    """A data set: how it is made and which tensors a batch has."""

    name: str
    text: str
    num_files: int
    make: Callable[[], pa.Table]
    tensors: tuple[TensorColumns, ...]


@dataclass(frozen=True)
class Stored:
    """A data set's files."""

    rows: Rows
    files: list[str]
    s3: Child | None = None

    @cached_property
    def num_rows(self) -> int:
        """Rows of all files."""
        return sum(pq.read_metadata(file).num_rows for file in self.files)

    def job(self) -> dict[str, Any]:
        """The training job that reads the files, or their copies in the bucket."""
        inputs = [tensor.to_json() for tensor in self.rows.tensors if tensor.name != "label"]
        labels = [tensor.to_json() for tensor in self.rows.tensors if tensor.name == "label"]
        store = {}
        uris = self.files
        if self.s3 is not None:
            store = {"aws_endpoint": endpoint(self.s3), "aws_allow_http": "true", "aws_region": "us-east-1"}
            store["aws_skip_signature"] = "true"
            uris = [f"{BUCKET}{file}" for file in self.files]
        params: dict[str, Any] = {"batchSize": BATCH, "numWorkers": 1, "seed": 1}
        if len(inputs) > 1:
            params["inputCols"] = [tensor["name"] for tensor in inputs]
        return {
            "format": 1,
            "params": params,
            "data": {"train": uris, "validation": [], "spec": {"inputs": inputs, "labels": labels}},
            "attempt": {"id": "bench", "workDir": "/nowhere"},
            "store": store,
        }

    def file_system(self) -> pyarrow.fs.FileSystem:
        """Where pyarrow finds the files."""
        if self.s3 is None:
            return pyarrow.fs.LocalFileSystem()
        host = endpoint(self.s3).removeprefix("http://")
        return pyarrow.fs.S3FileSystem(
            anonymous=True, endpoint_override=host, scheme="http", region="us-east-1"
        )

    def paths(self) -> list[str]:
        """The files' names in `file_system`."""
        return self.files if self.s3 is None else [f"bench{file}" for file in self.files]


def endpoint(server: Child) -> str:
    """Where an S3 server listens."""
    return str(server.call()["endpoint"])


def flights_table() -> pa.Table:
    """The flights of 2013 that arrived, ten times: 3.3 million rows."""
    return pa.concat_tables([flights.read(FLIGHTS)] * 10)


def wide_table() -> pa.Table:
    """200 columns of normally distributed floats."""
    random = np.random.default_rng(1)
    return pa.table({name: random.standard_normal(200_000, "f4") for name in [*WIDE, "label"]})


def mixed_table() -> pa.Table:
    """Criteo's shape: 26 skewed ids, 13 skewed counts, and a click."""
    random = np.random.default_rng(2)
    rows = 500_000
    ids = {name: random.zipf(1.2, rows).clip(max=1 << 40) for name in IDS}
    counts = {name: random.lognormal(1, 2, rows).astype("f4").round() for name in COUNTS}
    return pa.table({**ids, **counts, "label": random.integers(0, 2, rows).astype("f4")})


def list_table() -> pa.Table:
    """Pictures of 784 brightnesses, a fifth of which are not 0."""
    random = np.random.default_rng(3)
    rows = 60_000
    pixels = random.integers(1, 256, rows * 784).astype("f4") / 255 * (random.random(rows * 784) < 0.2)
    offsets = np.arange(rows + 1, dtype="i4") * 784
    picture = pa.ListArray.from_arrays(pa.array(offsets), pa.array(pixels.astype("f4")))
    return pa.table({"picture": picture, "label": random.integers(0, 10, rows).astype("f4")})


def packed(name: str, columns: Sequence[str], dtype: str = "float32") -> TensorColumns:
    """A tensor of one or several scalar columns."""
    return TensorColumns(name, tuple(columns), dtype, (len(columns),) if len(columns) > 1 else ())


FLIGHTS = [
    *("month", "day", "dep_time", "sched_dep_time", "dep_delay"),
    *("sched_arr_time", "air_time", "distance", "hour", "minute"),
]
WIDE = [f"x{index}" for index in range(200)]
IDS = [f"id{index}" for index in range(26)]
COUNTS = [f"count{index}" for index in range(13)]
LABEL = packed("label", ["label"])

FLIGHT_ROWS = Rows(
    "flights",
    "3.3 M flights rows, 10 float32",
    8,
    flights_table,
    (packed("features", FLIGHTS), packed("label", [flights.DELAY])),
)
WIDE_ROWS = Rows("wide", "200 K rows, 200 float32", 4, wide_table, (packed("features", WIDE), LABEL))
MIXED_ROWS = Rows(
    "mixed",
    "500 K rows, 26 int64 ids and 13 float32",
    4,
    mixed_table,
    (packed("ids", IDS, "int64"), packed("counts", COUNTS), LABEL),
)
LIST_ROWS = Rows(
    "list",
    "60 K rows, array<float> of 784",
    4,
    list_table,
    (TensorColumns("picture", ("picture",), "float32", (784,)), LABEL),
)


class Files:
    """Writes data sets below a directory, each once, with a Spark session that is started where needed."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch

    def stored(self, rows: Rows, codec: str, s3: Child | None = None) -> Stored:
        """The data set's files, written with a codec."""
        directory = self._scratch / f"{rows.name}-{codec}"
        if not (directory / "_SUCCESS").exists():
            self._write(rows, codec, directory)
        return Stored(rows, sorted(str(file) for file in directory.glob("*.parquet")), s3)

    def _write(self, rows: Rows, codec: str, directory: Path) -> None:
        source = self._scratch / "source.parquet"
        pq.write_table(rows.make(), source, row_group_size=10_000)
        floats = [name for one in rows.tensors if one.dtype.startswith("float") for name in one.columns]
        options = shards._write_options(floats)
        spark = spark_session("reading")
        read = spark.read.parquet(str(source)).repartition(rows.num_files)
        read.write.mode("overwrite").options(**{**options, "compression": codec}).parquet(str(directory))
        source.unlink()


class OurReader:
    """Flambeau's reader, driven from Python."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._resident: _native.BatchReader | None = None
        self._epoch = 0

    def first_epoch(self) -> float:
        """Rows a second from nothing to the end of the first epoch."""
        begun = time.perf_counter()
        reader = _native.BatchReader(json.dumps(self._stored.job()), 0, 1)
        self._read(reader, 0)
        return self._stored.num_rows / (time.perf_counter() - begun)

    def later_epoch(self) -> float:
        """Rows a second of an epoch whose rows are in memory."""
        if self._resident is None:
            self._resident = _native.BatchReader(json.dumps(self._stored.job()), 0, 1)
            self._read(self._resident, 0)
        self._epoch += 1
        begun = time.perf_counter()
        self._read(self._resident, self._epoch)
        return self._stored.num_rows / (time.perf_counter() - begun)

    def _read(self, reader: _native.BatchReader, epoch: int) -> None:
        reader.start(epoch)
        rows = 0
        for batch in reader:
            inputs = [from_dlpack(capsule) for capsule in batch["inputs"]]
            labels = [from_dlpack(capsule) for capsule in batch["labels"]]
            rows += len(inputs[0])
            assert len(labels[0]) == len(inputs[0])
        assert rows == self._stored.num_rows


def matrices(stored: Stored) -> float:
    """Rows a second that pyarrow reads to one matrix a tensor, on one thread."""
    begun = time.perf_counter()
    table = pq.read_table(stored.paths(), use_threads=False, filesystem=stored.file_system())
    for tensor in stored.rows.tensors:
        columns = [table.column(name) for name in tensor.columns]
        if len(columns) > 1:
            np.stack([column.to_numpy() for column in columns], axis=1)
        elif pa.types.is_list(columns[0].type):
            columns[0].combine_chunks().flatten().to_numpy().reshape(stored.num_rows, -1)
        else:
            columns[0].to_numpy()
    return stored.num_rows / (time.perf_counter() - begun)


class ShuffledRows(IterableDataset):
    """The rows of Parquet files, shuffled within a buffer, as one writes it for a DataLoader."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        files = self._stored.file_system()
        random = np.random.default_rng()
        for path in random.permutation(self._stored.paths()):
            with pq.ParquetFile(path, filesystem=files) as file:
                for table in file.iter_batches(LOADER_BUFFER):
                    tensors = [arrays(table, tensor) for tensor in self._stored.rows.tensors]
                    for row in random.permutation(table.num_rows):
                        yield tuple(tensor[row] for tensor in tensors)


def arrays(table: pa.RecordBatch, tensor: TensorColumns) -> np.ndarray[Any, Any]:
    """A tensor's rows out of a record batch."""
    columns = [table.column(name) for name in tensor.columns]
    if pa.types.is_list(columns[0].type):
        # A copy, since torch warns of memory that it may not write to.
        return np.array(columns[0].flatten()).reshape(table.num_rows, -1)
    stacked = np.stack([column.to_numpy() for column in columns], axis=1)
    return stacked if len(columns) > 1 else stacked[:, 0]


def data_loader(stored: Stored) -> float:
    """Rows a second of a DataLoader in this process."""
    begun = time.perf_counter()
    rows = 0
    for batch in DataLoader(ShuffledRows(stored), batch_size=BATCH):
        rows += len(batch[0])
        if rows >= LOADER_ROWS:
            break
    return rows / (time.perf_counter() - begun)


def cases(full: bool, scratch: Path) -> Iterator[Case]:
    """Four shapes of rows from local files; in full with every codec, and from S3 on loopback."""
    files = Files(scratch)
    with Child(peer("petastorm")) as petastorm:
        for rows in (FLIGHT_ROWS, WIDE_ROWS, MIXED_ROWS, LIST_ROWS):
            for codec in ("zstd", "snappy", "none") if full else ("zstd",):
                stored = files.stored(rows, codec)
                yield first_epoch(stored, f"{codec}, local", petastorm)
                if codec == "zstd" and (full or rows is FLIGHT_ROWS):
                    yield later_epoch(stored)
    if full:
        with Child([sys.executable, Path(__file__).with_name("s3_server.py")]) as s3:
            for rows in (FLIGHT_ROWS, WIDE_ROWS, MIXED_ROWS, LIST_ROWS):
                yield first_epoch(files.stored(rows, "zstd", s3), "zstd, S3 on loopback", None)


def first_epoch(stored: Stored, place: str, petastorm: Child | None) -> Case:
    """An epoch that decodes; without Petastorm where it has no way to the files."""
    contenders: dict[str, Contender] = {
        OURS: OurReader(stored).first_epoch,
        LOADER: lambda: data_loader(stored),
        LIMIT: lambda: matrices(stored),
    }
    goals = [Goal(LIMIT, 1.0)]
    if petastorm is not None:
        contenders[PETASTORM] = lambda: petastorm_epoch(petastorm, stored)
        goals.append(Goal(PETASTORM, 5.0))
    work = f"{stored.rows.text}, first epoch ({place})"
    return Case("reading", work, "rows/s", contenders, goals, note=NOTE)


def later_epoch(stored: Stored) -> Case:
    """An epoch over rows that are in memory."""
    contenders = {OURS: OurReader(stored).later_epoch, LIMIT: lambda: matrices(stored)}
    work = f"{stored.rows.text}, second epoch"
    return Case("reading", work, "rows/s", contenders, [Goal(LIMIT, 3.0)], note=NOTE)


def petastorm_epoch(petastorm: Child, stored: Stored) -> float:
    """Rows a second of Petastorm. An epoch that it ends before the last row, as was seen, is read again."""
    tensors = [{"columns": tensor.columns} for tensor in stored.rows.tensors]
    for _ in range(5):
        read = petastorm.call(files=stored.files, tensors=tensors, batch_size=BATCH)
        if read["rows"] == stored.num_rows:
            return float(read["rows"] / read["seconds"])
        print(f"Petastorm gave {read['rows']} rows of {stored.num_rows}", file=sys.stderr)
    raise RuntimeError(f"Petastorm does not read all of {stored.files}")
