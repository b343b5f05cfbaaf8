"""Defaults of a head by the size of the data, which `train` without a recipe and `improve` read.

docs/experiments.md has what they gain on new classes, and why loss, rate and start are the same for all
sizes: no choice by size was certainly better, and a higher rate was with two of three backbones only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PAGE = "docs/experiments.md"


def _multi_similarity() -> dict[str, Any]:
    mining = {"name": "vthm", "margin": 0.1}
    return {"name": "multi-similarity", "alpha": 2, "beta": 50, "threshold": 0.5, "mining": mining}


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
    loss: Mapping[str, Any] = field(default_factory=_multi_similarity)
    lr: float = 1e-4

    @property
    def changes(self) -> dict[str, Any]:
        """The settings of a run by name."""
        return {"model.init": self.init, "loss": dict(self.loss), "optimizer.lr": self.lr}


HEADS = (
    HeadDefault(
        400,
        "up to 400 images training found no more than this start, which `lookalike adapt` computes without "
        "labels",
    ),
    HeadDefault(None, "with more than 400 images training found more than this start, with some backbones"),
)


def head_default(images: int) -> HeadDefault:
    """Return the default for a number of images to learn from."""
    return next(one for one in HEADS if one.images is None or images <= one.images)
