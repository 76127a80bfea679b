"""The wheel for clients of Spark Connect on other machines, made of the wheel in a directory: that without
its native parts, for every platform. Its bytes follow from that wheel alone.

    python .ci/client_wheel.py build/dist
"""

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

NATIVE = ("flambeau/_bin/", "flambeau/_jars/", "flambeau/_native.abi3.so")


def main() -> None:
    """Writes it beside the other."""
    (wheel,) = Path(sys.argv[1]).glob("flambeau-*-abi3-*.whl")
    name, version = wheel.stem.split("-")[:2]
    info = f"{name}-{version}.dist-info"
    record = []
    with (
        zipfile.ZipFile(wheel) as whole,
        zipfile.ZipFile(wheel.with_name(f"{name}-{version}-py3-none-any.whl"), "w") as made,
    ):

        def write(entry: zipfile.ZipInfo, data: bytes) -> None:
            made.writestr(entry, data, zipfile.ZIP_DEFLATED, compresslevel=9)

        for entry in whole.infolist():
            # The bill is of the extension's crates.
            if entry.filename.startswith((*NATIVE, f"{info}/sboms/")) or entry.filename == f"{info}/RECORD":
                continue
            data = whole.read(entry)
            if entry.filename == f"{info}/WHEEL":
                data = pure(data.decode()).encode()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{entry.filename},sha256={digest},{len(data)}\n")
            write(entry, data)
        text = "".join([*record, f"{info}/RECORD,,\n"])
        write(whole.getinfo(f"{info}/RECORD"), text.encode())


def pure(text: str) -> str:
    """The file WHEEL of a wheel without native parts."""
    kept = [line for line in text.splitlines() if not line.startswith(("Root-Is-Purelib:", "Tag:"))]
    return "\n".join([*(line for line in kept if line), "Root-Is-Purelib: true", "Tag: py3-none-any", ""])


if __name__ == "__main__":
    main()
