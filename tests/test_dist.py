"""What `make dist` writes, as those get it who install it; `make test-dist` runs this.

The oracles are the tools that package indexes and distributions use, pip, uv, and Spark's own way to Maven.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("auditwheel", reason="`make test-dist` runs it in an environment of its own")

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "build" / "dist"
PROGRAM = ROOT / "tests" / "programs" / "installed.py"
CONSTRAINTS = sorted((ROOT / "tests" / "constraints").glob("*.txt"))
BIN = Path(sys.executable).parent
EXTRAS = "spark,mlflow,optuna,plot,tensorboard"
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


def environment(folder: Path, *packages: object) -> Path:
    """A new environment with pip and these packages; its Python."""
    uv("venv", "--seed", "--python", BIN / "python", folder)
    uv("pip", "install", "--python", folder / "bin" / "python", *packages)
    return folder / "bin" / "python"


def run_in(folder: Path, workers: Path, *command: object) -> str:
    """Runs a command whose Python workers are those of an environment; `folder` is all that it may write
    to.
    """
    inherited = {name: os.environ[name] for name in ("JAVA_HOME", "PATH", "HOME")}
    own = {"PYSPARK_PYTHON": str(workers), "SPARK_LOCAL_IP": "127.0.0.1", "TMPDIR": str(folder)}
    return run(*command, cwd=folder, env=inherited | own)


def outcome(python: Path, folder: Path, confs: dict[str, str] | None = None) -> dict[str, Any]:
    """What a program like the README's prints in an environment."""
    given = ["--confs", json.dumps(confs)] if confs else []
    printed = run_in(folder, python, python, PROGRAM, *given)
    line = next(line for line in printed.splitlines() if line.startswith("OUTCOME "))
    told: dict[str, Any] = json.loads(line.removeprefix("OUTCOME "))
    return told


def client_outcome(python: Path, workers: Path, folder: Path) -> dict[str, Any]:
    """What the client's program prints in an environment, with Python's workers of another."""
    work = Path(tempfile.mkdtemp(dir=folder))
    printed = run_in(folder, workers, python, PROGRAM.with_name("client.py"), work)
    told: dict[str, Any] = json.loads(printed.split("OUTCOME ")[1].splitlines()[0].replace(str(work), "."))
    return told


def check(told: dict[str, Any], python: Path, jar: str) -> None:
    assert Path(told["from"]).is_relative_to(python.parents[1])
    assert told["epochs"] == 2
    assert jar in told["jars"]
    assert told["in the JVM"] and told["difference"] < 1e-4


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel with all its extras."""
    return environment(tmp_path_factory.mktemp("all") / "venv", f"{wheel}[{EXTRAS}]")


def test_the_wheel_is_what_its_name_says(wheel: Path) -> None:
    assert re.fullmatch(r"flambeau-[\d.]+-cp311-abi3-manylinux_2_34_x86_64\.whl", wheel.name)
    audited = run(BIN / "auditwheel", "show", wheel).replace("\n", " ")
    assert 'constrains the platform tag to "manylinux_2_34_x86_64"' in audited
    run(BIN / "abi3audit", "--strict", wheel)
    run(BIN / "check-wheel-contents", wheel)
    run(BIN / "twine", "check", "--strict", wheel)
    assert wheel.stat().st_size < MOST_BYTES


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
def test_a_runtimes_own_packages_stay(wheel: Path, constraints: Path, tmp_path: Path) -> None:
    """With each at the runtime's version there is a solution, so that pip replaces none.

    For Python 3.11: some of those versions have no wheels for the runtimes' 3.12 elsewhere.
    """
    given = tmp_path / "requirements.in"
    given.write_text(f"flambeau @ {wheel.as_uri()}\n")
    solved = uv("pip", "compile", "--python-version", "3.11", "--constraint", constraints, given)
    assert "flambeau @" in solved


def test_the_first_example_of_the_readme_runs_as_it_stands_there(python: Path, tmp_path: Path) -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block
    (tmp_path / "first.py").write_text(block[1])
    (tmp_path / "build" / "flights").mkdir(parents=True)
    columns = ["dep_delay", "distance", "arr_delay"]
    rows = f"numpy.random.default_rng(1).integers(0, 100, (1000, 3)), columns={columns}"
    written = f"pandas.DataFrame({rows}).to_parquet('build/flights/flights.parquet')"
    run_in(tmp_path, python, python, "-c", f"import numpy, pandas; {written}")
    assert "|arr_delay|" in run_in(tmp_path, python, python, "first.py")


def test_it_runs_with_the_jars_that_it_brings(python: Path, tmp_path: Path) -> None:
    check(outcome(python, tmp_path), python, "flambeau-spark4_2.13-")


def test_it_runs_on_spark_35(wheel: Path, tmp_path: Path) -> None:
    line = f"{ROOT}/python/pyproject.toml:spark35"
    installed = environment(tmp_path / "venv", f"{wheel}[spark]", "--group", line)
    check(outcome(installed, tmp_path), installed, "flambeau-spark35_2.12-")


def test_packages_brings_the_jar_and_the_natives(python: Path, tmp_path: Path) -> None:
    """From a file repository, by Spark's own `--packages`, in a session that knows of no other."""
    (pom,) = (DIST / "maven").rglob("flambeau-spark4_2.13-*.pom")
    group = re.search(r"<groupId>(.*?)</groupId>", pom.read_text())
    assert group
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        "<ivysettings><settings defaultResolver='files'/><resolvers>"
        f"<ibiblio name='files' m2compatible='true' root='{(DIST / 'maven').as_uri()}'/>"
        "</resolvers></ivysettings>"
    )
    confs = {
        "spark.jars.packages": f"{group[1]}:flambeau-spark4_2.13:{pom.parent.name}",
        "spark.jars.ivySettings": str(settings),
        "spark.jars.ivy": str(tmp_path / "ivy"),
    }
    check(outcome(python, tmp_path, confs), python, "flambeau-natives-")


