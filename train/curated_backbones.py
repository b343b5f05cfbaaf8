"""Curated backbones of timm: small, strong, with permissive licences, with their time and their quality.

The list is `curated_backbones.json` beside this module; `python -m benchmarks.backbones --write` measures the
times, and the retrieval of weights that are at hand. Accuracies on ImageNet are published, with their source.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")
RETRIEVAL = ("Recall@1", "MAP@R")
LITE0 = "timm:tf_efficientnet_lite0.in1k"
STRONGEST = (
    "timm:vit_small_patch14_reg4_dinov2.lvd142m",
    "timm:vit_pe_core_small_patch16_384.fb",
    "timm:convnext_tiny.fb_in22k",
    "timm:tiny_vit_5m_224.dist_in22k",
)
"""Small permissive backbones that ought to find more than Lite0, by the data that they have learned from:
nothing but Lite0 was measured here."""
_SPEEDS = (("fast", 25.0), ("medium", 150.0))  # up to so many milliseconds


@dataclass(frozen=True)
class Quality:
    """How good a backbone is without training, by one metric.

    Attributes:
        metric: "top-1" (of its own classifier), "k-NN" (of its embedding) and "zero-shot" (with a text
            encoder) are accuracies; "Recall@1" and "MAP@R" are of a search for images of the same class.
        on: Data set.
        percent: Value.
        source: Where it is published, or "measured here".
        interval: 95% interval in percent, by resampling classes; `None` if the source states none.
    """

    metric: str
    on: str
    percent: float
    source: str
    interval: tuple[float, float] | None = None

    def to_text(self) -> str:
        """Return metric, value and interval, as in "Recall@1 35.5 (31.0-40.3)"."""
        interval = "" if self.interval is None else " ({:.1f}-{:.1f})".format(*self.interval)
        return f"{self.metric} {self.percent:.1f}{interval}"


@dataclass(frozen=True)
class CuratedBackbone:
    """A backbone of the list.

    Attributes:
        name: Name as in `model.backbone`, with the tag of the weights.
        suits: What it is good for, by the data and the aim that it was trained with.
        parameters: Number of parameters up to its native embedding.
        size: Side of the input in pixels, as published.
        dim: Dimension of its native embedding.
        milliseconds: CPU time for an image on one thread, in ONNX Runtime.
        license: Licence of the weights.
        quality: How good it is, as far as that is known.
    """

    name: str
    suits: str
    parameters: int
    size: int
    dim: int
    milliseconds: float
    license: str
    quality: tuple[Quality, ...] = ()

    @property
    def imagenet(self) -> str:
        """Return the published accuracy on ImageNet, as in "75.8 top-1"; "-" if there is none."""
        found = [one for one in self.quality if one.on == "ImageNet-1k"]
        return f"{found[0].percent:.1f} {found[0].metric}" if found else "-"

    @property
    def retrieval(self) -> tuple[Quality, ...]:
        """Return what was measured in a search."""
        return tuple(one for one in self.quality if one.metric in RETRIEVAL)

    @property
    def speed(self) -> str:
        """Return the class of speed: fast, medium or slow."""
        return next((name for name, most in _SPEEDS if self.milliseconds <= most), "slow")

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self) | {"speed": self.speed}


@cache
def curated_backbones() -> tuple[CuratedBackbone, ...]:
    """Return the list, fastest first."""
    rows = [
        CuratedBackbone(**{**fields, "quality": tuple(Quality(**one) for one in fields["quality"])})
        for fields in json.loads(FILE.read_text())["backbones"]
    ]
    return tuple(sorted(rows, key=lambda row: row.milliseconds))


def affordable(lite0: float, cores: int, rate: float) -> tuple[CuratedBackbone | None, float]:
    """Return the strongest small backbone that this machine runs at a rate, and its images a second.

    Small is up to 30 million parameters, a download of 120 MB. The order of strength is `STRONGEST`. The
    times of the list are scaled by that of EfficientNet-Lite0.

    Args:
        lite0: Seconds that EfficientNet-Lite0 needs here for an image on one thread.
        cores: Cores of the machine.
        rate: Images a second that are wanted.

    Returns:
        The backbone, `None` if none that is stronger than Lite0 is fast enough, and its rate.
    """
    by_name = {row.name: row for row in curated_backbones()}
    slower = 1000 * lite0 / by_name[LITE0].milliseconds
    for name in STRONGEST:
        row = by_name[name]
        found = 1000 * cores / (slower * row.milliseconds)
        if found >= rate:
            return row, found
    return None, 0.0
