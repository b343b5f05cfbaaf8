"""MIC: a loss of classes beside one of surrogate classes, whose encoder is kept independent of the first."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from train.losses.objective import Objective


def reverse_gradient(values: Tensor) -> Tensor:
    """Return the values, with the sign of their gradient changed (Ganin and Lempitsky, ICML 2015)."""
    return 2 * values.detach() - values


class MicObjective(nn.Module):
    """Objective of MIC (Roth, Brattoli and Ommer, ICCV 2019) for the outputs of a `TwinEncoder`.

    The sum of three terms. The objective of the run compares the embeddings of the first `count` samples by
    their classes, with its regularizers. The auxiliary loss compares the auxiliary embeddings of the others
    by their surrogate classes. Over all samples, the correlation of both encoders is subtracted: the mean
    of (z r)² over samples and dimensions, with z the unit embedding and r the unit vector that the projection
    predicts from the auxiliary embedding. The projection learns to make it large, and both encoders, whose
    gradient is reversed, to make it small: what one knows of an image, the other need not repeat.

    The value is therefore no measure of progress: the correlation is subtracted also where it falls.

    Args:
        objective: Objective of the run.
        auxiliary: Loss of surrogate classes.
        weight: Weight of the correlation.
        count: Number of samples that come first, in batches by class.
        dims: Dimensions of the embedding and of the auxiliary embedding.

    Attributes:
        diagnostics: Detached scalars of the last call: those of the objective, with class_loss, its value,
            auxiliary_loss and correlation, which is times the dimension: 0 to 1.
    """

    def __init__(
        self, objective: Objective, auxiliary: Objective, weight: float, count: int, dims: tuple[int, int]
    ) -> None:
        super().__init__()
        self.objective, self.auxiliary = objective, auxiliary
        self.weight, self.count, self.dims = weight, count, dims
        self.diagnostics: dict[str, Tensor] = {}

    @property
    def measures_gradients(self) -> bool:
        """Whether the objective of the run reports its gradient_ratio."""
        return self.objective.measures_gradients

    @measures_gradients.setter
    def measures_gradients(self, value: bool) -> None:
        self.objective.measures_gradients = value

    def forward(self, outputs: Tensor, labels: Tensor, *, targets: Tensor | None = None) -> Tensor:
        """Return the objective of a batch, a scalar tensor in float32 or wider.

        Args:
            outputs: [B, D + A + D] raw embeddings, raw auxiliary embeddings and their projection.
            labels: [B] integers: classes of the first `count` samples, surrogate classes of the others.
            targets: [B, T], the vectors of a teacher, for distillation.
        """
        own, other = self.dims
        embeddings, auxiliary, predicted = outputs.split((own, other, own), 1)
        first = self.count
        taught = None if targets is None else targets[:first]
        of_classes = self.objective(embeddings[:first], labels[:first], targets=taught)
        of_surrogates = self.auxiliary(auxiliary[first:], labels[first:])
        with torch.autocast(outputs.device.type, enabled=False):
            same = correlation(embeddings.to(of_classes.dtype), predicted.to(of_classes.dtype))
            value: Tensor = of_classes + of_surrogates - self.weight * same
        self.diagnostics = {
            **self.objective.diagnostics,
            "class_loss": of_classes.detach(),
            "auxiliary_loss": of_surrogates.detach(),
            "correlation": same.detach() * own,
        }
        return value


def correlation(embeddings: Tensor, predicted: Tensor) -> Tensor:
    """Return the mean of the squared product of unit vectors, with a reversed gradient of the first.

    Args:
        embeddings: [B, D] raw embeddings.
        predicted: [B, D] their prediction from the auxiliary embeddings, whose gradient it reverses itself.
    """
    z, r = F.normalize(reverse_gradient(embeddings), dim=1), F.normalize(predicted, dim=1)
    return (z * r).square().mean()
