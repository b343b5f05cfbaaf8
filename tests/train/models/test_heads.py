"""Heads: projections fitted to features, against scikit-learn and scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import eigh, subspace_angles
from sklearn.covariance import ledoit_wolf
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge

from retrieval import InputError
from train.models.heads import fit_projection, fit_regression


@pytest.fixture(scope="module")
def features() -> tuple[np.ndarray, np.ndarray]:
    """300 features of 12 dimensions with different variances, in 5 classes."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(5), 60)
    means = random.normal(size=(5, 12)) * 2
    noise = random.normal(size=(300, 12)) @ random.normal(size=(12, 12))
    return (3 + means[labels] + noise).astype(np.float32), labels


@pytest.mark.parametrize("init", ["pca", "pca-whitened"])
def test_principal_components(features: tuple[np.ndarray, np.ndarray], init: str) -> None:
    vectors, labels = features
    weight, bias = fit_projection(init, vectors, labels, 4)
    ours = vectors @ weight.T + bias
    theirs = PCA(4, whiten=init == "pca-whitened", svd_solver="full").fit_transform(vectors)
    scale = np.linalg.norm(ours, axis=0) / np.linalg.norm(theirs, axis=0)
    np.testing.assert_allclose(scale, scale[0], rtol=1e-4)
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs) * scale, atol=1e-3 * scale[0])
    assert np.linalg.norm(weight, axis=1).mean() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("count", [300, 9], ids=["many", "fewer than features"])
def test_half_whitening_takes_a_power_of_shrunk_deviations(
    features: tuple[np.ndarray, np.ndarray], count: int
) -> None:
    """Against scikit-learn's shrunk covariance: the map has its power -1/8, the deviations' power -1/4."""
    vectors = features[0][:count].astype(np.float64)
    covariance, _ = ledoit_wolf(vectors)
    values, axes = np.linalg.eigh(covariance)
    weight, bias = fit_projection("pca-half-whitened", features[0][:count], features[1][:count], 12)
    ours, theirs = weight.T @ weight, (axes * values**-0.25) @ axes.T
    np.testing.assert_allclose(ours / np.trace(ours), theirs / np.trace(theirs), atol=2e-4)
    np.testing.assert_allclose((vectors @ weight.T + bias).mean(0), 0, atol=1e-3)


def test_discriminants_solve_the_generalized_eigenproblem(features: tuple[np.ndarray, np.ndarray]) -> None:
    vectors, labels = features
    centred = (vectors - vectors.mean(0)).astype(np.float64)
    means = np.stack([centred[labels == c].mean(0) for c in range(5)])
    within, _ = ledoit_wolf(centred - means[labels], assume_centered=True)
    _, directions = eigh(means.T @ means / 5, within)
    weight, bias = fit_projection("lda", vectors, labels, 3)
    assert np.degrees(subspace_angles(weight.T, directions[:, -3:])).max() < 0.1
    np.testing.assert_allclose((vectors @ weight.T + bias).mean(0), 0, atol=1e-3)
    more, _ = fit_projection("lda", vectors, labels, 9)
    np.testing.assert_allclose(
        np.abs(more[:3] / np.linalg.norm(more[0])).max(1),
        np.abs(weight / np.linalg.norm(weight[0])).max(1),
        rtol=1e-3,
    )
    assert np.linalg.matrix_rank(more) == 9, "beyond the 4 directions between 5 classes"


@pytest.mark.parametrize("count", [300, 9], ids=["many", "fewer than features"])
def test_regression_has_the_penalty_of_the_least_criterion(
    features: tuple[np.ndarray, np.ndarray], count: int
) -> None:
    """The criterion is computed from the hat matrix of each penalty, the map by scikit-learn."""
    vectors = features[0][:count].astype(np.float64)
    random = np.random.default_rng(1)
    targets = vectors[:, :4] @ random.normal(size=(4, 3)) + 3 * random.normal(size=(count, 3)) + 5
    centred, offset = vectors - vectors.mean(0), targets - targets.mean(0)
    scores = []
    penalties = np.linalg.eigvalsh(centred.T @ centred)[-1] * np.logspace(-6, 1, 29)
    for penalty in penalties:
        hat = centred @ np.linalg.solve(centred.T @ centred + penalty * np.eye(12), centred.T)
        rest = offset - hat @ offset
        scores.append((rest**2).sum() / (count - 1 - np.trace(hat)) ** 2)
    theirs = Ridge(penalties[np.argmin(scores)]).fit(vectors, targets)
    weight, bias = fit_regression(vectors.astype(np.float32), targets.astype(np.float32))
    assert np.linalg.norm(weight, axis=1).mean() == pytest.approx(1, abs=1e-5)
    scale = np.linalg.norm(theirs.coef_, axis=1).mean()
    np.testing.assert_allclose(weight, theirs.coef_ / scale, atol=2e-3)
    np.testing.assert_allclose(bias, theirs.intercept_ / scale, rtol=1e-2, atol=1e-2)


def test_too_few_features_are_refused(features: tuple[np.ndarray, np.ndarray]) -> None:
    vectors, labels = features
    with pytest.raises(InputError, match=r"model.init: pca gives at most 12 dimensions .* lower"):
        fit_projection("pca", vectors, labels, 13)
    with pytest.raises(InputError, match=r"at most 5 dimensions here \(12 features of 6 images\)"):
        fit_projection("lda", vectors[:6], labels[:6], 6)


def test_principal_components_of_few_images_are_completed(features: tuple[np.ndarray, np.ndarray]) -> None:
    vectors, labels = (part[:6] for part in features)
    weight, bias = fit_projection("pca", vectors, labels, 8)
    np.testing.assert_allclose(weight @ weight.T, np.eye(8), atol=1e-5)
    centred = vectors - vectors.mean(0)
    projected = vectors @ weight.T + bias
    np.testing.assert_allclose(projected @ projected.T, centred @ centred.T, rtol=1e-4, atol=1e-4)
