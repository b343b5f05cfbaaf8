"""Cross-batch memory (XBM): a queue of past embeddings that serve as more positives and negatives."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from train.losses.registry import require


class CrossBatchMemory(nn.Module):
    """First-in first-out queue of detached embeddings with their labels (Wang et al., CVPR 2020).

    All its state is in buffers, so that a resumed run continues exactly.

    Args:
        size: Number of embeddings kept.
        embedding_dim: Embedding dimension.
        warmup: Calls during which the queue is filled but not used, until embeddings drift slowly.
    """

    embeddings: Tensor
    labels: Tensor
    written: Tensor
    calls: Tensor

    def __init__(self, size: int, embedding_dim: int, warmup: int = 0) -> None:
        super().__init__()
        require(size >= 1, "memory size", size, "at least 1")
        require(warmup >= 0, "memory warmup", warmup, "0 or more")
        self.size, self.warmup = size, warmup
        self.register_buffer("embeddings", torch.zeros(size, embedding_dim))
        self.register_buffer("labels", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("written", torch.zeros((), dtype=torch.int64))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def read(self, dim: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the stored embeddings [size, D], their labels [size] and a mask of usable ones [size]."""
        if dim != self.embeddings.shape[1]:
            raise ValueError(
                f"embeddings have {dim} dimensions, the memory was built for {self.embeddings.shape[1]}"
            )
        filled = torch.arange(self.size, device=self.written.device) < self.written
        return self.embeddings.clone(), self.labels.clone(), filled & (self.calls >= self.warmup)

    @torch.no_grad()
    def write(self, embeddings: Tensor, labels: Tensor) -> None:
        """Replace the oldest embeddings by a batch."""
        embeddings, labels = embeddings[-self.size :], labels[-self.size :]
        place = (self.written + torch.arange(len(labels), device=labels.device)) % self.size
        self.embeddings.index_copy_(0, place, embeddings.detach().to(self.embeddings.dtype))
        self.labels.index_copy_(0, place, labels.to(torch.int64))
        self.written += len(labels)
        self.calls += 1
