"""Backbones: construction by name, and the layout of their features.

    conv4, vgg9, vgg9-bn, bn-inception    implemented here
    resnet50, googlenet, ...              torchvision classifiers
    timm:NAME                             timm models; timm:NAME:key=value,... passes options to them
    another NAME                          a plug-in; see docs/plugins.md

A backbone is a network up to, and without, global pooling and the classifier. With native pooling it goes up
to the embedding that its library publishes, a map of one location.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import isqrt

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from retrieval.errors import InputError, LookalikeError, did_you_mean
from retrieval.plugins import find_plugin, plugin_names
from train.models.bn_inception import WEIGHTS_URL, bn_inception, from_published
from train.models.feature_extractor import FeatureExtractor, Weights, tensors_of
from train.models.library_backbones import from_timm, from_torchvision, no_stochastic_depth
from train.models.lora import own_name
from train.models.pretrained_weights import (
    download_weights,
    explain_download_errors,
    load_weights,
    read_weights,
)
from train.pretrained_configs import is_file_of_weights, torchvision_names


class Backbone(nn.Module):
    """Feature extractor with a uniform output layout.

    Args:
        name: Name for error messages.
        extractor: Network without its classifier.
        size: Side of the input images, in pixels.

    Attributes:
        channels: Number of channels C of the features.
        side: Side of the feature map, in locations.

    Raises:
        InputError: The network cannot process images of that size, or its features form no square map.
    """

    def __init__(self, name: str, extractor: FeatureExtractor, size: int) -> None:
        super().__init__()
        self.network, self.compute, self.layout = extractor.network, extractor.compute, extractor.layout
        self.prefix, self.has_class_token = extractor.prefix, extractor.has_class_token
        sides: dict[str, int] = {}
        with torch.no_grad(), _recorded_sides(self.network, sides):
            shape = extractor.features(name, size).shape
        if self.layout == "tokens":
            places, self.channels = max(shape[1] - self.prefix, 0), shape[2]
            self.side = isqrt(places)
            if not places or self.side**2 != places:
                raise InputError(
                    f"model.backbone: {name}: its features form no square map; use another backbone"
                )
        elif self.layout == "vector":
            self.channels, self.side = shape[1], 1
        else:
            self.channels, self.side = shape[1] if self.layout == "NCHW" else shape[3], shape[2]
        self._stages = extractor.stages or _stages_by_side(self.network, sides)
        self._name, self._recomputes = name, False
        self._blocks = _children_by_side(sides)

    def forward(self, planes: Tensor) -> Tensor:
        """Return the feature map: [N, 3, H, W] -> [N, C, h, w]."""
        features = self._features(planes)
        if self.layout == "tokens":
            spatial: Tensor = features[:, self.prefix :].mT.unflatten(2, (self.side, self.side))
            return spatial
        if self.layout == "vector":
            return features[:, :, None, None]
        return features if self.layout == "NCHW" else features.permute(0, 3, 1, 2)

    def class_token(self, planes: Tensor) -> Tensor:
        """Return the class token of a transformer: [N, 3, H, W] -> [N, C]."""
        return self._features(planes)[:, 0]

    def checkpoint_gradients(self, enabled: bool) -> None:
        """Turn on gradient checkpointing: activations are computed again in the backward pass.

        Raises:
            InputError: The network cannot be divided into blocks for it.
        """
        if isinstance(self.network, nn.Sequential):
            self._recomputes = enabled
            return
        try:
            self.network.set_grad_checkpointing(enabled)  # type: ignore[operator]  # of timm
        except (AttributeError, AssertionError) as error:
            raise InputError(
                f"model.grad_checkpointing: {self._name} does not support it; set batch.chunk to save memory"
            ) from error

    def _features(self, planes: Tensor) -> Tensor:
        if self._recomputes and torch.is_grad_enabled():
            for names in self._blocks:
                block = nn.Sequential(*(self.network.get_submodule(name) for name in names))
                learns = planes.requires_grad or any(p.requires_grad for p in block.parameters())
                planes = checkpoint(block, planes, use_reentrant=False) if learns else block(planes)
            return planes
        return self.compute(self.network, planes)

    def stages(self) -> list[list[nn.Parameter]]:
        """Return all parameters grouped by stage, from input to output."""
        parameters: dict[str, list[nn.Parameter]] = {}
        for name, parameter in self.network.named_parameters():
            parameters.setdefault(own_name(name), []).append(parameter)
        return [[parameter for name in stage for parameter in parameters[name]] for stage in self._stages]


def build_backbone(
    name: str, weights: str | None, size: int, drop_path: float | None = None, *, native: bool = False
) -> Backbone:
    """Build a backbone by name.

    Args:
        name: Name of the backbone.
        weights: `None` for random weights; the name of published weights, such as imagenet or imagenet1k_v1,
            to download them, or lite0, which a package contains; or a .safetensors file with the library's
            parameter names of the whole classifier (for bn-inception, those of the published file).
        size: Side of the input images, in pixels; transformers are built for one size.
        drop_path: Rate of stochastic depth of the last block; `None` for the library's default.
        native: Keep the network's own pooling and projection: the mean of the features over locations is the
            embedding that the library publishes. They have one location unless that embedding is a mean.

    Raises:
        InputError: An unknown name (with the most similar one), unknown weights (with those of the backbone),
            an unusable size or file, or a network without stochastic depth.
        LookalikeError: The weights cannot be downloaded.
    """
    extractor = _feature_extractor(name, size, drop_path, native)
    backbone = Backbone(name, extractor, size)
    if weights is None:
        return backbone
    published = extractor.published_weights
    if not published:
        raise InputError(f"model.weights: {name} has no published weights; use null, or another backbone")
    if is_file_of_weights(weights):
        found: Weights = read_weights(weights)
    elif weights.lower() in published:
        with explain_download_errors(name):
            found = published[weights.lower()]()
    else:
        known = f"use {', '.join(published)}, or a .safetensors file"
        raise InputError(f"model.weights: {name} has no weights {weights!r}; {known}")
    load_weights(
        backbone,
        extractor.classifier_tensors,
        from_published(found) if name == "bn-inception" else found,
        weights,
    )
    return backbone


def _feature_extractor(name: str, size: int, drop_path: float | None, native: bool) -> FeatureExtractor:
    if name in OWN_BACKBONES:
        if drop_path is not None:
            raise no_stochastic_depth(name)
        return OWN_BACKBONES[name]()
    if name in torchvision_names():
        return from_torchvision(name, size, drop_path, native=native)
    library, _, rest = name.partition(":")
    if library == "timm":
        return from_timm(rest, size, drop_path, native=native)
    plugin = find_plugin("backbones", name)
    if plugin is not None:
        return _of_plugin(name, plugin)
    import timm  # slow to import

    if timm.is_model(name.partition(".")[0]):
        raise InputError(f"model.backbone: {name!r} is a timm model; write 'timm:{name}'")
    known = [
        *OWN_BACKBONES,
        *plugin_names("backbones"),
        *torchvision_names(),
        *(f"timm:{model}" for model in timm.list_models()),
    ]
    own = ", ".join(OWN_BACKBONES)
    others = f"known: {own}, torchvision classifiers such as resnet50, timm:NAME, and those of --import FILE"
    hint = did_you_mean(name, known, others)
    raise InputError(f"model.backbone: unknown backbone {name!r}; {hint}")


def _of_plugin(name: str, build: Callable[[], FeatureExtractor | nn.Module]) -> FeatureExtractor:
    """Return the backbone of a plug-in, with the name for error messages."""
    try:
        found = build()
    except Exception as error:
        what = f"the plug-in of {plugin_names('backbones')[name]} fails ({type(error).__name__}: {error})"
        raise LookalikeError(f"model.backbone: {name}: {what}") from error
    if isinstance(found, nn.Module):
        one = () if isinstance(found, nn.Sequential) else (tuple(dict(found.named_parameters())),)
        return FeatureExtractor(found, tensors_of(found), stages=one)
    return found


def _bn_inception() -> FeatureExtractor:
    network = bn_inception()
    published = {"imagenet": lambda: download_weights(WEIGHTS_URL)}
    return FeatureExtractor(network, tensors_of(network), published)


def _conv4() -> FeatureExtractor:
    """Build four blocks of 3 x 3 convolution, batch norm, ReLU and 2 x 2 max-pooling, 64 channels each
    (Vinyals et al. 2016, Matching Networks)."""
    layers: list[nn.Module] = []
    for inputs in (3, 64, 64, 64):
        layers += [*_convolution(inputs, 64), nn.MaxPool2d(2, ceil_mode=True)]
    return _from_layers(layers)


def _vgg9(*, batch_norm: bool) -> FeatureExtractor:
    """Build eight 3 x 3 convolutions with ReLU: two each of 64, 128, 256 and 512 channels, with 2 x 2
    max-pooling between them. The embedding layer is the ninth.

    Roy et al. (2022, Learning Deep Optimal Embeddings with Sinkhorn Divergences, section 4) name "VGG-9" and
    neither its widths nor whether it has batch norm. The widths are ours: the first eight convolutions of
    VGG-13 (Simonyan & Zisserman 2015, table 1, column B).

    Batch norm decides what the discrepancy losses do at the start of training. Measured on untrained networks
    with 100 images of CIFAR (10 super-classes x 10, mean pooling, 64 dimensions, medians of 5 seeds), with
    sigma = 0.05 and the paper's weights; ratios are of gradient norms with respect to the unit embeddings:

                  median distance   mean cosine   0.2 L^L / L_Trip   0.5 L^W / L_Trip
        vgg9      0.11 sigma        1.000         3,200              5.2
        vgg9-bn   11.8 sigma        0.816         0.005              3.5

    Without batch norm the embeddings begin as nearly one point, and the Laplacian kernel drives all of the
    first steps; with it the distances are far beyond the kernel's width, and L^L does nothing.
    """
    layers: list[nn.Module] = []
    inputs = 3
    for outputs in (64, 128, 256, 512):
        layers += [nn.MaxPool2d(2, ceil_mode=True)] if layers else []
        for before in (inputs, outputs):
            plain = (nn.Conv2d(before, outputs, 3, padding=1), nn.ReLU(inplace=True))
            layers += _convolution(before, outputs) if batch_norm else plain
        inputs = outputs
    return _from_layers(layers)


def _from_layers(layers: list[nn.Module]) -> FeatureExtractor:
    network = nn.Sequential(*layers)
    return FeatureExtractor(network, tensors_of(network))


def _convolution(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)


@contextmanager
def _recorded_sides(network: nn.Module, sides: dict[str, int]) -> Iterator[None]:
    """Record the side of the feature map after each layer of a sequential network."""

    def note(name: str, _: nn.Module, __: object, output: Tensor) -> None:
        sides[name] = output.shape[2] if output.ndim == 4 else 0

    chain = network.named_children() if isinstance(network, nn.Sequential) else ()
    hooks = [layer.register_forward_hook(partial(note, name)) for name, layer in chain]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _children_by_side(sides: Mapping[str, int]) -> list[list[str]]:
    """Group the layers of a sequential network: a stage begins where the map becomes smaller."""
    stages: dict[int, list[str]] = {}
    for child in sides:
        stages.setdefault(sides[child], []).append(child)
    return list(stages.values())


def _stages_by_side(network: nn.Module, sides: Mapping[str, int]) -> list[list[str]]:
    """Return the parameter names of each stage of a sequential network; a norm joins the previous one."""
    stages: list[list[str]] = []
    for children in _children_by_side(sides):
        layers = [(child, network.get_submodule(child)) for child in children]
        names = {f"{child}.{name}": p for child, layer in layers for name, p in layer.named_parameters()}
        if stages and all(p.ndim < 2 for p in names.values()):
            stages[-1] += names
        elif names:
            stages.append(list(names))
    return stages


OWN_BACKBONES: dict[str, Callable[[], FeatureExtractor]] = {
    "conv4": _conv4,
    "vgg9": partial(_vgg9, batch_norm=False),
    "vgg9-bn": partial(_vgg9, batch_norm=True),
    "bn-inception": _bn_inception,
}
