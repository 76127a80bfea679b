"""The settings that give a session the package's own jars."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

from flambeau._store import private_directory, sha256_of
from flambeau._version import VERSION
from flambeau.errors import FlambeauError

EXTENSIONS = "flambeau.FlambeauExtensions"
"""The class for `spark.sql.extensions` with which every session can plan what the JVM scores, and PySpark's
models are scored there by default.
"""

_PACKAGE = Path(__file__).parent
_LINES = {"3.5": "spark35", "4": "spark4"}
"""The lines of Spark that there are jars for, by the start of its version."""


def spark_config() -> dict[str, str]:
    """The settings with which a session has Flambeau's classes in its JVM, for `SparkSession.builder`:

        spark = SparkSession.builder.config(map=flambeau.spark_config()).getOrCreate()

    `spark.jars` are the jar for the Spark that is installed, or that SPARK_HOME names, and one of the native
    parts, which is written on the first call, 46 MB, to a directory of this user's under TMPDIR.
    `spark.sql.extensions` is `flambeau.FlambeauExtensions`, with which `transform` scores in the JVM by
    default where it can. Where a session has jars or extensions of others too, join them by commas.

    Raises FlambeauError where there is no Spark on this machine, as on a client of Spark Connect, or none
    that the package has a jar for.
    """
    return {"spark.jars": f"{_jar()},{_natives_jar()}", "spark.sql.extensions": EXTENSIONS}


def _jar() -> Path:
    """The package's jar for the Spark of this machine."""
    line = _line()
    path = _PACKAGE / "_jars" / f"flambeau-{line}-{VERSION}.jar"
    if not path.is_file():
        raise FlambeauError(
            f"spark_config: this installation of Flambeau has no jar {path.name}: install a wheel"
        )
    return path


def _line() -> str:
    """The Spark of this machine as the jars name it, such as `spark4_2.13`."""
    found = find_spec("pyspark")
    home = os.environ.get("SPARK_HOME") or (found and found.origin and str(Path(found.origin).parent))
    if not home:
        raise FlambeauError(
            "spark_config: there is no PySpark: pip install 'flambeau[spark]', or set SPARK_HOME"
        )
    for core in Path(home, "jars").glob("spark-core_*.jar"):
        if (named := re.fullmatch(r"spark-core_([\d.]+)-(\d+\.\d+).*\.jar", core.name)) is not None:
            scala, version = named.groups()
            for start, line in _LINES.items():
                if f"{version}.".startswith(f"{start}."):
                    return f"{line}_{scala}"
            raise FlambeauError(
                f"spark_config: {home} is Spark {version}, and Flambeau has jars for Spark 3.5 and 4"
            )
    raise FlambeauError(
        f"spark_config: {home} has no jars/spark-core_*.jar: the settings are those of the session's own "
        "machine, and a client of Spark Connect has none. The server is started with the jars"
    )


def _natives_jar() -> Path:
    """A jar of the package's native parts, which holds them once, as files."""
    files = sorted((_PACKAGE / "_bin").glob("*"))
    if not files:
        raise FlambeauError(
            "spark_config: this installation of Flambeau has no native parts: install a wheel"
        )
    digest = hashlib.sha256("".join(map(sha256_of, files)).encode()).hexdigest()[:16]
    folder = private_directory("flambeau-jars")
    path = folder / f"flambeau-natives-{VERSION}-{digest}.jar"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as made:
            part = Path(made) / path.name
            with zipfile.ZipFile(part, "w") as jar:
                for file in files:
                    name = f"native/linux-{os.uname().machine}/{file.name}"
                    jar.writestr(zipfile.ZipInfo(name), file.read_bytes())
            # Other processes may have it open.
            os.replace(part, path)
    return path
