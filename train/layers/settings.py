"""Settings of a layer that is taught, and their parser."""

from __future__ import annotations

import textwrap
from typing import Any

from pydantic import Field, ValidationError

from retrieval.errors import InputError
from train.config import StrictModel
from train.settings import Changes, changed_values, fields, validation_message
from train.yaml_files import to_line


class TeachingBatch(StrictModel):
    """Batches of P classes x K images."""

    classes: int = Field(default=32, ge=2, description="Classes in a batch, P.")
    per_class: int = Field(default=4, ge=2, description="Images of each class, K.")


class TeachingConfig(StrictModel):
    """How a layer is learned on stored vectors."""

    loss: dict[str, Any] = Field(
        default={"name": "raw"},
        description="Loss, as for `lookalike train`; `lookalike losses` lists them. raw is multi-similarity "
        "with the miner vthm.",
    )
    batch: TeachingBatch = TeachingBatch()
    steps: int = Field(default=300, ge=1, description="Batches to learn from.")
    lr: float = Field(default=3e-3, gt=0, description="Learning rate of the layer, down to 0 by a cosine.")
    loss_lr: float = Field(default=1e-2, gt=0, description="Learning rate of the loss's own parameters.")
    dim: int = Field(
        default=512,
        ge=1,
        description="Largest dimension of the new vectors. With fewer than two images for each dimension of "
        "the present vectors, all dimensions stay.",
    )
    powers: tuple[float, ...] = Field(
        default=(0.0, 0.5),
        min_length=1,
        strict=False,
        description="Starts to try: principal components, divided by this power of their standard "
        "deviation. 0: no whitening, 1: full whitening.",
    )
    blends: tuple[float, ...] = Field(
        default=(0.0, 0.1, 0.25, 0.5, 0.75, 1.0),
        min_length=1,
        strict=False,
        description="Shares of the learned layer to try, the rest being the start (WiSE-FT). 0: the start "
        "alone.",
    )
    folds: int = Field(
        default=5,
        ge=2,
        description="Parts of which one is held out at a time, until 1,000 images of known and of unseen "
        "classes were held out or all parts were.",
    )
    seed: int = Field(default=0, ge=0, description="Random seed.")


def parse_teaching(changes: Changes) -> TeachingConfig:
    """Build the settings from the defaults and changes.

    Raises:
        InputError: An unknown setting (the nearest known one is named), or a value that it does not accept.
    """
    try:
        return TeachingConfig.model_validate(changed_values({"loss": TeachingConfig().loss}, changes))
    except ValidationError as error:
        raise InputError(validation_message(error, TeachingConfig, "teach --settings")) from error


def explain_teaching() -> str:
    """Return every setting with its default and its description."""
    defaults = TeachingConfig().model_dump()
    lines = []
    for name, field in fields(TeachingConfig):
        section, _, key = name.rpartition(".")
        lines.append(f"{name} = {to_line(defaults[section][key] if section else defaults[key])}")
        lines += textwrap.wrap(field.description or "", 96, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)
