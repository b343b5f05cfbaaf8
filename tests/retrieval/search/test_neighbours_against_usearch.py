"""Exact neighbours against the exhaustive search of usearch."""

from __future__ import annotations

import numpy as np
import pytest

from retrieval import metrics

usearch = pytest.importorskip("usearch.index")


@pytest.mark.parametrize("dim", [8, 96])
def test_neighbours_of_a_gallery(dim: int) -> None:
    random = np.random.default_rng(dim)
    gallery, queries = (random.standard_normal((count, dim)).astype(np.float32) for count in (700, 60))
    gallery /= np.linalg.norm(gallery, axis=1, keepdims=True)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    labels = np.arange(700) % 50
    theirs = usearch.search(gallery, queries, 10, usearch.MetricKind.IP, exact=True)
    wanted = labels[np.asarray(theirs.keys).astype(np.int64)] == labels[:60, None]
    hits = [wanted[:, :k].any(1).mean() for k in (1, 5, 10)]
    found = metrics.recall_at_k(queries, labels[:60], gallery, labels, ks=(1, 5, 10))
    assert [found[k] for k in (1, 5, 10)] == pytest.approx(hits)
