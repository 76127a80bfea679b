"""Prepared data: the rows of a DataFrame, written once as Parquet files for any number of fits.

What is in the files, whether they are still those, and which fits they are for, `native/supervisor` says.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from flambeau._reason import first_line
from flambeau._spark import session
from flambeau._spark.columns import find_field, nesting, quoted
from flambeau._spark.rows import shards as shard_files
from flambeau._spark.rows.shards import DataColumns, Selection, ShardSet, Split
from flambeau._spark.session import store_options
from flambeau._spark.site import Site, store_uri
from flambeau._spark.work_directory import WorkDirectory, new_id, spark_path
from flambeau.errors import DataError, ParamError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger("flambeau")

_FOLD = "flambeau_fold"
_FILES = "data"

_VECTORS = ("pyspark.ml.linalg.VectorUDT", "pyspark.mllib.linalg.VectorUDT")
"""The only classes of columns that a schema may name."""


class PreparedData:
    """Rows that an estimator's `prepare` has written as Parquet files, to be fitted on any number of times.

    It is given to `fit` in a DataFrame's place, of that estimator and of others that read the same columns.
    The files stay until `delete` removes them, which the end of a `with` block does too; those of a temporary
    work directory go with this process. `PreparedData.open(path)` takes them up again, in another process
    too.
    """

    __module__ = "flambeau"

    def __init__(
        self,
        site: Site,
        manifest: Mapping[str, Any],
        without_fold: int | None = None,
        is_private: bool = False,
    ) -> None:
        """For `prepare` and `open` alone. Files that are `is_private` to this process need no check."""
        self._site, self._manifest = site, manifest
        self._without_fold, self._is_private = without_fold, is_private

    @classmethod
    def open(cls, path: str, spark: SparkSession | None = None) -> Self:
        """What was prepared in a directory, by this or another process. `spark` is the session of its fits,
        by default the active one.

        Raises DataError where there is nothing, or what was not written to its end.
        """
        from pyspark.sql import SparkSession as Session

        spark = spark or session.current() or Session.builder.getOrCreate()
        work = WorkDirectory(store_uri(spark, "path", path), tuple(sorted(store_options(spark).items())))
        is_here = session.classic_context(spark) is not None and session.is_local(spark)
        site = Site(spark, work, is_here or work.sees(work.path("manifest.json")))
        found = site.ask("readPrepared")
        if found is None:
            raise DataError(
                f"{path} holds no prepared data, or such that was not written to its end: remove it where "
                "there is something, and write it with an estimator's prepare(df, path)"
            )
        damaged = (
            f"{path}: its manifest.json is damaged, or another version of flambeau wrote it: "
            "prepare the rows anew"
        )
        if found["prepared"] is None:
            raise DataError(damaged)
        _check_types(path, found["prepared"]["schema"])
        rows = cls(site, found["prepared"])
        try:
            _ = rows.schema
        except Exception as error:
            raise DataError(damaged) from error
        return rows

    @property
    def path(self) -> str:
        """The directory."""
        return self._site.work.uri

    @property
    def numRows(self) -> int:
        """The number of training rows."""
        return int(self._manifest["numRows"])

    @property
    def numValidationRows(self) -> int:
        """The number of validation rows, 0 where there are none."""
        return int(self._manifest["numValidationRows"])

    @property
    def numBytes(self) -> int:
        """What the files take on disk, in bytes."""
        return int(self._manifest["numBytes"])

    @property
    def seconds(self) -> float:
        """How long writing them took, in seconds."""
        return float(self._manifest["seconds"])

    @property
    def sparkSession(self) -> SparkSession:
        """The session of its fits."""
        return self._site.spark

    @property
    def schema(self) -> StructType:
        """The columns that were read of the DataFrame, with the types that they have there."""
        return StructType.fromJson(self._manifest["schema"])

    def delete(self) -> None:
        """Removes the directory. Raises StoreError."""
        parent, name = _parent(self._site)
        parent.ask("remove", path=name)

    def _remove(self) -> None:
        """Removes the directory; a failure is told and no more."""
        parent, name = _parent(self._site)
        parent.remove(name)

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Removes the directory, as `delete` does; a failure to do so hides no error of the block's."""
        if kind is None:
            self.delete()
        else:
            self._remove()

    def __repr__(self) -> str:
        of_validation = f" and {self.numValidationRows} for validation" if self.numValidationRows else ""
        return (
            f"PreparedData({self.numRows} rows{of_validation}, {self.numBytes / 1e6:.1f} MB in {self.path}, "
            f"written in {self.seconds:.1f} s)"
        )

    def _without(self, fold: int) -> PreparedData:
        """The same without the rows of a fold. Raises DataError where the fold has no rows, or the others
        none to train on, or none for validation though there are to be some.
        """
        files = self._manifest["files"]
        others = [file for file in files if file["fold"] != fold]
        lacks = [
            (len(files) > len(others), "has no rows: give it some, or lower numFolds"),
            (
                any(not file["isValidation"] for file in others),
                "is all that there is to train on: give the other folds rows that are not for validation",
            ),
            (
                self._manifest["split"] is None or any(file["isValidation"] for file in others),
                "has all of the validation rows, so that a training without it has none: choose some in the "
                "other folds too, by validationIndicatorCol or a larger validationFraction",
            ),
        ]
        for is_there, lack in lacks:
            if not is_there:
                raise DataError(f"fold {fold} {lack}")
        return PreparedData(self._site, self._manifest, fold, self._is_private)

    def _shards(self, columns: DataColumns) -> ShardSet:
        """The files for a fit that reads these columns. Raises ParamError where they are not for that."""
        # In this process: it needs nothing of the directory.
        asked = {
            "spec": columns.spec_json(),
            "raw": [
                {"source": one.columns[0], "dtype": one.dtype, "shape": one.shape} for one in columns.raw
            ],
            "split": _split_json(columns.split),
            "handleInvalid": columns.handle_invalid,
            "withoutFold": self._without_fold,
        }
        data = self._site.work.ask("preparedData", prepared=self._manifest, asked=asked)
        in_files = columns.as_found(data["spec"])
        return ShardSet(
            in_files, data["train"], data["validation"], data["numRows"], data["numValidationRows"]
        )

    def _serves(self, columns: DataColumns, work: WorkDirectory) -> bool:
        """Whether it lies among the shards of a work directory, and has all that a fit of the DataFrame it
        was written of would write, its seed's validation rows too.
        """
        if not self.path.startswith(work.path("shards", "")) or self._manifest["split"] != _split_json(
            columns.split
        ):
            return False
        try:
            self._shards(columns)
        except ParamError:
            return False
        return True

    def _check(self) -> None:
        """Raises DataError where a file is not the one that was written."""
        if self._is_private:
            return
        changes = self._site.ask("preparedChanges", prepared=self._manifest)
        if changes:
            more = f", and {len(changes) - 1} more" if len(changes) > 1 else ""
            raise DataError(f"the prepared data has changed: {changes[0]}{more}; prepare the rows anew")

    def _frame(self) -> DataFrame:
        """The rows as a DataFrame with the columns that they were made of; nested arrays lie flat."""
        names = {column["source"]: column["name"] for column in reversed(self._manifest["columns"])}
        files = self._read([self._site.work.path(file["name"]) for file in self._manifest["files"]])
        return files.select(*[F.col(quoted(name)).alias(source) for source, name in names.items()])

    def _raw_frame(self, columns: DataColumns) -> DataFrame:
        """The values of the columns that `preprocess` gets, in their order."""
        shards = self._shards(columns)
        return self._read(shards.uris).select(*[F.col(quoted(one.columns[0])) for one in shards.columns.raw])

    def _read(self, files: Sequence[str]) -> DataFrame:
        """What Spark reads of files."""
        return self._site.spark.read.parquet(*map(spark_path, files))


