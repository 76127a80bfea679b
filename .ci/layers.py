"""Hold Scala's packages and the modules of native crates to their layers: each knows only what is below it,
so that there is no circle.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# From the ground up; those of one line know nothing of each other. The package `flambeau` is three layers,
# and its package `internal` lies between them.
SCALA = [
    "errors",
    "util",
    "session",
    "jni",
    "words",
    "model storage",
    "rows saving",
    "fit scoring mlflow",
    "top",
]
TOP = re.compile(
    "Torch|MLflow|PreparedData|CrossValidator|PipelineModels|PythonModel|ModelFunction|FlambeauExtensions"
    "|ListenerException"
)
IMPORT = re.compile(r"^import flambeau\.(?:internal\.)?(?:\{([^}]*)\}|(\w+))", re.MULTILINE)
NATIVE = {
    "data": [
        "buffer error memory",
        "spec store table",
        "batch files",
        "manifest",
        "order",
        "decode",
        "footers reader",
        "contents",
    ],
    "supervisor": [
        "error failure id rows",
        "work_directory",
        "claim logs prepared run",
        "attempt checkpoints sweep",
        "question",
    ],
    "train": ["error digest", "model", "record", "job", "device", "gradients", "checkpoint", "training"],
    "torch": [
        "build error",
        "border options pieces program purity",
        "optimizer tensor",
        "autocast device output random safetensors scores script",
        "buckets classes cuda exported rows state weights",
        "gradients loss",
        "metrics",
        "model",
        "judge load",
        "job scoring",
        "describe",
    ],
}


def scala_layer(name: str) -> str:
    """The layer of a package, or of a class of `flambeau` itself."""
    if name[0].islower():
        return name
    if TOP.match(name):
        return "top"
    return "errors" if name == "Errors" or name.endswith("Exception") else "words"


def scala_uses(text: str) -> list[str]:
    """The layers that a file imports from."""
    several = [one or many for many, one in IMPORT.findall(text)]
    return [scala_layer(name.strip()) for names in several for name in names.split(",")]


def native_uses(text: str) -> list[str]:
    """The modules of its crate that a file names, but for what the crate gives to others."""
    several = [one or many for many, one in re.findall(r"\bcrate::(?:\{(.*?)\}|([a-z]\w*))", text, re.DOTALL)]
    return re.findall(r"(?:^|,)\s*([a-z]\w*)", "\n,".join(several))


def breaches(
    paths: Iterable[Path], layers: list[str], own_of: Callable[[Path], str], uses: Callable[[str], list[str]]
) -> Iterator[str]:
    """A line for each use of what does not lie below."""
    depths = {name: depth for depth, names in enumerate(layers) for name in names.split()}
    for path in sorted(paths):
        own = own_of(path)
        if own not in depths:
            yield f"{path.relative_to(ROOT)} is of {own}, which is in no layer"
            continue
        for used in uses(path.read_text()):
            if used != own and depths.get(used, len(layers)) >= depths[own]:
                yield f"{path.relative_to(ROOT)} is of {own}, and uses {used}"


jvm = ROOT / "jvm/src/main/scala/flambeau"


def first_part(path: Path, root: Path) -> str:
    """The first part of a path below `root`, without what it ends in."""
    return next(part for part in path.relative_to(root).parts if part != "internal").partition(".")[0]


wrong = [*breaches(jvm.rglob("*.scala"), SCALA, lambda path: scala_layer(first_part(path, jvm)), scala_uses)]
for crate, layers in NATIVE.items():
    source = ROOT / "native" / crate / "src"
    files = (path for path in source.rglob("*.rs") if path.name != "lib.rs")
    wrong += breaches(files, layers, partial(first_part, root=source), native_uses)
if wrong:
    raise SystemExit("\n".join(wrong))
