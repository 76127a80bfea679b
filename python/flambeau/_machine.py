"""What this machine has of what Flambeau needs."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from flambeau._libtorch import TORCH, libtorch_of
from flambeau._reason import first_line
from flambeau._report import Fact
from flambeau._version import HAS_EXTENSION, NATIVE_PLATFORM, VERSION
from flambeau.errors import CollectiveError, FlambeauError

NEEDED = {
    "torch": ">=2.4,<2.14",
    "pandas": ">=1.5,<3",
    "pyarrow": ">=15",
    "numpy": ">=1.26",
    "cloudpickle": ">=2.2",
    "safetensors": ">=0.4",
    "tqdm": ">=4.60",
}
"""The packages that fits need, as `pyproject.toml` has them; its file is not on every machine."""

_OPTIONAL = {
    "matplotlib": (">=3.8", ", for model.plot and curves in notebooks"),
    "optuna": (">=4", ", for flambeau.optuna"),
    "mlflow": ("", ", for flambeau.mlflow"),
    "tensorboard": ("", ", to look at the files of tensorBoardDir"),
}
PYSPARK = ">=3.5"
_PYTHON = (3, 11)
_JAVA = {3: 8, 4: 17}
"""The oldest Java that a line of Spark runs on."""
_SECONDS = 60.0
_SHARED = Path("/dev", "shm")
_LIMIT = Path("/sys/fs/cgroup/memory.max")


def machine_facts() -> Iterator[Fact]:
    """The facts, one after the other as they are looked up. Imports torch and pyspark."""
    yield _flambeau()
    yield _python()
    yield Fact("glibc", " ".join(platform.libc_ver()) or "none")
    for name, wanted in NEEDED.items():
        yield _package(name, wanted, True)
    yield from _spark()
    yield from _gpus()
    yield from _native_programs()
    yield from _resources()
    for name, (wanted, use) in _OPTIONAL.items():
        yield _package(name, wanted, False, use)


def _flambeau() -> Fact:
    system = f"{platform.system()} {platform.machine()}"
    if not HAS_EXTENSION:
        return Fact("flambeau", f"{VERSION} on {system}, without native parts: for a client of Spark Connect")
    try:
        from flambeau import _native
    except ImportError as error:
        wheel = f"install a wheel of Flambeau for this system ({NATIVE_PLATFORM})"
        return Fact("flambeau", f"its extension cannot be loaded on {system}: {error}", wheel)
    return Fact("flambeau", f"{_native.__version__} on {system}, in {Path(__file__).parent}")


def _python() -> Fact:
    wanted = ".".join(map(str, _PYTHON))
    is_old = sys.version_info < _PYTHON
    found = f"{platform.python_version()} ({sys.executable})"
    return Fact("Python", found, f"take Python {wanted} or later" if is_old else None)


def _package(name: str, wanted: str, is_needed: bool, use: str = "") -> Fact:
    """A package and whether its version is one that is taken; it is not imported."""
    remedy = f"pip install '{name}{wanted}'{use}"
    try:
        found = version(name)
    except PackageNotFoundError:
        return Fact(name, "not installed", remedy, is_needed)
    return Fact(name, found) if is_within(found, wanted) else Fact(name, found, remedy, is_needed)


def is_within(found: str, wanted: str) -> bool:
    """Whether a version is one of those that `>=` and `<` leave, such as `>=2.4,<2.14`, by its numbers."""
    numbers = _numbers(found)
    bounds = [(bound[1], _numbers(bound[2])) for bound in re.finditer(r"(>=|<)([\d.]+)", wanted)]
    return all(numbers >= bound if sign == ">=" else numbers < bound for sign, bound in bounds)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text.partition("+")[0])]


def _spark() -> Iterator[Fact]:
    """What a session of Spark needs here: versions that Spark itself takes, Java, and the jar."""
    try:
        import pyspark
        from pyspark.sql.pandas.utils import require_minimum_pandas_version, require_minimum_pyarrow_version
    except ImportError as error:
        yield Fact("pyspark", first_line(error), "pip install 'flambeau[spark]', or run where Spark is")
        return
    found = pyspark.__version__
    remedy = None if is_within(found, PYSPARK) else f"pip install 'pyspark{PYSPARK}'"
    # Not by its package: those of vendors have other names.
    yield Fact("pyspark", found, remedy)
    try:
        require_minimum_pandas_version()
        require_minimum_pyarrow_version()
        yield Fact("Arrow", f"pandas and pyarrow are recent enough for pyspark {found}")
    except ImportError as error:
        yield Fact("Arrow", first_line(error), "pip install the versions that pyspark asks for")
    try:
        from pyspark.sql.connect.utils import check_dependencies

        check_dependencies("pyspark.sql.connect")
        yield Fact("Spark Connect", "its packages are there")
    except ImportError as error:
        remedy = "pip install 'pyspark[connect]', for sessions of Spark Connect"
        yield Fact("Spark Connect", first_line(error), remedy, False)
    home = os.environ.get("SPARK_HOME")
    own = Path(pyspark.__file__).parent / "jars"
    # A client of Spark Connect alone brings no jars, and starts no JVM.
    yield _java(_numbers(found)[0], own.is_dir())
    places = [Path(__file__).parent / "_jars", own, *([Path(home, "jars")] if home else [])]
    jars = [str(jar) for place in places for jar in sorted(place.glob("flambeau*.jar"))]
    remedy = "give a session spark.jars, for transform in the JVM and for Scala"
    yield Fact("jar", ", ".join(jars) or "none beside Flambeau or in Spark", None if jars else remedy, False)


def _java(spark: int, is_needed: bool) -> Fact:
    home, oldest = os.environ.get("JAVA_HOME"), _JAVA.get(spark, max(_JAVA.values()))
    program = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    remedy = f"install a Java {oldest} or later, or set JAVA_HOME to one"
    if program is None:
        where = f"JAVA_HOME ({home}) holds none" if home else "there is none on the PATH"
        return Fact("Java", where, remedy, is_needed)
    told = _output(program, "-version")
    found = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', told)
    if found is None:
        return Fact("Java", f"{program} does not run: {told}", remedy, is_needed)
    is_old = int(found[2]) < oldest
    return Fact("Java", f"{found[1]} ({program})", remedy if is_old else None, is_needed)


def _gpus() -> Iterator[Fact]:
    """Whether torch can be imported, the GPUs that it can use, and NCCL beside them."""
    try:
        import torch  # noqa: F401  whether it can be
    except Exception as error:
        if find_spec("torch") is not None:
            yield Fact("torch", f"cannot be imported: {first_line(error)}", "install it anew")
        return
    try:
        from flambeau import _native
        from flambeau._module.devices import nccl_directories
        from flambeau._score.placement import visible
    except ImportError:
        return  # told already
    found = visible()
    if not found.uuids:
        yield Fact("GPUs", f"none: {found.reason}")
        return
    try:
        secret = os.urandom(32)
        nccl, _ = _native.nccl_meeting(nccl_directories(), 0, 1, lambda one: [one], secret, "127.0.0.1")
    except CollectiveError as error:
        remedy = "install NCCL (pip install nvidia-nccl-cu13), or name its file by FLAMBEAU_NCCL"
        yield Fact("GPUs", f"{len(found.uuids)}, without NCCL: {first_line(error)}", remedy)
        return
    yield Fact("GPUs", f"{len(found.uuids)} ({', '.join(found.uuids)}), NCCL {nccl}")


def _native_programs() -> Iterator[Fact]:
    """`flambeau-worker`, and the libtorch that it finds as a task of `runtime="native"` has it."""
    try:
        from flambeau._rank.native_runtime import binary

        program = binary()
    except (FlambeauError, ImportError) as error:
        yield Fact("flambeau-worker", "missing", first_line(error), False)
        return
    yield Fact("flambeau-worker", str(program))
    directory = libtorch_of(None)
    told = _output(str(program), "libtorch", *(["--libtorch", directory] if directory else []))
    try:
        libtorch = json.loads(told)
    except ValueError:
        name = told.removeprefix("flambeau-worker: ")
        yield Fact("libtorch", name, f"runtime='native' and Scala need libtorch {TORCH}", False)
        return
    build = "with CUDA" if libtorch["cuda"] else "for CPUs"
    yield Fact("libtorch", f"{libtorch['version']} {build}, {Path(libtorch['libraries'][0]).parent}")


def _num_cores() -> int:
    """Those that this process may use, where the system tells, else all."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _resources() -> Iterator[Fact]:
    """Cores, memory, and the directories that are written to."""
    if platform.system() != "Linux":
        return
    yield Fact("cores", str(_num_cores()))
    memory = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    total, available = (int(memory[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    limit = _LIMIT.read_text().strip() if _LIMIT.is_file() else "max"
    capped = "" if limit == "max" else f"; this container has at most {_gib(int(limit))}"
    yield Fact("memory", f"{_gib(total)}, of which {_gib(available)} are free{capped}")
    if _SHARED.is_dir():
        writable = "writable" if os.access(_SHARED, os.W_OK) else "not writable"
        free = _gib(shutil.disk_usage(_SHARED).free)
        yield Fact(str(_SHARED), f"{writable}, {free} free; of Flambeau's parts NCCL alone takes it")
    try:
        folder = tempfile.gettempdir()
    except OSError as error:
        yield Fact("temporary directory", str(error), "set TMPDIR to a directory that may be written to")
        return
    free = f"{folder}, {_gib(shutil.disk_usage(folder).free)} free"
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        remedy = "set spark.flambeau.nativeDir to one that is not, for Scala and transform in the JVM"
        yield Fact("temporary directory", f"{free}, mounted noexec", remedy, False)
    else:
        yield Fact("temporary directory", free)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def _output(*command: str) -> str:
    """What a program writes, to either output, or why it could not be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stdout + done.stderr).strip()