def write(
    df: DataFrame, asked: Sequence[DataColumns], site: Site, fold: Column | None = None
) -> PreparedData:
    """Writes the rows into the site's directory, which has no files yet, for fits that read any of the
    `asked` columns, computing `df` once. With `fold`, a whole number of each row, fits may leave one out, and
    they are fits of the caller's alone.

    Raises DataError as `shards.write` does, and ParamError where the columns are split in more than one way,
    or have more than one rule for invalid rows, or another writer of the directory was faster. Where writing
    fails, what was written is removed.
    """
    began = time.monotonic()
    split, rule = _common_split(asked), _common_rule(asked)
    for columns in asked:
        df = columns.valid(df)
    selection = Selection(df.schema)
    # What is cached is computed whole, with the values that are refused.
    with shard_files.refusals():
        for columns in asked:
            selection.place(shard_files.with_nested_shapes(df, columns))
    partitions = {} if fold is None else {_FOLD: fold.cast("int")}
    if split is not None:
        partitions[shard_files.FLAG] = shard_files.flag_of(split, in_folds=fold is not None)
    # Of its own, so that two who write at once do not mix, nor remove what the other has.
    own = f"{_FILES}/{new_id()}"
    try:
        files = shard_files.save(df, selection, partitions, site.work.path(own)).inputFiles()
        draft = {
            "schema": _schema(df.schema, selection, split).jsonValue(),
            "columns": _columns(df.schema, selection),
            "split": _split_json(split),
            "handleInvalid": rule,
            "seconds": time.monotonic() - began,
            "files": [uri[uri.rindex(f"/{own}/") + 1 :] for uri in files],
        }
        if site.ask("readPrepared") is not None:
            raise ParamError(f"path: {site.work.uri} was prepared by another meanwhile: give another path")
        manifest = site.ask("sealPrepared", draft=draft)
        shard_files.refuse_none(manifest["numRows"], manifest["numValidationRows"])
    except BaseException:
        site.remove(own)
        remove_empty(site)
        raise
    return PreparedData(site, manifest, is_private=fold is not None)


