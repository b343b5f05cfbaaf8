"""Losses of a command line, built from their specifications."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import yaml

from retrieval.errors import InputError
from train import losses, settings
from train.losses import Objective


@dataclass(frozen=True, eq=False)
class NamedLoss:
    """Loss with its name in a figure."""

    name: str
    loss: Objective


def read_losses(
    texts: tuple[str, ...], *, num_classes: int | None = None, embedding_dim: int | None = None
) -> list[NamedLoss]:
    """Build losses from specifications like `triplet`, `pml:CircleLoss` or `{name: triplet, margin: 0.2}`.

    Args:
        texts: Specifications; see `settings.parse_loss`.
        num_classes: Number of classes, for losses with parameters of their own, initialized with seed 0.
        embedding_dim: Dimension of the embeddings, for the same losses.

    Raises:
        InputError: A text that is not a specification, or one that no loss can be built from.
    """
    return [_read(text, num_classes, embedding_dim) for text in texts]


def _read(text: str, num_classes: int | None, embedding_dim: int | None) -> NamedLoss:
    spec = settings.parse_loss(text)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            built = losses.build(spec, num_classes=num_classes, embedding_dim=embedding_dim)
    except (ValueError, TypeError) as error:
        raise InputError(f"--loss {text}: {error}") from error
    return NamedLoss(_name(spec), built)


def _name(spec: dict[str, object]) -> str:
    """Return the loss's name, followed by its parameters in brackets."""
    rest = {key: value for key, value in spec.items() if key != "name"}
    words = yaml.safe_dump(rest, default_flow_style=True, sort_keys=False, width=1000).strip()[1:-1]
    if "name" not in spec:
        return words
    return f"{spec['name']} ({words})" if rest else str(spec["name"])
