"""`flambeau.spark_config`: which jars it names, and what it refuses. Scoring with them is in
tests/test_native_transform.py.
"""

import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import flambeau
from flambeau import _spark_config

BIN = Path(flambeau.__file__).parent / "_bin"


def home(folder: Path, core: str | None) -> Path:
    """A directory of a Spark, of which there is no more than that jar's name."""
    (folder / "jars").mkdir()
    if core:
        (folder / "jars" / core).touch()
    return folder


def manifest(jar: str) -> dict[str, str]:
    """The manifest's entries."""
    with zipfile.ZipFile(jar) as archive:
        lines = archive.read("META-INF/MANIFEST.MF").decode().splitlines()
    return dict(line.split(": ", 1) for line in lines if line)


def test_the_jar_is_for_the_spark_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    spec = find_spec("pyspark")
    assert spec and spec.origin
    (library,) = Path(spec.origin).parent.glob("jars/scala-library-*.jar")
    (core,) = Path(spec.origin).parent.glob("jars/spark-core_*.jar")
    try:
        config = flambeau.spark_config()
    except flambeau.FlambeauError as error:
        pytest.skip(f"SKIPPED: {error}; `make jvm` builds that of Spark 4")
    assert config.keys() == {"spark.jars", "spark.sql.extensions"}
    told = manifest(config["spark.jars"].split(",")[0])
    assert told["Flambeau-Scala"].rpartition(".")[0] in library.name
    assert told["Flambeau-Spark"].partition(".")[0] == core.name.rpartition("-")[2].partition(".")[0]


def test_the_natives_are_written_once_and_byte_for_byte(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / name))
        written.append(_spark_config._natives_jar())
    first, second = written
    assert first.name == second.name and first.read_bytes() == second.read_bytes()
    state = second.stat().st_mtime_ns
    assert _spark_config._natives_jar() == second and second.stat().st_mtime_ns == state
    assert list(second.parent.iterdir()) == [second]
    with zipfile.ZipFile(second) as jar:
        held = {Path(name).name: jar.read(name) for name in jar.namelist()}
        assert {str(Path(name).parent) for name in jar.namelist()} == {f"native/linux-{os.uname().machine}"}
    assert held == {file.name: file.read_bytes() for file in BIN.iterdir()}


@pytest.mark.parametrize(
    ("core", "line"),
    [
        ("spark-core_2.12-3.5.1-amzn-0.jar", "spark35_2.12"),
        ("spark-core_2.13-3.5.6.jar", "spark35_2.13"),
        ("spark-core_2.13-4.0.1.jar", "spark4_2.13"),
        ("spark-core_2.13-4.1.0.jar", "spark4_2.13"),
    ],
)
def test_the_line_is_that_of_spark_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, core: str, line: str
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(home(tmp_path, core)))
    assert _spark_config._line() == line


@pytest.mark.parametrize(
    ("core", "refused"),
    [
        ("spark-core_2.12-3.4.3.jar", "is Spark 3.4, and Flambeau has jars for Spark 3.5 and 4"),
        ("spark-core_2.13-40.0.0.jar", "is Spark 40.0, and Flambeau has jars for Spark 3.5 and 4"),
        (None, r"has no jars/spark-core_\*.jar: .* a client of Spark Connect has none"),
    ],
)
def test_another_spark_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, core: str | None, refused: str
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(home(tmp_path, core)))
    with pytest.raises(flambeau.FlambeauError, match=f"spark_config: {tmp_path} {refused}"):
        flambeau.spark_config()


def test_without_pyspark_it_says_what_to_install() -> None:
    """In a Python that has Flambeau and no other package."""
    program = "import flambeau; flambeau.spark_config()"
    environment = {"PYTHONPATH": str(BIN.parents[1]), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (
        "FlambeauError: spark_config: there is no PySpark: pip install 'flambeau[spark]', or set SPARK_HOME\n"
        in done.stderr
    )
