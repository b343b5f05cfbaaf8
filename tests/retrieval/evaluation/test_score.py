"""Result of one model: metrics, intervals, and the round trip through JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import normalized_mutual_info_score

from retrieval import InputError, metrics
from retrieval.evaluation.score import Result, evaluate
from retrieval.metrics.statistics import bootstrap_intervals
from retrieval.metrics.table import by_k


def digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    points, labels = load_digits(return_X_y=True)
    points = points[:count] - points.mean(0)
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32), labels[:count]


def test_values_equal_those_of_the_metric_functions() -> None:
    """The evaluation computes them in one pass over all pairs, the functions from neighbours."""
    points, labels = digits(400)
    for arrays in ((points, labels), (points[:100], labels[:100], points[50:], labels[50:])):
        evaluation = evaluate("pixels", *arrays, ks=(1, 10))
        found = evaluation.result
        assert by_k(found.values) == pytest.approx(metrics.recall_at_k(*arrays, ks=(1, 10)))
        precision = by_k(found.values, "precision_at_{k}")
        assert precision == pytest.approx(metrics.precision_at_k(*arrays, ks=(1, 10)))
        assert found.values["map_at_r"] == pytest.approx(metrics.map_at_r(*arrays))
        assert found.values["r_precision"] == pytest.approx(metrics.r_precision(*arrays))
        assert found.values["mean_ap"] == pytest.approx(metrics.mean_average_precision(*arrays))
        assert evaluation.ranking.rows.shape == (len(arrays[0]), 10)
        names = {f"{metric}_at_{k}" for metric in ("recall", "precision") for k in (1, 10)}
        assert set(found.intervals) == names | {"map_at_r", "r_precision", "mean_ap"}
        assert set(found.values) == set(found.intervals) | {"nmi", "f1"}
        for name in ("recall_at_1", "mean_ap"):
            low, high = found.intervals[name]
            assert low < found.values[name] < high
            assert high - low < 0.15


def test_both_intervals_are_those_of_the_bootstrap() -> None:
    points, labels = digits(200)
    evaluation = evaluate("pixels", points, labels, ks=(1,))
    found, table = evaluation.result, np.stack([*evaluation.per_query.values()], 1)
    for intervals, classes in ((found.intervals, None), (found.class_intervals, labels)):
        assert list(intervals.values()) == [
            tuple(ends) for ends in bootstrap_intervals(table, classes).tolist()
        ]
    assert evaluate("few", points[labels < 7], labels[labels < 7]).result.class_intervals == {}


def test_clusterings_are_repeated_and_agree_with_scikit_learn() -> None:
    """Its k-means is another implementation with other random numbers; ours are within its range."""
    points, labels = digits(600)
    found = evaluate("pixels", points, labels).result
    theirs = [
        [normalized_mutual_info_score(labels, one), metrics.pair_f1(labels, one)]
        for one in (KMeans(10, init="random", n_init=3, random_state=n).fit_predict(points) for n in range(6))
    ]
    for key, values in zip(("nmi", "f1"), np.transpose(theirs), strict=True):
        (low, high), value = found.spreads[key], found.values[key]
        assert value is not None
        assert low <= value <= high
        assert abs(value - values.mean()) < max(0.02, np.ptp(values))


def test_one_added_image_moves_nmi_less_than_one_clustering_does() -> None:
    points, labels = digits(600)
    classes = labels * 10 + np.arange(600) % 10  # a hundred classes of six: clusters are not clear
    alone, means = [], []
    for count in range(590, 600):
        clusters = metrics.kmeans(points[:count], 100)
        alone.append(metrics.nmi(classes[:count], clusters))
        means.append(evaluate("pixels", points[:count], classes[:count]).result.values["nmi"])
    assert np.std(means) < 0.7 * np.std(alone)


def test_clusters_of_single_images_have_no_agreement() -> None:
    """Each query has another class, with more images in the gallery."""
    points, labels = digits(200)
    first = np.unique(labels, return_index=True)[1]
    others = np.setdiff1d(np.arange(200), first)
    found = evaluate("shelf", points[first], labels[first], points[others], labels[others]).result
    assert (found.values["nmi"], found.values["f1"], found.spreads) == (None, None, {})
    assert found.values["recall_at_1"] is not None
    assert json.loads(json.dumps(found.to_dict()))["values"]["nmi"] is None
    assert set(found.known) == set(found.values) - {"nmi", "f1"}


def test_results_survive_json() -> None:
    found = evaluate("pixels", *digits(120), by="digit").result
    assert Result.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_unanswerable_queries_are_refused() -> None:
    with pytest.raises(InputError, match="no query has another image of its class"):
        evaluate("nothing", np.eye(3), np.arange(3))


def test_linear_probe_agrees_with_discriminant_analysis() -> None:
    """Both are linear classifiers; on the digits they differ little."""
    points, labels = digits(1797)
    train, test = slice(0, 1200), slice(1200, 1797)
    ours = metrics.linear_probe(points[train], labels[train], points[test], labels[test])
    other = LinearDiscriminantAnalysis().fit(points[train], labels[train]).score(points[test], labels[test])
    assert ours == pytest.approx(other, abs=0.03)
    words = np.array([f"digit {label}" for label in labels])
    assert metrics.linear_probe(points[train], words[train], points[test], words[test]) == ours


def test_linear_probe_counts_unseen_classes_as_wrong() -> None:
    points = np.eye(4)[[0, 1] * 10]
    labels = np.array([0, 1] * 10)
    assert metrics.linear_probe(points, labels, points[:4], np.array([0, 1, 7, 8])) == 0.5


def test_linear_probe_refuses_invalid_input() -> None:
    points, labels = np.eye(4)[[0, 1] * 3], np.array([0, 1] * 3)
    with pytest.raises(InputError, match="one class only"):
        metrics.linear_probe(points, labels * 0, points, labels)
    with pytest.raises(InputError, match="3 dimensions to train on and 4 to test"):
        metrics.linear_probe(np.eye(3), np.arange(3), points, labels)
