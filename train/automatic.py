"""Automatic settings: values in place of `auto`, by the backbone and its weights.

They are chosen once, when the configuration of a run is built, and written into config.yaml as plain values:
resuming, evaluation and export do not choose again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from retrieval.images.preprocess import Preprocess
from train.config import Config, PreprocessConfig
from train.pretrained_configs import (
    config_file,
    is_file_of_weights,
    native_size,
    published_preprocess,
    traits,
)
from train.yaml_files import to_line

AUTO = "auto"
DEFAULTED = tuple(f"preprocess.{name}" for name in PreprocessConfig.model_fields)
"""Settings that are automatic unless they are given."""
AUTOMATIC = (*DEFAULTED, "model.pooling", "model.embedding_dim", "optimizer.lr", "optimizer.head_lr")
"""Settings that accept `auto`."""

POOLING_WITHOUT_TOKEN = "mean"
# Learning rates of AdamW for the backbone and the embedding layer. With batch norm: that of Kim et al. (2020,
# Proxy Anchor) and a faster embedding layer. In short runs of MobileNetV2, a third or three times of it
# gave the same Recall@1 within its error.
_RANDOM_RATES = (1e-3, 1e-3)
_RATES_WITH_BATCH_NORM = (1e-4, 1e-3)
_RATES_WITHOUT_BATCH_NORM = (3e-5, 3e-4)


def automatic_settings(values: Mapping[str, Any]) -> list[str]:
    """Return the names of the settings that are automatic in plain values of a configuration."""
    found = []
    for name in AUTOMATIC:
        section, _, key = name.partition(".")
        given = values.get(section, {})
        default = AUTO if name in DEFAULTED else None
        if isinstance(given, Mapping) and given.get(key, default) == AUTO:
            found.append(name)
    return found


def choose(config: Config, names: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Choose the values of automatic settings.

    Args:
        config: Configuration with all other settings; those of `names` are not read.
        names: Automatic settings.

    Returns:
        Values by name, and sentences for the user that state them.

    Raises:
        InputError: The published preprocessing is not supported.
    """
    values, notes = dict[str, Any](), list[str]()
    for choose_some in (_preprocess, _pooling, _embedding_dim, _rates):
        chosen, note = choose_some(config, names)
        values |= chosen
        notes += [note] if chosen and note else []
    return values, notes


def _preprocess(config: Config, names: Collection[str]) -> tuple[dict[str, Any], str | None]:
    backbone, weights, given = config.model.backbone, config.model.weights, config.preprocess
    size = None if "preprocess.size" in names else given.size
    wanted = [name for name in DEFAULTED if name in names]
    published = published_preprocess(backbone, weights, size) if weights is not None and wanted else None
    found = (published or Preprocess(size=size or PreprocessConfig().size)).to_dict()
    if "preprocess.fit" not in names and given.fit != found["fit"]:
        found["resize"] = None  # the margin is published for the other way to fit an image
    chosen = {name: found[name.partition(".")[2]] for name in wanted}
    if published is None or weights is None:
        return chosen, None
    what = ", ".join(_stated({name.partition(".")[2]: value for name, value in chosen.items()}))
    file = config_file(backbone, weights)
    if file is not None:
        return chosen, f"preprocess: {what}; as stated in {file}"
    if not is_file_of_weights(weights):
        return chosen, f"preprocess: {what}; as published for {backbone}"
    return chosen, (
        f"preprocess: {what}; assumed for {weights}, as published for {backbone}: set preprocess.mean and "
        "preprocess.std if these weights were trained with others"
    )


def _pooling(config: Config, names: Collection[str]) -> tuple[dict[str, Any], str | None]:
    if "model.pooling" not in names:
        return {}, None
    backbone = config.model.backbone
    if traits(backbone).uses_class_token:
        return {"model.pooling": "cls"}, f"model.pooling: cls, as {backbone} was trained"
    reason = f"{backbone} was trained without a class token"
    return {"model.pooling": POOLING_WITHOUT_TOKEN}, f"model.pooling: {POOLING_WITHOUT_TOKEN}; {reason}"


def _embedding_dim(config: Config, names: Collection[str]) -> tuple[dict[str, Any], str | None]:
    if "model.embedding_dim" not in names:
        return {}, None
    backbone = config.model.backbone
    dim, _ = native_size(backbone)
    return {"model.embedding_dim": dim}, f"model.embedding_dim: {dim}, as published for {backbone}"


def _rates(config: Config, names: Collection[str]) -> tuple[dict[str, Any], str | None]:
    wanted = [name for name in ("optimizer.lr", "optimizer.head_lr") if name in names]
    if not wanted:
        return {}, None
    if config.model.weights is None:
        rates, reason = _RANDOM_RATES, "random weights"
    elif traits(config.model.backbone).has_batch_norm:
        rates, reason = _RATES_WITH_BATCH_NORM, "pretrained weights with batch norm"
    else:
        rates, reason = _RATES_WITHOUT_BATCH_NORM, "pretrained weights without batch norm"
    every = dict(zip(("optimizer.lr", "optimizer.head_lr"), rates, strict=True))
    chosen = {name: every[name] for name in wanted}
    return chosen, f"{', '.join(_stated(chosen))}; for {reason}"


def _stated(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        yield f"{name} {to_line(value)}"
