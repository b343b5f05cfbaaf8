"""Export of pretrained backbones of timm and torchvision as embedders, without training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from export.model_file import DEFAULT_OPTIONS, Exported, ExportOptions, export_model, versions
from export.samples import NOISE, SampleImages
from retrieval.errors import InputError, did_you_mean
from retrieval.files import now, sha256_of
from retrieval.images.preprocess import Preprocess
from train.config import Config, ModelConfig
from train.models.embedding_model import EmbeddingModel
from train.models.library_backbones import torchvision_names, torchvision_weights
from train.models.pretrained_weights import is_file_of_weights


@dataclass(frozen=True)
class PretrainedBackbone:
    """A pretrained backbone of a library.

    Attributes:
        library: timm or torchvision.
        name: Name in the library; for timm, NAME:key=value,... passes options of the architecture.
        weights: imagenet or torchvision's name of certain weights (imagenet1k_v1), both downloaded, or
            a .safetensors file with the library's parameter names.
        size: Side of the input images in pixels; `None` for the library's default.
        mean: Mean per RGB channel, of values in 0..1; `None` for the library's default.
        std: Standard deviation per RGB channel; `None` for the library's default.
        pooling: mean, gem or cls.
    """

    library: str
    name: str
    weights: str = "imagenet"
    size: int | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    pooling: Literal["mean", "gem", "cls"] = "mean"

    def preprocess(self) -> Preprocess:
        """Return the preprocessing that the library defines, with the overrides."""
        if self.library == "timm":
            preprocess = _timm_preprocess(self.name, self.size)
        else:
            preprocess = _torchvision_preprocess(self.name, self.weights, self.size)
        return replace(preprocess, mean=self.mean or preprocess.mean, std=self.std or preprocess.std)

    def model_config(self) -> ModelConfig:
        """Return the model configuration, before the embedding dimension is known."""
        backbone = f"timm:{self.name}" if self.library == "timm" else self.name
        return ModelConfig(backbone=backbone, weights=self.weights, pooling=self.pooling)


def export_backbone(
    backbone: PretrainedBackbone,
    out: Path,
    *,
    data: str | None = None,
    options: ExportOptions = DEFAULT_OPTIONS,
) -> Exported:
    """Export a backbone to an ONNX file; see `export.model_file.export_model`.

    Args:
        backbone: Pretrained backbone.
        out: Model file to write.
        data: Data set to check the file on, or "noise". `None` for noise images, allowed for fp32 only.
        options: Export options.

    Raises:
        InputError: An unknown name, unusable weights, size or pooling, or no images for fp16 or int8.
        LookalikeError: The weights cannot be downloaded; or an error of `export_model`.
    """
    if data is None and options.precision != "fp32":
        raise InputError(f"{options.precision}: needs images to be checked on; give --data DATA (or noise)")
    preprocess = backbone.preprocess()
    model = headless_model(backbone.model_config(), preprocess)
    provenance = _provenance(backbone, model.config, preprocess)
    samples = SampleImages.load(NOISE if data is None else data)
    return export_model(model, preprocess, out, provenance, samples, options)


def headless_model(config: ModelConfig, preprocess: Preprocess) -> EmbeddingModel:
    """Build a network whose embedding is the pooled features themselves, in evaluation mode."""
    model = EmbeddingModel(config.model_copy(update={"embedding_dim": 1}), preprocess)
    model.config = config.model_copy(update={"embedding_dim": model.backbone.channels})
    model.add_module("head", nn.Identity())
    return model.eval()


def _timm_preprocess(spec: str, size: int | None) -> Preprocess:
    import timm  # slow to import
    from timm.data import resolve_data_config

    name = spec.partition(":")[0]
    _require_known(name.partition(".")[0], timm.list_models(), "timm")
    found = timm.get_pretrained_cfg(name)
    defaults = resolve_data_config(pretrained_cfg=found.to_dict() if found else {})
    channels, height, width = defaults["input_size"]
    if channels != 3 or height != width or defaults["crop_mode"] == "border":
        raise InputError(
            f"timm:{name}: takes padded, non-square or non-RGB images, which are not supported; "
            "use another backbone"
        )
    side = size or height
    return Preprocess(
        size=side,
        resize=max(side, int(side / defaults["crop_pct"])),
        fit="squeeze" if defaults["crop_mode"] == "squash" else "crop",
        interpolation=defaults["interpolation"],
        mean=defaults["mean"],
        std=defaults["std"],
    )


def _torchvision_preprocess(name: str, weights: str, size: int | None) -> Preprocess:
    _require_known(name, torchvision_names(), "torchvision")
    known = torchvision_weights(name)
    defaults = known.get(weights.lower(), known["imagenet"]).transforms()
    (crop,), (resize,) = defaults.crop_size, defaults.resize_size
    side = size or crop
    return Preprocess(
        size=side,
        resize=round(side * resize / crop),
        interpolation=defaults.interpolation.value,
        mean=tuple(defaults.mean),
        std=tuple(defaults.std),
    )


def _require_known(name: str, known: Sequence[str], library: str) -> None:
    if name not in known:
        hint = did_you_mean(name, known, "see the list in its documentation")
        raise InputError(f"--from-{library}: unknown model {name!r}; {hint}")


def _provenance(backbone: PretrainedBackbone, config: ModelConfig, preprocess: Preprocess) -> dict[str, Any]:
    from_file = config.weights is not None and is_file_of_weights(config.weights)
    return {
        "source": f"{backbone.library}:{backbone.name}",
        "config": Config(data="", model=config, preprocess=preprocess, epochs=0).to_dict(),
        "metrics": {},
        "weights_sha256": sha256_of(Path(str(config.weights))) if from_file else None,
        "created": now(),
        "versions": versions(),
    }
