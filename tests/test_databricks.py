"""deploy/databricks, as far as it runs without a workspace of Databricks'."""

import copy
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import dacite
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
import torch
import worker_program
import yaml
from databricks.sdk.service.catalog import SchemaInfo, VolumeInfo
from databricks.sdk.service.jobs import JobSettings

ROOT = Path(__file__).resolve().parent.parent
BUNDLE = ROOT / "deploy" / "databricks"
NOTEBOOK = BUNDLE / "src" / "taxi.py"
RETRAIN = ROOT / "examples" / "retrain" / "retrain.sh"
VOLUMES = "/Volumes/${var.catalog}/${var.schema}/"
TYPES = {"jobs": JobSettings, "schemas": SchemaInfo, "volumes": VolumeInfo}
"""What the REST interface takes of each kind of resource; the bundle's own schema is not free."""


def read(name: str) -> Any:
    """A YAML file of the bundle."""
    return yaml.safe_load((BUNDLE / name).read_text())


def check(resources: dict[str, Any]) -> None:
    """Raises an error where a resource is not what the REST interface takes: keys, types, values of enums."""
    config = dacite.Config(strict=True, cast=[Enum])
    for kind, named in resources.items():
        for resource in named.values():
            dacite.from_dict(TYPES[kind], resource, config)


RESOURCES = [path.name for path in sorted((BUNDLE / "resources").glob("*.yml"))]


@pytest.mark.parametrize("name", RESOURCES)
def test_resources_are_what_databricks_takes(name: str) -> None:
    file = read(f"resources/{name}")
    assert list(file) == ["resources"]
    check(file["resources"])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda cluster: cluster.update(num_worker=2), dacite.UnexpectedDataError),
        (lambda cluster: cluster.update(num_workers="two"), dacite.WrongTypeError),
        (lambda cluster: cluster["spark_conf"].update({"spark.task.cpus": 4}), dacite.WrongTypeError),
        (lambda cluster: cluster.update(data_security_mode="SINGLE"), ValueError),
    ],
    ids=["unknown key", "wrong type", "wrong type within", "unknown value"],
)
def test_a_mistake_is_found(change: Callable[[dict[str, Any]], None], error: type[Exception]) -> None:
    resources = copy.deepcopy(read("resources/retrain.yml")["resources"])
    change(resources["jobs"]["retrain"]["job_clusters"][0]["new_cluster"])
    with pytest.raises(error):
        check(resources)


def test_names_and_files_of_the_bundle_are_there() -> None:
    """Variables, clusters and tasks that are named, notebooks, and the jars' and the wheel's version."""
    bundle = read("databricks.yml")
    files = {name: (BUNDLE / "resources" / name).read_text() for name in RESOURCES}
    used = set(re.findall(r"\$\{var\.(\w+)\}", "".join(files.values())))
    assert used == set(bundle["variables"])
    version = re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.M)
    assert version is not None
    for file in ["".join(files.values()), bundle["variables"]["jar"]["default"]]:
        assert set(re.findall(r"flambeau-[\w.]*?-?(\d+\.\d+\.\d+)", file)) == {version[1]}
    for name in RESOURCES:
        for job in read(f"resources/{name}")["resources"].get("jobs", {}).values():
            clusters = {cluster["job_cluster_key"] for cluster in job["job_clusters"]}
            tasks = {task["task_key"] for task in job["tasks"]}
            for task in job["tasks"]:
                assert task["job_cluster_key"] in clusters
                assert {other["task_key"] for other in task.get("depends_on", [])} <= tasks
                if "notebook_task" in task:
                    assert (BUNDLE / "resources" / task["notebook_task"]["notebook_path"]).is_file()


NOISE = 0.5
"""The standard deviation of what the rides' table has beside its formula, which no model gets below."""


