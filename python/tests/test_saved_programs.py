"""Estimators whose model is a program, and what names them: saved as files that Scala reads, and back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import fitted
import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.sql import SparkSession
from test_saving import metadata_of, names
from torch import nn

from flambeau import (
    FlambeauError,
    ParamError,
    TorchClassificationModel,
    TorchEstimator,
    TorchRegressionModel,
    TorchRegressor,
    load_pipeline,
)
from flambeau._saved.program import instantiate
from flambeau._saved.weights import load_into, save_module
from flambeau._spark.fit.native_program import NativeProgram
from flambeau._spark.saving.program_files import ProgramFiles, scripted_archive


class Scaled(nn.Module):
    """A layer with a buffer that its state_dict leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("scale", torch.tensor([3.0]), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale


def archive(path: Path, module: nn.Module | None = None) -> str:
    """A TorchScript archive as a user makes it."""
    torch.jit.script(module or fitted.Mlp()).save(str(path))
    return str(path)


def same_outputs(spark: SparkSession, model: str, module: nn.Module) -> None:
    """The program at a path computes what the module does, with the weights that lie beside it or inside."""
    files = ProgramFiles.of(spark, model)
    program = instantiate(files.read(spark))
    if files.weights is not None:
        load_into(program, files.weights.local())
    x = torch.randn(5, 4)
    with torch.inference_mode():
        assert torch.equal(program(x), module.eval()(x))


def test_a_path_is_saved_as_its_files(any_spark_long: SparkSession, tmp_path: Path) -> None:
    module, path = fitted.Mlp(), tmp_path / "saved"
    options = {"lr": 0.1, "momentum": 0.9, "nesterov": True}
    TorchRegressor(
        model=archive(tmp_path / "net.pt", module),
        loss={"name": "huber", "options": {"delta": 1.5}},
        optimizer={"name": "sgd", "options": options},
        metrics=["mae"],
        runtime="native",
        epochs=3,
    ).save(str(path))
    assert names(path) == {"metadata", "program.pt"}
    metadata = metadata_of(path)
    ours = metadata["flambeau"]
    assert ours["programs"] == {"scripted": "program.pt"} and list(ours["files"]) == ["program.pt"]
    assert ours["names"] == {
        "loss": {"name": "huber", "options": {"delta": 1.5}},
        "optimizer": {"name": "sgd", "options": options},
        "metrics": ["mae"],
    }
    assert metadata["paramMap"] == {"epochs": 3}
    assert not {"model", "loss", "optimizer", "metrics", "runtime"} & set(metadata["defaultParamMap"])

    (tmp_path / "net.pt").unlink()
    loaded = TorchEstimator.load(str(path))
    assert type(loaded) is TorchRegressor and loaded.getRuntime() == "native" and loaded.getEpochs() == 3
    assert loaded.getLoss() == ours["names"]["loss"] and loaded.getOptimizer() == ours["names"]["optimizer"]
    same_outputs(any_spark_long, loaded.getModel(), module)

    # A loaded estimator is saved again, elsewhere, and as a part of a pipeline.
    with pytest.raises(FlambeauError, match=r"program is read from .*saved; save it to another path"):
        loaded.write().overwrite().save(str(path))
    Pipeline(stages=[loaded]).save(str(tmp_path / "pipeline"))
    shutil.rmtree(path)
    (again,) = load_pipeline(str(tmp_path / "pipeline")).getStages()
    same_outputs(any_spark_long, again.getModel(), module)


def test_modules_that_train_without_python_are_scripted(spark: SparkSession, tmp_path: Path) -> None:
    module = fitted.trained(fitted.Mlp())
    for number, model in enumerate((module, torch.jit.script(module))):
        path = tmp_path / f"saved-{number}"
        TorchRegressor(model=model, runtime="native").save(str(path))
        assert names(path) == {"metadata", "program.pt"}
        same_outputs(spark, TorchRegressor.load(str(path)).getModel(), module)
    TorchRegressor(model=fitted.Branching(), runtime="native").save(str(tmp_path / "pickled"))
    assert names(tmp_path / "pickled") == {"metadata", "objects.pkl"}
    assert TorchRegressor.load(str(tmp_path / "pickled")).getRuntime() == "native"
    TorchRegressor(model=module, runtime="python").save(str(tmp_path / "python"))
    assert names(tmp_path / "python") == {"metadata", "objects.pkl"}
    assert TorchRegressor.load(str(tmp_path / "python")).getRuntime() == "python"


def test_buffers_that_are_not_saved_are_named_in_the_archive(spark: SparkSession, tmp_path: Path) -> None:
    module = Scaled()
    (tmp_path / "net.pt").write_bytes(scripted_archive(module))
    program = instantiate(ProgramFiles.of(spark, str(tmp_path / "net.pt")).read(spark))
    assert program._flambeau_fixed == {"scale"}
    assert scripted_archive(program) and program(torch.ones(1, 4)) == module(torch.ones(1, 4))
    weights = save_module(module, tmp_path / "weights.safetensors")
    load_into(program, weights.local())


def test_a_scripted_loss_goes_along(spark: SparkSession, tmp_path: Path) -> None:
    loss = archive(tmp_path / "relative.pt", nn.L1Loss())
    TorchRegressor(model=archive(tmp_path / "net.pt"), loss={"script": loss}).save(str(tmp_path / "saved"))
    assert names(tmp_path / "saved") == {"metadata", "program.pt", "loss.pt"}
    assert metadata_of(tmp_path / "saved")["flambeau"]["names"] == {"loss": {"script": "loss.pt"}}
    (part,) = (tmp_path / "saved").glob("metadata/part-*")
    text = part.read_text()
    (part.parent / f".{part.name}.crc").unlink()
    part.write_text(text.replace('"script":"loss.pt"', '"script":"../loss.pt"'))
    with pytest.raises(FlambeauError, match=r"names its loss '../loss.pt', which is not the file loss.pt"):
        TorchRegressor.load(str(tmp_path / "saved"))
    part.write_text(text.replace('"scripted":"program.pt"', '"scripted":"../program.pt"'))
    with pytest.raises(FlambeauError, match=r"names a file '../program.pt', which is not a plain name"):
        ProgramFiles.of(spark, str(tmp_path / "saved"))
    part.write_text(text)
    (tmp_path / "relative.pt").unlink()
    loaded = TorchRegressor.load(str(tmp_path / "saved"))
    loaded.save(str(tmp_path / "again"))
    with pytest.raises(FlambeauError, match="save it to another path"):
        loaded.write().overwrite().save(str(tmp_path / "saved"))
    with pytest.raises(FlambeauError, match=r"loss: there is no file .*gone"):
        loaded.setLoss({"script": str(tmp_path / "gone.pt")}).save(str(tmp_path / "third"))


def test_directories_are_programs(spark: SparkSession, tmp_path: Path) -> None:
    fitted.classifier(tmp_path / "fit").save(str(tmp_path / "model"))
    module = TorchClassificationModel.load(str(tmp_path / "model")).module()
    same_outputs(spark, str(tmp_path / "model"), module)
    forms = ProgramFiles.of(spark, str(tmp_path / "model")).forms
    assert set(forms) >= {"scripted", "exported"}

    # As flambeau.save_program writes one.
    whole = tmp_path / "program"
    whole.mkdir()
    for name in ("program.pt", "weights.safetensors"):
        shutil.copy(tmp_path / "model" / name, whole)
    files = {name: metadata_of(tmp_path / "model")["flambeau"]["files"][name] for name in names(whole)}
    contents = {"programs": {"scripted": "program.pt"}, "reasons": {}, "files": files}
    (whole / "program.json").write_text(json.dumps(contents))
    same_outputs(spark, str(whole), module)
    TorchRegressor(model=str(whole)).save(str(tmp_path / "estimator"))
    assert names(tmp_path / "estimator") == {"metadata", "program.pt", "weights.safetensors"}
    same_outputs(spark, TorchRegressor.load(str(tmp_path / "estimator")).getModel(), module)


def test_what_is_no_program_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "nothing.pt"):
        with pytest.raises(ParamError, match=f"model: {path} is no program: give a TorchScript archive"):
            ProgramFiles.of(spark, str(path))
    fitted.regressor(tmp_path / "fit", fitted.Branching()).save(str(tmp_path / "pickled"))
    with pytest.raises(ParamError, match=r"holds no program in TorchScript or of torch.export \(exported: "):
        ProgramFiles.of(spark, str(tmp_path / "pickled"))


