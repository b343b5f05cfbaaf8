"""Verdicts: intervals against a loop, outcomes by the deciding interval, one sentence."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
from scipy import stats

from retrieval.evaluation.verdict import Verdict, judge

CLASSES = np.repeat(np.arange(12), 6)


def verdict(recall: np.ndarray, map_at_r: np.ndarray, classes: np.ndarray = CLASSES) -> Verdict:
    """Verdict of a model whose metrics differ from those of another one by so much."""
    zeros = np.zeros(len(recall))
    ours = {"recall_at_1": recall, "recall_at_4": recall / 2, "map_at_r": map_at_r, "unshared": recall}
    theirs = {"recall_at_1": zeros, "recall_at_4": zeros, "map_at_r": zeros}
    return judge("new", "old", ours, theirs, classes)


def noise(seed: int, mean: float, by_class: float = 0.0) -> np.ndarray:
    """Differences that vary by query and, more or less, by class."""
    random = np.random.default_rng(seed)
    return mean + 0.2 * random.normal(size=len(CLASSES)) + by_class * random.normal(size=12)[CLASSES]


def test_interval_over_classes_equals_a_loop_over_drawn_classes() -> None:
    differences = noise(0, 0.3, 0.4)
    found = verdict(differences, differences).changes["recall_at_1"]
    random = np.random.default_rng(7)
    means = []
    for _ in range(4000):
        drawn = random.choice(12, 12)
        means.append(np.concatenate([differences[one == CLASSES] for one in drawn]).mean())
    level = stats.norm.cdf(stats.t.ppf(0.025, 11) * np.sqrt(12 / 11))
    assert found.class_interval == pytest.approx(np.quantile(means, (level, 1 - level)), abs=0.03)
    assert found.difference == pytest.approx(differences.mean())
    wide, narrow = (np.ptp(ends) for ends in (found.class_interval, found.interval))
    assert wide > 1.8 * narrow  # classes differ more than queries


@pytest.mark.parametrize(
    ("recall", "map_at_r", "outcome", "start"),
    [
        (noise(1, 0.2), noise(2, 0.2), "more", "new finds more than old: Recall@1 +"),
        (noise(1, -0.2), noise(2, -0.2), "less", "new finds less than old: Recall@1 -"),
        (noise(1, 0.2), noise(2, -0.2), "mixed", "Recall@1 and MAP@R disagree on new and old: Recall@1 +"),
        (noise(1, 0.0), noise(2, 0.2), "more", "new finds more than old: MAP@R +"),
        (noise(1, 0.0), noise(2, 0.0), "open", "No certain difference between new and old: Recall@1 "),
        (noise(1, 0.0) * 0, noise(2, 0.0) * 0, "same", "new and old find the same for every query."),
    ],
)
def test_outcomes(recall: np.ndarray, map_at_r: np.ndarray, outcome: str, start: str) -> None:
    found = verdict(recall, map_at_r)
    assert (found.outcome, found.loses) == (outcome, outcome in ("less", "mixed"))
    assert found.sentence.startswith(start)
    assert set(found.changes) == {"recall_at_1", "recall_at_4", "map_at_r"}
    assert ("is not certain" in found.sentence) == (start.endswith("MAP@R +"))
    assert ("for other classes like these" in found.sentence) == (outcome != "same")
    assert Verdict.from_dict(json.loads(json.dumps(asdict(found)))) == found


def test_a_gain_that_classes_do_not_share_is_not_certain() -> None:
    """Certain for other queries of these classes, but not for other classes."""
    differences = noise(3, 0.15, 0.6)
    found = verdict(differences, differences)
    assert found.changes["recall_at_1"].interval[0] > 0
    assert found.outcome == "open"


def test_few_classes_are_judged_by_their_queries_and_it_says_so() -> None:
    found = verdict(noise(1, 0.2), noise(2, 0.2), CLASSES % 7)
    assert found.changes["map_at_r"].class_interval is None
    assert found.outcome == "more"
    assert "for these 7 classes, too few to speak for others" in found.sentence
    assert verdict(noise(1, 0.2), noise(2, 0.2), CLASSES % 8).changes["map_at_r"].class_interval


def test_queries_without_an_image_to_find_do_not_count() -> None:
    recall, map_at_r = noise(1, 0.2), noise(2, 0.2)
    map_at_r[::6] = np.nan
    found = verdict(recall, map_at_r)
    assert found.queries == 60
    assert found.changes["recall_at_1"].difference == pytest.approx(recall[~np.isnan(map_at_r)].mean())
