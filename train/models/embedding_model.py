"""The embedder while it is being trained: pixels in, raw embeddings out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from retrieval.errors import InputError
from retrieval.images.preprocess import Preprocess
from train.config import ModelConfig
from train.models import backbones


class EmbeddingModel(nn.Module):
    """Normalisation, a backbone, pooling, and a linear embedding of the features.

    With mean and spatial pooling, the embedding is the mean over the locations of a linear map of each one's
    features (the same map everywhere, or one for each location), so there is a map of embeddings. Generalised
    mean pooling is of Radenović et al. (2018, Fine-tuning CNN Image Retrieval with No Human Annotation,
    equation 3).

    Args:
        pretrained: read the weights that `config` names; without, everything is random: for a network that
            is to be filled from a checkpoint.

    Raises:
        InputError: a backbone, weights, pooling or size that cannot be used.
        LookalikeError: weights that cannot be downloaded.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: ModelConfig, preprocess: Preprocess, *, pretrained: bool = True) -> None:
        super().__init__()
        self.config = config
        weights = config.weights if pretrained else None
        self.backbone = backbones.build(config.backbone, weights, preprocess.size)
        if config.pooling == "cls" and not self.backbone.has_class_token:
            raise InputError(f"model.pooling: {config.backbone} has no class token; use mean or gem")
        self.locations = self.backbone.side**2 if config.pooling == "spatial" else 1
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(self.locations * self.backbone.channels, config.embedding_dim)
        _initialise(self.head, config.init)
        self.power = nn.Parameter(torch.tensor(3.0)) if config.pooling == "gem" else None
        self.register_buffer("mean", 255 * torch.tensor(preprocess.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", 255 * torch.tensor(preprocess.std).view(3, 1, 1), persistent=False)
        # Pixels come as [N, H, W, 3], so that is how features lie; convolutions like their weights alike.
        self.backbone.to(memory_format=torch.channels_last)
        self._freeze()
        self.train()

    @property
    def has_map(self) -> bool:
        """Whether the embedding is the mean of a map: gem and cls are none."""
        return self.config.pooling in ("mean", "spatial")

    def features(self, images: Tensor) -> Tensor:
        """uint8 [N, H, W, 3] -> [N, C, h, w]."""
        features: Tensor = self.backbone(self._planes(images))
        return features

    def forward(self, images: Tensor) -> Tensor:
        """uint8 [N, H, W, 3] -> raw embeddings [N, D], not normalised: the losses do that."""
        embeddings: Tensor = self.head(self.dropout(self._pooled(images)))
        return embeddings

    def maps(self, images: Tensor) -> Tensor:
        """uint8 [N, H, W, 3] -> embeddings per location [N, h, w, D], whose mean is the raw embedding.

        Only where `has_map`; without dropout.
        """
        features = self.features(images).permute(0, 2, 3, 1)  # [N, h, w, C]
        if self.config.pooling == "mean":
            embeddings: Tensor = self.head(features)
            return embeddings
        height, width = features.shape[1:3]
        weight = self.head.weight.view(-1, height, width, features.shape[3])  # [D, h, w, C]
        return self.locations * torch.einsum("nhwc,dhwc->nhwd", features, weight) + self.head.bias

    def stages(self) -> list[list[nn.Parameter]]:
        """The backbone's parameters from input to output, each in one stage."""
        return self.backbone.stages()

    def head_parameters(self) -> list[nn.Parameter]:
        """Those of the embedding layer and of pooling."""
        return [*self.head.parameters(), *([] if self.power is None else [self.power])]

    def train(self, mode: bool = True) -> EmbeddingModel:
        """As usual, but what does not learn stays in evaluation mode, batch norms and dropout too."""
        super().train(mode)
        if mode:
            _still(self.backbone, True, self.config.batch_norm == "frozen")
        return self

    def _planes(self, images: Tensor) -> Tensor:
        planes = images.permute(0, 3, 1, 2).to(self.mean.dtype)  # [N, 3, H, W]
        return (planes - self.mean) / self.std

    def _pooled(self, images: Tensor) -> Tensor:
        """[N, C], or [N, h w C] for spatial pooling."""
        if self.config.pooling == "cls":
            return self.backbone.class_token(self._planes(images))
        features = self.features(images)  # [N, C, h, w]
        if self.power is not None:
            raised = features.float().clamp(min=1e-6) ** self.power
            return raised.mean((2, 3)) ** (1 / self.power)
        return features.mean((2, 3)) if self.config.pooling == "mean" else features.flatten(2).mT.flatten(1)

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


def synchronise_batch_norm(model: EmbeddingModel) -> None:
    """Let batch norms use the statistics of all processes; call it once the model is on its device.

    Raises:
        InputError: without several processes, each with a GPU: torch has it for nothing else.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized() and model.mean.is_cuda):
        raise InputError(
            "model.batch_norm: sync needs processes with a GPU each (torchrun); use train or frozen"
        )
    from timm.layers import convert_sync_batchnorm  # knows timm's own batch norms too; takes seconds

    model.backbone = convert_sync_batchnorm(model.backbone)


def _still(module: nn.Module, learns: bool, batch_norm_frozen: bool) -> None:
    """Evaluation mode for parts that do not learn; those without parameters follow what they are part of."""
    parameters = list(module.parameters())
    if parameters:
        learns = any(parameter.requires_grad for parameter in parameters)
    if not learns or (batch_norm_frozen and isinstance(module, _BatchNorm)):
        module.eval()
        return
    for child in module.children():
        _still(child, learns, batch_norm_frozen)


def _initialise(head: nn.Linear, how: str) -> None:
    """The embedding layer, C inputs.

    default: torch's own; uniform: U(-1 / sqrt(C), 1 / sqrt(C)); xavier: uniform, of Glorot & Bengio (2010);
    kaiming: normal by fan-out, of He et al. (2015), as Proxy Anchor has it. The last three without bias.
    """
    if how == "default":
        return
    if how == "uniform":
        bound = head.in_features**-0.5
        nn.init.uniform_(head.weight, -bound, bound)
    elif how == "xavier":
        nn.init.xavier_uniform_(head.weight)
    else:
        nn.init.kaiming_normal_(head.weight, mode="fan_out")
    nn.init.zeros_(head.bias)


def pixel_embedder(model: EmbeddingModel) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from pixels uint8 [N, H, W, 3] to unit vectors float32 [N, D], in evaluation mode."""
    model.eval()

    @torch.inference_mode()
    def embed(pixels: np.ndarray) -> np.ndarray:
        images = torch.from_numpy(pixels).to(model.mean.device)
        vectors: np.ndarray = nn.functional.normalize(model(images)).cpu().numpy()
        return vectors

    return embed
