"""Pretrained configurations: what torchvision and timm publish about their classifiers, without weights.

The preprocessing of weights is torchvision's `weights.transforms()` and timm's `pretrained_cfg`. This is the
only place that reads them: training and `lookalike export --from timm:` use the same function.
"""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from retrieval.errors import InputError
from retrieval.images.preprocess import Preprocess

FROM_TENSORFLOW = ("googlenet", "inception_v3")
"""Classifiers of torchvision with weights from TensorFlow."""

BN_INCEPTION = Preprocess(
    size=224,
    resize=256,
    interpolation="bilinear",
    mean=(0.50196, 0.45882, 0.40784),
    std=(0.0039216, 0.0039216, 0.0039216),
)
"""Preprocessing of the published BN-Inception: pixels in 0..255 minus (128, 117, 104); see `bn_inception`."""


@dataclass(frozen=True)
class Traits:
    """Properties of an architecture that settings depend on.

    Attributes:
        uses_class_token: Whether its classifier reads the class token of a transformer.
        has_batch_norm: Whether it has batch norm and no layer norm: most convolutional networks, but neither
            transformers nor ConvNeXt.
    """

    uses_class_token: bool
    has_batch_norm: bool


def is_file_of_weights(weights: str) -> bool:
    """Return whether `model.weights` is a file: the names of published weights have no dot and no slash."""
    return re.fullmatch(r"\w+", weights) is None


def published_preprocess(backbone: str, weights: str, size: int | None = None) -> Preprocess | None:
    """Return the preprocessing that a library publishes for weights; `None` for an unknown backbone.

    For a file of weights of timm it is that of a config.json beside it; see `config_file`. Without one, and
    for names that the library does not have, it is that of the library's default weights of the architecture.

    Args:
        backbone: Name of the backbone, as in `model.backbone`.
        weights: Weights of the backbone, as in `model.weights`.
        size: Side of the model's input, in pixels, in place of the published one. The share that the crop
            keeps stays as published.

    Raises:
        InputError: The published preprocessing is not supported.
    """
    library, _, spec = backbone.partition(":")
    if library == "timm":
        return _timm_preprocess(spec, config_file(backbone, weights), size)
    if backbone == "bn-inception":
        return _resized(BN_INCEPTION, size)
    return _torchvision_preprocess(backbone, weights, size) if backbone in torchvision_names() else None


def config_file(backbone: str, weights: str) -> Path | None:
    """Return the config.json beside a file of weights, as on the Hugging Face hub; `None` if there is none.

    Another architecture's is left alone.
    """
    library, _, spec = backbone.partition(":")
    file = Path(weights).parent / "config.json"
    if library != "timm" or not is_file_of_weights(weights) or not file.is_file():
        return None
    try:
        architecture = json.loads(file.read_text())["architecture"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return file if architecture == re.split("[.:]", spec)[0] else None


@cache
def traits(backbone: str) -> Traits:
    """Return the traits of an architecture; it is built without memory for its weights (device `meta`).

    An architecture that cannot be built has no traits: building the backbone gives the error message.
    """
    if ":" not in backbone and backbone not in torchvision_names():
        return Traits(uses_class_token=False, has_batch_norm=backbone == "bn-inception")
    from torch import nn
    from torch.nn.modules.batchnorm import _BatchNorm

    try:
        classifier = _without_weights(backbone)
    except (TypeError, ValueError, AssertionError, RuntimeError):
        return Traits(uses_class_token=False, has_batch_norm=False)
    token = getattr(classifier, "cls_token", getattr(classifier, "class_token", None))
    # timm names the pooling of a transformer: "token", or "avg" and "map" although some have a class token.
    pooling = getattr(classifier, "global_pool", "token")
    modules = list(classifier.modules())
    return Traits(
        uses_class_token=token is not None and pooling == "token",
        has_batch_norm=any(isinstance(module, _BatchNorm) for module in modules)
        and not any(isinstance(module, nn.LayerNorm) for module in modules),
    )


@cache
def native_size(backbone: str) -> tuple[int, int]:
    """Return the dimension of the native embedding and the number of parameters up to it.

    The network is built without memory for its weights.

    Raises:
        InputError: An unknown architecture, or one that cannot be built.
    """
    from torch import nn

    library, _, spec = backbone.partition(":")
    last: list[nn.Module]
    try:
        network = _without_weights(backbone)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"{backbone}: cannot be built ({reason}); choose another backbone") from error
    if library == "timm":
        if has_projection(spec):
            dim, last = network.num_classes, []
        else:
            dim, found = getattr(network, "head_hidden_size", network.num_features), network.get_classifier()
            last = [found] if isinstance(found, nn.Module) else list(found)
    else:
        layers = [layer for name, layer in network.named_modules() if "aux" not in name.lower()]
        linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        if linear:
            last, dim = [linear[-1]], linear[-1].in_features
        else:  # SqueezeNet classifies by a convolution
            convolution = [layer for layer in layers if isinstance(layer, nn.Conv2d)][-1]
            last, dim = [convolution], convolution.in_channels
    unused = {id(p) for layer in last for p in layer.parameters()}
    unused |= {id(p) for name, p in network.named_parameters() if name.lower().startswith("aux")}
    return dim, sum(p.numel() for p in network.parameters() if id(p) not in unused)


