"""Embedding model for training: uint8 pixels in, raw embeddings out."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from retrieval.errors import InputError
from retrieval.images.preprocess import Preprocess
from train.config import ModelConfig
from train.models.backbones import build_backbone
from train.models.heads import build_head
from train.models.lora import add_adapters


class EmbeddingModel(nn.Module):
    """Pixel normalisation, backbone, pooling, and a head: a linear embedding layer, or an MLP.

    With mean and spatial pooling and a linear head, the embedding is the mean over all locations of a linear
    map of their features (one map for all locations, or one per location), so there is an embedding map.
    Native pooling is the backbone's own: its features have one location, unless its library takes their mean.
    Generalised mean (GeM) pooling follows Radenović et al. (2018, Fine-tuning CNN Image Retrieval with No
    Human Annotation, equation 3).

    Args:
        config: Model configuration.
        preprocess: Preprocessing, for the image size and the normalisation.
        pretrained: Load the weights that `config` names; False for a network to be filled from a checkpoint.

    Raises:
        InputError: An unusable backbone, weights file, pooling or size.
        LookalikeError: The weights cannot be downloaded.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: ModelConfig, preprocess: Preprocess, *, pretrained: bool = True) -> None:
        super().__init__()
        self.config = config
        weights = config.weights if pretrained else None
        self.backbone = build_backbone(
            config.backbone, weights, preprocess.size, config.drop_path, native=config.pooling == "native"
        )
        if config.pooling == "cls" and not self.backbone.has_class_token:
            raise InputError(f"model.pooling: {config.backbone} has no class token; use mean or gem")
        if config.grad_checkpointing and config.batch_norm != "frozen" and _has_batch_norm(self.backbone):
            raise InputError(
                f"model.grad_checkpointing: {config.backbone} would update the statistics of its batch norms "
                "twice a step; set model.batch_norm=frozen"
            )
        if config.lora_rank is not None:
            sample = torch.zeros(1, 3, preprocess.size, preprocess.size)
            alpha = config.lora_alpha or 2.0 * config.lora_rank
            add_adapters(self.backbone, config.backbone, sample, config.lora_rank, alpha)
        self.locations = self.backbone.side**2 if config.pooling == "spatial" else 1
        self.dropout = nn.Dropout(config.dropout)
        width = self.locations * self.backbone.channels
        self.head = build_head(width, config.embedding_dim, config.hidden, config.init)
        self.power = nn.Parameter(torch.tensor(3.0)) if config.pooling == "gem" else None
        self.register_buffer("mean", 255 * torch.tensor(preprocess.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", 255 * torch.tensor(preprocess.std).view(3, 1, 1), persistent=False)
        # Pixels arrive as [N, H, W, 3], so features are channels-last; weights should be too.
        self.backbone.to(memory_format=torch.channels_last)
        self._freeze()
        self.train()

    @property
    def has_map(self) -> bool:
        """Whether the embedding is the mean of an embedding map.

        Not with gem or cls pooling, an MLP, or native pooling that is no mean.
        """
        is_mean = self.config.pooling == "native" and self.backbone.layout != "vector"
        return (is_mean or self.config.pooling in ("mean", "spatial")) and self.config.hidden is None

    @property
    def is_frozen_below_head(self) -> bool:
        """Whether only the head learns: an image always has the same pooled features."""
        return self.config.trainable == 0 and self.power is None

    @property
    def learned(self) -> nn.Module:
        """The part whose weights change in training, with the same names as in the model."""
        return nn.ModuleDict({"head": self.head}) if self.is_frozen_below_head else self

    @property
    def projection(self) -> nn.Module:
        """The layers from pooled features to raw embeddings: dropout and head."""
        return nn.Sequential(self.dropout, self.head)

    def with_own_head(self) -> EmbeddingModel:
        """Return a copy that shares the backbone with this network."""
        return copy.deepcopy(self, {id(self.backbone): self.backbone})

    def features(self, images: Tensor) -> Tensor:
        """Return the backbone's features: uint8 [N, H, W, 3] -> [N, C, h, w]."""
        features: Tensor = self.backbone(self._planes(images))
        return features

    def forward(self, images: Tensor) -> Tensor:
        """Return raw embeddings, uint8 [N, H, W, 3] -> [N, D]; the losses normalise them."""
        embeddings: Tensor = self.head(self.dropout(self.pooled(images)))
        return embeddings

    def pooled(self, images: Tensor) -> Tensor:
        """Return pooled features, uint8 [N, H, W, 3] -> [N, C], or [N, h w C] for spatial pooling."""
        if self.config.pooling == "cls":
            return self.backbone.class_token(self._planes(images))
        features = self.features(images)  # [N, C, h, w]
        if self.power is not None:
            raised = features.float().clamp(min=1e-6) ** self.power
            return raised.mean((2, 3)) ** (1 / self.power)
        if self.config.pooling == "spatial":
            return features.flatten(2).mT.flatten(1)
        return features.mean((2, 3))

    def maps(self, images: Tensor) -> Tensor:
        """Return embeddings per location, uint8 [N, H, W, 3] -> [N, h, w, D].

        Their mean is the raw embedding. Requires `has_map`; does not apply dropout.
        """
        features = self.features(images).permute(0, 2, 3, 1)  # [N, h, w, C]
        if self.config.pooling != "spatial":
            embeddings: Tensor = self.head(features)
            return embeddings
        height, width = features.shape[1:3]
        assert isinstance(self.head, nn.Linear)
        weight = self.head.weight.view(-1, height, width, features.shape[3])  # [D, h, w, C]
        return self.locations * torch.einsum("nhwc,dhwc->nhwd", features, weight) + self.head.bias

    def stages(self) -> list[list[nn.Parameter]]:
        """Return the backbone's parameters grouped by stage, from input to output."""
        return self.backbone.stages()

    def head_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the head and of pooling."""
        return [*self.head.parameters(), *([] if self.power is None else [self.power])]

    def train(self, mode: bool = True) -> EmbeddingModel:
        """Set training mode; frozen parts, with their batch norms and dropout, stay in evaluation mode."""
        super().train(mode)
        if self.config.grad_checkpointing:
            self.backbone.checkpoint_gradients(mode)
        if mode:
            _freeze_modes(self.backbone, True, self.config.batch_norm == "frozen")
        return self

    def _planes(self, images: Tensor) -> Tensor:
        planes = images.permute(0, 3, 1, 2).to(self.mean.dtype)  # [N, 3, H, W]
        return (planes - self.mean) / self.std

    def _freeze(self) -> None:
        stages, learning = self.stages(), self.config.trainable
        if learning is not None:
            if learning > len(stages):
                raise InputError(
                    f"model.trainable: {self.config.backbone} has {len(stages)} stages, not {learning}"
                )
            for stage in stages[: len(stages) - learning]:
                for parameter in stage:
                    parameter.requires_grad_(False)
        if self.config.batch_norm == "frozen":
            for module in self.backbone.modules():
                if isinstance(module, _BatchNorm):
                    module.requires_grad_(False)


def _has_batch_norm(module: nn.Module) -> bool:
    return any(isinstance(part, _BatchNorm) for part in module.modules())


def headless_model(config: ModelConfig, preprocess: Preprocess) -> EmbeddingModel:
    """Build a network whose embedding is the pooled features themselves, in evaluation mode.

    Args:
        config: Configuration; of the head nothing is read.
        preprocess: Preprocessing.

    Raises:
        InputError: An unusable backbone, weights file, pooling or size.
        LookalikeError: The weights cannot be downloaded.
    """
    plain = {"embedding_dim": 1, "init": "default", "hidden": None, "dropout": 0.0}
    model = EmbeddingModel(config.model_copy(update=plain), preprocess)
    model.config = model.config.model_copy(
        update={"embedding_dim": model.locations * model.backbone.channels}
    )
    model.add_module("head", nn.Identity())
    return model.eval()


def without_head(model: EmbeddingModel) -> EmbeddingModel:
    """Return a network that shares the backbone and whose embedding is its pooled features."""
    return with_head(model, nn.Identity())


def with_head(model: EmbeddingModel, head: nn.Module) -> EmbeddingModel:
    """Return a network that shares the backbone and has another head, in evaluation mode."""
    other = model.with_own_head()
    other.add_module("head", head)
    return other.eval()


def synchronise_batch_norm(model: EmbeddingModel) -> None:
    """Convert batch norms to synchronised ones, once the model is on its device.

    Raises:
        InputError: There are not several processes with a GPU each, which torch requires.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized() and model.mean.is_cuda):
        raise InputError(
            "model.batch_norm: sync needs processes with a GPU each (torchrun); use train or frozen"
        )
    from timm.layers import convert_sync_batchnorm  # converts timm's own batch norms too; slow to import

    model.backbone = convert_sync_batchnorm(model.backbone)


def _freeze_modes(module: nn.Module, learns: bool, batch_norm_frozen: bool) -> None:
    """Set evaluation mode for frozen parts; modules without parameters follow their parent."""
    parameters = list(module.parameters())
    if parameters:
        learns = any(parameter.requires_grad for parameter in parameters)
    if not learns or (batch_norm_frozen and isinstance(module, _BatchNorm)):
        module.eval()
        return
    for child in module.children():
        _freeze_modes(child, learns, batch_norm_frozen)


def pixel_embedder(model: EmbeddingModel) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from pixels uint8 [N, H, W, 3] to unit vectors float32 [N, D], in evaluation mode."""
    embed = device_embedder(model)
    return lambda pixels: embed(pixels).cpu().numpy()


def device_embedder(model: EmbeddingModel) -> Callable[[np.ndarray], Tensor]:
    """Return `pixel_embedder` whose vectors stay on the device of the model."""
    model.eval()

    @torch.inference_mode()
    def embed(pixels: np.ndarray) -> Tensor:
        images = torch.from_numpy(pixels).to(model.mean.device)
        return nn.functional.normalize(model(images).float())

    return embed
