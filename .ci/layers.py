"""Hold Scala's packages to their layers: each imports only what is below it, and there is no circle."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "jvm" / "src" / "main" / "scala" / "flambeau"
# From the ground up; those of one line know nothing of each other. The package `flambeau` is three layers,
# and its package `internal` lies between them.
LAYERS = ["errors", "util", "session", "jni", "words", "model storage", "rows saving", "fit scoring", "top"]
DEPTHS = {name: depth for depth, names in enumerate(LAYERS) for name in names.split()}
TOP = re.compile("Torch|PipelineModels|PythonModel|FlambeauExtensions")
IMPORT = re.compile(r"^import flambeau\.(?:internal\.)?(?:\{([^}]*)\}|(\w+))", re.MULTILINE)


def layer(name: str) -> str:
    """The layer of a package, or of a class of `flambeau` itself."""
    if name[0].islower():
        return name
    is_error = name == "Errors" or name.endswith("Exception")
    return "errors" if is_error else "top" if TOP.match(name) else "words"


wrong = []
for path in sorted(ROOT.rglob("*.scala")):
    parts = [part for part in path.relative_to(ROOT).parts if part != "internal"]
    own = layer(parts[0].removesuffix(".scala"))
    for several, one in IMPORT.findall(path.read_text()):
        for used in (name.strip() for name in (several or one).split(",")):
            if layer(used) != own and DEPTHS[layer(used)] >= DEPTHS[own]:
                wrong.append(f"{path.relative_to(ROOT)} is of {own}, and imports {used}, of {layer(used)}")
if wrong:
    raise SystemExit("\n".join(wrong))
