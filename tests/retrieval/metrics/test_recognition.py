"""Recognition by the nearest images against plain loops over the published definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from retrieval.metrics.recognition import (
    NEIGHBOURS,
    SHARPNESS,
    UNKNOWN,
    Neighbours,
    fit_confidence,
    global_average_precision,
    interval_of,
    resampled_gaps,
)

CLASSES, DEPTH = 9, 50


def nearest(seed: int, queries: int = 40) -> tuple[Neighbours, np.ndarray]:
    """Neighbours of queries, some of unknown things, and their classes."""
    random = np.random.default_rng(seed)
    truth = random.integers(-3, CLASSES, queries).clip(UNKNOWN)
    classes = random.integers(0, CLASSES, (queries, DEPTH))
    classes[:, :4] = np.where(random.random((queries, 4)) < 0.4, truth[:, None].clip(0), classes[:, :4])
    return Neighbours(-np.sort(-random.uniform(-0.2, 1, (queries, DEPTH))), classes), truth


def expected_confidence(found: Neighbours, query: int, k: int, sharpness: float) -> tuple[int, float]:
    """The class and its share, by a dictionary of the best similarity of each class."""
    best: dict[int, float] = {}
    for score, one in zip(found.scores[query, :k].tolist(), found.classes[query, :k].tolist(), strict=True):
        best[one] = max(best.get(one, 0.0), score)
    weights = {one: math.exp(sharpness * best.get(one, 0.0)) for one in range(CLASSES)}
    predicted = max(best, key=lambda one: best[one])
    return predicted, weights[predicted] / sum(weights.values())


def expected_gap(right: list[bool], confidence: list[float], known: int) -> float:
    total, found = 0.0, 0
    ranked = sorted(zip(confidence, right, strict=True), key=lambda pair: (-pair[0], pair[1]))
    for rank, (_, is_right) in enumerate(ranked, 1):
        found += is_right
        total += found / rank if is_right else 0.0
    return total / known


@pytest.mark.parametrize(("k", "sharpness"), [(1, 5.0), (3, 0.1), (10, 20.0), (50, 500.0)])
def test_confidence_is_that_of_loops(k: int, sharpness: float) -> None:
    found, _ = nearest(1)
    ours = found.confidence(k, sharpness, CLASSES)
    for query in range(len(ours)):
        predicted, confidence = expected_confidence(found, query, k, sharpness)
        assert found.predicted[query] == predicted
        assert ours[query] == pytest.approx(confidence, rel=1e-12)


def test_gap_ranks_all_answers_together() -> None:
    found, truth = nearest(2)
    right = found.right(truth)
    assert not right[truth == UNKNOWN].any()
    confidence = found.confidence(5, 10.0, CLASSES).round(1)  # with ties
    ours = global_average_precision(right, confidence, truth != UNKNOWN)
    known = np.count_nonzero(truth != UNKNOWN)
    assert ours == pytest.approx(expected_gap(right.tolist(), confidence.tolist(), known), rel=1e-12)
    assert ours < global_average_precision(
        right[truth != UNKNOWN], confidence[truth != UNKNOWN], right | True
    )


def test_confidence_is_fitted_on_what_is_given() -> None:
    found, truth = nearest(3)
    known = np.count_nonzero(truth != UNKNOWN)

    def gap(k: int, sharpness: float) -> float:
        confidence = found.confidence(k, sharpness, CLASSES).tolist()
        return expected_gap(found.right(truth).tolist(), confidence, known)

    best = max(gap(k, sharpness) for k in NEIGHBOURS for sharpness in SHARPNESS)
    assert gap(*fit_confidence(found, truth, CLASSES)) == pytest.approx(best, rel=1e-12)
    assert best > gap(1, 1.0)


def test_interval_covers_other_samples() -> None:
    """95% of the intervals of samples contain the GAP of very many queries."""
    found, truth = nearest(5, 20_000)
    right, confidence = found.right(truth), found.confidence(5, 10.0, CLASSES)
    whole = global_average_precision(right, confidence, truth != UNKNOWN)
    inside, samples = 0, 100
    for start in range(0, samples * 200, 200):
        some = slice(start, start + 200)
        known = truth[some] != UNKNOWN
        low, high = interval_of(
            resampled_gaps(right[some], confidence[some], known, np.arange(200), resamples=300, seed=start)
        )
        inside += low <= whole <= high
    assert 0.88 * samples <= inside


def test_interval_over_things_is_wider() -> None:
    """Where the queries of one thing are copies of each other, only things are independent."""
    found, truth = nearest(6, 60)
    times = 10
    right, confidence = found.right(truth).repeat(times), found.confidence(5, 10.0, CLASSES).repeat(times)
    things, every = np.arange(60).repeat(times), np.arange(60 * times)
    known = truth.repeat(times) != UNKNOWN
    narrow, wide = (interval_of(resampled_gaps(right, confidence, known, units)) for units in (every, things))
    assert np.ptp(wide) > 2 * np.ptp(narrow)


def test_resamples_are_those_of_a_loop() -> None:
    """GAP of each resample by the definition, on the drawn queries; the same draws for any model."""
    found, truth = nearest(7, 30)
    known, units = truth != UNKNOWN, np.array(["a", "b", "c", "d", "e"])[np.arange(30) % 5]
    sides = [(found.right(truth), found.confidence(k, 10.0, CLASSES)) for k in (1, 20)]
    ours = [
        resampled_gaps(right, confidence, known, units, resamples=20, seed=3) for right, confidence in sides
    ]
    random = np.random.default_rng(3)
    for number in range(20):
        drawn = np.concatenate([np.flatnonzero(units == "abcde"[one]) for one in random.integers(0, 5, 5)])
        for (right, confidence), gaps in zip(sides, ours, strict=True):
            pairs = right[drawn].tolist(), confidence[drawn].tolist()
            assert gaps[number] == pytest.approx(expected_gap(*pairs, max(1, known[drawn].sum())), rel=1e-12)