def test_programs_on_a_file_system_that_only_hadoop_knows(spark: SparkSession, tmp_path: Path) -> None:
    link = "fs.viewfs.mounttable.programs.link./data"
    spark.sparkContext._jsc.hadoopConfiguration().set(link, f"file://{tmp_path}")
    module = fitted.Mlp()
    archive(tmp_path / "net.pt", module)
    TorchRegressor(model="viewfs://programs/data/net.pt").save("viewfs://programs/data/saved")
    assert names(tmp_path / "saved") == {"metadata", "program.pt"}
    same_outputs(spark, TorchRegressor.load("viewfs://programs/data/saved").getModel(), module)
    torch.jit.save(torch.jit.script(nn.HuberLoss(delta=2.0)), str(tmp_path / "loss.pt"))
    given = {"model": "viewfs://programs/data/net.pt", "optimizer": "adam", "metrics": []}
    at = "viewfs://programs/data/loss.pt"
    loss = NativeProgram.of({**given, "loss": {"script": at}}, None, spark).loss
    assert loss(torch.zeros(1), torch.ones(1) * 4) == 6
    with pytest.raises(ParamError, match="loss: there is no file at viewfs://programs/data/none"):
        NativeProgram.of({**given, "loss": {"script": "viewfs://programs/data/none"}}, None, spark)


