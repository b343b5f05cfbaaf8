"""Adapters for pytorch-metric-learning (PML): its losses in our objectives, ours in its programs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from retrieval.errors import did_you_mean
from train.losses.objective import Objective
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


class PMLCall(nn.Module):
    """One of our objectives with the call of PML's losses.

    `ref_emb` replaces the batch as positives and negatives, where our `ref_embeddings` join it.

    Raises:
        ValueError: References for a loss that forms alternate pairs within the batch.
    """

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """Return the objective of a batch [B, D] with labels [B], against references [M, D] with [M]."""
        replaced = ref_emb is not None and ref_emb is not embeddings
        value: Tensor = self.objective(
            embeddings,
            labels,
            indices_tuple,
            ref_embeddings=ref_emb,
            ref_labels=ref_labels,
            batch_as_candidates=not replaced,
        )
        return value


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
