"""Saved models and estimators: what lies in the directory, who can read it, and what pickles are refused."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import fitted
import pytest
import torch
from harness import one_thread
from pyspark.ml.util import DefaultParamsReader
from pyspark.sql import SparkSession
from test_transform import arrays_of, column
from torch import Tensor, nn
from torch.torch_version import TorchVersion

from flambeau import (
    FlambeauError,
    StoreError,
    TorchClassificationModel,
    TorchClassifier,
    TorchModel,
    TorchRegressionModel,
    TorchRegressor,
    load_pipeline,
)
from flambeau._saved.purity import check_pure
from flambeau._saved.weights import WeightsRef, save_module
from flambeau._spark import files
from flambeau._spark.directory import Directory
from flambeau._spark.files import chunk_size, read_through_spark
from flambeau.errors import DataError, ParamError


@pytest.fixture
def no_pickles(any_spark: SparkSession) -> Iterator[SparkSession]:
    """A session that lets no pickle be saved or read."""
    any_spark.conf.set("spark.flambeau.allowPickle", "false")
    yield any_spark
    any_spark.conf.unset("spark.flambeau.allowPickle")


def names(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir() if not entry.name.endswith(".crc")}


def output_weight(model: TorchModel) -> Tensor:
    return model.module().state_dict()["output.weight"]


def metadata_of(path: Path) -> dict[str, Any]:
    (part,) = path.glob("metadata/part-*")
    value: dict[str, Any] = json.loads(part.read_text())
    return value


def test_a_saved_model_predicts_the_same_bits(any_spark: SparkSession, tmp_path: Path) -> None:
    model, path = fitted.classifier(tmp_path / "fit", featuresCol="features"), tmp_path / "saved"
    model.write().save(str(path))
    assert names(path) == {"metadata", "weights.safetensors", "history.json", "program.pt", "program.pt2"}
    loaded = TorchModel.load(str(path))
    assert type(loaded) is TorchClassificationModel and loaded.uid == model.uid
    assert loaded.history == model.history and loaded.summary == model.summary
    frame = arrays_of(any_spark).coalesce(1)
    assert column(loaded.transform(frame), "rawPrediction") == column(model.transform(frame), "rawPrediction")
    x = torch.randn(5, 4)
    with torch.inference_mode():
        assert torch.equal(loaded.module()(x), model.module()(x))


def test_metadata_is_sparks_with_ours_beside(spark: SparkSession, tmp_path: Path) -> None:
    model = fitted.classifier(tmp_path / "fit", inferenceBatchSize=64)
    model.save(str(tmp_path / "saved"))
    metadata = DefaultParamsReader.loadMetadata(str(tmp_path / "saved"), spark)
    assert metadata == metadata_of(tmp_path / "saved")
    assert metadata["class"] == "flambeau.TorchClassificationModel"
    assert metadata["sparkVersion"] == spark.version and metadata["uid"] == model.uid
    assert (
        metadata["paramMap"]["inferenceBatchSize"] == 64
        and metadata["defaultParamMap"]["predictionCol"] == "prediction"
    )
    ours = metadata["flambeau"]
    assert ours["torchVersion"] == torch.__version__ and ours["formatVersion"] == 1
    assert ours["pythonVersion"] == sys.version.split()[0] and ours["flambeauVersion"]


def test_overwrite_replaces_and_a_plain_save_does_not(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "saved"
    fitted.classifier(tmp_path / "one").write().save(str(path))
    with pytest.raises(FlambeauError, match=r"exists already; use write\(\)\.overwrite\(\)"):
        fitted.regressor(tmp_path / "two").write().save(str(path))
    fitted.regressor(tmp_path / "two").write().overwrite().save(str(path))
    assert type(TorchModel.load(str(path))) is TorchRegressionModel


def refuse_pickles(spark: SparkSession, path: Path, folder: Path) -> Any:
    spark.conf.set("spark.flambeau.allowPickle", "false")
    return fitted.regressor(folder, fitted.Branching())


def lose_weights(spark: SparkSession, path: Path, folder: Path) -> Any:
    fitted.regressor(folder).save(str(folder / "saved"))
    model = TorchModel.load(str(folder / "saved"))
    (folder / "saved" / "weights.safetensors").unlink()
    return model


def lock_objects(spark: SparkSession, path: Path, folder: Path) -> Any:
    module = fitted.Scalar()
    module.lock = threading.Lock()  # type: ignore[assignment]
    return TorchRegressor(model=module)


@pytest.mark.parametrize("fail", [refuse_pickles, lose_weights, lock_objects])
def test_a_failed_overwrite_leaves_what_was_there(
    any_spark_long: SparkSession, tmp_path: Path, fail: Callable[[SparkSession, Path, Path], Any]
) -> None:
    path = tmp_path / "models" / "saved"
    kept = fitted.classifier(tmp_path / "one")
    kept.save(str(path))
    try:
        refused = fail(any_spark_long, path, tmp_path / "two")
        with pytest.raises(Exception):  # noqa: B017, PT011 - as many kinds as ways to fail
            refused.write().overwrite().save(str(path))
    finally:
        any_spark_long.conf.unset("spark.flambeau.allowPickle")
    assert torch.equal(output_weight(TorchModel.load(str(path))), output_weight(kept))
    assert names(path.parent) == {"saved"}


def test_a_loaded_model_is_not_saved_over_itself(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "a saved model")
    fitted.classifier(tmp_path / "fit").save(path)
    loaded = TorchModel.load(path)
    with pytest.raises(FlambeauError, match="reads its weights from there"):
        loaded.write().overwrite().save(path)
    loaded.save(str(tmp_path / "other"))
    assert names(tmp_path / "other") == names(Path(path))


def test_loading_reads_no_pickle_where_there_is_a_program(no_pickles: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "saved")
    fitted.classifier(tmp_path / "fit").save(path)
    loaded = TorchModel.load(path)
    assert isinstance(loaded.module(), nn.Module)
    assert len(column(loaded.transform(arrays_of(no_pickles)))) == 50


def test_a_module_without_a_program_is_pickled_and_says_why(spark: SparkSession, tmp_path: Path) -> None:
    module, path = fitted.Branching(), tmp_path / "saved"
    model = fitted.regressor(tmp_path / "fit", module)
    model.save(str(path))
    assert "program.pkl" in names(path) and "program.pt2" not in names(path)
    ours = metadata_of(path)["flambeau"]
    assert ours["programs"] == {"pickle": "program.pkl"}
    assert "data-dependent" in ours["reasons"]["exported"] and ours["reasons"]["scripted"]
    loaded = TorchModel.load(str(path))
    assert type(loaded.module()) is fitted.Branching
    frame = arrays_of(spark).coalesce(1)
    assert column(loaded.transform(frame)) == column(model.transform(frame))


def test_pickles_are_refused_on_every_path(spark: SparkSession, tmp_path: Path) -> None:
    pickled, pipeline, estimator = (str(tmp_path / name) for name in ("model", "pipeline", "estimator"))
    from pyspark.ml import PipelineModel

    module = fitted.Branching()
    model = fitted.regressor(tmp_path / "fit", module)
    model.save(pickled)
    PipelineModel([model]).save(pipeline)
    TorchRegressor(model=module).save(estimator)
    spark.conf.set("spark.flambeau.allowPickle", "false")
    try:
        for load, path in (
            (TorchModel.load, pickled),
            (TorchRegressionModel.load, pickled),
            (PipelineModel.load, pipeline),
            (load_pipeline, pipeline),
            (load_pipeline, pickled),
            (TorchRegressor.load, estimator),
        ):
            with pytest.raises(FlambeauError, match="allowPickle is false"):
                load(path)
        with pytest.raises(
            FlambeauError, match="allowPickle is false, and the module can be saved as a pickle only"
        ):
            model.save(str(tmp_path / "again"))
        with pytest.raises(FlambeauError, match="allowPickle is false"):
            TorchRegressor(model=module).save(str(tmp_path / "again"))
        given = TorchModel.load(pickled, module=fitted.Branching())
        assert load_pipeline(pipeline, module=fitted.Branching()).stages[0].uid == model.uid
    finally:
        spark.conf.unset("spark.flambeau.allowPickle")
    assert torch.equal(given.module().state_dict()["layer.weight"], module.layer.weight)


class Writing(nn.Module):
    """Writes a file when it runs."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.path = path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.save(x, self.path)
        return self.layer(x).squeeze(1)


