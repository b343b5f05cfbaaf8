"""Export of pretrained backbones of timm and torchvision as embedders, without training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from export.model_file import DEFAULT_OPTIONS, LIBRARIES, Exported, ExportOptions, export_model
from export.samples import NOISE, SampleImages
from retrieval.errors import InputError, did_you_mean
from retrieval.files import now, sha256_of
from retrieval.images.preprocess import Preprocess
from retrieval.machine.installation import versions
from train.config import Config, ModelConfig
from train.models.embedding_model import headless_model
from train.pretrained_configs import (
    config_file,
    is_file_of_weights,
    published_preprocess,
    torchvision_names,
)
from train.weights_origin import weights_origin


@dataclass(frozen=True)
class PretrainedBackbone:
    """A pretrained backbone of a library.

    Attributes:
        library: timm or torchvision.
        name: Name in the library; for timm, NAME:key=value,... passes options of the architecture.
        weights: imagenet or torchvision's name of certain weights (imagenet1k_v1), both downloaded, lite0,
            or a .safetensors file with the library's parameter names.
        size: Side of the input images in pixels; `None` for the library's default.
        mean: Mean per RGB channel, of values in 0..1; `None` for the library's default.
        std: Standard deviation per RGB channel; `None` for the library's default.
        pooling: native (the library's own embedding), mean, gem or cls.
    """

    library: str
    name: str
    weights: str = "imagenet"
    size: int | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    pooling: Literal["native", "mean", "gem", "cls"] = "native"

    def preprocess(self) -> Preprocess:
        """Return the preprocessing that the library defines, with the overrides."""
        known = self.library == "timm" or self.name in torchvision_names()
        preprocess = published_preprocess(self._backbone, self.weights, self.size) if known else None
        if preprocess is None:
            raise InputError(f"--from {self.library}: unknown model {self.name!r}; {self._hint()}")
        return replace(preprocess, mean=self.mean or preprocess.mean, std=self.std or preprocess.std)

    @property
    def assumption(self) -> str | None:
        """A sentence on the mean and std that are assumed for a file of weights; `None` if none are."""
        stated = not is_file_of_weights(self.weights) or config_file(self._backbone, self.weights) is not None
        if stated or (self.mean and self.std):
            return None
        found = self.preprocess()
        return (
            f"mean {list(found.mean)}, std {list(found.std)}: assumed for {self.weights}, as published for "
            f"{self._backbone}; give --mean and --std if these weights were trained with others"
        )

    def model_config(self) -> ModelConfig:
        """Return the model configuration, before the embedding dimension is known."""
        return ModelConfig(backbone=self._backbone, weights=self.weights, pooling=self.pooling)

    @property
    def _backbone(self) -> str:
        return f"timm:{self.name}" if self.library == "timm" else self.name

    def _hint(self) -> str:
        """Suggest a name of the library."""
        import timm

        name = self.name.partition(":")[0].partition(".")[0]
        known = timm.list_models() if self.library == "timm" else torchvision_names()
        return did_you_mean(name, known, "see the list in its documentation")


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


def _provenance(backbone: PretrainedBackbone, config: ModelConfig, preprocess: Preprocess) -> dict[str, Any]:
    from_file = config.weights is not None and is_file_of_weights(config.weights)
    return {
        "source": f"{backbone.library}:{backbone.name}",
        "config": Config(data="", model=config, preprocess=preprocess, epochs=0).to_dict(),
        "metrics": {},
        "weights_sha256": sha256_of(Path(str(config.weights))) if from_file else None,
        **weights_origin(config.backbone, config.weights).to_dict(),
        "created": now(),
        "versions": versions(LIBRARIES),
    }
