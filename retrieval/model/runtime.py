"""Runtime: on which device, by which execution provider and in which batches ONNX Runtime runs a model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from retrieval.errors import InputError
from retrieval.machine.devices import Device

# Execution providers by our name, with the kinds of devices that each runs on.
_DEVICES = {
    "auto": ("auto", "cpu", "cuda"),
    "cuda": ("auto", "cuda"),
    "coreml": ("auto",),
    "openvino": ("auto", "cpu"),
    "cpu": ("auto", "cpu"),
}
PROVIDERS = tuple(_DEVICES)
_OWN_DEVICES = ("coreml", "openvino")
_AUTO = ("cuda", "coreml", "openvino")


@dataclass(frozen=True)
class Runtime:
    """Settings of a session of ONNX Runtime.

    Attributes:
        device: Device; "auto" for the first GPU that works, else the CPU.
        provider: Execution provider, one of `PROVIDERS`; "auto" for the fastest that works on the device.
        batch_size: Most images per run of the graph; `None` for the number that suits the device.
        threads: Threads per run on a CPU; `None` lets ONNX Runtime choose.
        tf32: An NVIDIA GPU may round products to TensorFloat32 (10 bits); NVIDIA_TF32_OVERRIDE=0 forbids it.

    Raises:
        InputError: The device is no `Device`, the provider is unknown or does not run on the device, or a
            number is below 1.
    """

    device: Device = Device()  # noqa: RUF009
    provider: str = "auto"
    batch_size: int | None = None
    threads: int | None = None
    tf32: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.device, Device):
            raise InputError(f"device {self.device!r}: not a `Device`; use Runtime.parse({self.device!r})")
        if self.provider not in PROVIDERS:
            raise InputError(f"provider {self.provider!r}: unknown; known: {', '.join(PROVIDERS)}")
        if self.device.kind not in _DEVICES[self.provider]:
            raise InputError(
                f"provider {self.provider}: does not run on the device {self.device}; "
                f"leave out the provider, or choose the device {' or '.join(_DEVICES[self.provider])}"
            )
        for name in ("batch_size", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")

    @classmethod
    def parse(cls, text: str) -> Runtime:
        """Return the runtime of a text: a device, or a provider that is a device of its own to users.

        Args:
            text: auto, cpu, cuda, cuda:N, coreml, openvino or openvino:cpu.

        Raises:
            InputError: It is none of them.
        """
        provider, _, device = text.partition(":")
        try:
            if provider in _OWN_DEVICES:
                return cls(Device.parse(device or "auto"), provider)
            return cls(Device.parse(text))
        except InputError as error:
            known = "auto, cpu, cuda, cuda:N, coreml, openvino, openvino:cpu"
            raise InputError(f"device {text!r}: unknown; known: {known}") from error

    @property
    def accelerators(self) -> tuple[str, ...]:
        """Providers to try before the CPU, in this order."""
        if self.provider == "cpu":
            return ()
        if self.provider != "auto":
            return (self.provider,)
        return {"auto": _AUTO, "cuda": ("cuda",), "cpu": ()}[self.device.kind]

    @property
    def is_automatic(self) -> bool:
        """Whether neither a device nor a provider was asked for."""
        return self.provider == "auto" and self.device.kind == "auto"

    def options(self, provider: str) -> dict[str, Any]:
        """Return the options of a provider, as ONNX Runtime takes them."""
        if provider == "cuda":
            return {
                "device_id": str(self.device.index or 0),
                # EXHAUSTIVE, the default, measures all algorithms again for each new batch size.
                "cudnn_conv_algo_search": "HEURISTIC",
                # Without it as a CPU computes. The variable is that of NVIDIA's libraries.
                "use_tf32": "1" if self.tf32 and os.environ.get("NVIDIA_TF32_OVERRIDE") != "0" else "0",
            }
        if provider == "openvino" and self.device.kind == "cpu":
            return {"device_type": "CPU"}
        return {}