def with_program(model: Path, form: str, data: bytes) -> None:
    """Has a saved model hold this program and no other, with its hash in the metadata."""
    metadata = metadata_of(model)
    ours, name = metadata["flambeau"], {"scripted": "program.pt", "exported": "program.pt2"}[form]
    ours["programs"] = {form: name}
    ours["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (model / name).write_bytes(data)
    (part,) = model.glob("metadata/part-*")
    part.write_text(json.dumps(metadata))
    for checksum in model.glob("metadata/.part-*.crc"):
        checksum.unlink()


def reading_a_file(exported: bytes, path: Path) -> bytes:
    """The exported program, whose first operator makes a file of that path."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(exported)) as source, zipfile.ZipFile(buffer, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if name.endswith("models/model.json"):
                program = json.loads(data)
                node = program["graph_module"]["graph"]["nodes"][0]
                node["target"] = "torch.ops.aten.from_file.default"
                given = {
                    "filename": {"as_string": str(path)},
                    "shared": {"as_bool": True},
                    "size": {"as_int": 4},
                }
                node["inputs"] = [{"name": key, "arg": value, "kind": 1} for key, value in given.items()]
                data = json.dumps(program).encode()
            target.writestr(name, data)
    return buffer.getvalue()


def test_programs_that_do_more_than_compute_are_refused(no_pickles: SparkSession, tmp_path: Path) -> None:
    path, written = tmp_path / "model", tmp_path / "written"
    frame = no_pickles.createDataFrame([([1.0, 2.0, 3.0, 4.0],)], "features array<float>")
    fitted.regressor(tmp_path / "fit").save(str(path))
    before = TorchModel.load(str(path))
    assert set(before._programs) == {"scripted", "exported"}
    script = io.BytesIO()
    torch.jit.save(torch.jit.script(Writing(str(written))), script)
    impure = {
        "scripted": (script.getvalue(), "aten::save"),
        "exported": (reading_a_file(before._programs["exported"], written), "aten::from_file"),
    }
    for form, (data, operator) in impure.items():
        with_program(path, form, data)
        with pytest.raises(
            FlambeauError, match=f"{form}: spark.flambeau.allowPickle is false, and it calls {operator}"
        ):
            TorchModel.load(str(path))
        assert not written.exists()
    # Without the conf it is the user's to trust.
    no_pickles.conf.set("spark.flambeau.allowPickle", "true")
    with_program(path, "scripted", impure["scripted"][0])
    TorchModel.load(str(path)).transform(frame).collect()
    assert written.exists()


def test_a_torch_that_trusts_sizes_reads_no_program_of_strangers(
    no_pickles: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted.regressor(tmp_path / "fit").save(str(tmp_path / "saved"))
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.8.0"))
    with pytest.raises(FlambeauError, match=r"torch 2\.8\.0 takes on trust .* module="):
        TorchModel.load(str(tmp_path / "saved"))


def test_tensors_that_reach_beyond_their_archive_are_refused() -> None:
    whole, cut = io.BytesIO(), io.BytesIO()
    torch.jit.save(torch.jit.script(fitted.Mlp()), whole)
    check_pure("scripted", whole.getvalue())
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(cut, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            target.writestr(name, data[:4] if name.endswith("/data/0") else data)
    with pytest.raises(DataError, match=r"the storage 0 .* bytes, and the archive holds 4 of them"):
        check_pure("scripted", cut.getvalue())


def test_scripts_are_refused_where_the_session_says_so(spark: SparkSession, tmp_path: Path) -> None:
    model, estimator, net = (str(tmp_path / name) for name in ("model", "estimator", "net.pt"))
    fitted.regressor(tmp_path / "fit").save(model)
    torch.jit.save(torch.jit.script(fitted.Mlp()), net)
    TorchRegressor(model=net, loss="mse", optimizer="sgd", runtime="native").save(estimator)
    spark.conf.set("spark.flambeau.allowScripts", "false")
    try:
        assert set(TorchModel.load(model)._programs) == {"exported"}
        with pytest.raises(
            FlambeauError, match=r"program\.pt may not be read: spark\.flambeau\.allowScripts"
        ):
            TorchRegressor.load(estimator)
    finally:
        spark.conf.unset("spark.flambeau.allowScripts")
    assert TorchRegressor.load(estimator).getModel().removeprefix("file://") == estimator


def test_a_module_can_be_given_and_must_fit(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "saved")
    model = fitted.classifier(tmp_path / "fit")
    model.save(path)
    mine = TorchClassificationModel.load(path, module=fitted.Mlp()).module()
    assert type(mine) is fitted.Mlp
    mine.train()
    assert torch.equal(mine.output.weight, model.module().output.weight)
    with pytest.raises(ParamError, match=r"output\.weight is"):
        TorchModel.load(path, module=fitted.Mlp(num_outputs=4))
    with pytest.raises(ParamError, match="lack"):
        TorchModel.load(path, module=nn.Linear(4, 3))


def test_what_is_not_ours_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.ml.feature import VectorAssembler

    path = str(tmp_path / "saved")
    fitted.classifier(tmp_path / "fit").save(path)
    with pytest.raises(FlambeauError, match=r"holds a flambeau\.TorchClassificationModel, not"):
        TorchRegressionModel.load(path)
    with pytest.raises(FlambeauError, match="not a TorchRegressor"):
        TorchRegressor.load(path)
    VectorAssembler(inputCols=["x"], outputCol="y").save(str(tmp_path / "assembler"))
    with pytest.raises(FlambeauError, match="VectorAssembler, not a TorchModel"):
        TorchModel.load(str(tmp_path / "assembler"))


def test_a_later_format_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "saved"
    fitted.classifier(tmp_path / "fit").save(str(path))
    (part,) = path.glob("metadata/part-*")
    part.write_text(part.read_text().replace('"formatVersion":1', '"formatVersion":2'))
    (part.parent / f".{part.name}.crc").unlink()
    with pytest.raises(FlambeauError, match="has format 2"):
        TorchModel.load(str(path))


@pytest.mark.parametrize("name", ["program.pt2", "history.json", "weights.safetensors"])
def test_changed_files_are_refused(spark: SparkSession, tmp_path: Path, name: str) -> None:
    path = tmp_path / "saved"
    fitted.classifier(tmp_path / "fit").save(str(path))
    data = bytearray((path / name).read_bytes())
    data[-1] ^= 1
    (path / name).write_bytes(bytes(data))
    with pytest.raises(Exception, match="SHA-256"):
        TorchModel.load(str(path)).module()


def test_an_estimator_keeps_its_objects_together(spark: SparkSession, tmp_path: Path) -> None:
    module, path = fitted.Mlp(num_outputs=1), tmp_path / "saved"
    optimizer = torch.optim.SGD(module.parameters(), lr=0.25)
    TorchRegressor(model=module, optimizer=optimizer, loss="l1", metrics=["mae"], epochs=3).write().save(
        str(path)
    )
    assert names(path) == {"metadata", "objects.pkl"}
    assert metadata_of(path)["flambeau"]["names"] == {"loss": "l1", "metrics": ["mae"]}
    loaded = TorchRegressor.load(str(path))
    assert loaded.getEpochs() == 3 and loaded.getLoss() == "l1" and loaded.getMetrics() == ["mae"]
    assert loaded.getOptimizer().param_groups[0]["params"][0] is next(loaded.getModel().parameters())
    assert torch.equal(loaded.getModel().output.weight, module.output.weight)


def test_an_estimator_of_an_earlier_version_is_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where `collectiveTimeout`, `learningRate` and `minDelta` had other names."""
    golden = Path(__file__).parents[2] / "tests" / "golden"
    monkeypatch.syspath_prepend(golden)  # its module is one of `modules`
    path = shutil.copytree(golden / "format-1" / "python" / "estimator", tmp_path / "saved")
    (metadata,) = path.glob("metadata/part-*")
    metadata.write_text(
        metadata.read_text().replace(
            '"epochs":2', '"epochs":2,"timeout":7.5,"stepSize":0.5,"monitorMinDelta":0.25', 1
        )
    )
    loaded = TorchRegressor.load(str(path))
    assert loaded.getEpochs() == 2 and loaded.getCollectiveTimeout() == 7.5
    assert loaded.getLearningRate() == 0.5 and loaded.getMinDelta() == 0.25
    assert loaded.getHeartbeatTimeout() == 30.0


def test_large_objects_travel_in_pieces_on_connect(connect: SparkSession, tmp_path: Path) -> None:
    module = nn.Linear(3000, 3000)
    TorchRegressor(model=module).save(str(tmp_path / "saved"))
    assert names(tmp_path / "saved") == {"metadata", "objects.pkl"}
    assert torch.equal(TorchRegressor.load(str(tmp_path / "saved")).getModel().weight, module.weight)


def test_weights_that_only_workers_see(
    any_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fitted.classifier(tmp_path / "fit")
    monkeypatch.setattr(WeightsRef, "visible", lambda self: False)
    monkeypatch.setattr(files, "chunk_size", lambda spark: 1000)
    module = model.module()
    model.save(str(tmp_path / "saved"))
    monkeypatch.undo()
    assert torch.equal(module.output.weight, model.module().output.weight)
    assert names(tmp_path / "saved") >= {"weights.safetensors", "program.pt2"}
    assert (tmp_path / "saved" / "weights.safetensors").read_bytes() == (
        tmp_path / "fit" / "weights.safetensors"
    ).read_bytes()


def test_chunks_are_small_and_whole(spark: SparkSession, tmp_path: Path) -> None:
    data = os.urandom(100_003)
    (tmp_path / "file").write_bytes(data)
    ref = WeightsRef.of_file(tmp_path / "file")
    for chunk in (1 << 20, 40_000):
        read_through_spark(spark, ref, tmp_path / "copy", chunk)
        assert (tmp_path / "copy").read_bytes() == data
    with pytest.raises(StoreError, match="shorter"):
        read_through_spark(spark, WeightsRef(ref.uri, ref.size + 1, ref.sha256), tmp_path / "copy")
    with pytest.raises(StoreError, match=r"gone cannot be read: .*No such file"):
        read_through_spark(spark, WeightsRef(f"{ref.uri}gone", ref.size, ref.sha256), tmp_path / "copy")
    assert chunk_size(spark) == 64 << 20


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}"])
def test_paths_with_and_without_a_scheme(spark: SparkSession, tmp_path: Path, form: str) -> None:
    path = form.format(tmp_path / "saved")
    fitted.classifier(tmp_path / "fit").save(path)
    assert "weights.safetensors" in names(tmp_path / "saved")
    assert len(column(TorchModel.load(path).transform(arrays_of(spark)))) == 50


def test_a_file_system_that_only_hadoop_knows(spark: SparkSession, tmp_path: Path) -> None:
    link = f"fs.viewfs.mounttable.flambeau{os.getpid()}.link./data"
    spark.sparkContext._jsc.hadoopConfiguration().set(link, f"file://{tmp_path}")
    path = f"viewfs://flambeau{os.getpid()}/data/saved"
    model = fitted.classifier(tmp_path / "fit")
    model.save(path)
    model.write().overwrite().save(path)
    assert "weights.safetensors" in names(tmp_path / "saved")
    loaded = TorchModel.load(path)
    frame = arrays_of(spark).coalesce(1)
    assert column(loaded.transform(frame)) == column(model.transform(frame))
    handed_out = loaded._weights_of_workers(spark)
    assert handed_out.content is not None and loaded.copy()._weights_of_workers(spark) is handed_out
    for twin in (cloudpickle.loads(cloudpickle.dumps(loaded)), copy.deepcopy(loaded)):
        assert column(twin.transform(frame)) == column(model.transform(frame))
    assert torch.equal(output_weight(TorchModel.load(path, module=fitted.Mlp())), output_weight(model))
    loaded.save(str(tmp_path / "copy"))
    assert torch.equal(output_weight(TorchModel.load(str(tmp_path / "copy"))), output_weight(model))


def test_a_wrong_file_among_those_that_a_machine_keeps_is_replaced(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ref, other = (save_module(fitted.Mlp(), tmp_path / name) for name in ("one", "other"))
    data = Path(ref.uri).read_bytes()

    def held(source: WeightsRef) -> WeightsRef:
        content = spark.sparkContext.broadcast(Path(source.uri).read_bytes())
        return replace(ref, uri="s3://nowhere/one", content=content)

    far = held(ref)
    path = far.local()
    assert path.read_bytes() == data and not hasattr(far.content, "_value")
    path.write_bytes(bytes(len(data)))
    assert far.local().read_bytes() == data
    path.unlink()
    with pytest.raises(DataError, match="s3://nowhere/one is not the file that was saved"):
        held(other).local()
    assert not list(path.parent.iterdir())

    # A file that Hadoop alone has.
    link = f"fs.viewfs.mounttable.copies{os.getpid()}.link./data"
    spark.sparkContext._jsc.hadoopConfiguration().set(link, f"file://{tmp_path}")
    directory = Directory(spark, f"viewfs://copies{os.getpid()}/data")
    assert directory.read("one", ref.size, ref.sha256) == data
    path.write_bytes(b"another one")
    assert directory.read("one", ref.size, ref.sha256) == data
    path.unlink()
    with pytest.raises(DataError, match="data/other is not the file that was saved"):
        directory.read("other", ref.size, ref.sha256)
    assert not list(path.parent.iterdir())


def test_one_process_of_a_machine_makes_a_copy_for_all(tmp_path: Path) -> None:
    script = """
        import hashlib, os, sys, time
        from flambeau._store import cached

        def make(part):
            with open(sys.argv[1], "a") as log:
                log.write(f"{os.getpid()} ")
            time.sleep(1)
            part.write_bytes(b"content")

        print(cached("name", hashlib.sha256(b"content").hexdigest(), make).read_text())
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "log")]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) for _ in range(3)]
    assert [process.communicate(timeout=60)[0] for process in processes] == [b"content\n"] * 3
    assert len((tmp_path / "log").read_text().split()) == 1
    (folder,) = tmp_path.glob("flambeau-cache-*")
    assert len(list(folder.iterdir())) == 1


def test_connect_refuses_schemes_that_workers_cannot_read(connect: SparkSession) -> None:
    with pytest.raises(FlambeauError, match="hdfs://name/x: on Spark Connect"):
        Directory(connect, "hdfs://name/x")


def test_a_new_process_predicts_the_same_bits(spark: SparkSession, tmp_path: Path) -> None:
    model = fitted.classifier(tmp_path / "fit")
    model.save(str(tmp_path / "saved"))
    x = torch.randn(33, 4)
    torch.save(x, tmp_path / "x.pt")
    script = f"""
        import torch
        from flambeau._saved.program import instantiate
        from flambeau._saved.weights import load_into
        folder = {str(tmp_path / "saved")!r}
        x = torch.load({str(tmp_path / "x.pt")!r})
        for form, name in (("exported", "program.pt2"), ("scripted", "program.pt")):
            program = open(f"{{folder}}/{{name}}", "rb").read()
            module = load_into(instantiate({{form: program}}), f"{{folder}}/weights.safetensors", share=True)
            with torch.inference_mode():
                torch.save(module(x), f"{{folder}}/{{form}}.out")
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        check=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    with one_thread(), torch.inference_mode():
        expected = model.module()(x)
    for form in ("exported", "scripted"):
        assert torch.equal(torch.load(tmp_path / "saved" / f"{form}.out"), expected), form


def test_a_model_larger_than_what_a_driver_accepts(tmp_path: Path) -> None:
    """40 MB through Spark with `spark.driver.maxResultSize=16m`: module(), save, load and transform."""
    script = """
        import sys
        from pathlib import Path

        import fitted
        import torch
        from pyspark.sql import SparkSession, functions as F
        from torch import nn

        from flambeau import TorchModel
        from flambeau._saved.weights import WeightsRef
        from flambeau._spark.files import chunk_size

        class Sampled(nn.Module):
            def forward(self, x):
                return x[:, ::250_000].sum(1)

        builder = SparkSession.builder.master("local[2]").config("spark.driver.maxResultSize", "16m")
        for name in ("spark.driver.host", "spark.driver.bindAddress"):
            builder = builder.config(name, "127.0.0.1")
        spark = builder.config("spark.ui.enabled", "false").getOrCreate()
        assert chunk_size(spark) == 4 << 20
        folder = Path(sys.argv[1])
        module = nn.Sequential(nn.Linear(4, 2_500_000, bias=False), Sampled())
        model = fitted.regressor(folder / "fit", module)
        assert model._weights.size > 37_500_000
        visible, WeightsRef.visible = WeightsRef.visible, lambda self: False
        assert torch.equal(model.module()[0].weight, module[0].weight)
        model.save(str(folder / "saved"))
        WeightsRef.visible = visible
        loaded = TorchModel.load(str(folder / "saved"))
        numbers = F.array(*[(F.col("id") + i).cast("float") for i in range(4)])
        scored = loaded.transform(spark.range(0, 6, 1, 2).select(numbers.alias("features"))).collect()
        with torch.inference_mode():
            expected = module(torch.tensor([row["features"] for row in scored]))
        torch.testing.assert_close(torch.tensor([row["prediction"] for row in scored]), expected)
    """
    here = Path(__file__).parent
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(here.parent), str(here)]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    environment.pop("SPARK_CONNECT_MODE_ENABLED", None)
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    done = subprocess.run(command, timeout=500, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


def test_objects_that_cannot_be_pickled_are_named(spark: SparkSession, tmp_path: Path) -> None:
    import threading

    module = fitted.Mlp()
    module.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(FlambeauError, match="model cannot be pickled"):
        TorchClassifier(model=module).save(str(tmp_path / "saved"))
    with pytest.raises(TypeError):
        cloudpickle.dumps(module)
