"""Validation of batches (shapes, types, finite values, labels) without host-device synchronisation."""

from __future__ import annotations

import torch
from torch import Tensor


def check_batch(embeddings: Tensor, labels: Tensor, what: str = "embeddings") -> None:
    """Raise TypeError or ValueError unless given [B, D] floating-point vectors and [B] integer labels."""
    if not isinstance(embeddings, Tensor) or not isinstance(labels, Tensor):
        raise TypeError(f"{what} and their labels must be torch tensors")
    if not embeddings.is_floating_point():
        raise TypeError(f"{what} are {embeddings.dtype}; convert them to a floating-point type")
    if embeddings.ndim != 2:
        raise ValueError(f"{what} have shape {tuple(embeddings.shape)}; they must be [batch, dimension]")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"labels of the {what} are {labels.dtype}; convert them to an integer type")
    if labels.shape != embeddings.shape[:1]:
        raise ValueError(
            f"{what} have shape {tuple(embeddings.shape)} and their labels {tuple(labels.shape)}; "
            "there must be one label per embedding"
        )
    if 0 in embeddings.shape:
        raise ValueError(
            f"{what} have shape {tuple(embeddings.shape)}; there must be at least one, not empty"
        )
    if labels.device != embeddings.device:
        raise ValueError(
            f"{what} are on {embeddings.device}, their labels on {labels.device}; move one of them"
        )


def refuse_unless(condition: Tensor, message: str) -> None:
    """Raise ValueError unless the condition holds, without host-device synchronisation.

    On the CPU this happens immediately. Elsewhere, and in compiled code, an assertion is queued as a kernel:
    reading the condition back would stall the queue in every step; a fatal error may arrive a little late.
    """
    if torch.compiler.is_compiling() or condition.device.type != "cpu":
        torch._assert_async(condition, message)
    elif not condition:
        raise ValueError(message)


def check_finite(embeddings: Tensor, what: str = "embeddings") -> Tensor | None:
    """Refuse NaN, infinity, and lengths whose square overflows.

    Raises ValueError on the CPU. Elsewhere, and in compiled code, an assertion would end the use of the
    device, and a step that only overflows in half precision could not be skipped.

    Returns:
        Factor for the loss, 1 or NaN, so that the loss and its gradient become NaN; `None` on the CPU.
    """
    total = embeddings.detach().square().sum()  # any of them makes the sum non-finite
    if torch.compiler.is_compiling() or total.device.type != "cpu":
        return 1 + 0 * total
    refuse_unless(
        total.isfinite(),
        f"{what} hold NaN, infinity or values near the largest float; lower the learning rate or look for "
        "the layer that overflows",
    )
    return None


def check_classes(labels: Tensor, num_classes: int) -> None:
    """Refuse labels outside 0 .. num_classes - 1."""
    inside = ((labels >= 0) & (labels < num_classes)).all()
    refuse_unless(inside, f"labels go beyond 0 .. {num_classes - 1}; number the training classes from 0")
