"""Figures of losses: their value as two classes come apart, and as the images of a class do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2
import torch
from torch import Tensor

from train import losses
from train.losses import Objective

WIDTH, HEIGHT = 260, 150  # of a panel
LEFT, TOP = 52, 32
SPREAD, APART = (
    30,
    90,
)  # degrees: between the images of a class, and between the classes, where they do not vary
CURVE = range(1, 180, 3)

_TEMPLATE = jinja2.Template((Path(__file__).parent / "figure.svg").read_text(), autoescape=True)


def figure(spec: Mapping[str, Any]) -> str:
    """Return two SVGs of the value of a loss for two images of each of two classes on a circle.

    In the first the angle between the classes varies, with 30 degrees between the images of a class. In the
    second the angle between the images of a class varies, with 90 degrees between the classes. Proxies are at
    the middle of their classes.
    """
    objective = losses.build(spec, num_classes=2, embedding_dim=2)
    return "".join(
        [
            _panel("loss against classes apart, degrees", lambda angle: _value(objective, angle, SPREAD)),
            _panel("loss against images of a class apart", lambda angle: _value(objective, APART, angle)),
        ]
    )


def _value(objective: Objective, apart: float, spread: float) -> float:
    middles = torch.tensor([0.0, apart]).deg2rad()
    half = math.radians(spread) / 2
    angles = (middles[:, None] + torch.tensor([-half, half])).flatten()
    torch.manual_seed(0)  # for miners that draw
    _put_proxies(objective, _on_circle(middles))
    return float(objective(_on_circle(angles), torch.tensor([0, 0, 1, 1])).detach())


def _on_circle(angles: Tensor) -> Tensor:
    return torch.stack([angles.cos(), angles.sin()], 1)


def _put_proxies(objective: Objective, middles: Tensor) -> None:
    """Put the vectors that stand for a class at its middle."""
    for parameter in objective.parameters():
        if parameter.ndim == 2:  # [classes * centers, 2]
            parameter.data = middles.repeat_interleave(len(parameter) // 2, 0)
        elif parameter.ndim == 1:  # a bias
            parameter.data.zero_()


def _panel(title: str, value: Callable[[float], float]) -> str:
    values = [value(angle) for angle in CURVE]
    low, high = min(0.0, *values), max(0.0, *values)
    step = _step(high - low)
    low, high = step * math.floor(low / step), step * math.ceil(high / step)

    def up(number: float) -> float:
        return round(HEIGHT * (high - number) / (high - low), 1)

    ticks = [low + step * i for i in range(round((high - low) / step) + 1)]
    points = (f"{WIDTH * angle / 180:.1f} {up(number)}" for angle, number in zip(CURVE, values, strict=True))
    return _TEMPLATE.render(
        left=LEFT,
        top=TOP,
        width=WIDTH,
        height=HEIGHT,
        title=title,
        across=[(WIDTH * angle / 180, angle) for angle in (0, 45, 90, 135, 180)],
        up=[(up(tick), f"{tick:g}") for tick in ticks],
        curve="M" + "L".join(points),
    )


def _step(extent: float) -> float:
    """Return a round number of which two to five make the extent."""
    power = 10.0 ** math.floor(math.log10(max(extent, 1e-6) / 2))
    return next(factor * power for factor in (1, 2, 5, 10) if extent / (factor * power) <= 5)
