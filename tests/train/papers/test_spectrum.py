"""Spectrum of embeddings, against scikit-learn's PCA, NumPy's covariance, and cases with a known answer."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from retrieval import InputError
from retrieval.analysis.embeddings import Embeddings
from retrieval.reports.figures import render_figure
from train.papers.spectrum import Spectrum, draw_spectra, spectrum


def cloud(seed: int, sizes: tuple[int, ...] = (5, 9, 4, 3, 1), dim: int = 6) -> Embeddings:
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    vectors = random.normal(size=(len(sizes), dim))[labels] + random.normal(size=(len(labels), dim))
    order = random.permutation(len(labels))
    return Embeddings("cloud", vectors[order], labels[order])


@pytest.mark.parametrize("seed", range(3))
def test_explained_variance_equals_singular_values(seed: int) -> None:
    embeddings = cloud(seed)
    found = spectrum(embeddings)
    centred = embeddings.vectors.astype(np.float64)
    centred -= centred.mean(0)
    singular = np.linalg.svd(centred, compute_uv=False)
    variance = singular**2 / len(centred)
    np.testing.assert_allclose(found.variance, variance, rtol=1e-5)
    np.testing.assert_allclose(found.explained[-1], 1)
    np.testing.assert_allclose(found.explained[1], variance[:2].sum() / variance.sum(), rtol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_class_eigenvalues_equal_pca_of_each_class(seed: int) -> None:
    embeddings = cloud(seed, (5, 60, 4, 3, 1), 20)  # fewer images than dimensions, and more
    found = spectrum(embeddings)
    assert found.classes.tolist() == ["0", "1", "2"]
    assert found.left_out == 2  # three images span two directions, one spans none
    for label, ours in zip(found.classes, found.class_eigenvalues, strict=True):
        points = embeddings.vectors[embeddings.labels == label].astype(np.float64)
        projected = PCA(3).fit_transform(points)
        theirs = np.sort(np.linalg.eigvals(np.cov(projected.T)).real)[::-1]
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    np.testing.assert_allclose(found.mean, found.class_eigenvalues.sum(0) / 3)


def test_global_pca_projects_all_classes_on_the_same_directions() -> None:
    embeddings = cloud(3, (8, 9, 7, 3), 20)
    found = spectrum(embeddings, pca="global")
    projected = PCA(3).fit_transform(embeddings.vectors.astype(np.float64))
    for label, ours in zip(found.classes, found.class_eigenvalues, strict=True):
        theirs = np.linalg.eigvalsh(np.cov(projected[embeddings.labels == label].T))[::-1]
        np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    # The three directions of a class hold the most of its variance.
    within = spectrum(embeddings)
    assert (found.class_eigenvalues.sum(1) < within.class_eigenvalues.sum(1)).all()
    assert (found.to_dict()["pca"], within.to_dict()["pca"]) == ("global", "class")


def test_pick_returns_four_classes_by_seed() -> None:
    found = spectrum(cloud(0, (4,) * 30, 5))
    picks = {tuple(found.pick(seed)) for seed in range(5)}
    assert len(picks) > 1
    assert all(len(set(rows)) == 4 for rows in picks)
    assert found.pick(3) == spectrum(cloud(1, (4,) * 30, 5)).pick(3)  # of the same classes
    assert spectrum(cloud(0, (4, 5), 5)).pick() == [0, 1]


@given(seed=st.integers(0, 1000))
def test_spectrum_is_invariant_to_rotation(seed: int) -> None:
    embeddings = cloud(seed)
    turn = np.linalg.qr(np.random.default_rng(seed + 1).normal(size=(6, 6)))[0]
    turned = Embeddings("turned", embeddings.vectors @ turn, embeddings.labels)
    before, after = spectrum(embeddings), spectrum(turned)
    np.testing.assert_allclose(after.variance, before.variance, atol=1e-6)
    assert after.effective_rank == pytest.approx(before.effective_rank, rel=1e-4)
    np.testing.assert_allclose(after.class_eigenvalues, before.class_eigenvalues, atol=1e-5)


def test_effective_rank_of_known_shapes() -> None:
    def rank(vectors: np.ndarray) -> float:
        return spectrum(Embeddings("x", vectors, np.zeros(len(vectors), int))).effective_rank

    axes = np.eye(5)
    assert rank(np.concatenate([axes, -axes])) == pytest.approx(5)  # all directions alike
    assert rank(np.stack([axes[0], -axes[0]] * 3)) == pytest.approx(1)  # one direction
    assert rank(np.tile(axes[2], (7, 1))) == 0  # all in one place
    noise = np.random.default_rng(0).normal(size=(100, 5)) * 1e-7
    assert rank(np.arange(1, 6) + noise) == 0  # what rounding leaves is no spread


def test_total_variance_of_unit_vectors_is_1_minus_squared_mean() -> None:
    """For |z| = 1, E|z - m|^2 = 1 - |m|^2."""
    embeddings = cloud(4)
    mean = embeddings.vectors.mean(0)
    assert spectrum(embeddings).variance.sum() == pytest.approx(1 - mean @ mean, abs=1e-6)


def test_more_rows_than_a_block() -> None:
    embeddings = cloud(0, (9000, 9000), 4)
    theirs = np.linalg.eigvalsh(np.cov(embeddings.vectors.T.astype(np.float64), bias=True))[::-1]
    np.testing.assert_allclose(spectrum(embeddings).variance, theirs, rtol=1e-4)


def test_too_few_dimensions_or_images_are_refused() -> None:
    with pytest.raises(InputError, match="no class has 4 images"):
        spectrum(cloud(0, (3, 2, 1)))
    with pytest.raises(InputError, match="needs embeddings of 3 numbers, these have 2"):
        spectrum(cloud(0, (3, 3), 2))


def test_figure_is_reproducible() -> None:
    spectra: list[Spectrum] = [spectrum(cloud(seed)) for seed in range(2)]
    for kind in ("svg", "png"):
        first, second = (render_figure(partial(draw_spectra, spectra), 11, 5, kind) for _ in range(2))
        assert first == second
