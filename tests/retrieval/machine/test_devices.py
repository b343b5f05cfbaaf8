"""Devices: names, and the driver of this machine against NVIDIA's own program."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from retrieval.errors import InputError
from retrieval.machine.devices import Device, driver_cuda, gpus, nvidia_cards


@pytest.mark.parametrize(
    ("text", "device"),
    [("auto", Device()), ("cpu", Device("cpu")), ("cuda", Device("cuda")), ("cuda:3", Device("cuda", 3))],
)
def test_names_are_read_and_written(text: str, device: Device) -> None:
    assert Device.parse(text) == device
    assert str(device) == text


@pytest.mark.parametrize("text", ["", "gpu", "cuda:", "cuda:x", "cpu:0", "CUDA", "cuda:-1", "cuda:99999"])
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="known: auto, cpu, cuda, cuda:N"):
        Device.parse(text)


def test_gpus_are_those_of_nvidia_smi() -> None:
    if shutil.which("nvidia-smi") is None:
        assert (gpus(), driver_cuda()) == ((), None)
        return
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [gpu.name for gpu in gpus()] == listed


def test_cards_are_counted_without_a_driver(tmp_path: Path) -> None:
    """An NVIDIA display and a compute card, their sound device, another maker's card, and an empty folder."""
    devices = [("0x10de", "0x030000"), ("0x10de", "0x030200"), ("0x10de", "0x040300"), ("0x8086", "0x030000")]
    for number, (vendor, kind) in enumerate(devices):
        folder = tmp_path / f"0000:0{number}:00.0"
        folder.mkdir()
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
    (tmp_path / "0000:09:00.0").mkdir()
    assert nvidia_cards(tmp_path) == 2
    assert nvidia_cards(tmp_path / "none") == 0
