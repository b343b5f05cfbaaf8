"""Embedders off the shelf: the pooled features of a pretrained backbone, without training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torchvision
from torch import nn

from export.model_file import Exported, export_model, versions
from export.samples import NOISE, Pictures
from retrieval.errors import InputError, did_you_mean
from retrieval.files import now, sha256_of
from retrieval.images.preprocess import Preprocess
from train.config import Config, ModelConfig, Pooling
from train.models.embedding_model import EmbeddingModel
from train.models.library_backbones import torchvision_names


def export_from_shelf(
    library: str,
    name: str,
    out: Path,
    *,
    weights: str = "imagenet",
    size: int | None = None,
    mean: tuple[float, float, float] | None = None,
    std: tuple[float, float, float] | None = None,
    pooling: Pooling = "mean",
    on: str | None = None,
    precision: str = "fp32",
    accept_loss: bool = False,
    show_progress: bool = False,
) -> Exported:
    """Write a backbone as an ONNX file, as `export.model_file.export_model` does.

    Args:
        library: timm or torchvision.
        name: as the library has it; of timm, NAME:key=value,... hands options of the architecture on.
        weights: imagenet (downloaded), or a .safetensors file with the library's names.
        size: side of the pictures, in pixels; `None`: what the library says.
        mean, std: that these weights were trained with, per RGB channel, of values in 0..1; `None`: what the
            library says.
        pooling: mean, gem or cls.
        on: the data set to try it on, or "noise"; `None`: noise, which is enough in single precision.

    Raises:
        InputError: an unknown name, weights, a size or a pooling that cannot be used, or no pictures.
        LookalikeError: weights that cannot be downloaded; or what `export_model` raises.
    """
    if on is None and precision != "fp32":
        raise InputError(f"{precision} has to be tried on pictures: give --data DATA (or --data noise)")
    preprocess = (_timm_preprocess if library == "timm" else _torchvision_preprocess)(name, size)
    preprocess = replace(preprocess, mean=mean or preprocess.mean, std=std or preprocess.std)
    backbone = f"timm:{name}" if library == "timm" else name
    model = bare(ModelConfig(backbone=backbone, weights=weights, pooling=pooling), preprocess)
    return export_model(
        model,
        preprocess,
        out,
        _provenance(library, name, model.config, preprocess),
        Pictures.of(NOISE if on is None else on),
        precision=precision,
        accept_loss=accept_loss,
        show_progress=show_progress,
    )


def bare(config: ModelConfig, preprocess: Preprocess) -> EmbeddingModel:
    """A network whose embedding is the pooled features themselves, in evaluation mode."""
    model = EmbeddingModel(config.model_copy(update={"embedding_dim": 1}), preprocess)
    model.config = config.model_copy(update={"embedding_dim": model.backbone.channels})
    model.add_module("head", nn.Identity())
    return model.eval()


def _timm_preprocess(words: str, size: int | None) -> Preprocess:
    import timm  # takes seconds
    from timm.data import resolve_data_config

    name = words.partition(":")[0]
    _check(name.partition(".")[0], timm.list_models(), "timm")
    found = timm.get_pretrained_cfg(name)
    theirs = resolve_data_config(pretrained_cfg=found.to_dict() if found else {})
    channels, height, width = theirs["input_size"]
    if channels != 3 or height != width or theirs["crop_mode"] == "border":
        raise InputError(f"timm:{name} takes pictures that are padded, not square or not RGB; take another")
    side = size or height
    return Preprocess(
        size=side,
        resize=max(side, int(side / theirs["crop_pct"])),
        fit="squeeze" if theirs["crop_mode"] == "squash" else "crop",
        interpolation=theirs["interpolation"],
        mean=theirs["mean"],
        std=theirs["std"],
    )


def _torchvision_preprocess(name: str, size: int | None) -> Preprocess:
    _check(name, torchvision_names(), "torchvision")
    theirs = torchvision.models.get_model_weights(name).DEFAULT.transforms()
    (crop,), (resize,) = theirs.crop_size, theirs.resize_size
    side = size or crop
    return Preprocess(
        size=side,
        resize=round(side * resize / crop),
        interpolation=theirs.interpolation.value,
        mean=tuple(theirs.mean),
        std=tuple(theirs.std),
    )


def _check(name: str, known: Sequence[str], library: str) -> None:
    if name not in known:
        hint = did_you_mean(name, known, "its documentation lists them")
        raise InputError(f"--from-{library}: there is no model called {name!r}; {hint}")


def _provenance(library: str, name: str, config: ModelConfig, preprocess: Preprocess) -> dict[str, Any]:
    from_file = config.weights not in (None, "imagenet")
    return {
        "source": f"{library}:{name}",
        "config": Config(data="", model=config, preprocess=preprocess, epochs=0).to_dict(),
        "metrics": {},
        "weights_sha256": sha256_of(Path(str(config.weights))) if from_file else None,
        "created": now(),
        "versions": versions(),
    }
