"""GPU code: the compute capabilities that a library has code for, read from its file without loading it."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_MAGIC = b"\x50\xed\x55\xba"  # of a fat binary, which has the code of one source file for several GPUs
_PTX, _MACHINE_CODE = 1, 2
_EXACT = 1 << 20  # flag of code that runs on its very capability alone, such as sm_90a


class Code(NamedTuple):
    """Code for one compute capability.

    Attributes:
        capability: Compute capability, such as (9, 0).
        is_ptx: Whether it is PTX, which a driver of the same CUDA or newer compiles for later GPUs as well.
        is_exact: Whether it runs on GPUs of this very capability alone.
    """

    capability: tuple[int, int]
    is_ptx: bool = False
    is_exact: bool = False

    def suits(self, capability: tuple[int, int]) -> bool:
        """Return whether GPUs of a capability run it; later ones of its generation run machine code, too."""
        if self.is_exact:
            return self.capability == capability
        return self.capability <= capability and (self.is_ptx or self.capability[0] == capability[0])


def gpu_code(file: Path) -> frozenset[Code]:
    """Return the code in an ELF library of 64 bits; none if it has none, or cannot be read."""
    try:
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return frozenset(code for start, end in _sections(data) for code in _codes(data, start, end))
    except (ArithmeticError, LookupError, OSError, ValueError, struct.error):  # not such a file, or damaged
        return frozenset()


def _sections(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Yield start and end of the sections with fat binaries."""
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<3H", data, 58)
    headers = [struct.unpack_from("<I20xQQ", data, table + number * size) for number in range(count)]
    wanted = b".nv_fatbin\0"
    for name, start, length in headers:
        at = headers[names][1] + name
        if data[at : at + len(wanted)] == wanted:
            yield start, start + length


def _codes(data: mmap.mmap, start: int, end: int) -> Iterator[Code]:
    """Yield the code of each entry of the fat binaries; only their headers are read."""
    while (start := data.find(_MAGIC, start, end)) >= 0:
        head, length = struct.unpack_from("<6xHQ", data, start)
        entry, start = start + head, start + max(head + length, len(_MAGIC))
        while entry < start:
            kind, head, length, capability, flags = struct.unpack_from("<H2xIQ12xI8xQ", data, entry)
            if kind in (_PTX, _MACHINE_CODE):
                yield Code(divmod(capability, 10), kind == _PTX, bool(flags & _EXACT))
            entry += max(head + length, len(_MAGIC))
