"""The jars of the JVM side, in a Spark that gets them by `--jars` and nothing else."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

import flambeau

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
jvm = spark._jvm
print("VERSION", jvm.flambeau.Build.version())
regressor = jvm.flambeau.TorchRegressor().setEpochs(3)
print("PARAM", regressor.explainParam(regressor.epochs()))
spark.stop()
"""


@pytest.fixture(scope="module")
def jars() -> list[Path]:
    """The jars that `make` built: the classes, the natives."""
    if not pyspark.__version__.startswith("4."):
        pytest.skip("SKIPPED: the jar that make builds is for Spark 4")
    libs = ROOT / "build" / "jvm" / "libs"
    found = [*libs.glob("flambeau-spark4_2.13-*[0-9].jar"), *libs.glob("flambeau-natives-*.jar")]
    assert len(found) == 2, f"{libs} has {found}"
    return found


def manifest(jar: Path) -> dict[str, str]:
    """The manifest's entries."""
    with zipfile.ZipFile(jar) as archive:
        lines = archive.read("META-INF/MANIFEST.MF").decode().splitlines()
    return dict(line.split(": ", 1) for line in lines if line)


def test_the_jars_carry_what_they_say(jars: list[Path]) -> None:
    """The classes, the files for this platform, and what they need in the manifests."""
    jar, natives = jars
    platform = f"linux-{os.uname().machine}"
    files = {"flambeau-worker", "libflambeau_jni_store.so", "libflambeau_jni_torch.so"}
    with zipfile.ZipFile(natives) as archive:
        held = {name for name in archive.namelist() if not name.startswith("META-INF/")}
        worker = archive.read(f"native/{platform}/flambeau-worker")
    assert held == {f"native/{platform}/{file}" for file in files}
    assert worker == (Path(flambeau.__file__).parent / "_bin" / "flambeau-worker").read_bytes()
    with zipfile.ZipFile(jar) as archive:
        names = set(archive.namelist())
    assert {"flambeau/TorchEstimator.class", "META-INF/LICENSE"} <= names
    assert not any(name.startswith("native/") for name in names)
    # Spark is the cluster's, never the jar's; what reaches into it has packages of ours below its own.
    classes = [name for name in names if name.endswith(".class")]
    foreign = [name for name in classes if name.startswith(("org/", "scala/", "com/"))]
    own = tuple(f"org/apache/spark/{package}/flambeau/" for package in ("sql", "ml/tuning"))
    assert all(name.startswith(own) for name in foreign)
    told = manifest(jar)
    assert jar.name == f"flambeau-spark4_2.13-{told['Implementation-Version']}.jar"
    needed = manifest(natives)
    assert natives.name == f"flambeau-natives-{told['Implementation-Version']}-{platform}.jar"
    assert told["Flambeau-Torch"] == needed["Flambeau-Torch"] == "2.13.0"
    assert tuple(map(int, needed["Flambeau-Glibc"].split("."))) <= tuple(
        map(int, (os.confstr("CS_GNU_LIBC_VERSION") or "").split()[1].split("."))
    )


def test_spark_submit_needs_the_jars_alone(jars: list[Path], tmp_path: Path) -> None:
    """Flambeau's classes are seen from PySpark's JVM with `--jars`."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    home = Path(pyspark.__file__).parent
    done = subprocess.run(
        [
            str(home / "bin" / "spark-submit"),
            "--master",
            "local[1]",
            "--jars",
            ",".join(map(str, jars)),
            str(program),
        ],
        env={
            **os.environ,
            "SPARK_HOME": str(home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"VERSION {manifest(jars[0])['Implementation-Version']}\n" in done.stdout
    assert "PARAM epochs: " in done.stdout and "current: 3)" in done.stdout
