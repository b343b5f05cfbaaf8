"""GPU code of real libraries against NVIDIA's cuobjdump, and of damaged ones."""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from retrieval.machine.gpu_code import Code, gpu_code
from tests.retrieval.stand_in import library


def test_code_of_torch_is_that_of_cuobjdump() -> None:
    """A library of torch, and the program of Triton."""
    try:
        dump = distribution("triton").locate_file("triton/backends/nvidia/bin/cuobjdump")
    except PackageNotFoundError:
        pytest.skip("needs a torch for CUDA")
    file = Path(str(distribution("torch").locate_file("torch/lib/libtorch_cuda_linalg.so")))
    if not file.exists():
        pytest.skip("needs a torch for CUDA")
    listed = subprocess.run(
        [str(dump), "-lelf", str(file)], capture_output=True, text=True, check=True
    ).stdout
    numbers = {int(number) for number in re.findall(r"\.sm_(\d+)\.cubin", listed)}
    assert len(numbers) > 3
    assert gpu_code(file) == {Code(divmod(number, 10)) for number in numbers}


def test_exact_code_and_ptx_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "lib.so"
    file.write_bytes(library("sm_89", "sm_90a", "ptx_90"))
    code = {Code((8, 9)), Code((9, 0), is_exact=True), Code((9, 0), is_ptx=True)}
    assert gpu_code(file) == code
    suits = {c: {one for one in code if one.suits(c)} for c in [(8, 6), (8, 9), (9, 0), (9, 1), (12, 0)]}
    assert suits == {
        (8, 6): set(),
        (8, 9): {Code((8, 9))},
        (9, 0): {Code((9, 0), is_exact=True), Code((9, 0), is_ptx=True)},
        (9, 1): {Code((9, 0), is_ptx=True)},
        (12, 0): {Code((9, 0), is_ptx=True)},
    }


def test_damaged_libraries_have_no_code_or_less(tmp_path: Path) -> None:
    """Cut anywhere, and with each byte of their headers changed: no error, no endless loop."""
    whole, file = library("sm_80", "ptx_90"), tmp_path / "lib.so"
    code = {Code((8, 0)), Code((9, 0), is_ptx=True)}
    for end in range(0, len(whole), 7):
        file.write_bytes(whole[:end])
        assert gpu_code(file) <= code
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        gpu_code(file)
    assert gpu_code(tmp_path / "none.so") == gpu_code(tmp_path) == set()
