"""Distillation: a network learns to embed images as a larger one, the teacher, does."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from train.losses.view import View, normalize


class Distillation(nn.Module):
    """Difference between the embeddings of a batch and those of a teacher.

    With the teacher's dimension: mean of 1 - cos(z_i, t_i), half the squared distance of the unit vectors, so
    that z_i can search a gallery of the teacher (asymmetric retrieval: Budnik and Avrithis, CVPR 2021, their
    regression of single vectors).

    With another dimension, also that of a prefix: mean over all i of 1 - r_i, with the Pearson correlation
    r_i of cos(z_i, z_j) and cos(t_i, t_j) over all j != i. Relations in a batch are compared, as in Park et
    al. (CVPR 2019), by their correlation, as Huang et al. (NeurIPS 2022) compare predictions: shift and scale
    of its cosines do not matter to the ranking of a query.

    The view must have `targets`, float [B, T]. A vector of zeros, of an image that the teacher could not
    read, adds no gradient to the first form.
    """

    def forward(self, view: View) -> Tensor:
        if view.targets is None:
            raise ValueError("distillation compares with the vectors of a teacher; pass targets")
        teacher = normalize(view.targets.to(view.embeddings.dtype))[0]
        if teacher.shape[1] == view.dim:
            value = 1 - (view.unit * teacher).sum(1).mean()
        else:
            correlation = _centered(view.within.cosine) * _centered(teacher @ teacher.T)
            value = 1 - correlation.sum(1).mean()
        view.report["distillation"] = value
        return value


def _centered(cosine: Tensor) -> Tensor:
    """Return the rows of a matrix [B, B] without their mean, at unit length; the diagonal does not count."""
    others = ~torch.eye(len(cosine), dtype=torch.bool, device=cosine.device)
    mean = (cosine * others).sum(1, keepdim=True) / (len(cosine) - 1)
    return normalize((cosine - mean) * others)[0]
