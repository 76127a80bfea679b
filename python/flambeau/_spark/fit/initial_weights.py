"""The weights that a training starts from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar, cast

from flambeau._saved.weights import WeightsRef, load_into
from flambeau._spark.files import fetched
from flambeau._spark.fit.trainable import Trainable
from flambeau._spark.saving.stages import weights_of
from flambeau.errors import ParamError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from torch.nn import Module

    from flambeau._spark.fitted import Fitted

T = TypeVar("T")


@dataclass(frozen=True)
class InitialWeights:
    """The weights of `initialModel`, the directory of a saved model or a fitted one."""

    model: str | Fitted
    file: WeightsRef
    spark: SparkSession

    @classmethod
    def of(cls, estimator: Trainable, spark: SparkSession) -> Self | None:
        """Those of an estimator; None where `initialModel` is not set. Raises FlambeauError where there is no
        model of ours, and ParamError for an unfitted one.
        """
        model = cast("str | Fitted | None", estimator.getInitialModel())
        return None if model is None else cls(model, weights_of(spark, model), spark)

    def load(self, module: Module) -> None:
        """Gives a module the weights. Raises ParamError where they do not fit."""
        self._load(module, lambda path: None)

    def load_file(self, module: Module) -> bytes:
        """Gives a module the weights, and returns their file. Raises ParamError where they do not fit."""
        return self._load(module, Path.read_bytes)

    def _load(self, module: Module, use: Callable[[Path], T]) -> T:
        with fetched(self.file, self.spark) as path:
            try:
                load_into(module, path)
            except ParamError as error:
                raise ParamError(f"initialModel {self.model}: {error}") from None
            return use(path)
