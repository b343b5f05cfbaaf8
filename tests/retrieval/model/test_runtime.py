"""Tests of the runtime: which providers a device and a provider mean, and which exclude each other."""

from __future__ import annotations

from typing import Any

import pytest

from retrieval import InputError, Runtime
from retrieval.machine.devices import Device


@pytest.mark.parametrize(
    ("device", "provider", "tried"),
    [
        ("auto", "auto", ("cuda", "coreml", "openvino")),
        ("cpu", "auto", ()),
        ("cuda:1", "auto", ("cuda",)),
        ("auto", "cuda", ("cuda",)),
        ("auto", "openvino", ("openvino",)),
        ("cpu", "openvino", ("openvino",)),
        ("auto", "cpu", ()),
        ("cpu", "cpu", ()),
        ("cuda", "cuda", ("cuda",)),
    ],
)
def test_accelerators_to_try(device: str, provider: str, tried: tuple[str, ...]) -> None:
    assert Runtime(Device.parse(device), provider).accelerators == tried


@pytest.mark.parametrize(
    ("device", "provider"), [("cpu", "cuda"), ("cuda:1", "cpu"), ("cuda", "openvino"), ("cpu", "coreml")]
)
def test_devices_and_providers_that_exclude_each_other(device: str, provider: str) -> None:
    with pytest.raises(InputError, match=f"provider {provider}: does not run on the device {device}; "):
        Runtime(Device.parse(device), provider)


@pytest.mark.parametrize(
    ("text", "device", "provider"),
    [
        ("auto", "auto", "auto"),
        ("cpu", "cpu", "auto"),
        ("cuda:1", "cuda:1", "auto"),
        ("coreml", "auto", "coreml"),
        ("openvino", "auto", "openvino"),
        ("openvino:cpu", "cpu", "openvino"),
    ],
)
def test_providers_that_are_devices_to_users(text: str, device: str, provider: str) -> None:
    assert Runtime.parse(text) == Runtime(Device.parse(device), provider)


@pytest.mark.parametrize("text", ["", "gpu", "tensorrt", "coreml:cpu", "openvino:cuda"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="known: auto, cpu, cuda, cuda:N, coreml, openvino"):
        Runtime.parse(text)


def test_name_of_a_device_is_no_device() -> None:
    name: Any = "cpu"
    with pytest.raises(InputError, match=r"device 'cpu': not a `Device`; use Runtime.parse\('cpu'\)"):
        Runtime(name)


def test_options_of_cuda() -> None:
    """Names and values are those of ONNX Runtime's documentation, where all values are text."""
    options = Runtime(Device("cuda", 3)).options("cuda")
    assert options == {"device_id": "3", "cudnn_conv_algo_search": "HEURISTIC", "use_tf32": "0"}
    assert Runtime().options("cuda")["device_id"] == "0"


def test_tf32_is_allowed_unless_the_environment_forbids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    assert Runtime(tf32=True).options("cuda")["use_tf32"] == "1"
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert Runtime(tf32=True).options("cuda")["use_tf32"] == "0"


def test_invalid_numbers_are_rejected() -> None:
    with pytest.raises(InputError, match="batch_size must be at least 1, got 0"):
        Runtime(batch_size=0)
