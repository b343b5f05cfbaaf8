"""Curated backbones of timm: small, strong, with permissive licences; their numbers are measured.

The list is `curated_backbones.json` beside this module; `python -m benchmarks.backbones --write` measures it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")
_SPEEDS = (("fast", 25.0), ("medium", 150.0))  # up to so many milliseconds


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
    """

    name: str
    suits: str
    parameters: int
    size: int
    dim: int
    milliseconds: float
    license: str

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
    rows = [CuratedBackbone(**fields) for fields in json.loads(FILE.read_text())["backbones"]]
    return tuple(sorted(rows, key=lambda row: row.milliseconds))
