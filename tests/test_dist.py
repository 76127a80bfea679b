"""What `make dist` writes, as those get it who install it; `make test-dist` runs this.

The oracles are the tools that package indexes and distributions use, pip, uv, and Spark's own way to Maven.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("auditwheel", reason="`make test-dist` runs it in an environment of its own")

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "build" / "dist"
PROGRAMS = ROOT / "tests" / "programs"
CONSTRAINTS = sorted((ROOT / "tests" / "constraints").glob("*.txt"))
BIN = Path(sys.executable).parent
FEATURES = {
    "mlflow": "import flambeau.mlflow; flambeau.mlflow.autolog()",
    "optuna": "import optuna, flambeau.optuna as o; o.PruningCallback(optuna.create_study().ask())",
    "plot": "from flambeau._plot import axes_of; axes_of(None)",
    "tensorboard": "import flambeau, tensorboard.summary",
}
"""The extras that bring no Spark, with a program that needs each."""
REPLACED = {
    "databricks-16.4": {"mlflow"},
    "databricks-16.4-ml": {"mlflow", "optuna"},
    "databricks-17.3-ml": {"optuna"},
}
"""The extras that need a newer package than a runtime has; docs/install.md tells so."""
COMPILERS = ("cc", "gcc", "g++", "clang", "make", "rustc", "cargo", "javac", "scalac")
MOST_BYTES = 25_000_000
NEXT_DEBIAN = "trixie"

pytestmark = pytest.mark.timeout(3000)


def run(*command: object, **options: Any) -> str:
    """Runs a command, which must succeed, and returns what it printed."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout + done.stderr


def uv(*command: object) -> str:
    return run(BIN / "uv", "--quiet", "--no-progress", *command)


def linked(*packages: str) -> set[str]:
    """The crates of others that are linked into these packages, each with its version, as Cargo tells."""
    named = [part for package in packages for part in ("--package", package)]
    target = ["--target", "x86_64-unknown-linux-gnu", "--edges", "normal,no-proc-macro"]
    told = run("cargo", "tree", "--quiet", "--locked", *named, *target, "--prefix", "none", cwd=ROOT)
    crates = {" ".join(line.split()[:2]).replace(" v", " ") for line in told.splitlines() if line}
    return {crate for crate in crates if not crate.startswith("flambeau-")}


@pytest.fixture(scope="module")
def wheel() -> Path:
    (found,) = DIST.glob("*-abi3-*.whl")
    return found


@pytest.fixture(scope="module")
def client_wheel() -> Path:
    (found,) = DIST.glob("*-py3-none-any.whl")
    return found


def outcome(printed: str) -> dict[str, Any]:
    """What one of the programs told."""
    told: dict[str, Any] = json.loads(printed.split("OUTCOME ")[1].splitlines()[0])
    return told


def check(told: dict[str, Any], python: str | Path, jar: str) -> None:
    assert Path(told["from"]).is_relative_to(Path(python).parents[1])
    assert told["epochs"] == 2
    assert jar in told["jars"]
    assert told["in the JVM"] and told["difference"] < 1e-4


def packages_line(artifact: str, program: str) -> str:
    """The line of docs/install.md that submits with `--packages`, for an artifact and a program."""
    line = re.search(
        r"^    (spark-submit .*--packages .*) \.\.\.$", (ROOT / "docs" / "install.md").read_text(), re.M
    )
    assert line
    return f"{line[1]} {program}".replace("spark4_2.13", artifact)


