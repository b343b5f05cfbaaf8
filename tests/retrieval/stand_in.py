"""Stand-ins for what a machine without a GPU lacks: NVIDIA's driver, and libraries with code for GPUs."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

# The calls that Lookalike makes. $CARDS has one card a line: name/major/minor; $DRIVER_CUDA is like 13000.
_DRIVER = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
struct card { char name[100]; int major, minor; };
static int cards(struct card *found) {
    char text[4000] = "", *line;
    int count = 0;
    strncpy(text, getenv("CARDS") ? getenv("CARDS") : "", sizeof text - 1);
    for (line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), count++)
        sscanf(line, "%99[^/]/%d/%d", found[count].name, &found[count].major, &found[count].minor);
    return count;
}
static struct card all[32];
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = atoi(getenv("DRIVER_CUDA")); return 0; }
int cuDeviceGetCount(int *count) { *count = cards(all); return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetName(char *name, int length, int device) { strncpy(name, all[device].name, length); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)24 << 30; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? all[device].major : all[device].minor;
    return 0;
}
"""


def compile_driver(folder: Path) -> None:
    """Compile the driver into a folder for LD_LIBRARY_PATH; skip the test without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler for a stand-in of the driver")
    command = [compiler, "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", str(folder / "libcuda.so.1")]
    subprocess.run(command, input=_DRIVER, text=True, check=True)


def library(*code: str) -> bytes:
    """Return an ELF file with a fat binary, whose entries are named as by cuobjdump: sm_90a, ptx_90."""
    entries = b""
    for name in code:
        kind, _, capability = name.partition("_")
        flags = 1 << 20 if capability.endswith("a") else 0
        number = int(capability.rstrip("a"))
        header = struct.pack("<H2xIQ12xI8xQ", {"ptx": 1, "sm": 2}[kind], 64, 16, number, flags)
        entries += header.ljust(64, b"\0") + b"code of a kernel"
    binary = b"\x50\xed\x55\xba" + struct.pack("<HHQ", 1, 16, len(entries)) + entries
    names = b"\0.nv_fatbin\0.shstrtab\0"
    start, size = 64 + len(names), len(binary)
    sections = [(0, 0, 0), (1, start, size), (12, 64, len(names))]
    table = b"".join(
        struct.pack("<I20xQQ", name, at, length).ljust(64, b"\0") for name, at, length in sections
    )
    head = b"\x7fELF".ljust(40, b"\0") + struct.pack("<Q", start + size)
    head = head.ljust(58, b"\0") + struct.pack("<3H", 64, len(sections), 2)
    return head + names + binary + table


_CODE = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "ptx_90")
# Distribution -> version, requirement that names CUDA, its extension module: file and bytes, and its library
# with code for GPUs. The code is that of the wheels on the package index, as cuobjdump lists it.
WHEELS = {
    "faiss-cpu": ("1.15.1", "numpy", "faiss/_swigfaiss.abi3.so", 6541, "", ()),
    "faiss-gpu": (
        "1.15.1",
        "nvidia-cuda-runtime-cu12<13,>=12.6",
        "faiss/_swigfaiss.abi3.so",
        7001,
        "faiss/libfaiss.so",
        ("sm_70", *_CODE),
    ),
    "faiss-gpu-cuvs": (
        "1.15.1",
        "nvidia-cuda-runtime<14,>=13.2",
        "faiss/_swigfaiss.abi3.so",
        7262,
        "faiss/libfaiss.so",
        _CODE,
    ),
    "onnxruntime": ("1.32.0", "numpy", "onnxruntime/capi/state.so", 3661, "", ()),
    "onnxruntime-gpu": (
        "1.31.1",
        "numpy",
        "onnxruntime/capi/state.so",
        3102,
        "onnxruntime/capi/libonnxruntime_providers_cuda.so",
        ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_120a"),
    ),
    "torch": (
        "2.15.0",
        "numpy",
        "torch/_C.so",
        2002,
        "torch/lib/libtorch_cuda.so",
        ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    ),
}


def install(folder: Path, name: str, program: str = "") -> None:
    """Write the files of a wheel and its records, over those that are there, as an installer does.

    Args:
        folder: Folder of distributions.
        name: One of `WHEELS`.
        program: What its module does when it is imported.
    """
    version, requirement, extension, size, gpu_library, code = WHEELS[name]
    module = extension.partition("/")[0]
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    files = {f"{module}/__init__.py": program.encode(), extension: b"x" * size}
    if gpu_library:
        files[gpu_library] = library(*code)
    if name == "torch":
        files["torch/version.py"] = b"cuda: str = '13.2'\n"
    if module == "onnxruntime":
        cuda = "cuda_version = '13.0'\n" if name == "onnxruntime-gpu" else ""
        files["onnxruntime/capi/build_and_package_info.py"] = f"package_name = '{name}'\n{cuda}".encode()
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).unlink(missing_ok=True)  # it may be a hard link into the cache of uv
        (folder / path).write_bytes(content)
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\nRequires-Dist: {requirement}\n")
    records = [f"{path},,{len(content)}\n" for path, content in files.items()]
    records += [f"{info.name}/{own},,\n" for own in ("METADATA", "RECORD")]
    (info / "RECORD").write_text("".join(records))