def test_the_clients_wheel_is_for_every_platform(client_wheel: Path) -> None:
    run(BIN / "check-wheel-contents", client_wheel)
    run(BIN / "twine", "check", "--strict", client_wheel)
    with zipfile.ZipFile(client_wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith((".so", ".jar", "flambeau-worker"))]
    assert client_wheel.stat().st_size < 1_000_000


@pytest.mark.parametrize("pyspark", ["pyspark>=4.1", "pyspark==4.0.*"])
def test_a_client_without_native_parts_has_its_workers_do_what_needs_them(
    client_wheel: Path, python: Path, tmp_path: Path, pyspark: str
) -> None:
    """A client of Spark Connect, beside the same program by one that has them."""
    own = environment(tmp_path / "venv", f"{client_wheel}[spark]", pyspark)
    with_parts, without = (client_outcome(one, python, tmp_path) for one in (python, own))
    assert Path(without.pop("from")).is_relative_to(own.parents[1])
    assert Path(with_parts.pop("from")).is_relative_to(python.parents[1])
    assert (with_parts.pop("extension"), without.pop("extension")) == (True, False)
    assert without == with_parts
    assert without["runId"] == "nightly" and without["difference"] < 1e-6 and len(without["losses"]) == 3
    assert without["threaded"] == without["losses"][:1]
    assert "dataLanes is 3" in without["refusals"][0] and "is no checkpoint" in without["refusals"][1]


def test_the_poms_have_what_central_asks_for() -> None:
    poms = list((DIST / "maven").rglob("*.pom"))
    assert len(poms) == 4
    for pom in poms:
        text = pom.read_text()
        for element in ("name", "description", "url", "licenses", "developers", "scm"):
            assert f"<{element}>" in text, f"{pom} has no {element}"
        assert "<packaging>pom<" in text or {
            path.name.removeprefix(pom.stem) for path in pom.parent.iterdir()
        } == {".pom", ".jar", "-sources.jar", "-javadoc.jar"}


def test_it_runs_on_debians_next_release(wheel: Path, tmp_path: Path) -> None:
    """In a root of its own, with that release's Python, C library and Java."""
    if os.geteuid():
        pytest.skip("SKIPPED: debootstrap needs root")
    if not shutil.which("debootstrap"):
        pytest.skip("SKIPPED: debootstrap is missing")
    root = tmp_path / "root"
    wanted = "python3,openjdk-21-jre-headless,procps,ca-certificates"
    run("debootstrap", "--variant=minbase", f"--include={wanted}", NEXT_DEBIAN, root)
    version = run(
        "chroot", root, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"
    ).strip()
    assert version != "3.11"
    uv(
        "pip", "install", "--target", root / "opt" / "site", "--python-version", version,
        "--python-platform", "x86_64-manylinux_2_34", f"{wheel}[spark]",
    )  # fmt: skip
    shutil.copy(PROGRAM, root / "opt")
    (root / "proc").mkdir(exist_ok=True)
    run("mount", "-t", "proc", "proc", root / "proc")
    try:
        printed = run(
            "chroot", root, "env", "-i", "PATH=/usr/bin:/bin", "PYTHONPATH=/opt/site",
            "PYSPARK_PYTHON=python3", "SPARK_LOCAL_IP=127.0.0.1", "python3", "/opt/installed.py",
        )  # fmt: skip
    finally:
        run("umount", root / "proc")
    told = json.loads(printed.split("OUTCOME ")[1].splitlines()[0])
    assert told["from"].startswith("/opt/site/")
    assert told["in the JVM"] and told["difference"] < 1e-4


def test_uninstalling_leaves_nothing(python: Path) -> None:
    """The last: the others need it."""
    (site,) = (python.parents[1] / "lib").glob("python*/site-packages")
    assert (site / "flambeau").is_dir()
    run(python, "-m", "pip", "uninstall", "--yes", "flambeau")
    assert list(site.glob("*flambeau*")) == []
