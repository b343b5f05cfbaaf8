"""Adapter for the losses of pytorch-metric-learning (PML), if that package is installed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from retrieval.errors import did_you_mean
from train.losses.view import Measure, View


class PMLTerm(nn.Module):
    """Loss of pytorch-metric-learning as a term of an objective."""

    paired = False
    measure: Measure = "dot"  # takes raw embeddings; whether it normalises them is up to it

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, view: View) -> Tensor:
        labels = view.labels.long()
        if view.references is None:
            value: Tensor = self.loss(view.embeddings, labels)
            return value
        # PML's references replace the batch as candidates; ours extend it.
        points, point_labels = view.references
        batch = torch.arange(view.batch, device=labels.device)
        same = labels[:, None] == point_labels[None, :]
        exists = torch.ones_like(same) if view.usable is None else view.usable.expand_as(same)
        itself = batch[:, None] == torch.arange(len(point_labels), device=labels.device)[None, :]
        positives, negatives = (
            (same & ~itself & exists).nonzero(as_tuple=True),
            (~same & exists).nonzero(as_tuple=True),
        )
        pairs = (*positives, *negatives)
        joint: Tensor = self.loss(view.embeddings, labels, pairs, points, point_labels.long())
        return joint


def build_pml(name: str, parameters: Mapping[str, Any]) -> PMLTerm:
    """Build the loss `pml:Class` with its parameters.

    Raises:
        ValueError: The package is not installed, or an unknown class or parameter, with similar names.
    """
    try:
        from pytorch_metric_learning import losses
    except ImportError as missing:
        raise ValueError(
            f"{name!r} needs pytorch-metric-learning; install it: pip install pytorch-metric-learning"
        ) from missing
    known: dict[str, Any] = {
        key: cls
        for key, cls in vars(losses).items()
        if inspect.isclass(cls) and issubclass(cls, losses.BaseMetricLossFunction)
    }
    wanted = name.removeprefix("pml:")
    if wanted not in known:
        raise ValueError(f"pytorch-metric-learning has no loss {wanted!r}; {did_you_mean(wanted, known)}")
    taken = _parameters(known[wanted])
    for key in parameters:
        if key not in taken:
            raise ValueError(f"{name!r} has no parameter {key!r}; {did_you_mean(str(key), taken)}")
    return PMLTerm(known[wanted](**parameters))


def _parameters(cls: type) -> list[str]:
    """Return the keyword arguments of a class, including those its constructor passes to its base classes."""
    found: dict[str, None] = {}
    for base in cls.__mro__[: cls.__mro__.index(nn.Module)]:
        for parameter in inspect.signature(base).parameters.values():
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                found[parameter.name] = None
    return list(found)
