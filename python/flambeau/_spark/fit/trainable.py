"""What a fit asks of an estimator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.ml.param import Param

from flambeau.params import HasRuntime, HasTrainingParams
from flambeau.params.objects import OBJECT_PARAMS, PYTHON_PARAMS, HasObjects

if TYPE_CHECKING:
    from flambeau._spark.fitted import Fitted


class Trainable(HasTrainingParams, HasRuntime, HasObjects):
    """The params of a training job, what it trains, and what kind of model it makes."""

    _label_dtype: str | None = None
    """The type that labels are read as; None follows their columns."""

    @property
    def _trains_natively(self) -> bool:
        """Whether the native workers train it, without Python."""
        return self.getRuntime() == "native"

    def _job_params(self) -> dict[str, Any]:
        """The training job's `params`: every param with a value that is JSON."""
        params = [p for p in self.params if p.name not in PYTHON_PARAMS and self.isDefined(p)]
        values = [(param, self.getOrDefault(param)) for param in params]
        return {param.name: value for param, value in values if not is_object(param, value)}

    def _model_class(self) -> type[Fitted]:
        """The class of the models that the fit makes."""
        raise NotImplementedError


def is_object(param: Param[Any], value: Any) -> bool:
    """Whether a param's value is an object of Python's rather than text."""
    return param.name in (*OBJECT_PARAMS, "initialModel") and not isinstance(value, str | int)