def _without_weights(backbone: str) -> Any:
    """Build a network on the device meta; some compute their widths with tensors and are built as usual."""
    import torch

    try:
        with torch.device("meta"):
            return _classifier(backbone)
    except NotImplementedError:
        return _classifier(backbone)


def _classifier(backbone: str) -> Any:
    library, _, spec = backbone.partition(":")
    if library == "timm":
        import timm

        return timm.create_model(spec.partition(":")[0], **timm_options(spec))
    import torchvision

    options = {"init_weights": False} if backbone in FROM_TENSORFLOW else {}
    return torchvision.models.get_model(backbone, weights=None, **options)


# ---- torchvision


@cache
def torchvision_names() -> list[str]:
    """Return the names of torchvision's classifiers."""
    import torchvision  # imported lazily: it loads torch's compiler, which takes two seconds

    names: list[str] = torchvision.models.list_models(module=torchvision.models)
    return names


def torchvision_weights(name: str) -> dict[str, Any]:
    """Return torchvision's weights of a classifier by lower-case name; "imagenet" is its default.

    A name such as imagenet1k_v1 fixes the weights: torchvision's default changes with its releases.
    """
    import torchvision

    enum = torchvision.models.get_model_weights(name)
    named = {weights.name.lower(): weights for weights in enum}
    return {"imagenet": enum.DEFAULT, **named}


def _torchvision_preprocess(name: str, weights: str, size: int | None) -> Preprocess:
    known = torchvision_weights(name)
    defaults = known.get(weights.lower(), known["imagenet"]).transforms()
    (crop,), (resize,) = defaults.crop_size, defaults.resize_size
    published = Preprocess(
        size=crop,
        resize=resize,
        interpolation=defaults.interpolation.value,
        mean=tuple(defaults.mean),
        std=tuple(defaults.std),
    )
    return _resized(published, size)


def _resized(preprocess: Preprocess, size: int | None) -> Preprocess:
    """Return a preprocessing for another side of the input, with the same share of the image."""
    if size is None:
        return preprocess
    values = preprocess.to_dict()
    return Preprocess.from_dict(
        {**values, "size": size, "resize": round(size * preprocess.scaled / preprocess.size)}
    )


# ---- timm

_IMAGENET_LABELS, _FEWEST_LABELS = 1000, 2048  # label sets of other published classifiers are larger
_FITS = {"center": "crop", "squash": "squeeze", "border": "pad"}  # by timm's crop_mode


def timm_options(spec: str) -> dict[str, Any]:
    """Parse NAME:key=value,... into options of an architecture: numbers, strings and booleans.

    Raises:
        InputError: Not an option of an architecture.
    """
    import timm  # slow to import

    ours = {"num_classes", "in_chans", "img_size", "features_only", "global_pool"}
    taken = ours | set(inspect.signature(timm.create_model).parameters)
    options = {}
    for option in filter(None, spec.partition(":")[2].split(",")):
        key, _, value = option.partition("=")
        if not re.fullmatch(r"[\w.-]+", value) or key in taken or key.startswith("pretrained"):
            raise InputError(f"model.backbone: timm:{spec}: {option!r} is not an option of an architecture")
        options[key] = yaml.safe_load(value)
    return options


def has_projection(spec: str) -> bool:
    """Return whether the head of a timm model projects to a space of images and texts (CLIP, PE-Core).

    In timm, the projection of an image tower is in the place of the classifier, and `num_classes` of its
    pretrained_cfg is its dimension, 384 to 1,280. It is 0 without a head; label sets have 1,000 classes
    (ImageNet) or at least 11,221. The tag of the name decides: vit_base_patch16_clip_224.openai has a
    projection, vit_base_patch16_clip_224.openai_ft_in1k a classifier.
    """
    outputs = int(timm_configuration(spec).get("num_classes", 0))
    return 0 < outputs < _FEWEST_LABELS and outputs != _IMAGENET_LABELS


def timm_configuration(spec: str) -> dict[str, Any]:
    """Return the pretrained_cfg of NAME.TAG, or of the first tag of NAME; empty if there is none."""
    import timm

    try:
        published = timm.get_pretrained_cfg(spec.partition(":")[0])
    except RuntimeError:  # no such weights of the architecture
        return {}
    return dict(published.to_dict()) if published else {}


def _timm_preprocess(spec: str, file: Path | None, size: int | None) -> Preprocess | None:
    import timm
    from timm.data import resolve_data_config

    name = spec.partition(":")[0]
    if not timm.is_model(name.partition(".")[0]):
        return None
    try:
        own = timm.get_pretrained_cfg(name)
    except RuntimeError:  # no such weights of the architecture
        return None
    values = own.to_dict() if own else {}
    if file is not None:
        values |= json.loads(file.read_text()).get("pretrained_cfg", {})
    published = resolve_data_config(pretrained_cfg=values)
    channels, height, width = published["input_size"]
    if channels != 3 or height != width:
        raise InputError(
            f"timm:{name}: takes images of {channels} x {height} x {width}, which is not supported; use "
            "another backbone"
        )
    side = size or height
    return Preprocess(
        size=side,
        resize=max(side, int(side / published["crop_pct"])),  # a few publish more than 1: a black border
        fit=_FITS[published["crop_mode"]],
        interpolation=published["interpolation"],
        mean=tuple(published["mean"]),
        std=tuple(published["std"]),
    )
