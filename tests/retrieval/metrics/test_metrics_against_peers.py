"""Metrics against scikit-learn, torchmetrics and pytorch-metric-learning, on random and on real vectors.

Peers have no rule for ties: the comparison query by query gives them ours; the means agree without it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import rankdata
from sklearn.datasets import load_digits
from sklearn.metrics import average_precision_score, normalized_mutual_info_score
from sklearn.metrics.cluster import pair_confusion_matrix
from torchmetrics.functional import clustering as torch_clustering
from torchmetrics.functional import retrieval as torch_retrieval

from retrieval import metrics
from retrieval.metrics import per_query
from tests.conftest import unzip_shared

KS = (1, 2, 5, 10)
Labelled = tuple[np.ndarray, np.ndarray]


def unit(points: np.ndarray) -> np.ndarray:
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def noise() -> Labelled:
    """Random vectors, with classes of many sizes including one."""
    random = np.random.default_rng(0)
    return unit(random.normal(size=(300, 24))), np.minimum(random.geometric(0.05, 300), 60)


def digits() -> Labelled:
    points, labels = load_digits(return_X_y=True)
    return unit(points[:500] - points.mean(0)), labels[:500]


def characters(folder: Path) -> Labelled:
    """Raw pixels of handwritten characters, half of one alphabet."""
    unzip_shared("omniglot_images_background_small1.zip", folder)
    files = sorted((folder / "images_background_small1" / "Balinese").rglob("*.png"))
    pixels = [np.asarray(Image.open(file).convert("L").resize((28, 28))).ravel() for file in files]
    points = np.array(pixels, float)
    return unit(points - points.mean(0)), np.array([file.parent.name for file in files])


@pytest.fixture(scope="module", params=["noise", "digits", "characters"])
def vectors(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Labelled:
    if request.param == "characters":
        return characters(tmp_path_factory.mktemp("omniglot"))
    return {"noise": noise, "digits": digits}[request.param]()


def sides(vectors: Labelled) -> list[tuple[np.ndarray, ...]]:
    """Leave-one-out, and a third of the vectors in a gallery of the rest."""
    points, labels = vectors
    labels = np.unique(labels, return_inverse=True)[1]
    asked = np.arange(len(points)) % 3 == 0
    return [(points, labels), (points[asked], labels[asked], points[~asked], labels[~asked])]


def test_pytorch_metric_learning(vectors: Labelled) -> None:
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    for arrays in sides(vectors):
        query, labels = arrays[:2]
        clusters = metrics.kmeans(query, len(np.unique(labels)))
        calculator = AccuracyCalculator(
            exclude=("AMI",),
            k=len(arrays[-1]) - (len(arrays) == 2),
            kmeans_func=lambda *_, clusters=clusters: torch.from_numpy(clusters),
            device=torch.device("cpu"),
        )
        tensors = [torch.from_numpy(array) for array in arrays]
        theirs = calculator.get_accuracy(*tensors)
        ours = {
            "precision_at_1": metrics.precision_at_k(*arrays, ks=(1,))[1],
            "r_precision": metrics.r_precision(*arrays),
            "mean_average_precision_at_r": metrics.map_at_r(*arrays),
            "mean_average_precision": metrics.mean_average_precision(*arrays),
            "NMI": metrics.nmi(labels, clusters),
        }
        for name, value in ours.items():
            assert value == pytest.approx(theirs[name], abs=1e-6), name


def test_torchmetrics_and_scikit_learn_query_by_query(vectors: Labelled) -> None:
    for arrays in sides(vectors):
        among_themselves = len(arrays) == 2
        query, labels, gallery, gallery_labels = arrays * 2 if among_themselves else arrays
        cosines = query.astype(float) @ gallery.T.astype(float)
        right = labels[:, None] == gallery_labels
        if among_themselves:
            cosines = cosines[~np.eye(len(query), dtype=bool)].reshape(len(query), -1)
            right = right[~np.eye(len(query), dtype=bool)].reshape(len(query), -1)
        cosines -= 1e-6 * right  # of equal ones the wrong images come first
        ranking = metrics.rank(*arrays, k=len(gallery))
        everything = metrics.similarities(*arrays)
        recall, precision = per_query.recall(ranking, KS), per_query.precision(ranking, KS)
        np.testing.assert_array_equal(ranking.answerable, right.any(1))
        for i in np.flatnonzero(right.any(1)):
            ap, r_precision = everything.average_precision[i], everything.r_precision[i]
            assert ap == pytest.approx(average_precision_score(right[i], cosines[i]), abs=1e-9)
            # It computes in float32, and takes scores below 0 for no answer: ranks are exact and above.
            scores, target = torch.from_numpy(rankdata(cosines[i])), torch.from_numpy(right[i])
            assert ap == pytest.approx(float(torch_retrieval.retrieval_average_precision(scores, target)))
            assert r_precision == pytest.approx(float(torch_retrieval.retrieval_r_precision(scores, target)))
            for place, k in enumerate(KS):
                hit = torch_retrieval.retrieval_hit_rate(scores, target, top_k=k)
                share = torch_retrieval.retrieval_precision(scores, target, top_k=k, adaptive_k=True)
                assert recall[i, place] == pytest.approx(float(hit))
                assert precision[i, place] == pytest.approx(float(share), abs=1e-6)


def test_clusters_against_scikit_learn_and_torchmetrics(vectors: Labelled) -> None:
    points, labels = sides(vectors)[0]
    clusters = metrics.kmeans(points, len(np.unique(labels)))
    expected = normalized_mutual_info_score(labels, clusters)
    assert metrics.nmi(labels, clusters) == pytest.approx(expected, abs=1e-9)
    theirs = torch_clustering.normalized_mutual_info_score(
        torch.from_numpy(clusters), torch.from_numpy(labels)
    )
    assert metrics.nmi(labels, clusters) == pytest.approx(float(theirs), abs=1e-6)
    (_, together_only), (class_only, both) = pair_confusion_matrix(labels, clusters)
    expected = 2 * both / (2 * both + class_only + together_only)
    assert metrics.pair_f1(labels, clusters) == pytest.approx(expected, abs=1e-12)
