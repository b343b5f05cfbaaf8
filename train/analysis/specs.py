"""Losses as people write them on a command line."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import yaml

from retrieval.errors import InputError
from train import losses, settings
from train.losses import Objective


@dataclass(frozen=True, eq=False)
class NamedLoss:
    """A loss and what to call it in a figure."""

    name: str
    loss: Objective


def read_losses(
    texts: tuple[str, ...], *, num_classes: int | None = None, embedding_dim: int | None = None
) -> list[NamedLoss]:
    """Build losses from words such as `triplet`, `pml:CircleLoss` or `{name: triplet, negatives: optimal}`.

    Args:
        num_classes, embedding_dim: of what the losses will see, for those with parameters of their own,
            which begin as random numbers of seed 0.

    Raises:
        InputError: a text that is not YAML, or that no loss can be built from; the reason says why.
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
    """The loss's name, and what else is said of it in brackets."""
    rest = {key: value for key, value in spec.items() if key != "name"}
    words = yaml.safe_dump(rest, default_flow_style=True, sort_keys=False, width=1000).strip()[1:-1]
    if "name" not in spec:
        return words
    return f"{spec['name']} ({words})" if rest else str(spec["name"])
