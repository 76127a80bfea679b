"""What glibc's allocator holds, by its own account (mallinfo(3))."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS.split()]


_mallinfo = ctypes.CDLL(None).mallinfo2
_mallinfo.restype = _Mallinfo


@dataclass(frozen=True)
class Heap:
    """Bytes that the process has, in use or free: in heaps, and in blocks with pages of their own."""

    heaps: int
    blocks: int

    @classmethod
    def now(cls) -> Heap:
        found = _mallinfo()
        return cls(found.arena, found.hblkhd)
