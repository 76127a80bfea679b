"""`flambeau.save_program`: what it writes, and what it refuses."""

from __future__ import annotations

import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any

import fitted
import pytest
import torch
from pyspark.sql import SparkSession
from safetensors.torch import load_file
from torch import Tensor, nn

import flambeau
from flambeau._saved.program import instantiate
from flambeau._saved.weights import load_into
from flambeau._spark.directory import qualified
from flambeau._spark.site import work_directory
from flambeau.errors import FlambeauError, ParamError


def saved(module: nn.Module, inputs: list[Tensor], folder: Path) -> dict[str, Any]:
    flambeau.save_program(module, str(folder), inputs)
    contents: dict[str, Any] = json.loads((folder / "program.json").read_text())
    return contents


def test_a_directory_holds_each_form_and_the_weights(tmp_path: Path) -> None:
    module = fitted.trained(fitted.Mlp())
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module.dropout.eval()
    folder = tmp_path / "program"
    contents = saved(module, [torch.randn(3, 4)], folder)
    assert contents["programs"] == {
        "scripted": "program.pt",
        "exported": "program.pt2",
        "exportedTrain": "program-train.pt2",
    }
    assert contents["reasons"] == {}
    assert sorted(path.name for path in folder.iterdir()) == sorted([*contents["files"], "program.json"])
    for name, entry in contents["files"].items():
        data = (folder / name).read_bytes()
        assert entry == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    read = load_file(folder / "weights.safetensors")
    assert all(torch.equal(tensor, read[name]) for name, tensor in before.items())
    # The module is as it was.
    assert module.norm.training and not module.dropout.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    x = torch.randn(5, 4)
    for form in ("scripted", "exported"):
        program = instantiate({form: (folder / contents["programs"][form]).read_bytes()})
        load_into(program, folder / "weights.safetensors")
        with torch.inference_mode():
            assert torch.equal(program(x), module.eval()(x)), form
    torch.export.load(io.BytesIO((folder / "program-train.pt2").read_bytes()))


def test_what_of_a_module_is_no_part_of_a_program_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Configuring(nn.Linear):
        @torch.jit.unused
        def training_step(self, batch: list[Tensor]) -> Tensor:
            return self(batch[0]).mean()

        @torch.jit.unused
        def configure_optimizers(self) -> None:
            raise AssertionError

    saved(nn.Linear(4, 1), [torch.randn(2, 4)], tmp_path / "plain")
    assert not caplog.messages
    saved(Configuring(4, 1), [torch.randn(2, 4)], tmp_path / "program")
    assert [one.partition(" is no part")[0] for one in caplog.messages] == [
        "training_step, configure_optimizers of Configuring"
    ]


def test_one_form_is_enough(tmp_path: Path) -> None:
    class Looping(nn.Module):
        """Its length depends on the data, which torch.export does not take."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            if bool(x.sum() > 0):
                return self.layer(x)
            return self.layer(-x)

    contents = saved(Looping(), [torch.randn(2, 4)], tmp_path / "program")
    assert list(contents["programs"]) == ["scripted"]
    assert "data-dependent" in contents["reasons"]["exported"]


def test_a_module_without_any_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParamError, match=r"Branching can be neither scripted nor exported .*data-dependent"):
        flambeau.save_program(fitted.Branching(), str(tmp_path / "program"), [torch.randn(2, 4)])
    assert not (tmp_path / "program").exists()


def test_a_path_that_is_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "program").mkdir()
    with pytest.raises(FlambeauError, match="exists already"):
        flambeau.save_program(fitted.Scalar(), str(tmp_path / "program"), [torch.randn(2, 4)])


def test_a_path_means_the_same_to_a_program_a_fit_and_its_work_directory(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle is Spark's own writer."""
    jvm: Any = spark.sparkContext._jvm
    relative = os.path.relpath(tmp_path, jvm.System.getProperty("user.dir"))
    df = spark.createDataFrame(
        [([1.0, 2.0, 3.0, float(row)], 1.0) for row in range(8)], "x array<float>, label float"
    )
    # Spark's process stays where it was.
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for name, at in [("relative", relative), ("file", f"file:{tmp_path}")]:
        df.write.parquet(f"{at}/{name}/spark")
        flambeau.save_program(fitted.Scalar(), f"{at}/{name}/program", [torch.zeros(2, 4)])
        params: dict[str, Any] = {"inputCols": ["x"], "runtime": "native", "batchSize": 4, "verbose": 0}
        flambeau.TorchRegressor(model=f"{at}/{name}/program", workDir=f"{at}/{name}/work", **params).fit(df)
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == ["program", "spark", "work"]
        assert list((tmp_path / name / "work" / "models").iterdir())
    assert not list((tmp_path / "elsewhere").iterdir())


def test_paths_of_other_file_systems_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    uri, df = "gopher://host/p", spark.range(4).selectExpr("array(0f, 0f, 0f, 0f) x", "0f label")
    with pytest.raises(ParamError, match="cannot reach gopher://host/p: No FileSystem for scheme"):
        flambeau.save_program(fitted.Scalar(), uri, [torch.zeros(2, 4)])
    with pytest.raises(ParamError, match=r"cannot reach gopher://host(/p)?: No FileSystem for scheme"):
        flambeau.TorchRegressor(model=uri, inputCols=["x"], runtime="native").fit(df)
    with pytest.raises(ParamError, match="workDir: the scheme `gopher` of gopher://host/p is not supported"):
        flambeau.TorchRegressor(model=nn.Linear(4, 1), inputCols=["x"], workDir=uri).fit(df)


def test_a_work_directory_lies_on_sparks_default_file_system(spark: SparkSession) -> None:
    java: Any = spark.sparkContext._jsc
    configuration = java.hadoopConfiguration()
    before = configuration.get("fs.defaultFS")
    configuration.set("fs.defaultFS", "hdfs://localhost:1")
    try:
        assert qualified(spark, "/p") == "hdfs://localhost:1/p"
        with pytest.raises(
            ParamError, match=r"`hdfs` of hdfs://localhost:1/p .* /p lies there by fs.defaultFS"
        ):
            work_directory(spark, "/p", {})
        for stays in ("/dbfs/p", "/Volumes/p", "file:///p", "s3://b/p"):
            assert work_directory(spark, stays, {}).uri == stays
    finally:
        configuration.set("fs.defaultFS", before)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "give a list of example tensors"),
        (torch.randn(2, 4), "give a list of example tensors"),
        ([[1.0, 2.0]], "number 1 must be a tensor"),
        ([torch.tensor(1.0)], "number 1 must be a tensor"),
        ([torch.zeros(2, 4, dtype=torch.int32)], "number 1 is int32"),
        ([torch.zeros(2, 4), torch.zeros(3, 4)], "same number of rows"),
        ([torch.zeros(0, 4)], "same number of rows"),
        ([torch.zeros(2, 4), torch.zeros(2, 4)], r"cannot take the inputs \(input_1, input_2\)"),
        ([torch.zeros(2, 5)], "fails on inputs"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(tmp_path: Path, inputs: Any, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        flambeau.save_program(fitted.Scalar(), str(tmp_path / "program"), inputs)
