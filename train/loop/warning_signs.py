"""Warning signs of training: losses that are not finite, equal embeddings, a kernel without a gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

_COLLAPSED = 0.99  # mean cosine between the embeddings of a batch
_INERT = 0.01  # kernel with the nearest embedding: the gradient is a few per cent of that of the loss
_INERT_RECORDS = 10  # in a row


class WarningSigns:
    """What goes wrong in a run, from the records of its steps.

    Attributes:
        collapsed_at: Step since which all embeddings are nearly equal, `None` if they differ.
    """

    def __init__(self) -> None:
        self.collapsed_at: int | None = None
        self._inert_records = 0
        self._overflows = 0  # steps in a row without a finite loss

    def first_failure(self, values: Sequence[float], most: int) -> int | None:
        """Return the place of the loss that is one too many without a finite value; `None` if none is.

        Args:
            values: Losses of the next steps.
            most: Steps in a row without a finite loss that are no failure.
        """
        for place, value in enumerate(values):
            self._overflows = 0 if math.isfinite(value) else self._overflows + 1
            if self._overflows > most:
                return place
        return None

    def collapse(self, step: int, mean_similarity: float) -> str:
        """Return a message at the step since which all embeddings are nearly equal, otherwise "".

        Args:
            step: Steps so far.
            mean_similarity: Mean cosine between the embeddings of the last batch.
        """
        known, collapsed = self.collapsed_at, mean_similarity > _COLLAPSED
        self.collapsed_at = (step if known is None else known) if collapsed else None
        if not collapsed or known is not None:
            return ""
        return (
            f"collapsed: at step {step} all embeddings are nearly equal (mean cosine "
            f"{mean_similarity:.4f}); the hardest negatives can cause this with a triplet loss: mine "
            "semi-hard ones, use the sct loss, or lower optimizer.lr"
        )

    def inert_kernel(self, step: int, record: Mapping[str, Any]) -> str:
        """Return a message if the kernel of a regularizer has been inert for some records, otherwise ""."""
        active = record.get("kernel_active")
        self._inert_records = self._inert_records + 1 if active is not None and active < _INERT else 0
        if self._inert_records != _INERT_RECORDS:
            return ""
        return (
            f"inert kernel: up to step {step} the kernel of a regularizer is near 0 ({active:.0e}), "
            "also between nearest embeddings, so it has almost no gradient; raise its sigma, or set "
            "several, as [0.05, 0.2, 0.8]"
        )
