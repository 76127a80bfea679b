"""Writes the rows of a DataFrame once, for the fits of one estimator or of several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from flambeau._spark import session
from flambeau._spark.fit import cluster
from flambeau._spark.fit.fit import Fit
from flambeau._spark.fit.trainable import Trainable
from flambeau._spark.rows import prepared
from flambeau._spark.rows.prepared import PreparedData
from flambeau._spark.rows.shards import DataColumns, exists
from flambeau._spark.rows.sources import FrameRows
from flambeau._spark.site import Site, leased, store_uri, sweep
from flambeau._spark.work_directory import WorkDirectory, new_id, spark_path
from flambeau.errors import FlambeauError, ParamError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def prepare(estimator: Trainable, df: DataFrame, path: str | None = None) -> PreparedData:
    """The rows of `df` that the estimator reads, written under `path`, by default into its work directory.

    Checks what a fit checks before it starts workers. Raises ParamError, DataError and StoreError. An
    interrupt of this thread cancels the Spark jobs. On a cluster, raises ClusterError as a fit does too.
    """
    fit, spark = Fit.of(estimator, FrameRows(df)), df.sparkSession

    def write() -> PreparedData:
        columns, _ = fit.read()
        return prepared.write(df, [columns], _place(fit, path))

    return session.interruptible(spark, write)


@contextmanager
def prepared_meanwhile(
    estimators: Sequence[Trainable], df: DataFrame, fold: Column
) -> Iterator[PreparedData]:
    """The rows that any of the estimators reads, in the work directory of the first for as long as the block
    runs; fits may leave out a `fold`, a whole number of each row. Raises as `prepare` does.
    """
    fits, spark = [Fit.of(estimator, FrameRows(df)) for estimator in estimators], df.sparkSession
    work = fits[0].work

    def read() -> tuple[list[DataColumns], Site]:
        columns = dict.fromkeys(fit.read()[0] for fit in fits)
        return list(columns), _site(fits[0], work)

    def write() -> PreparedData:
        shards = replace(work, uri=work.path("shards", since))
        return prepared.write(df, columns, replace(site, work=shards), fold)

    since, (columns, site) = new_id(), session.interruptible(spark, read)
    with nullcontext() if work.is_temporary else leased(site, since):
        rows = session.interruptible(spark, write)
        try:
            yield rows
        finally:
            rows._remove()


def _place(fit: Fit, path: str | None) -> Site:
    """The directory that is to be written. Raises ParamError where the given one is there already."""
    spark, work = fit.rows.spark, fit.work
    if path is None:
        site = _site(fit, work)
        if not work.is_temporary:
            sweep(site)
        return replace(site, work=replace(work, uri=work.path("prepared", new_id())))
    there = WorkDirectory(store_uri(spark, "path", path), work.store_options)
    if exists(spark, spark_path(there.uri)):
        raise ParamError(
            f"path: {there.uri} is there already: give one that is not, or take up what was prepared there "
            "with PreparedData.open"
        )
    _check_slots(fit)
    try:
        return _shared(fit, there)
    except FlambeauError:
        # The same call may go well later, and then finds it as this one did. Workers have answered, so that
        # there is one for this.
        prepared.remove_empty(Site(spark, there, visible=False))
        raise


def _site(fit: Fit, work: WorkDirectory) -> Site:
    """The site of a directory; on a cluster, of one that all workers reach. Raises ClusterError and
    StoreError.
    """
    _check_slots(fit)
    return _shared(fit, work)


def _check_slots(fit: Fit) -> None:
    """On a cluster, that all workers can run at once. Raises ClusterError."""
    estimator, spark = fit.estimator, fit.rows.spark
    if not session.is_local(spark):
        num_workers, num_gpus = estimator.getNumWorkers(), estimator.getNumGpusPerWorker()
        cluster.check_slots(spark, num_workers, estimator.getSlotTimeout(), num_gpus)


def _shared(fit: Fit, work: WorkDirectory) -> Site:
    """The site of a directory; on a cluster, where the workers run, of one that all of them reach."""
    spark = fit.rows.spark
    if not session.is_local(spark):
        cluster.probe(spark, work, fit.estimator.getNumWorkers())
    return Site.of(spark, work)
