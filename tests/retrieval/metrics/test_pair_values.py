"""AUC and Spearman's correlation of pairs against scikit-learn and SciPy, and their interval over images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from retrieval.metrics.pair_values import Measure, auc, image_interval, spearman

PEERS: list[tuple[Measure, Callable[..., float]]] = [
    (auc, lambda cosines, values: float(roc_auc_score(values, cosines))),
    (spearman, lambda cosines, values: float(spearmanr(cosines, values).statistic)),
]
BOUNDS = {auc: (0.0, 1.0), spearman: (-1.0, 1.0)}


def sample(seed: int, measure: Measure, size: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and values, both with ties."""
    random = np.random.default_rng(seed)
    values = random.integers(0, 5 if measure is spearman else 2, size).astype(float)
    return np.round(0.3 * values + random.normal(size=size), 1), values


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("measure", "peer"), PEERS, ids=["auc", "spearman"])
def test_values_equal_those_of_other_libraries(
    seed: int, measure: Measure, peer: Callable[..., float]
) -> None:
    cosines, values = sample(seed, measure)
    assert measure(cosines, values).value == pytest.approx(peer(cosines, values))


@pytest.mark.parametrize(("measure", "peer"), PEERS, ids=["auc", "spearman"])
def test_influence_is_the_derivative_by_the_weight_of_a_pair(
    measure: Measure, peer: Callable[..., float]
) -> None:
    """Repeating a pair once among 100 repetitions of all is a small change of its weight."""
    cosines, values = sample(0, measure)
    influence = measure(cosines, values).influence
    assert influence.sum() == pytest.approx(0, abs=1e-12)
    every = np.tile(np.arange(60), 100)
    base = peer(cosines, values)
    for pair in range(0, 60, 7):
        more = np.append(every, pair)
        change = 100 * (peer(cosines[more], values[more]) - base)
        assert influence[pair] == pytest.approx(change, rel=0.02, abs=1e-4)


def test_what_cannot_be_measured_is_nan() -> None:
    ones, rising = np.ones(4), np.arange(4.0)
    undefined = (auc(rising, ones), auc(rising, 0 * ones), spearman(rising, ones), spearman(ones, rising))
    for estimate in undefined:
        assert np.isnan(estimate.value)
        assert not estimate.influence.any()


@pytest.mark.parametrize("measure", [auc, spearman], ids=["auc", "spearman"])
@pytest.mark.parametrize("shared", [0.0, 0.7, 2.0])
def test_interval_covers_other_images(measure: Measure, shared: float) -> None:
    """Each of 40 images has an error of its own, which its pairs share; pairs of odd images have larger
    values, so that the errors do not cancel."""
    random = np.random.default_rng(0)

    def draw(images: int, degree: int = 6) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        first = np.repeat(np.arange(images), degree)
        second = (first + 2 * random.integers(1, images // 2, len(first))) % images
        values = (first % 2).astype(float)
        if measure is spearman:
            values += random.integers(0, 3, len(first))
        error = shared * random.normal(size=images)
        return values + error[first] + error[second] + random.normal(size=len(first)), values, first, second

    truth = np.mean([measure(*draw(2000)[:2]).value for _ in range(10)])
    found = []
    for _ in range(200):
        cosines, values, first, second = draw(40)
        estimate = measure(cosines, values)
        low, high, error = image_interval(estimate, first, second, BOUNDS[measure])
        found.append((estimate.value, error, low <= truth <= high))
    estimates, errors, covers = np.array(found).T
    assert 0.86 <= covers.mean() <= 0.99
    assert errors.mean() == pytest.approx(estimates.std(), rel=0.2)
