"""Exact k-nearest-neighbour search on the training device, for validation between epochs."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from retrieval.metrics.ranking import NeighbourSearch, exact_neighbours
from retrieval.progress import Progress
from train.loop.precision import full_float32

_CELLS = 1 << 26  # similarities (queries x gallery) computed at once: 256 MB


def neighbour_search(device: torch.device) -> NeighbourSearch:
    """Return the fastest search for a device: FAISS on the CPU, torch elsewhere."""
    return exact_neighbours if device.type == "cpu" else partial(device_neighbours, device=device)


@torch.no_grad()
def device_neighbours(
    query: np.ndarray, gallery: np.ndarray, k: int, *, device: torch.device, show_progress: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Search by matrix products in full float32 (TF32 would break ties), one block of queries at a time.

    Implements `retrieval.metrics.ranking.NeighbourSearch`. The device must hold the gallery and 256 MB of
    similarities.

    Args:
        query: Query vectors, float32 [N, D].
        gallery: Gallery vectors, float32 [M, D].
        k: Number of neighbours, at most M.
        device: Device to search on.

    Returns:
        Scores float32 [N, k] and rows int32 [N, k], best first; ties are in any order, which
        `retrieval.metrics.ranking.rank` resolves.
    """
    scores = np.empty((len(query), k), np.float32)
    rows = np.empty((len(query), k), np.int32)
    columns = torch.from_numpy(gallery).to(device).T  # [D, M]
    step = max(1, _CELLS // len(gallery))
    with full_float32(), Progress("searching", len(query), "queries", show=show_progress) as progress:
        for start in range(0, len(query), step):
            block = slice(start, start + step)
            best = (torch.from_numpy(query[block]).to(device) @ columns).topk(k)  # of [b, M]
            scores[block], rows[block] = best.values.cpu().numpy(), best.indices.cpu().numpy()
            progress.update(len(best.values))
    return scores, rows
