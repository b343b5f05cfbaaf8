"""Backbones of torchvision and timm: their classifiers without pooling, or without the last layer alone.

Native pooling is that of the library: its output is the embedding that the library publishes.

    timm, weights of a classifier, or without a head    forward_head(forward_features(x), pre_logits=True)
    timm, weights with a projection (CLIP)              forward(x); see `pretrained_configs.has_projection`
    torchvision                                         the input of the last linear layer
"""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn

from retrieval.errors import InputError, did_you_mean
from retrieval.model.hub import cache_while_unreachable
from train.models.feature_extractor import FeatureExtractor, Weights, forward, tensors_of, unusable_size
from train.models.packaged_weights import packaged_weights
from train.pretrained_configs import FROM_TENSORFLOW, has_projection, timm_options, torchvision_weights

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


def from_torchvision(
    name: str, size: int, drop_path: float | None = None, *, native: bool = False
) -> FeatureExtractor:
    """Build a torchvision classifier by name, without its head or (native) without its last linear layer."""
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
        chain = _chain(name, classifier)
        head = _layers_before_classes(classifier) if native else {}
        for child, layer in head.items():
            chain.add_module(child, layer)
        return FeatureExtractor(chain, tensors, published, layout="vector" if head else "NCHW")
    network = _Transformer(classifier, native)
    layout, stages = "vector" if native else "tokens", _stages_by_block(network)
    return FeatureExtractor(network, tensors, published, forward, layout, 1, True, stages)


def _download(name: str, weights: str) -> Weights:
    import torchvision

    published = torchvision_weights(name)[weights]
    # `get_model` would run code in the file, which this downloads into its cache or refuses.
    published.get_state_dict(check_hash=True, weights_only=True)
    found: Weights = torchvision.models.get_model(name, weights=published).state_dict()
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


def _layers_before_classes(classifier: Any) -> dict[str, nn.Module]:
    """Return the layers between the features and the last linear layer, if they are more than a mean."""
    head = getattr(classifier, "classifier", None)
    if not isinstance(head, nn.Sequential) or not isinstance(head[-1], nn.Linear):
        return {}
    before = {f"classifier_{number}": layer for number, layer in enumerate(head[:-1])}
    if not any(True for layer in before.values() for _ in layer.parameters()):
        return {}
    pool = {"avgpool": classifier.avgpool} if hasattr(classifier, "avgpool") else {}
    flat = any(isinstance(layer, nn.Flatten) for layer in before.values())
    return {**pool, **({} if flat else {"flatten": nn.Flatten()}), **before}


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
    """Vision transformer of torchvision: planes -> tokens [N, 1 + T, C], or (native) class token [N, C]."""

    def __init__(self, vit: Any, native: bool) -> None:
        super().__init__()
        self.native = native
        self.class_token, self.conv_proj, self.encoder = vit.class_token, vit.conv_proj, vit.encoder

    def forward(self, planes: Tensor) -> Tensor:
        patches = self.conv_proj(planes).flatten(2).mT  # [N, T, C]
        tokens: Tensor = self.encoder(torch.cat([self.class_token.expand(len(planes), -1, -1), patches], 1))
        return tokens[:, 0] if self.native else tokens


def _stages_by_block(network: nn.Module) -> tuple[tuple[str, ...], ...]:
    """Group parameters into the stem, each block, and everything after with the last block."""
    stages: dict[int, list[str]] = defaultdict(list)
    for name, _ in network.named_parameters():
        block = re.match(r"encoder\.layers\.encoder_layer_(\d+)\.", name)
        last = max(stages) if name.startswith("encoder.ln.") else 0
        stages[1 + int(block[1]) if block else last].append(name)
    return tuple(tuple(stages[number]) for number in sorted(stages))


# ---- timm