def remove_empty(site: Site) -> None:
    """Removes the directory of prepared rows, or what of it is empty. A failure is told and no more."""
    try:
        site.ask("removeEmptyPrepared")
    except Exception as error:
        log.warning("%s could not be removed: %s", site.work.uri, first_line(error))


def _check_types(path: str, schema: Any) -> None:
    """Raises DataError for a schema with a column of a class other than Spark's vectors: Spark would import
    whatever the directory names.
    """
    if isinstance(schema, Mapping):
        named = schema.get("pyClass")
        if schema.get("type") == "udt" and named not in _VECTORS:
            raise DataError(
                f"{path}: its manifest.json has a column of the class {named!r}, which is never prepared; "
                f"allowed is {_VECTORS[0]}; prepare the rows anew"
            )
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            _check_types(path, part)


def _parent(site: Site) -> tuple[Site, str]:
    """The directory that a directory lies in, and its name there."""
    parent, name = site.work.uri.rsplit("/", 1)
    return replace(site, work=replace(site.work, uri=parent)), name


def _common_split(asked: Sequence[DataColumns]) -> Split | None:
    """How all of them split the rows; the first one's seed counts."""
    ways = list(dict.fromkeys(_way_of(columns.split) for columns in asked))
    if len(ways) > 1:
        raise ParamError(
            "validationFraction and validationIndicatorCol are the same for all that is fitted on one copy "
            f"of the rows, and here fits are asked for {' and '.join(ways)}"
        )
    return asked[0].split


def _common_rule(asked: Sequence[DataColumns]) -> str:
    """What all of them do with invalid rows."""
    rules = list(dict.fromkeys(columns.handle_invalid for columns in asked))
    if len(rules) > 1:
        raise ParamError(
            "handleInvalid is the same for all that is fitted on one copy of the rows, and here fits are "
            f"asked for {' and '.join(map(repr, rules))}: set one of them for all, or fit them apart"
        )
    return rules[0]


def _way_of(split: Split | None) -> str:
    """How rows are split, as a message says it; seeds do not count."""
    if split is None:
        return "without validation rows"
    if split.indicator is not None:
        return f"by validationIndicatorCol {split.indicator!r}"
    return f"by validationFraction {split.fraction}"


def _schema(schema: StructType, selection: Selection, split: Split | None) -> StructType:
    """The fields that were read, each under the whole name that it was read by."""
    roles = {name: role for name, _, role in selection.names}
    fields = [find_field(schema, name, role) for name, role in roles.items()]
    if split is not None and split.indicator is not None and split.indicator not in roles:
        fields.append(find_field(schema, split.indicator, "validation indicator"))
    return StructType(fields)


def _columns(schema: StructType, selection: Selection) -> list[dict[str, Any]]:
    """What the files hold."""
    columns = []
    for (source, dtype, role), name in selection.names.items():
        depth = nesting(find_field(schema, source, role).dataType)
        # Arrays of arrays lie flat, and of all others the files tell.
        shape = selection.shapes[source, dtype, role] if depth > 1 else None
        columns.append(
            {"name": name, "source": source, "role": role, "dtype": dtype, "depth": depth}
            | {"shape": None if shape is None else list(shape)}
        )
    return columns


def _split_json(split: Split | None) -> dict[str, Any] | None:
    if split is None:
        return None
    if split.indicator is not None:
        return {"indicator": {"column": split.indicator}}
    return {"fraction": {"fraction": split.fraction, "seed": split.seed}}
