"""The wheels of a directory, of the one that maturin wrote there: that with a description which needs no
other file of the repository, and one without its native parts, for clients of Spark Connect on every system.
Their bytes follow from that wheel alone.

    python .ci/wheels.py build/dist
"""

import base64
import hashlib
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

Change = Callable[[str], str]


def main() -> None:
    """Rewrites the one and writes the other beside it."""
    (wheel,) = Path(sys.argv[1]).glob("flambeau-*-abi3-*.whl")
    name, version = wheel.stem.split("-")[:2]
    info = f"{name}-{version}.dist-info"
    described = wheel.with_suffix(".described")
    pack(wheel, described, (), {f"{info}/METADATA": with_description})
    described.replace(wheel)
    # The licences and the bills are of the native parts' crates.
    native = ("flambeau/_bin/", "flambeau/_jars/", "flambeau/_native.abi3.so")
    theirs = (f"{info}/sboms/", f"{info}/licenses/LICENSES-THIRD-PARTY")
    changes = {f"{info}/METADATA": for_every_system, f"{info}/WHEEL": pure}
    pack(wheel, wheel.with_name(f"{name}-{version}-py3-none-any.whl"), native + theirs, changes)


def pack(wheel: Path, to: Path, without: tuple[str, ...], changes: dict[str, Change]) -> None:
    """Writes a wheel's files as another, but for those whose names begin so, with these changed."""
    with (
        zipfile.ZipFile(wheel) as whole,
        zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made,
    ):
        (names,) = (entry for entry in whole.infolist() if entry.filename.endswith(".dist-info/RECORD"))
        record = []
        for entry in whole.infolist():
            if entry is names or entry.filename.startswith(without):
                continue
            data = whole.read(entry)
            if change := changes.get(entry.filename):
                data = change(data.decode()).encode()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{entry.filename},sha256={digest},{len(data)}\n")
            made.writestr(entry, data, compresslevel=9)
        made.writestr(names, "".join([*record, f"{names.filename},,\n"]), compresslevel=9)


def with_description(metadata: str) -> str:
    """METADATA whose description, the README, has no picture, no list of pages, and of links only those to
    elsewhere.
    """
    text = re.sub(r"!\[[^]]*\]\([^)]*\)\n\n\*[^*]*\*\n\n", "", metadata)
    text = re.sub(r"## Read on\n.*?(?=Licensed)", "", text, flags=re.DOTALL)
    return re.sub(r"\[([^]]*)\]\((?!https:)[^)]*\)", r"\1", text)


def for_every_system(metadata: str) -> str:
    """METADATA of a wheel without native parts."""
    text = metadata.replace("License-File: LICENSES-THIRD-PARTY\n", "")
    return text.replace("Operating System :: POSIX :: Linux", "Operating System :: OS Independent")


def pure(text: str) -> str:
    """The file WHEEL of a wheel without native parts."""
    kept = [line for line in text.splitlines() if not line.startswith(("Root-Is-Purelib:", "Tag:"))]
    return "\n".join([*(line for line in kept if line), "Root-Is-Purelib: true", "Tag: py3-none-any", ""])


if __name__ == "__main__":
    main()
