"""Pair weights of a loss: how strongly it pulls or pushes every pair of a batch (RAW, section 3)."""

from __future__ import annotations

import torch
from torch import Tensor

from train.losses.objective import Objective
from train.losses.view import View


def pair_weights(loss: Objective, similarities: Tensor, labels: Tensor, *, dim: int | None = None) -> Tensor:
    """Return the weight that a loss puts on each pair, by automatic differentiation by the similarities.

    The gradient of any pair loss is that of Σ_i (Σ over negatives w_ij s_ij - Σ over positives w_ij s_ij) / B
    with w held constant (RAW, theorem 3.1): negatives with w > 0 are pushed, positives with w > 0 pulled. Row
    i holds the weights that anchor i gives; a pair is moved by w_ij + w_ji.

    Args:
        loss: Built loss over pairs, triplets or tuplets of samples.
        similarities: [B, B] cosines; a symmetric matrix with ones on its diagonal.
        labels: [B] integers.
        dim: Embedding dimension, on which distance-weighted mining depends; B by default.

    Returns:
        [B, B] weights, 0 on the diagonal, in the precision of the similarities.

    Raises:
        ValueError: The shapes do not match, or the loss compares no pairs.

    Example:
        >>> import torch
        >>> from lookalike import losses
        >>> s = torch.tensor([[1.0, 0.2, 0.7], [0.2, 1.0, 0.1], [0.7, 0.1, 1.0]])
        >>> losses.pair_weights(losses.build({"name": "contrastive"}), s, torch.tensor([0, 0, 1]))
        tensor([[0., 1., 1.],
                [1., 0., 0.],
                [1., 0., 0.]])
    """
    if similarities.ndim != 2 or similarities.shape != (len(labels), len(labels)):
        raise ValueError(
            f"similarities have shape {tuple(similarities.shape)}; they must be [B, B], B = {len(labels)}"
        )
    leaf = similarities.detach().clone().requires_grad_()
    directions = torch.eye(len(leaf), dtype=leaf.dtype, device=leaf.device)  # stand for unit vectors
    view = View(directions, labels, paired=loss.paired, cosine=leaf)
    view.dim = dim or view.dim
    value = loss.evaluate(view)
    (gradient,) = torch.autograd.grad(value, leaf, allow_unused=True) if value.requires_grad else (None,)
    if gradient is None:
        raise ValueError("this objective does not depend on the similarities of pairs of samples")
    same = labels[:, None] == labels[None, :]
    weights = len(labels) * torch.where(same, -gradient, gradient)
    return weights.fill_diagonal_(0.0)
