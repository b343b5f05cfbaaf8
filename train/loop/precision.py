"""Precision of the arithmetic on a GPU: autocast, TensorFloat32 (TF32), and the choice of kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

_BF16_FROM = (8, 0)  # compute capability of Ampere, the first with tensor cores for bfloat16
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_precision(name: str, device: torch.device) -> str:
    """Return the precision for a device: the given one; for "auto" bf16 on GPUs from Ampere on, else fp32."""
    if name != "auto":
        return name
    is_fast = device.type == "cuda" and torch.cuda.get_device_capability(device) >= _BF16_FROM
    return "bf16" if is_fast else "fp32"


class Precision:
    """Precision in which a network runs on a device.

    Args:
        name: "auto", "fp32", "tf32", "bf16" or "fp16".
        device: Device of the network.

    Attributes:
        name: Name, with "auto" resolved.
        scales_loss: Whether the loss has to be scaled, so that gradients do not underflow.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = resolve_precision(name, device)
        self.scales_loss = self.name == "fp16"
        self._device = device

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass."""
        dtype = _DTYPES.get(self.name)
        return nullcontext() if dtype is None else torch.autocast(self._device.type, dtype)

    @contextmanager
    def tensor_cores(self) -> Iterator[None]:
        """Allow TF32 in the forward and backward passes of the network, if the precision is tf32."""
        if self.name != "tf32":
            yield
            return
        with _tensor_float32(True):
            yield


@contextmanager
def full_float32() -> Iterator[None]:
    """Disable TF32 in matrix products and convolutions: its 10 bits are far from what a CPU computes."""
    with _tensor_float32(False):
        yield


@contextmanager
def _tensor_float32(allowed: bool) -> Iterator[None]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@contextmanager
def chosen_kernels(device: torch.device, *, deterministic: bool) -> Iterator[None]:
    """Select kernels for training, whose batches all have one shape.

    Args:
        device: Device of the training.
        deterministic: Use deterministic kernels alone; an operation that has none raises RuntimeError.
            Otherwise cuDNN measures which convolution is fastest, and may choose another one in the next run.
    """
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
    )
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS requires it
        torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = device.type == "cuda" and not deterministic
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = before[2]
