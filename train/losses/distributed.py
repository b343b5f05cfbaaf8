"""Losses over the batches of all processes together."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def gather(
    embeddings: Tensor, labels: Tensor, *, group: dist.ProcessGroup | None = None, averaged: bool = True
) -> tuple[Tensor, Tensor]:
    """The embeddings and labels of all processes, in the order of their ranks.

    Every process evaluates the loss of the whole batch and differentiates it with respect to its own share,
    so that values and gradients equal those of one process with all samples, whatever the loss: no sum over
    anchors has to be divided, and nothing is exchanged in the backward pass. Miners that draw at random need
    the same generator state everywhere for that.

    Args:
        embeddings: [B, D] of this process; B is the same in all.
        labels: [B].
        group: the processes, all by default.
        averaged: gradients will be averaged over the processes, as DistributedDataParallel does; those of the
            embeddings are multiplied by the number of processes to make up for it. The loss's own parameters
            need no such factor: their gradient is the same everywhere.

    Returns:
        [world * B, D] embeddings, those of other processes detached, and [world * B] labels.

    Example:
        ``loss(*gather(model(images), labels)).backward()``
    """
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    everyone = [torch.empty_like(embeddings) for _ in range(world)]
    everyone_labels = [torch.empty_like(labels) for _ in range(world)]
    dist.all_gather(everyone, embeddings.detach().contiguous(), group=group)
    dist.all_gather(everyone_labels, labels.contiguous(), group=group)
    factor = world - 1 if averaged else 0
    everyone[rank] = embeddings + factor * (embeddings - embeddings.detach())
    return torch.cat(everyone), torch.cat(everyone_labels)