@pytest.fixture(scope="module")
def rides(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table with the columns of `samples.nyctaxi.trips`: fares by a formula, and a few that are none."""
    random = np.random.default_rng(1)
    count = 5000
    miles = random.uniform(0.5, 10, count)
    seconds = (miles * random.uniform(150, 400, count)).astype(int)
    start = np.datetime64("2016-02-01T00:00:00", "us") + random.integers(0, 28 * 86400, count).astype("m8[s]")
    fares = 2.5 + 1.75 * miles + 0.35 * seconds / 60 + random.normal(0, NOISE, count)
    fares[::100] = -5
    table = {
        "tpep_pickup_datetime": start,
        "tpep_dropoff_datetime": start + seconds.astype("m8[s]"),
        "trip_distance": miles,
        "fare_amount": fares,
    }
    path = tmp_path_factory.mktemp("rides")
    pq.write_table(pa.table(table), path / "rides.parquet")
    return f"parquet.`{path}`"


_FOUND = """
import runpy, sys
from types import SimpleNamespace
from local_session import session

class Widgets(dict):  # the two calls of dbutils.widgets that the notebook makes
    def text(self, name, default):
        self.setdefault(name, default)

notebook, table, directory = sys.argv[1:]
spark = session(confs={"spark.flambeau.workDir": directory})
widgets = Widgets(table=table, workers="1")
dbutils = SimpleNamespace(widgets=widgets)
ran = runpy.run_path(notebook, init_globals={"spark": spark, "dbutils": dbutils})
assert ran["spark"] is spark and spark.range(3).count() == 3
assert ran["regressor"].getOrDefault("numWorkers") == 1
spark.stop()
"""


def train(directory: Path, *command: str) -> None:
    """Run a program, and look at the error on test rows that it tells: little more than there must be."""
    done = subprocess.run(
        [sys.executable, *command],
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT / "tests")]),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    told = re.search(r"^rmse ([\d.]+)$", done.stdout, re.M)
    assert told is not None, done.stdout
    assert 0.9 * NOISE < float(told[1]) < 3 * NOISE


def test_the_notebook_is_a_program(rides: str, tmp_path: Path) -> None:
    train(tmp_path, str(NOTEBOOK), rides, "2")


@pytest.mark.long
def test_the_notebook_uses_the_session_and_the_parameters_that_it_finds(rides: str, tmp_path: Path) -> None:
    """As Databricks runs it: `spark` and `dbutils` are there, and the session goes on."""
    train(tmp_path, "-c", _FOUND, str(NOTEBOOK), rides, str(tmp_path / "work"))
    assert (tmp_path / "work" / "taxi" / "weights.safetensors").is_file()


@pytest.mark.long
def test_the_retraining_job_runs_its_tasks(tmp_path: Path) -> None:
    """The wheel's program, then the main class, with their tasks' parameters: a directory is the volume."""
    if not pyspark.__version__.startswith("4."):
        pytest.skip("SKIPPED: the jar that make builds is for Spark 4")
    wheel, jar = read("resources/retrain.yml")["resources"]["jobs"]["retrain"]["tasks"]
    program, main = wheel["python_wheel_task"], jar["spark_jar_task"]

    def given(task: dict[str, Any], month: int) -> list[str]:
        values = {VOLUMES: f"{tmp_path}/"}
        values |= {"{{job.parameters.month}}": str(month), "{{job.parameters.night}}": f"2013-0{month}-28"}
        return [
            re.sub("|".join(map(re.escape, values)), lambda name: values[name[0]], parameter)
            for parameter in task["parameters"]
        ]

    installed = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--target", str(installed), str(BUNDLE)], check=True, timeout=120)
    assert (installed / f"{program['package_name'].replace('-', '_')}-0.1.0.dist-info").is_dir()
    entry = [str(installed / "bin" / program["entry_point"]), *given(program, 1)]
    subprocess.run(entry, env={**os.environ, "PYTHONPATH": str(installed)}, check=True, timeout=120)

    assert f"--class {main['main_class_name']} " in RETRAIN.read_text()
    spark = {"SPARK_HOME": os.path.dirname(pyspark.__file__), "SPARK_LOCAL_IP": "127.0.0.1"}
    for month in (1, 2):
        done = subprocess.run(
            [str(RETRAIN), *given(main, month)],
            env={**os.environ, **spark},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr[-6000:]
        assert re.search(r"^promoted ", done.stdout, re.M), done.stdout


def test_the_init_script_unpacks_libtorch(tmp_path: Path) -> None:
    """The libraries of an archive are loaded from where it puts them; another version leaves nothing."""
    libraries = Path(torch.__file__).parent / "lib"
    wanted = tmp_path / "libtorch.zip"
    with zipfile.ZipFile(wanted, "w") as archive:
        archive.writestr("libtorch/build-version", f"{torch.__version__}\n")
        for name in ("libc10.so", "libtorch_cpu.so", "libtorch.so", "libgomp.so.1"):
            archive.write(libraries / name, f"libtorch/lib/{name}")
    other = tmp_path / "other.zip"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("libtorch/build-version", "2.5.0+cpu\n")
    disk = tmp_path / "opt"
    disk.mkdir()
    place = disk / "libtorch"

    def start(archive: Path) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "LIBTORCH": str(place), "LIBTORCH_ARCHIVE": str(archive)}
        command = [str(BUNDLE / "src" / "libtorch.sh")]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    refused = start(other)
    assert refused.returncode == 1 and "2.5.0+cpu, and Flambeau needs 2.13" in refused.stderr
    assert not list(disk.iterdir())
    for _ in range(2):  # a cluster that is started again
        done = start(wanted)
        assert done.returncode == 0, done.stderr
        assert list(disk.iterdir()) == [place]

    net = torch.jit.script(torch.nn.Linear(2, 1))
    net.save(str(tmp_path / "net.pt"))
    # What torch's wheel has beside itself, and an archive "with deps" within.
    beside = os.pathsep.join(map(str, Path(torch.__file__).parents[1].glob("nvidia/*/lib")))
    for libtorch, is_found in ((place, True), (disk, False)):
        told = worker_program.run(
            "inspect", tmp_path / "net.pt", LIBTORCH=str(libtorch), LD_LIBRARY_PATH=beside
        )
        assert (told.returncode == 0) is is_found, told.stderr
