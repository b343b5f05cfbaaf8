"""Twin encoder of MIC: an auxiliary head on the features of a model, while it is trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from train.losses.mic import reverse_gradient
from train.models.embedding_model import EmbeddingModel


class AuxiliaryEncoder(nn.Module):
    """Linear head from pooled features to auxiliary embeddings, and their projection to the embedding space.

    The projection has a hidden layer with ReLU, and takes the unit auxiliary embedding with a reversed
    gradient (see `train.losses.mic`). Neither is part of the trained model.

    Args:
        features: Number of pooled features C.
        dim: Dimension A of the auxiliary embeddings.
        width: Width of the hidden layer.
        projected: Dimension D of the embeddings.
    """

    def __init__(self, features: int, dim: int, width: int, projected: int) -> None:
        super().__init__()
        self.head = nn.Linear(features, dim)
        self.projection = nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, projected))

    def forward(self, pooled: Tensor) -> Tensor:
        """Return [N, A + D]: raw auxiliary embeddings and their projection, of pooled features [N, C]."""
        embeddings = self.head(pooled)
        predicted = self.projection(F.normalize(reverse_gradient(embeddings), dim=1))
        return torch.cat([embeddings, predicted], 1)


class TwinEncoder(nn.Module):
    """A model with an auxiliary encoder: [N, D + A + D], the raw embeddings and what the encoder returns.

    Args:
        model: The model; its dropout and head make the embeddings.
        auxiliary: The auxiliary encoder.
        on_features: Take pooled features [N, C], not pixels uint8 [N, S, S, 3].
    """

    def __init__(self, model: EmbeddingModel, auxiliary: AuxiliaryEncoder, *, on_features: bool) -> None:
        super().__init__()
        self.auxiliary = auxiliary
        # A head alone leaves out the backbone, whose parameters it does not use.
        self.model: nn.Module = model.projection if on_features else model

    def forward(self, inputs: Tensor) -> Tensor:
        """Return raw outputs of images, or of their pooled features."""
        if isinstance(self.model, EmbeddingModel):
            pooled = self.model.pooled(inputs)
            embeddings = self.model.head(self.model.dropout(pooled))
        else:
            pooled, embeddings = inputs, self.model(inputs)
        return torch.cat([embeddings, self.auxiliary(pooled)], 1)
