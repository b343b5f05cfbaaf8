"""Objective of labelled pairs: the loss of batches whose labels are numbers of pairs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from train.losses.objective import Objective, Pairs


class PairObjective(nn.Module):
    """Objective for batches of pairs: the label of an image is the number of its pair.

    Args:
        objective: Objective of the pairs.
        values: [N] the values of all pairs of the training data, by number.
        graded: They are scores.

    Raises:
        ValueError: The objective needs classes.
    """

    values: Tensor

    def __init__(self, objective: Objective, values: Tensor, *, graded: bool) -> None:
        super().__init__()
        objective.check_pairs(graded=graded)
        self.objective = objective
        self.register_buffer("values", values, persistent=False)
        self.measures_gradients = False

    @property
    def diagnostics(self) -> dict[str, Tensor]:
        """Detached scalars of the last call."""
        return self.objective.diagnostics

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the objective of a batch, a scalar tensor.

        Args:
            embeddings: [2 P, D], the two images of each pair one after the other.
            labels: [2 P] numbers of their pairs; below 0 for an image in place of one that cannot be read.
        """
        both = labels.view(-1, 2)
        usable = (both >= 0).all(1)
        values = self.values[both[:, 0].clamp(min=0)].to(torch.promote_types(embeddings.dtype, torch.float32))
        value: Tensor = self.objective(embeddings, labels, pairs=Pairs(values, usable))
        return value