class Machine:
    """A root of Debian's next release, with that release's Python, C library and Java, and no compiler."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.before: dict[str, set[str]] = {}
        """All files before the wheel came into an environment, by its name."""

    def run(self, *command: object, **variables: object) -> str:
        """Runs a command there in /work, which has nothing of this machine's environment."""
        own = {"PATH": "/usr/bin:/bin", "HOME": "/root", "SPARK_LOCAL_IP": "127.0.0.1"} | variables
        settings = [f"{name}={value}" for name, value in own.items()]
        return run("chroot", self.root, "env", "-i", "-C", "/work", *settings, *command)

    def install(self, name: str, wheel: Path, extras: str, *more: str) -> str:
        """A new environment there into which its pip has installed a wheel; its Python. What the wheel needs
        is there before, from uv's cache.
        """
        folder = f"/opt/{name}"
        self.run("python3", "-m", "venv", folder)
        (site,) = (self.root / "opt" / name).glob("lib/python*/site-packages")
        version = ("--python-version", site.parent.name.removeprefix("python"))
        there = ("--target", site, *version, "--python-platform", "x86_64-manylinux_2_34")
        uv("pip", "install", *there, f"{wheel}[{extras}]", *more)
        uv("pip", "uninstall", "--target", site, "flambeau")
        self.before[name] = self.files()
        pip = (f"{folder}/bin/pip", "--no-cache-dir")
        self.run(*pip, "install", "--no-index", f"/path/to/build/dist/{wheel.name}[{extras}]")
        self.run(*pip, "check")
        return f"{folder}/bin/python"

    def files(self) -> set[str]:
        """All that is there, but for /proc."""
        found = run("find", self.root, "-path", self.root / "proc", "-prune", "-o", "-printf", r"%P\n")
        return set(found.splitlines())


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    if os.geteuid():
        pytest.skip("SKIPPED: debootstrap needs root")
    if not shutil.which("debootstrap"):
        pytest.skip("SKIPPED: debootstrap is missing")
    root = tmp_path_factory.mktemp("machine") / "root"
    wanted = "python3,python3-venv,openjdk-21-jre-headless,procps,ca-certificates"
    run("debootstrap", "--variant=minbase", f"--include={wanted}", NEXT_DEBIAN, root)
    # Nothing but the repository of `make dist` is to be had there.
    (root / "etc" / "resolv.conf").unlink()
    assert not [name for name in COMPILERS if shutil.which(name, path=root / "usr" / "bin")]
    (root / "work").mkdir()
    shutil.copytree(PROGRAMS, root / "programs")
    # Where docs/install.md has it.
    shutil.copytree(DIST, root / "path" / "to" / "build" / "dist")
    run("mount", "-t", "proc", "proc", root / "proc")
    try:
        yield Machine(root)
    finally:
        run("umount", root / "proc")


@pytest.fixture(scope="module")
def python(machine: Machine, wheel: Path) -> str:
    """The Python of an environment there that has the wheel and Spark."""
    return machine.install("spark", wheel, "spark")


def test_the_wheel_is_what_its_name_says(wheel: Path) -> None:
    assert re.fullmatch(r"flambeau-[\d.]+-cp311-abi3-manylinux_2_34_x86_64\.whl", wheel.name)
    audited = run(BIN / "auditwheel", "show", wheel).replace("\n", " ")
    assert 'constrains the platform tag to "manylinux_2_34_x86_64"' in audited
    run(BIN / "abi3audit", "--strict", wheel)
    run(BIN / "check-wheel-contents", wheel)
    run(BIN / "twine", "check", "--strict", wheel)
    assert wheel.stat().st_size < MOST_BYTES


def test_the_descriptions_need_no_other_file(wheel: Path, client_wheel: Path) -> None:
    for file in (wheel, client_wheel):
        with zipfile.ZipFile(file) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            description = archive.read(name).decode().split("\n\n", 1)[1]
        assert description.startswith("# Flambeau\n") and "TorchRegressor(" in description
        assert re.findall(r"\]\((?!https:)|!\[|<img", description) == []


