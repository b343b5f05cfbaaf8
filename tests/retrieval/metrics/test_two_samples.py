"""The classifier two-sample test: against brute force and a peer, and how often its interval is wrong."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.stats import hypergeom
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import roc_auc_score

from retrieval.metrics.distributions import draws_tail
from retrieval.metrics.two_samples import LEAST, MOST, difference


def sample(count: int, seed: int, shift: float = 0.0, dim: int = 12) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    vectors[:, 0] += shift
    return vectors


def blocks(count: int) -> np.ndarray:
    """Which vectors of a sample are tested."""
    return np.array([20 * position // count % 2 == 1 for position in range(count)])


@pytest.mark.parametrize("shift", [0.0, 0.7, 4.0])
def test_area_is_that_of_a_held_out_discriminant(shift: float) -> None:
    ours, theirs = sample(130, 0, shift), sample(210, 1)
    theirs[:60] = np.round(theirs[:60])  # with ties
    found = difference(ours, theirs)
    assert found is not None
    tested = [blocks(130), blocks(210)]
    peer = LinearDiscriminantAnalysis(solver="eigen", shrinkage=0.5, priors=[0.5, 0.5])
    fitted = np.concatenate([ours[~tested[0]], theirs[~tested[1]]])
    peer.fit(fitted, np.repeat([1, 0], [(~tested[0]).sum(), (~tested[1]).sum()]))
    both = peer.decision_function(np.concatenate([ours[tested[0]], theirs[tested[1]]]))
    truth = np.repeat([1, 0], [tested[0].sum(), tested[1].sum()])
    assert found.auc == pytest.approx(roc_auc_score(truth, both), abs=0.01)
    high, low = both[truth == 1], both[truth == 0]
    pairs = [float(a > b) + 0.5 * float(a == b) for a, b in product(high, low)]
    assert roc_auc_score(truth, both) == pytest.approx(np.mean(pairs))
    assert found.low <= found.auc <= found.high
    assert found.certain or not shift


def test_intervals_are_wrong_as_often_as_they_say() -> None:
    """Without a difference, 5% of them lack 0.5; 19 of 200 has a probability of 1% then."""
    found = [difference(sample(120, 2 * seed), sample(300, 2 * seed + 1)) for seed in range(200)]
    wrong = [one for one in found if one is not None and not one.low <= 0.5 <= one.high]
    assert len(wrong) < 19
    assert sum(one.certain for one in wrong) < 12


def test_sizes() -> None:
    assert difference(sample(LEAST - 1, 0), sample(200, 1)) is None
    assert difference(sample(200, 0), sample(LEAST - 1, 1)) is None
    found = difference(sample(LEAST, 0), sample(MOST + 7, 1, dim=12))
    assert found is not None
    assert (found.ours, found.theirs) == (LEAST, MOST)


def test_same_vectors_everywhere_differ_in_nothing() -> None:
    same = np.ones((50, 8), np.float32)
    found = difference(same, same)
    assert found is not None
    assert (found.auc, found.certain) == (0.5, False)


@pytest.mark.parametrize(
    ("draws", "marked", "count"), [(10, 4, 30), (25, 25, 30), (200, 12, 2200), (5, 0, 9)]
)
def test_draws_tail(draws: int, marked: int, count: int) -> None:
    for drawn in range(-1, min(draws, marked) + 3):
        expected = hypergeom.sf(drawn - 1, count, marked, draws)
        assert draws_tail(drawn, draws, marked, count) == pytest.approx(expected, rel=1e-9, abs=1e-14)
