"""Published configurations of open_clip and transformers: preprocessing, licence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from retrieval.errors import InputError
from retrieval.images.preprocess import Preprocess

_FITS = {"shortest": "crop", "squash": "squeeze"}  # by open_clip's resize_mode
_FILTERS = {2: "bilinear", 3: "bicubic"}  # by Pillow's number


def open_clip_preprocess(facts: Mapping[str, Any], where: str) -> Preprocess:
    """Return the preprocessing of open_clip's `preprocess_cfg`.

    Args:
        facts: The configuration.
        where: Name of the model, for messages.

    Raises:
        InputError: It is not supported.
    """
    size, mode = _side(facts.get("size", 224), where), facts.get("resize_mode", "shortest")
    if mode not in _FITS:
        raise _unsupported(where, f"resize_mode {mode}")
    return Preprocess(
        size=size,
        fit=_FITS[mode],
        interpolation=str(facts.get("interpolation", "bicubic")),
        mean=tuple(facts["mean"]),
        std=tuple(facts["std"]),
    )


def transformers_preprocess(facts: Mapping[str, Any], where: str) -> Preprocess:
    """Return the preprocessing of transformers' `preprocessor_config.json`.

    Args:
        facts: The configuration.
        where: Name of the model, for messages.

    Raises:
        InputError: It is not supported.
    """
    facts = facts.get("image_processor", facts)  # of a processor_config.json
    scale = facts.get("rescale_factor", 1 / 255)
    if not (facts.get("do_resize", True) and facts.get("do_rescale", True) and math.isclose(scale, 1 / 255)):
        raise _unsupported(where, "images that are not resized, or not divided by 255")
    number = facts.get("resample", 3)
    if number not in _FILTERS:
        raise _unsupported(where, f"resample {number}")
    size = facts["size"]
    edge = size.get("shortest_edge") if isinstance(size, Mapping) else size
    crops = facts.get("do_center_crop", edge is not None)
    if edge is None:
        sides = (size.get("height"), size.get("width"))
        if crops and _side(facts["crop_size"], where) != _side(sides, where):
            raise _unsupported(where, "a crop of an image that was squeezed to a square")
        fit, resize, side = "squeeze", None, _side(sides, where)
    elif crops:
        fit, resize, side = "crop", int(edge), _side(facts.get("crop_size", edge), where)
    else:
        raise _unsupported(where, "images that are not square")
    normalizes = facts.get("do_normalize", True)
    return Preprocess(
        size=side,
        resize=resize if resize != side else None,
        fit=fit,
        interpolation=_FILTERS[number],
        mean=tuple(facts["image_mean"]) if normalizes else (0, 0, 0),
        std=tuple(facts["image_std"]) if normalizes else (1, 1, 1),
    )


def card_licence(readme: Path) -> str | None:
    """Return the licence that a model card states in its header; `None` without one."""
    try:
        _, header, _ = readme.read_text(encoding="utf-8").split("---\n", 2)
        facts = yaml.safe_load(header)
    except (OSError, ValueError, yaml.YAMLError):
        return None
    licence = facts.get("license_name") or facts.get("license") if isinstance(facts, Mapping) else None
    return None if licence is None else str(licence)


def _side(size: Any, where: str) -> int:
    """Return the side of a square, given as a number, a pair, or height and width."""
    if isinstance(size, Mapping):
        size = (size.get("height"), size.get("width"))
    sides = {size} if isinstance(size, int) else set(size)
    if len(sides) != 1:
        raise _unsupported(where, f"images of {' x '.join(map(str, size))} pixels")
    return int(sides.pop())


def _unsupported(where: str, what: str) -> InputError:
    return InputError(f"{where}: its preprocessing is not supported ({what}); use another model")
