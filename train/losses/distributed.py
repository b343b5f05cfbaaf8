"""Gathering of embeddings from all processes, for losses over the global batch."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def gather(
    embeddings: Tensor, labels: Tensor, *, group: dist.ProcessGroup | None = None, averaged: bool = True
) -> tuple[Tensor, Tensor]:
    """Gather the embeddings and labels of all processes, in the order of their ranks.

    Every process evaluates the loss of the global batch and differentiates it with respect to its own share.
    Values and gradients then equal those of one process with all samples, for any loss: no sum over anchors
    needs rescaling, and nothing is exchanged in the backward pass. Random miners need the same generator
    state in all processes.

    Args:
        embeddings: Embeddings of this process, [B, D]; B is the same in all processes.
        labels: Labels of this process, [B].
        group: Process group, all processes by default.
        averaged: Gradients will be averaged over the processes, as DistributedDataParallel does; those of the
            embeddings are multiplied by the number of processes in compensation. The loss's own parameters
            need no such factor: their gradient is the same in all processes.

    Returns:
        [world * B, D] embeddings, those of other processes detached, and [world * B] labels.

    Example:
        ``loss(*gather(model(images), labels)).backward()``
    """
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    size = len(embeddings)
    everyone = gather_constant(embeddings.detach(), group=group)
    factor = world - 1 if averaged else 0
    own = embeddings + factor * (embeddings - embeddings.detach())
    before, after = everyone[: rank * size], everyone[(rank + 1) * size :]
    return torch.cat([before, own, after]), gather_constant(labels, group=group)


def gather_constant(values: Tensor, *, group: dist.ProcessGroup | None = None) -> Tensor:
    """Gather tensors of the same shape [B, ...] to [world * B, ...] by rank, without gradient."""
    everyone = values.new_empty(dist.get_world_size(group) * len(values), *values.shape[1:])
    dist.all_gather_into_tensor(everyone, values.contiguous(), group=group)
    return everyone