def from_timm(
    spec: str, size: int, drop_path: float | None = None, *, native: bool = False
) -> FeatureExtractor:
    """Build a timm model: NAME, or NAME:key=value,... with options of its architecture.

    Without its head, or (native) with its own pooling and projection. Where that is the mean of the features,
    the mean is left to the caller, so that there is a map.

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
    tensors = tensors_of(classifier)
    published = {"imagenet": partial(_download_timm, name, options)}
    extractor = FeatureExtractor(
        classifier,
        tensors,
        published | packaged_weights(architecture, tensors),
        _forward_features,
        getattr(classifier, "output_fmt", "NCHW"),
        getattr(classifier, "num_prefix_tokens", int(has_token)),
        has_token,
    )
    if native:
        own = replace(extractor, compute=_embedding_of(classifier, has_projection(spec)), layout="vector")
        with _recorded_calls(classifier) as called:
            vector = own.features(f"timm:{spec}", size)
        if not isinstance(vector, Tensor) or vector.ndim != 2:
            raise InputError(f"model.pooling: timm:{spec} does not return one embedding; use mean")
        if not _is_mean(own, extractor, size):
            _cut_classes(classifier, vector, called)
            return replace(own, stages=_stages_of_timm(classifier))
    features = extractor.features(f"timm:{spec}", size)
    if not isinstance(features, Tensor) or features.ndim not in (3, 4):
        raise InputError(f"model.backbone: timm:{spec} does not return one feature map")
    _cut(classifier, features)
    return replace(
        extractor,
        layout="tokens" if features.ndim == 3 else extractor.layout,
        stages=_stages_of_timm(classifier),
    )


def _download_timm(name: str, options: dict[str, Any]) -> Weights:
    import timm

    otherwise = "give a .safetensors file, or take tf_efficientnet_lite0 with the weights lite0"
    with cache_while_unreachable(f"model.weights: weights of timm:{name}", otherwise):
        found: Weights = timm.create_model(name, pretrained=True, **options).state_dict()
    return found


def _forward_features(network: Any, planes: Tensor) -> Tensor:
    features: Tensor = network.forward_features(planes)
    return features


def _pre_logits(network: Any, planes: Tensor) -> Tensor:
    embedding: Tensor = network.forward_head(network.forward_features(planes), pre_logits=True)
    return embedding


def _embedding_of(classifier: Any, projects: bool) -> Callable[[nn.Module, Tensor], Tensor]:
    """Return the function that computes the embedding of a timm model."""
    if projects or classifier.num_classes == 0:
        return forward
    if "pre_logits" in inspect.signature(classifier.forward_head).parameters:
        return _pre_logits
    classifier.reset_classifier(0)
    return forward


def _is_mean(own: FeatureExtractor, maps: FeatureExtractor, size: int) -> bool:
    """Return whether the embedding is the mean of a square map of features, and no parameter is between."""
    planes = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    try:
        features = maps.features("", size, planes)
    except InputError:
        return False
    if not isinstance(features, Tensor) or features.ndim not in (3, 4):
        return False
    if features.ndim == 3:
        places = features[:, maps.prefix :]
        is_square = isqrt(places.shape[1]) ** 2 == places.shape[1]
        mean = places.mean(1) if is_square else None
    else:
        mean = features.mean((2, 3) if maps.layout == "NCHW" else (1, 2))
    embedding = own.features("", size, planes)
    if mean is None or mean.shape != embedding.shape or not torch.allclose(mean, embedding, 1e-4, 1e-6):
        return False
    # A norm at its initial values can hide in equal numbers.
    return _idle(own.network, features) == _idle(own.network, embedding)


def _idle(network: nn.Module, output: Tensor) -> set[int]:
    """Return the ids of the learned parameters that an output does not depend on."""
    learned = {id(p): p for p in network.parameters() if p.requires_grad}
    gradients = torch.autograd.grad(output.sum(), list(learned.values()), allow_unused=True)
    return {key for key, gradient in zip(learned, gradients, strict=True) if gradient is None}


def _cut(classifier: nn.Module, features: Tensor) -> None:
    """Remove the modules that the features do not depend on: pooling, the classifier, and those between."""
    idle = _idle(classifier, features)
    for name, part in classifier.named_children():
        parameters = {id(p) for p in part.parameters()}
        if parameters and parameters <= idle:
            setattr(classifier, name, nn.Identity())


def _cut_classes(parent: nn.Module, embedding: Tensor, called: set[int]) -> None:
    """Remove the modules that compute classes from the embedding: not called, and without effect on it."""
    idle = _idle(parent, embedding)

    def cut(parent: nn.Module) -> None:
        for name, part in parent.named_children():
            parameters = {id(p) for p in part.parameters()}
            if parameters and parameters <= idle and id(part) not in called:
                setattr(parent, name, nn.Identity())
            elif parameters & idle:
                cut(part)

    cut(parent)


@contextmanager
def _recorded_calls(network: nn.Module) -> Iterator[set[int]]:
    """Record the ids of the modules that are called."""
    called: set[int] = set()
    hooks = [
        module.register_forward_hook(lambda part, *_: called.add(id(part))) for module in network.modules()
    ]
    try:
        yield called
    finally:
        for hook in hooks:
            hook.remove()


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
