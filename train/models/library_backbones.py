"""Backbones of torchvision and timm: their classifiers, cut off before global pooling."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from retrieval.errors import InputError, did_you_mean
from train.models.feature_extractor import FeatureExtractor, Weights, tensors_of, unusable_size
from train.pretrained_configs import FROM_TENSORFLOW, timm_options, torchvision_weights

_HEADS = {"avgpool", "dropout", "flatten", "classifier", "fc", "head", "aux1", "aux2", "AuxLogits"}
_CHAINS = {"features", "layers", "trunk_output", "blocks"}


def no_stochastic_depth(name: str) -> InputError:
    """Return the error for `model.drop_path` of a network without stochastic depth."""
    return InputError(f"model.drop_path: {name} has no stochastic depth; leave it out")


def _check_depth(name: str, classifier: nn.Module, drop_path: float | None) -> None:
    """Check that a network did not ignore its rate of stochastic depth."""
    kinds = {type(module).__name__ for module in classifier.modules()}
    if drop_path and not kinds & {"DropPath", "StochasticDepth"}:
        raise no_stochastic_depth(name)


# ---- torchvision


def from_torchvision(name: str, size: int, drop_path: float | None = None) -> FeatureExtractor:
    """Build a torchvision classifier by name, without its head."""
    import torchvision

    options: dict[str, Any] = {"init_weights": True} if name in FROM_TENSORFLOW else {}
    if name.startswith("vit_"):
        options["image_size"] = size
    if name.startswith("maxvit_"):
        options["input_size"] = (size, size)
    if drop_path is not None:
        options["stochastic_depth_prob"] = drop_path
    try:
        classifier = torchvision.models.get_model(name, weights=None, **options)
    except (ValueError, AssertionError) as error:
        raise unusable_size(name, size, error) from error
    except TypeError as error:
        raise no_stochastic_depth(name) from error
    _check_depth(name, classifier, drop_path)
    tensors = tensors_of(classifier)
    published = {weights: partial(_download, name, weights) for weights in torchvision_weights(name)}
    if not isinstance(classifier, torchvision.models.VisionTransformer):
        return FeatureExtractor(_chain(name, classifier), tensors, published)
    network = _Transformer(classifier)
    return FeatureExtractor(
        network, tensors, published, "forward", "tokens", 1, True, _stages_by_block(network)
    )


def _download(name: str, weights: str) -> Weights:
    import torchvision

    found: Weights = torchvision.models.get_model(
        name, weights=torchvision_weights(name)[weights]
    ).state_dict()
    return found


def _chain(name: str, classifier: nn.Module) -> nn.Sequential:
    network = nn.Sequential()
    if name in FROM_TENSORFLOW:
        network.add_module("scale", _TensorFlowScale())
    for child, module in classifier.named_children():
        if child in _CHAINS:
            for number, layer in module.named_children():
                network.add_module(f"{child}_{number}", layer)
        elif child not in _HEADS:
            network.add_module(child, module)
    if name.startswith("densenet"):
        network.add_module("relu", nn.ReLU(inplace=True))  # torchvision applies it in `forward`
    return network


class _TensorFlowScale(nn.Module):
    """Rescaling from ImageNet's mean and standard deviation to -1..1: torchvision's `transform_input`.

    torchvision's GoogLeNet and Inception come from TensorFlow. Zero padding prevents folding this into the
    first convolution.
    """

    factor: Tensor
    offset: Tensor

    def __init__(self) -> None:
        super().__init__()
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        self.register_buffer("factor", (2 * std).view(3, 1, 1), persistent=False)
        self.register_buffer("offset", (2 * mean - 1).view(3, 1, 1), persistent=False)

    def forward(self, planes: Tensor) -> Tensor:
        return planes * self.factor + self.offset


class _Transformer(nn.Module):
    """Vision transformer of torchvision up to its tokens: [N, 3, H, W] -> [N, 1 + T, C]."""

    def __init__(self, vit: Any) -> None:
        super().__init__()
        self.class_token, self.conv_proj, self.encoder = vit.class_token, vit.conv_proj, vit.encoder

    def forward(self, planes: Tensor) -> Tensor:
        patches = self.conv_proj(planes).flatten(2).mT  # [N, T, C]
        tokens: Tensor = self.encoder(torch.cat([self.class_token.expand(len(planes), -1, -1), patches], 1))
        return tokens


def _stages_by_block(network: nn.Module) -> tuple[tuple[str, ...], ...]:
    """Group parameters into the stem, each block, and everything after with the last block."""
    stages: dict[int, list[str]] = defaultdict(list)
    for name, _ in network.named_parameters():
        block = re.match(r"encoder\.layers\.encoder_layer_(\d+)\.", name)
        last = max(stages) if name.startswith("encoder.ln.") else 0
        stages[1 + int(block[1]) if block else last].append(name)
    return tuple(tuple(stages[number]) for number in sorted(stages))


# ---- timm


def from_timm(spec: str, size: int, drop_path: float | None = None) -> FeatureExtractor:
    """Build a timm model: NAME, or NAME:key=value,... with options of its architecture.

    Raises:
        InputError: An unknown name or option, or an unusable image size.
    """
    import timm  # slow to import

    name = spec.partition(":")[0]
    architecture = name.partition(".")[0]
    if not timm.is_model(architecture):
        known = (f"timm:{model}" for model in timm.list_models())
        hint = did_you_mean(f"timm:{architecture}", known, "see the list in its documentation")
        raise InputError(f"model.backbone: unknown timm model {name!r}; {hint}")
    options = timm_options(spec)
    if getattr(timm.get_pretrained_cfg(architecture), "fixed_input_size", False):
        options["img_size"] = size
    if drop_path is not None:
        options["drop_path_rate"] = drop_path
    try:
        classifier = timm.create_model(name, **options)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        if "'drop_path_rate'" in str(error):
            raise no_stochastic_depth(f"timm:{spec}") from error
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"model.backbone: timm:{spec}, {size} x {size}: {reason}") from error
    _check_depth(f"timm:{spec}", classifier, drop_path)
    has_token = getattr(classifier, "cls_token", None) is not None
    extractor = FeatureExtractor(
        classifier,
        tensors_of(classifier),
        {"imagenet": lambda: timm.create_model(name, pretrained=True, **options).state_dict()},
        "forward_features",
        getattr(classifier, "output_fmt", "NCHW"),
        getattr(classifier, "num_prefix_tokens", int(has_token)),
        has_token,
    )
    features = extractor.features(f"timm:{spec}", size)
    if not isinstance(features, Tensor) or features.ndim not in (3, 4):
        raise InputError(f"model.backbone: timm:{spec} does not return one feature map")
    _cut(classifier, features)
    return replace(
        extractor,
        layout="tokens" if features.ndim == 3 else extractor.layout,
        stages=_stages_of_timm(classifier),
    )


def _cut(classifier: nn.Module, features: Tensor) -> None:
    """Remove the modules that the features do not depend on: pooling, the classifier, and those between."""
    learned = {id(p): p for p in classifier.parameters() if p.requires_grad}
    gradients = torch.autograd.grad(features.sum(), list(learned.values()), allow_unused=True)
    idle = {key for key, gradient in zip(learned, gradients, strict=True) if gradient is None}
    for name, part in classifier.named_children():
        parameters = {id(p) for p in part.parameters()}
        if parameters and parameters <= idle:
            setattr(classifier, name, nn.Identity())


def _stages_of_timm(classifier: Any) -> tuple[tuple[str, ...], ...]:
    """Return timm's parameter groups; a group without a matrix (a final norm) joins the previous one."""
    from timm.models import group_parameters

    parameters = dict(classifier.named_parameters())
    try:
        groups = group_parameters(classifier, classifier.group_matcher(coarse=True))
    except (AttributeError, AssertionError):  # a few models define no group matcher, or only a fine one
        groups = defaultdict(list)
        for name in parameters:
            groups[re.sub(r"^(\w+(\.\d+)?).*", r"\1", name)].append(name)
    stages: list[list[str]] = []
    for group in groups.values():
        if stages and all(parameters[name].ndim < 2 for name in group):
            stages[-1] += group
        else:
            stages.append(list(group))
    return tuple(map(tuple, stages))