def test_from_java_leaves_what_the_stage_needs(spark: SparkSession, tmp_path: Path) -> None:
    """Stands in for the JVM's class with one that writes the same directory."""

    class Stage:
        def __init__(self, stage: Any) -> None:
            self.stage = stage

        def write(self) -> Any:
            return self.stage.write()

    module = fitted.Mlp()
    estimator = TorchRegressor(model=archive(tmp_path / "net.pt", module), epochs=2)
    loaded = TorchRegressor._from_java(Stage(estimator))
    assert loaded.uid == estimator.uid and loaded.getEpochs() == 2
    same_outputs(spark, loaded.getModel(), module)


class OnlyExported(nn.Module):
    """A module that TorchScript does not take, with a mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(sum([self.layer(part) for part in (lambda y: (y, 2 * y))(x)]))


def test_a_model_that_is_exported_only_is_saved_with_both_graphs(spark: SparkSession, tmp_path: Path) -> None:
    model = fitted.regressor(tmp_path / "fit", OnlyExported())
    model.save(str(tmp_path / "saved"))
    programs = {"program.pt2", "program-train.pt2"}
    assert names(tmp_path / "saved") == {"metadata", "weights.safetensors", "history.json"} | programs
    assert set(metadata_of(tmp_path / "saved")["flambeau"]["reasons"]) == {"scripted"}
    loaded = TorchRegressionModel.load(str(tmp_path / "saved"))
    loaded.save(str(tmp_path / "again"))
    assert names(tmp_path / "again") == names(tmp_path / "saved")
    frame = spark.createDataFrame([([0.5, 1.0, -1.0, 2.0],)], "features array<float>")
    assert loaded.transform(frame).collect() == model.transform(frame).collect()
