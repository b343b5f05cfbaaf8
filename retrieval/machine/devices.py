"""Devices: the GPUs that the NVIDIA driver reports, and the choice of one. Needs neither torch nor CUDA."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from retrieval.errors import InputError

_DEVICE = re.compile(r"auto|cpu|cuda(?::([0-9]{1,4}))?")
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{MAJOR,MINOR}


@dataclass(frozen=True)
class Device:
    """Device that a user asks for.

    Attributes:
        kind: "auto" (a GPU if there is one that works), "cpu" or "cuda".
        index: Number of the GPU; `None` for the first.
    """

    kind: Literal["auto", "cpu", "cuda"] = "auto"
    index: int | None = None

    @classmethod
    def parse(cls, text: str) -> Device:
        """Return the device of a text: auto, cpu, cuda or cuda:N.

        Raises:
            InputError: It is none of them.
        """
        match = _DEVICE.fullmatch(text)
        if not match:
            raise InputError(f"device {text!r}: unknown; known: auto, cpu, cuda, cuda:N")
        kind, _, index = text.partition(":")
        return cls(kind, int(index) if index else None)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.kind if self.index is None else f"{self.kind}:{self.index}"


@dataclass(frozen=True)
class Gpu:
    """GPU of this machine.

    Attributes:
        index: Number among the visible GPUs (CUDA_VISIBLE_DEVICES).
        name: Name, such as "NVIDIA L4".
        memory: Bytes of memory.
        capability: Compute capability, such as (8, 9).
    """

    index: int
    name: str
    memory: int
    capability: tuple[int, int]


@cache
def gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that the NVIDIA driver reports; none without a driver."""
    cuda = _driver()
    count = ctypes.c_int()
    if cuda is None or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    return tuple(_gpu(cuda, index) for index in range(count.value))


def driver_cuda() -> tuple[int, int] | None:
    """Return the newest CUDA version that the NVIDIA driver supports; `None` without a driver."""
    cuda, version = _driver(), ctypes.c_int()
    if cuda is None or cuda.cuDriverGetVersion(ctypes.byref(version)):
        return None
    return version.value // 1000, version.value % 1000 // 10


def nvidia_cards(folder: Path = Path("/sys/bus/pci/devices")) -> int:
    """Return the number of NVIDIA GPUs on the PCI bus, with or without a driver; 0 where Linux does not say.

    Args:
        folder: Folder of Linux with the devices.
    """
    return sum(
        _first_line(device / "vendor") == "0x10de" and _first_line(device / "class").startswith("0x03")
        for device in folder.glob("*")
    )


def _first_line(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


@cache
def _driver() -> ctypes.CDLL | None:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return None if cuda.cuInit(0) else cuda


def _gpu(cuda: ctypes.CDLL, index: int) -> Gpu:
    handle, name, memory = ctypes.c_int(), ctypes.create_string_buffer(128), ctypes.c_size_t()
    cuda.cuDeviceGet(ctypes.byref(handle), index)
    cuda.cuDeviceGetName(name, len(name), handle)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    major, minor = ctypes.c_int(), ctypes.c_int()
    for value, attribute in ((major, _MAJOR), (minor, _MINOR)):
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle)
    return Gpu(index, name.value.decode(errors="replace"), memory.value, (major.value, minor.value))
