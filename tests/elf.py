"""What an ELF file asks of the machine that it runs on: libraries, and versions of their symbols."""

import struct
from dataclasses import dataclass
from pathlib import Path

_SECTION = struct.Struct("<IIQQQQIIQQ")
_VERNEED = struct.Struct("<HHIII")
_VERNAUX = struct.Struct("<IHHII")
_DYNAMIC = struct.Struct("<qQ")
_SHT_DYNAMIC, _SHT_GNU_VERNEED = 6, 0x6FFFFFFE
_DT_NEEDED = 1


@dataclass(frozen=True)
class Needs:
    """The libraries that a file names, and for each of them the versions of its symbols."""

    libraries: list[str]
    versions: dict[str, list[str]]

    def newest(self, prefix: str) -> tuple[int, ...]:
        """The newest version needed whose name begins with `prefix` and `_`, such as (2, 34) for `GLIBC`; ()
        for none."""
        names = [name for names in self.versions.values() for name in names]
        numbers = [name.removeprefix(f"{prefix}_") for name in names if name.startswith(f"{prefix}_")]
        return max((tuple(map(int, number.split("."))) for number in numbers), default=())


def needs(path: Path) -> Needs:
    """Reads the dynamic section and the needed versions of a 64-bit little-endian file."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is no 64-bit little-endian ELF file")
    offset = struct.unpack_from("<Q", data, 0x28)[0]
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [_SECTION.unpack_from(data, offset + size * index) for index in range(count)]

    libraries: list[str] = []
    versions: dict[str, list[str]] = {}
    for _, kind, _, _, start, length, link, info, _, _ in sections:
        if kind not in (_SHT_DYNAMIC, _SHT_GNU_VERNEED):
            continue
        strings = sections[link][4]

        def text(name: int, strings: int = strings) -> str:
            return data[strings + name : data.index(b"\0", strings + name)].decode()

        if kind == _SHT_DYNAMIC:
            entries = _DYNAMIC.iter_unpack(data[start : start + length])
            libraries = [text(value) for tag, value in entries if tag == _DT_NEEDED]
            continue
        for _ in range(info):
            _, num_versions, file, first, following = _VERNEED.unpack_from(data, start)
            entry = start + first
            for _ in range(num_versions):
                _, _, _, name, step = _VERNAUX.unpack_from(data, entry)
                versions.setdefault(text(file), []).append(text(name))
                entry += step
            start += following
    return Needs(libraries, versions)
