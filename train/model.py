"""The embedder while it is being trained: pixels in, raw embeddings out."""

from __future__ import annotations

from difflib import get_close_matches

import torch
import torchvision
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from retrieval.errors import InputError, LookalikeError
from retrieval.preprocess import Preprocess
from train.config import ModelConfig

BACKBONES = ("conv4", "resnet18", "resnet34", "resnet50")


class EmbeddingModel(nn.Module):
    """Normalisation, a convolutional backbone, and a linear embedding of its features.

    The embedding is the mean over the locations of a linear map of each one's features: the same map
    everywhere, or one for each location (`ModelConfig.pooling`).
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: ModelConfig, preprocess: Preprocess) -> None:
        super().__init__()
        self.backbone, channels = _backbone(config.backbone, config.weights)
        size = preprocess.size
        with torch.no_grad():
            self.backbone.eval()
            height, width = self.backbone(torch.zeros(1, 3, size, size)).shape[2:]
            self.backbone.train()
        self.locations = height * width if config.pooling == "spatial" else 1
        self.head = nn.Linear(self.locations * channels, config.embedding_dim)
        self.register_buffer("mean", 255 * torch.tensor(preprocess.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", 255 * torch.tensor(preprocess.std).view(3, 1, 1), persistent=False)

    def features(self, images: Tensor) -> Tensor:
        """uint8 [N, H, W, 3] -> [N, C, h, w]."""
        planes = images.permute(0, 3, 1, 2).to(self.mean.dtype)  # [N, 3, H, W]
        return self.backbone((planes - self.mean) / self.std)

    def forward(self, images: Tensor) -> Tensor:
        """uint8 [N, H, W, 3] -> raw embeddings [N, D], not normalised: the losses do that."""
        features = self.features(images)
        return self.head(features.mean((2, 3)) if self.locations == 1 else features.flatten(2).mT.flatten(1))

    def maps(self, images: Tensor) -> Tensor:
        """uint8 [N, H, W, 3] -> embeddings per location [N, h, w, D], whose mean is the raw embedding."""
        features = self.features(images).permute(0, 2, 3, 1)  # [N, h, w, C]
        if self.locations == 1:
            return self.head(features)
        height, width = features.shape[1:3]
        weight = self.head.weight.view(-1, height, width, features.shape[3])  # [D, h, w, C]
        return self.locations * torch.einsum("nhwc,dhwc->nhwd", features, weight) + self.head.bias


def _backbone(name: str, weights: str | None) -> tuple[nn.Module, int]:
    if name not in BACKBONES:
        near = get_close_matches(name, BACKBONES, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(BACKBONES)}"
        raise InputError(f"model.backbone: no backbone is called {name!r}; {hint}")
    if name == "conv4":
        if weights:
            raise InputError(f"model.weights: {name} has no published weights; use null, or a resnet")
        return _conv4(), 64
    try:
        classifier = torchvision.models.get_model(name, weights="DEFAULT" if weights == "imagenet" else None)
    except OSError as error:
        reason = f"the weights of {name} cannot be downloaded ({error})"
        raise LookalikeError(f"model.weights: {reason}; give a .safetensors file") from error
    if weights and weights != "imagenet":
        _load_weights(classifier, weights)
    layers = [module for child, module in classifier.named_children() if child not in ("avgpool", "fc")]
    return nn.Sequential(*layers), classifier.fc.in_features


def _conv4() -> nn.Module:
    """Four blocks of 3 x 3 convolution, batch norm, ReLU and 2 x 2 max-pooling, 64 channels each
    (Vinyals et al. 2016, Matching Networks)."""
    blocks: list[nn.Module] = []
    for inputs in (3, 64, 64, 64):
        convolution = nn.Conv2d(inputs, 64, 3, padding=1, bias=False)
        blocks += [convolution, nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(2, ceil_mode=True)]
    return nn.Sequential(*blocks)


def _load_weights(classifier: nn.Module, file: str) -> None:
    """Fill a torchvision classifier from a file with torchvision's names; its last layer may be missing."""
    try:
        weights = load_file(file)
    except (OSError, SafetensorError) as error:
        raise InputError(f"model.weights: {file}: not a readable safetensors file ({error})") from error
    wanted = {name for name in classifier.state_dict() if not name.startswith("fc.")}
    kept = {name: weight.float() for name, weight in weights.items() if not name.startswith("fc.")}
    strangers = sorted(wanted ^ set(kept))
    if strangers:
        raise InputError(f"model.weights: {file}: made for another network (at {strangers[0]!r})")
    classifier.load_state_dict(kept, strict=False)