def test_the_wheel_holds_each_part_once(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = next(name.split("/")[0] for name in names if ".dist-info/" in name)
        bills = {
            name.split("/")[-1].split(".")[0]: json.loads(archive.read(name))
            for name in names
            if name.startswith(f"{info}/sboms/")
        }
        jars = [name for name in names if name.startswith("flambeau/_jars/")]
        inside = [name for jar in jars for name in zipfile.ZipFile(archive.open(jar)).namelist()]
        licences = archive.read(f"{info}/licenses/LICENSES-THIRD-PARTY").decode()
    version = info.removeprefix("flambeau-").removesuffix(".dist-info")
    lines = ("spark35_2.12", "spark35_2.13", "spark4_2.13")
    assert sorted(jars) == [f"flambeau/_jars/flambeau-{line}-{version}.jar" for line in lines]
    assert not any(name.startswith("native/") for name in inside)
    assert sorted(name for name in names if name.startswith("flambeau/_bin/")) == [
        f"flambeau/_bin/{name}" for name in ("flambeau-worker", "libflambeau_jni_torch.so")
    ]
    assert f"{info}/licenses/LICENSE" in names
    # A bill of materials for each native part; maturin's, of the extension, is for any platform.
    parts = ("flambeau-jni-torch", "flambeau-python", "flambeau-worker")
    assert sorted(bills) == list(parts)
    for part, bill in bills.items():
        assert bill["bomFormat"] == "CycloneDX"
        crates = {f"{crate['name']} {crate['version']}" for crate in bill["components"]}
        assert linked(part) <= crates
        if part != "flambeau-worker":
            assert {crate for crate in crates if crate.startswith("parquet ")}
    assert not {crate for crate in linked(*parts) if crate not in licences}


def test_another_build_gives_the_same_bytes(tmp_path: Path) -> None:
    """Of the jars too, which are packed anew; what is compiled is compiled once."""
    first = {path.relative_to(DIST): path.read_bytes() for path in DIST.rglob("*") if path.is_file()}
    for packed in (ROOT / "build" / "jvm" / "libs").glob("flambeau-*-*"):
        packed.unlink()
    run("make", "--no-print-directory", "dist", f"DIST={tmp_path}/dist", cwd=ROOT)
    again = {
        path.relative_to(tmp_path / "dist"): path.read_bytes()
        for path in (tmp_path / "dist").rglob("*")
        if path.is_file()
    }
    assert first.keys() == again.keys()
    assert [name for name in first if first[name] != again[name]] == []


@pytest.mark.parametrize("constraints", CONSTRAINTS, ids=[path.stem for path in CONSTRAINTS])
def test_a_runtimes_own_packages_stay(wheel: Path, constraints: Path) -> None:
    """With each at the runtime's version there is a solution, so that pip replaces none: of the wheel with
    all extras but Spark, which a runtime has, and those of which docs/install.md says otherwise.
    """

    def solve(*extras: str) -> str:
        given = f"flambeau[{','.join(extras)}] @ {wheel.as_uri()}\n"
        solving = ("pip", "compile", "--python-version", "3.12", "--constraint", constraints)
        return run(BIN / "uv", "--no-progress", *solving, "-", input=given)

    replaced = REPLACED.get(constraints.stem, set())
    assert "flambeau" in solve(*(FEATURES.keys() - replaced))
    for extra in replaced:
        with pytest.raises(AssertionError, match="No solution found"):
            solve(extra)


def test_the_first_example_of_the_readme_runs_as_it_stands_there(machine: Machine, python: str) -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block
    work = machine.root / "work"
    (work / "first.py").write_text(block[1])
    (work / "build" / "flights").mkdir(parents=True)
    columns = ["dep_delay", "distance", "arr_delay"]
    rows = f"numpy.random.default_rng(1).integers(0, 100, (1000, 3)), columns={columns}"
    written = f"pandas.DataFrame({rows}).to_parquet('build/flights/flights.parquet')"
    machine.run(python, "-c", f"import numpy, pandas; {written}")
    assert "|arr_delay|" in machine.run(python, "first.py", PYSPARK_PYTHON=python)


def test_it_runs_with_the_jars_that_it_brings(machine: Machine, python: str) -> None:
    told = outcome(machine.run(python, "/programs/installed.py", PYSPARK_PYTHON=python))
    check(told, python, "flambeau-spark4_2.13-")


def test_packages_brings_the_jar_and_the_natives(machine: Machine, python: str) -> None:
    """From a file repository, where no other can be reached. Another line's jar is found too; here nothing
    could be done with it.
    """
    spark = machine.run(python, "-c", "import pyspark; print(*pyspark.__path__)").strip()

    def submit(artifact: str, program: str) -> str:
        line = packages_line(artifact, program)
        return machine.run("sh", "-c", line, PATH=f"{spark}/bin:/usr/bin:/bin", PYSPARK_PYTHON=python)

    told = outcome(submit("spark4_2.13", "/programs/installed.py --confs {}"))
    check(told, python, "flambeau-natives-")
    assert "flambeau-spark4_2.13-" in told["jars"]
    (machine.root / "work" / "jars.py").write_text(
        "from pyspark import SparkContext\nprint(SparkContext('local').getConf().get('spark.jars'))\n"
    )
    jars = submit("spark35_2.13", "jars.py")
    assert "flambeau-spark35_2.13-" in jars and "flambeau-natives-" in jars


@pytest.mark.parametrize("extra", FEATURES)
def test_each_other_extra_does_alone(machine: Machine, python: str, wheel: Path, extra: str) -> None:
    """Beside a Spark of the machine's own, which is that of the other environment."""
    alone = machine.install(extra, wheel, extra)
    spark = machine.run(python, "-c", "import pyspark; print(*pyspark.__path__)").strip()
    path = ":".join(
        f"/{path.relative_to(machine.root)}" for path in machine.root.glob(f"{spark[1:]}/python/lib/*.zip")
    )
    own = {"HOME": f"/opt/{extra}", "TMPDIR": f"/opt/{extra}"}
    machine.run(alone, "-c", FEATURES[extra], SPARK_HOME=spark, PYTHONPATH=path, **own)


def test_it_runs_on_spark_35(wheel: Path, tmp_path: Path) -> None:
    """With the jars that it brings, and with those that `--packages` brings."""
    folder = tmp_path / "venv"
    uv("venv", "--python", BIN / "python", folder)
    python = folder / "bin" / "python"
    group = f"{ROOT}/python/pyproject.toml:spark35"
    uv("pip", "install", "--python", python, f"{wheel}[spark]", "--group", group)
    path = f"{folder}/bin:{os.environ['PATH']}"
    own = {"PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1", "TMPDIR": str(tmp_path)}
    own |= {"JAVA_HOME": os.environ["JAVA_HOME"], "HOME": str(tmp_path), "PATH": path}
    program = PROGRAMS / "installed.py"
    check(outcome(run(python, program, env=own, cwd=tmp_path)), python, "flambeau-spark35_2.12-")
    line = packages_line("spark35_2.12", f"{program} --confs {{}}").replace("/path/to/build/dist", str(DIST))
    told = outcome(run("sh", "-c", line, env=own, cwd=tmp_path))
    check(told, python, "flambeau-natives-")
    assert "flambeau-spark35_2.12-" in told["jars"]


def test_the_clients_wheel_is_for_every_platform(client_wheel: Path) -> None:
    run(BIN / "check-wheel-contents", client_wheel)
    run(BIN / "twine", "check", "--strict", client_wheel)
    with zipfile.ZipFile(client_wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("/METADATA"))
    assert not [name for name in names if name.endswith((".so", ".jar", "flambeau-worker", "THIRD-PARTY"))]
    assert "OS Independent" in metadata and "Linux\n" not in metadata and "THIRD-PARTY" not in metadata
    assert client_wheel.stat().st_size < 1_000_000


@pytest.mark.parametrize("pyspark", ["pyspark>=4.1", "pyspark==4.0.*"])
def test_a_client_without_native_parts_has_its_workers_do_what_needs_them(
    machine: Machine, client_wheel: Path, python: str, pyspark: str
) -> None:
    """A client of Spark Connect, beside the same program by one that has them."""
    version = re.sub(r"\D", "", pyspark)
    own = machine.install(f"client-{version}", client_wheel, "spark", pyspark)

    def told(client: str) -> dict[str, Any]:
        work = machine.root / "work" / "clients"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        return outcome(machine.run(client, "/programs/client.py", "/work/clients", PYSPARK_PYTHON=python))

    with_parts, without = told(python), told(own)
    assert Path(without.pop("from")).is_relative_to(Path(own).parents[1])
    assert Path(with_parts.pop("from")).is_relative_to(Path(python).parents[1])
    assert (with_parts.pop("extension"), without.pop("extension")) == (True, False)
    assert without == with_parts
    assert without["runId"] == "nightly" and without["difference"] < 1e-6 and len(without["losses"]) == 3
    assert without["threaded"] == without["losses"][:1]
    assert "dataLanes is 3" in without["refusals"][0] and "is no checkpoint" in without["refusals"][1]


def test_the_repository_has_what_central_asks_for() -> None:
    poms = list((DIST / "maven").rglob("*.pom"))
    assert len(poms) == 4
    for pom in poms:
        text = pom.read_text()
        for element in ("name", "description", "url", "licenses", "developers", "scm"):
            assert f"<{element}>" in text, f"{pom} has no {element}"
        files = {path.name.removeprefix(pom.stem) for path in pom.parent.iterdir()}
        parts = {".pom", ".jar", "-sources.jar", "-javadoc.jar"}
        if "<packaging>pom<" in text:
            parts = {".pom", "-linux-x86_64.jar"}
        assert files == parts | {f"{part}{checksum}" for part in parts for checksum in (".md5", ".sha1")}
        for part in parts:
            file = f"{pom.with_suffix('')}{part}"
            for checksum in ("md5", "sha1"):
                assert run(f"{checksum}sum", file).split()[0] == Path(f"{file}.{checksum}").read_text()


def test_uninstalling_leaves_nothing_but_caches(machine: Machine, python: str) -> None:
    """The last: the others need it."""
    environment = Path(python).parents[1]
    (site,) = (machine.root / environment.relative_to("/")).glob("lib/python*/site-packages")
    assert (site / "flambeau").is_dir() and (site.parents[2] / "bin" / "flambeau").is_file()
    machine.run(environment / "bin" / "pip", "uninstall", "--yes", "flambeau")
    left = {path for path in machine.files() - machine.before["spark"] if "/__pycache__" not in path}
    ours = {"tmp/flambeau-jars-0", "tmp/flambeau-cache-root"}
    others = {"root/.ivy2.5.2", "tmp/torchinductor_root"}
    tests = {"work/first.py", "work/build", "work/jars.py", "work/clients"}
    tests |= {f"opt/{name}" for name in machine.before.keys() - {"spark"}}
    assert {"/".join(path.split("/")[:2]) for path in left} <= ours | others | tests
