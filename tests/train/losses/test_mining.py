"""Random disjoint triplets: their law, and the losses over them."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from train import losses
from train.losses.mining import RandomDisjointMiner

from .oracle import geometry, triplets
from .oracle.batches import make_batch

Triplet = tuple[int, int, int]
RAND_DISJOINT = {"name": "rand-disjoint"}


def drawn(y: list[int], batch: int | None = None, usable: list[bool] | None = None) -> list[Triplet]:
    """Return the valid triplets of one draw."""
    mask = None if usable is None else torch.tensor(usable)
    found = RandomDisjointMiner().draw(torch.tensor(y), len(y) if batch is None else batch, mask)
    assert len({len(column) for column in found}) == 1
    chosen = torch.stack(found[:3], 1)[found.valid]
    return [(a, p, n) for a, p, n in chosen.tolist()]


def members(sizes: list[int]) -> list[int]:
    """Return the labels of classes of the given sizes, interleaved."""
    return [c for place in range(max(sizes)) for c, size in enumerate(sizes) if place < size]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=7), st.data())
def test_triplets_are_disjoint(sizes: list[int], data: st.DataObject) -> None:
    """Also with references, some of them not usable: anchors are in the batch, no sample occurs twice."""
    y = members(sizes)
    batch = data.draw(st.integers(1, len(y)))
    usable = [place < batch or data.draw(st.booleans()) for place in range(len(y))]
    torch.manual_seed(data.draw(st.integers(0, 2**20)))
    found = drawn(y, batch, usable)
    used = [place for triplet in found for place in triplet]
    assert len(set(used)) == len(used)
    assert all(usable[place] for place in used)
    for a, p, n in found:
        assert a < batch
        assert y[a] == y[p] != y[n]


@pytest.mark.parametrize("sizes", [[8] * 4, [2] * 16, [4] * 3, [2, 2], [2, 1], [5, 3, 1, 1, 1], [3, 3, 3]])
def test_number_of_triplets(sizes: list[int]) -> None:
    """A third of the samples, or as many as there are disjoint positive pairs."""
    torch.manual_seed(0)
    expected = min(sum(sizes) // 3, sum(size // 2 for size in sizes))
    assert {len(drawn(members(sizes))) for _ in range(30)} == {expected}


@pytest.mark.parametrize("y", [[0], [0, 1], [0, 0], [0, 1, 2], [5, 5, 5, 5]])
def test_batches_without_a_triplet(y: list[int]) -> None:
    assert drawn(y) == []
    loss = losses.build({"name": "triplet", "mining": RAND_DISJOINT})
    x = torch.randn(len(y), 4, requires_grad=True)
    loss(x, torch.tensor(y)).backward()
    assert x.grad is not None
    assert not x.grad.any()


def test_samples_are_equally_likely() -> None:
    """Of 24 samples every one is an anchor, a positive and a negative equally often, with every partner."""
    y, draws = members([6] * 4), 600
    torch.manual_seed(0)
    found = [triplet for _ in range(draws) for triplet in drawn(y)]
    assert len(found) == 8 * draws
    for role in range(3):
        counts = Counter(triplet[role] for triplet in found)
        expected = len(found) / 24
        assert max(abs(counts[i] - expected) for i in range(24)) < 5 * np.sqrt(expected)
    partners = Counter((a, n) for a, _, n in found)
    expected = len(found) / (24 * 18)
    assert len(partners) == 24 * 18
    assert max(abs(count - expected) for count in partners.values()) < 6 * np.sqrt(expected)


TERMS: dict[str, tuple[dict[str, Any], triplets.Term]] = {
    "triplet": ({"name": "triplet", "margin": 0.4}, triplets.hinge(0.4)),
    "squared": ({"name": "triplet", "margin": 0.4, "squared": True}, triplets.hinge(0.4, squared=True)),
    "cosine": ({"name": "triplet-cosine", "margin": 0.3}, triplets.cosine_hinge(0.3)),
    "nca": ({"name": "triplet-nca"}, triplets.nca()),
    "sct": ({"name": "sct"}, triplets.selectively_contrastive(triplets.nca())),
}


@pytest.mark.parametrize("name", TERMS)
def test_loss_is_the_mean_over_the_drawn_triplets(name: str) -> None:
    spec, term = TERMS[name]
    batch = make_batch(7, (4, 3, 5, 1), raw=True)
    z = geometry.unit_rows(batch.x)
    loss = losses.build({**spec, "mining": RAND_DISJOINT})
    values = set()
    for seed in range(5):
        torch.manual_seed(seed)
        of_triplets = [
            (geometry.distance(z[a], z[p]), geometry.distance(z[a], z[n])) for a, p, n in drawn(list(batch.y))
        ]
        torch.manual_seed(seed)
        value = float(loss(torch.tensor(batch.x), torch.tensor(batch.y)))
        assert value == pytest.approx(triplets.reduce(of_triplets, term), rel=1e-9)
        values.add(value)
    assert len(values) > 1


def test_memory_gives_partners() -> None:
    """A class with one sample in the batch finds its positive in the memory."""
    loss = losses.build(
        {"name": "triplet", "mining": RAND_DISJOINT, "memory": 6, "margin": 4.0}, embedding_dim=3
    )
    y = torch.arange(6)
    assert float(loss(torch.randn(6, 3), y)) == 0
    assert float(loss(torch.randn(6, 3), y)) > 1


@pytest.mark.parametrize("source", ["optimal", "optimal-segment", "symmetric", "interpolated"])
def test_synthetic_negatives_are_refused(source: str) -> None:
    with pytest.raises(ValueError, match="rand-disjoint draws samples"):
        losses.build({"name": "triplet", "negatives": source, "mining": RAND_DISJOINT})
