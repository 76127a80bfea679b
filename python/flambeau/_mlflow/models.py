"""Fitted models as models of MLflow's: saved, logged, loaded, and scored without Spark."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flambeau._mlflow import FLAVOR, package
from flambeau._quiet import without_warnings
from flambeau._spark import session
from flambeau._spark.saving.stages import load_here, save_here
from flambeau._spark.saving.trust import refusal
from flambeau._version import VERSION
from flambeau.errors import FlambeauError, ParamError
from flambeau.model import TorchModel

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.models import ModelSignature
    from mlflow.models.model import Model, ModelInfo

log = logging.getLogger("flambeau")

MODEL_NAME = "model"
_LOADER = "flambeau.mlflow"
"""The module whose `_load_pyfunc` MLflow calls: saved models name it."""
_REQUIREMENTS = ("mlflow", "torch", "pyspark", "numpy", "pandas", "pyarrow", "cloudpickle", "safetensors")


def log_model(
    model: TorchModel,
    name: str = MODEL_NAME,
    signature: ModelSignature | None = None,
    input_example: pd.DataFrame | None = None,
    registered_model_name: str | None = None,
    **options: Any,
) -> ModelInfo:
    """Logs a fitted model to MLflow, into the active run where there is one.

    `input_example` are rows of the model's input columns; the signature, where none is given, is that of
    these rows, else of the types that the model was trained on. With `registered_model_name` it becomes a
    version of that registered model. `options` are those of `mlflow.models.Model.log` and of `save_model`.
    """
    package()
    from mlflow.models import Model

    return Model.log(
        artifact_path=None,
        flavor=sys.modules[__name__],
        flavor_name=FLAVOR,
        name=name,
        model=model,
        signature=signature,
        input_example=input_example,
        registered_model_name=registered_model_name,
        **options,
    )


def save_model(
    model: TorchModel,
    path: str,
    mlflow_model: Model | None = None,
    signature: ModelSignature | None = None,
    input_example: pd.DataFrame | None = None,
    pip_requirements: list[str] | str | None = None,
    extra_pip_requirements: list[str] | str | None = None,
    conda_env: Mapping[str, Any] | str | None = None,
    code_paths: list[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Saves a fitted model as a model of MLflow's, to a directory of this machine that is not there yet; no
    Spark session is needed. Arguments are as in `log_model` and in MLflow's other flavours.

    A module that can be neither scripted nor exported is saved as a pickle, for which its own code is to be
    among `code_paths` where it is of no package.
    """
    package()
    from mlflow import pyfunc
    from mlflow.models import Model

    wrapper = PyFunc(model)
    described = Model() if mlflow_model is None else mlflow_model
    if signature is None:
        signature = _signature(wrapper, _zeros(model) if input_example is None else input_example)
    if conda_env is None and pip_requirements is None:
        pip_requirements = get_default_pip_requirements()
    with tempfile.TemporaryDirectory(prefix="flambeau-") as folder:
        saved = Path(folder) / "model"
        save_here(model, saved)
        described.add_flavor(
            FLAVOR,
            model_data="data/model",
            model_class=type(model).__name__,
            flambeau_version=VERSION,
            programs=sorted(model._programs),
        )
        pyfunc.save_model(
            path,
            loader_module=_LOADER,
            data_path=str(saved),
            mlflow_model=described,
            signature=signature,
            input_example=input_example,
            pip_requirements=pip_requirements,
            extra_pip_requirements=extra_pip_requirements,
            conda_env=conda_env,
            code_paths=code_paths,
            metadata=metadata,
        )


