"""Defaults of a head by the size of the data, which `train` without a recipe and `improve` read.

docs/experiments.md has what chose them and what they gain on classes that they were not chosen by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PAGE = "docs/experiments.md"


@dataclass(frozen=True)
class HeadDefault:
    """What a head begins with, up to some number of images.

    Attributes:
        images: Most images to learn from; `None` for any number.
        why: What was measured there, as the end of a sentence.
        init: Start of the head, as `model.init`.
        loss: Loss, as `loss`.
        lr: Learning rate, as `optimizer.lr`.
    """

    images: int | None
    why: str
    init: str = "pca-half-whitened"
    loss: Mapping[str, Any] = field(default_factory=lambda: {"name": "multi-similarity"})
    lr: float = 1e-3

    @property
    def changes(self) -> dict[str, Any]:
        """The settings of a run by name."""
        return {"model.init": self.init, "loss": dict(self.loss), "optimizer.lr": self.lr}


# One loss, rate and start for all sizes: none that was chosen by size was certainly better on new classes.
HEADS = (
    HeadDefault(
        400, "up to 400 images training gained nothing certain over the start, which needs no labels"
    ),
    HeadDefault(None, "with more than 400 images training gained over the start"),
)


def head_default(images: int) -> HeadDefault:
    """Return the default for a number of images to learn from."""
    return next(one for one in HEADS if one.images is None or images <= one.images)
