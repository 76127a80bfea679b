"""What the native files need of their machine is what is said of them."""

import platform
import re
import subprocess
import zipfile
from pathlib import Path

import pytest
from elf import Needs, needs

from flambeau import _native

ROOT = Path(__file__).resolve().parent.parent
FILES = ROOT / "build" / "native" / "native" / f"linux-{platform.machine()}"
WORKER, STORE, TORCH = "flambeau-worker", "libflambeau_jni_store.so", "libflambeau_jni_torch.so"
LIBTORCH = {"libc10.so", "libtorch_cpu.so"}
SYSTEM = {
    "libc.so.6",
    "libm.so.6",
    "libgcc_s.so.1",
    "libstdc++.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
}


@pytest.fixture(scope="module")
def needed() -> dict[str, Needs]:
    """Of each of the files."""
    return {name: needs(FILES / name) for name in (WORKER, STORE, TORCH)}


def is_loader(library: str) -> bool:
    """Whether it is the dynamic linker itself, whose name tells the architecture."""
    return library.startswith("ld-linux-")


def documented(library: str) -> tuple[int, ...]:
    """The version that docs/libtorch.md gives as the oldest that will do."""
    found = re.search(
        rf"{re.escape(library)} (\d+(?:\.\d+)+) or later", (ROOT / "docs/libtorch.md").read_text()
    )
    assert found, f"docs/libtorch.md does not say which {library} is needed"
    return tuple(map(int, found[1].split(".")))


@pytest.mark.parametrize("name", [WORKER, STORE, TORCH])
def test_no_newer_system_library_is_needed_than_documented(name: str, needed: dict[str, Needs]) -> None:
    assert needed[name].newest("GLIBC") > (2, 17), "the reader found no versions"
    assert needed[name].newest("GLIBC") <= documented("glibc")
    assert needed[name].newest("GLIBCXX") <= documented("GLIBCXX")


def test_the_reader_finds_what_objdump_finds(needed: dict[str, Needs]) -> None:
    for name, found in needed.items():
        table = subprocess.run(["objdump", "-T", FILES / name], capture_output=True, text=True, check=True)
        shown = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([\d.]+)", table.stdout)}
        assert found.newest("GLIBC") == max(shown)


def test_the_jar_states_the_oldest_glibc(needed: dict[str, Needs]) -> None:
    (jar,) = (ROOT / "build/jvm/libs").glob("flambeau-natives-*.jar")
    newest = max(found.newest("GLIBC") for found in needed.values())
    manifest = zipfile.ZipFile(jar).read("META-INF/MANIFEST.MF").decode()
    stated = re.search(r"^Flambeau-Glibc: ([\d.]+)\r?$", manifest, re.MULTILINE)
    assert stated and tuple(map(int, stated[1].split("."))) == newest


@pytest.mark.parametrize("name", [WORKER, STORE])
def test_the_worker_and_the_store_need_no_libtorch(name: str, needed: dict[str, Needs]) -> None:
    """The worker looks for libtorch itself, so that a missing one is a sentence; files are read without."""
    others = [library for library in needed[name].libraries if not is_loader(library)]
    assert set(others) <= SYSTEM


def test_the_library_needs_libtorch_and_no_python_or_java(needed: dict[str, Needs]) -> None:
    others = {library for library in needed[TORCH].libraries if not is_loader(library)} - SYSTEM
    assert others == LIBTORCH


def test_the_extension_of_python_needs_no_torch() -> None:
    """So it serves any torch that the notebook has."""
    others = {library for library in needs(Path(_native.__file__)).libraries if not is_loader(library)}
    assert others <= SYSTEM
