"""Start of a training without a recipe: which recipe, by the data, the device and the weights at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from retrieval.machine.extras import needs
from retrieval.model.lite0 import PACKAGE
from retrieval.text import pluralize
from train.data import DataSet
from train.defaults import PAGE, head_default
from train.pretrained_configs import torchvision_names
from train.settings import Changes, changed_values, merge_changes
from train.yaml_files import to_line

SCRATCH, HEAD = "scratch", "head"
LITE0: Changes = {"model.backbone": "timm:tf_efficientnet_lite0", "model.weights": "lite0"}
TINY = 64
"""Longer side, in pixels, up to which pictures are tiny."""
_SAMPLE = 50  # images that are looked at
_GREY = 24  # difference of channels, of 255, that JPEG alone makes


@dataclass(frozen=True)
class Start:
    """What a training begins with.

    Attributes:
        recipe: Name of the recipe.
        changes: Settings of the recipe that are changed: those that were given, and backbone and weights.
        lines: Text for the user: what was chosen and why, and what else there is.
    """

    recipe: str
    changes: Changes
    lines: tuple[str, ...]

    @property
    def note(self) -> str:
        """The text in one line."""
        return "; ".join(self.lines)


def choose_start(dataset: DataSet, given: Changes, *, on_gpu: bool) -> Start:
    """Choose the recipe of a training, and the weights that it begins with.

    Pretrained weights are those that are given, those of a given backbone, or EfficientNet-Lite0, whose
    weights are a package. Without any, with weights that are given as null, and for tiny pictures without
    colour (digits, characters) it is a network from random weights.

    Args:
        dataset: Training data.
        given: Settings that the user changes; they win over those of the recipe.
        on_gpu: Whether a GPU trains.
    """
    if dataset.pairs is not None and not any(_covers(one, "loss") for one in given):
        given = merge_changes({"loss": {"name": "cosent"}}, given)
    model = _section(given, "model")
    backbone, weights = model.get("backbone"), model.get("weights")
    if "weights" in model and weights is None:
        return _from_scratch(given, "as model.weights=null is given")
    named = backbone is not None or weights is not None
    if not named and (size := _tiny_size(dataset)) is not None:
        why = f"as the pictures are tiny and without colour ({size} pixels)"
        return _from_scratch(given, f"{why}; for photographs: --recipe head")
    if backbone is not None and weights is None and not _has_published_weights(backbone):
        return _from_scratch(given, f"as there are no published weights of {backbone}")
    packaged = find_spec(PACKAGE) is not None
    if not named and not packaged:
        return _from_scratch(
            given,
            "as NO PRETRAINED WEIGHTS are at hand: on photographs it finds much less than a pretrained "
            f"network as it is. The recipe head {needs(PACKAGE)}; --set model.weights=imagenet downloads",
        )
    changes: Changes = {}
    if backbone is None and weights in (None, "lite0"):
        changes, what = LITE0, "EfficientNet-Lite0 with ImageNet weights, which are at hand"
    elif weights is None:
        weights = "lite0" if packaged and backbone == LITE0["model.backbone"] else "imagenet"
        changes, what = {"model.weights": weights}, f"{backbone} with its published weights ({weights})"
    else:
        what = " with the weights ".join(filter(None, [backbone or "its backbone", str(weights)]))
    recipe, how = _recipe(dataset, given, on_gpu)
    lines = [f"recipe {recipe}: {what}; {how}"]
    if recipe == HEAD:
        of_size, why = _head_settings(dataset, given)
        changes = merge_changes(changes, of_size)
        lines.append(why)
    return Start(recipe, merge_changes(changes, given), tuple(lines))


def _recipe(dataset: DataSet, given: Changes, on_gpu: bool) -> tuple[str, str]:
    """Return a recipe for pretrained weights, and why."""
    if _section(given, "distill").get("teacher") is not None:
        return "distill", "it learns to embed as the teacher does"
    if not dataset.labelled and dataset.pairs is None:
        return "instances", (
            "every image is a class, as there are no labels; for photographs `lookalike adapt` gains more, "
            "without training"
        )
    model = _section(given, "model")
    if model.get("lora_rank") is not None or model.get("trainable", 0) != 0:
        return "catalogue", "more than the head is trained, as the settings of model ask for"
    if on_gpu:
        how = "the whole network is trained, as there is a GPU; for the head alone: --recipe head"
        return "catalogue", how
    return HEAD, (
        "its head is trained, on features that are computed once, as there is no GPU; for the whole network: "
        "--set model.trainable=null"
    )


def _head_settings(dataset: DataSet, given: Changes) -> tuple[Changes, str]:
    """Return loss, rate and start of a head by the size of the data, and why; what is given is left out."""
    images, classes = len(dataset.train), len({image.label for image in dataset.train})
    default = head_default(images)
    names = {"loss", "model.init", "optimizer.lr"}
    known = {name for name in names if any(_covers(one, name) for one in given)}
    changes = {name: value for name, value in default.changes.items() if name not in known}
    shown = {**changes, "loss": default.loss["name"]} if "loss" in changes else changes
    stated = [f"{name} {to_line(value)}" for name, value in shown.items()]
    size = f"{pluralize(images, 'image')} of {pluralize(classes, 'class')}"
    if dataset.pairs is not None:
        size = f"{pluralize(len(dataset.pairs), 'pair')} of {pluralize(images, 'image')}"
    what = f"{', '.join(stated)} for {size}" if stated else size
    return changes, f"{what}: {default.why} ({PAGE})"


def _covers(given: str, name: str) -> bool:
    """Whether a given setting is another one, a section with it, or a part of it."""
    return given == name or name.startswith(f"{given}.") or given.startswith(f"{name}.")


def _section(given: Changes, name: str) -> Mapping[str, Any]:
    """Return what is given of a section; nothing if it is no section, which is an error later."""
    found = changed_values({}, given).get(name)
    return found if isinstance(found, Mapping) else {}


def _from_scratch(given: Changes, why: str) -> Start:
    return Start(SCRATCH, given, (f"recipe {SCRATCH}: a network from random weights, {why}",))


def _has_published_weights(backbone: object) -> bool:
    return isinstance(backbone, str) and (backbone.startswith("timm:") or backbone in torchvision_names())


def _tiny_size(dataset: DataSet) -> int | None:
    """Return the median longer side of some images, if they are tiny and without colour."""
    images = dataset.train
    step = max(1, len(images) // _SAMPLE)
    sides, coloured = list[int](), False
    for image in images[::step]:
        try:
            with Image.open(image.path) as opened:
                sides.append(max(opened.size))
                coloured = coloured or (max(opened.size) <= TINY and _is_coloured(opened))
        except (OSError, ValueError, UnidentifiedImageError, Image.DecompressionBombError):
            continue  # the training says what is wrong with it
    side = int(median(sides)) if sides else 0
    return side if sides and side <= TINY and not coloured else None


def _is_coloured(image: Image.Image) -> bool:
    """Return whether a small image has a pixel whose channels differ."""
    if image.mode in ("1", "L", "LA", "I;16"):
        return False
    pixels = np.asarray(image.convert("RGB"), np.int16)
    return int(np.ptp(pixels, axis=2).max()) > _GREY