def load_model(model_uri: str) -> TorchModel:
    """The fitted model that was logged or saved, by any URI that MLflow knows: `models:/name@alias`,
    `models:/name/1`, `runs:/<id>/model`, a path.

    Its files are downloaded to this machine, and executors elsewhere get its weights from the driver. In a
    session `spark.flambeau.allowPickle` and `spark.flambeau.allowScripts` hold; so does everywhere
    MLFLOW_ALLOW_PICKLE_DESERIALIZATION. Raises FlambeauError where the URI names no model of Flambeau's, and
    where its program may not be read.
    """
    mlflow = package()
    path = Path(mlflow.artifacts.download_artifacts(artifact_uri=model_uri))
    flavors = mlflow.models.Model.load(str(path)).flavors
    if FLAVOR not in flavors:
        raise FlambeauError(f"{model_uri} holds no model of Flambeau's, but one of {', '.join(flavors)}")
    code = flavors.get("python_function", {}).get("code")
    if code and str(path / code) not in sys.path:
        sys.path.insert(0, str(path / code))
    return _load(path / flavors[FLAVOR]["model_data"])


def get_default_pip_requirements() -> list[str]:
    """What a logged model needs, pinned to what is installed here."""
    found = [f"flambeau=={VERSION}"]
    for name in _REQUIREMENTS:
        try:
            found.append(f"{name}=={metadata.version(name).partition('+')[0]}")
        except metadata.PackageNotFoundError:
            log.debug("%s is not installed by that name", name)
    return found


def load_pyfunc(path: str) -> PyFunc:
    """What `mlflow.pyfunc` scores with."""
    return PyFunc(_load(Path(path)))


class PyFunc:
    """A fitted model as `mlflow.pyfunc` calls it: pandas in, pandas out, without Spark."""

    def __init__(self, model: TorchModel) -> None:
        self.model = model

    def predict(self, data: Any, params: Mapping[str, Any] | None = None) -> Any:
        """The output columns of a DataFrame's rows, those of arrays as lists; of arrays, arrays."""
        found = self.model.predict(data)
        if isinstance(found, (np.ndarray, dict)):
            return found
        objects = [name for name in found.columns if found[name].dtype == object]
        return found.assign(**{name: [cell.tolist() for cell in found[name]] for name in objects})

    def get_raw_model(self) -> TorchModel:
        """The model itself, as `unwrap_python_model` and the like ask for it."""
        return self.model


def _load(path: Path) -> TorchModel:
    from mlflow.environment_variables import MLFLOW_ALLOW_PICKLE_DESERIALIZATION as ALLOWED

    spark = session.current()

    def refused(form: str, read: Callable[[], bytes]) -> str | None:
        if not ALLOWED.get() and (why := refusal(None, form, read)) is not None:
            return f"{ALLOWED.name} is false: {why}"
        return None if spark is None else refusal(spark, form, read)

    model = load_here(TorchModel, path, refused)
    assert isinstance(model, TorchModel)
    return model


def _signature(wrapper: PyFunc, rows: pd.DataFrame) -> ModelSignature:
    from mlflow.models import infer_signature

    # It warns of whole numbers, which the model takes as they are.
    with without_warnings():
        return infer_signature(rows, wrapper.predict(rows))


def _zeros(model: TorchModel) -> pd.DataFrame:
    """A row of the model's input columns, of the widest types that it takes."""
    import pandas as pd

    if model._preprocess is not None:
        raise ParamError(
            "input_example is not given, and no example of the columns that the model's preprocess takes can "
            "be made up: give some rows of them as input_example, or a signature"
        )
    wide = {"float32": "float64", "uint8": "uint8"}
    row: dict[str, Any] = {}
    for tensor in model.inputs:
        zero = np.zeros(tensor.shape or (), wide.get(tensor.dtype, tensor.dtype))
        if len(tensor.columns) > 1:
            row |= {name: pd.Series([value]) for name, value in zip(tensor.columns, zero.flat, strict=True)}
        elif tensor.dtype == "uint8":
            row[tensor.columns[0]] = [zero.tobytes()]
        else:
            row[tensor.columns[0]] = pd.Series([zero.item()] if zero.ndim == 0 else [zero.ravel().tolist()])
    return pd.DataFrame(row)
