"""Calibration error of probabilities of hits on held-out classes, for several regressions and populations.

Cross-validation: folds of the classes of a gallery, as `lookalike calibrate` does it, with several divisions;
"absent" is the share of the queries whose class is left out of the gallery. Halves: two galleries without a
common class, the regression is fitted in one and measured in the other. Growth: fitted in a gallery with a
third of the classes, measured in one with the others, which is twice as large.

    python -m benchmarks.calibration cars.gallery birds.gallery --json benchmarks/calibration.json \
        --figure docs/calibration.svg
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from retrieval import Gallery
from retrieval.evaluation.calibration import JudgedHits, best_of_each, cross_validate, fit, judged_hits
from retrieval.metrics.calibration import brier_score, calibration_error, error_by_chance, reliability
from retrieval.reports.calibration import plot_reliability
from retrieval.reports.figures import save_figure
from retrieval.search.calibration import DEPTH

Predict = Callable[[JudgedHits], np.ndarray]
ABSENT = (0.0, 0.5, 0.8)
QUERIES = 1500
NUMBERS = ("ece", "ece_by_chance", "ece_of_best", "brier")


# ---- regressions: each is fitted to hits and returns the probabilities of others


def one_probability(hits: JudgedHits) -> Predict:
    """Return the share of right hits for all."""
    share = np.average(hits.right, weights=hits.weights)
    return lambda others: np.full(len(others.right), share)


def cosine_logistic(hits: JudgedHits) -> Predict:
    """Platt scaling of the cosine."""
    return _logistic(hits, lambda some: some.scores[:, None])


def cosine_beta(hits: JudgedHits) -> Predict:
    """Beta calibration (Kull et al. 2017) of (1 + cosine) / 2."""

    def inputs(some: JudgedHits) -> np.ndarray:
        x = np.clip((1 + some.scores) / 2, 1e-6, 1 - 1e-6)
        return np.column_stack([np.log(x), -np.log1p(-x)])

    return _logistic(hits, inputs)


def cosine_isotonic(hits: JudgedHits) -> Predict:
    """Isotonic regression on the cosine."""
    curve = IsotonicRegression(out_of_bounds="clip").fit(hits.scores, hits.right, hits.weights)
    return lambda others: curve.predict(others.scores)


def above_the_tenth(hits: JudgedHits) -> Predict:
    """Logistic regression on the cosine and its distance to the tenth."""
    return _logistic(hits, lambda some: np.column_stack([some.scores, some.nearest[:, 2]]))


def four_cosines(hits: JudgedHits) -> Predict:
    """The regression of Lookalike without a ceiling."""
    return _logistic(hits, lambda some: some.features)


def four_cosines_ceiling(hits: JudgedHits) -> Predict:
    """The regression of Lookalike."""
    curve = fit(hits)
    return lambda others: curve(others.features)


def _logistic(hits: JudgedHits, inputs: Callable[[JudgedHits], np.ndarray]) -> Predict:
    x = inputs(hits)
    mean, scale = x.mean(0), x.std(0)
    curve = LogisticRegression(max_iter=1000).fit((x - mean) / scale, hits.right, hits.weights)
    return lambda others: curve.predict_proba((inputs(others) - mean) / scale)[:, 1]


METHODS = (
    one_probability,
    cosine_logistic,
    cosine_beta,
    cosine_isotonic,
    above_the_tenth,
    four_cosines,
    four_cosines_ceiling,
)


# ---- hits of a part of the classes


def hits_within(vectors: np.ndarray, labels: np.ndarray, seed: int) -> JudgedHits:
    """Return the hits of items in the gallery of these items alone, by brute force; see `judged_hits`."""
    asked = np.random.default_rng(seed).permutation(len(vectors))[:QUERIES]
    cosines = vectors[asked] @ vectors.T
    cosines[np.arange(len(asked)), asked] = -2
    same = labels[asked][:, None] == labels
    parts = []
    for absent in (False, True):
        if absent:
            cosines[same] = -2
        near = np.argpartition(-cosines, DEPTH, axis=1)[:, :DEPTH]
        scores = np.take_along_axis(cosines, near, 1)
        order = np.argsort(-scores, axis=1)
        scores, near = (np.take_along_axis(values, order, 1) for values in (scores, near))
        summary = np.stack([scores[:, 0], scores.mean(1), scores[:, -1]], 1)
        each = np.repeat(np.arange(len(asked)), DEPTH)
        parts.append(
            (
                scores.ravel(),
                summary[each],
                np.take_along_axis(same, near, 1).ravel() & (not absent),
                np.ones(len(each)),
                2 * each + absent,
                labels[asked][each],
                np.full(len(each), absent),
            )
        )
    return JudgedHits(*(np.concatenate(both) for both in zip(*parts, strict=True)))


def numbers(predict: Predict, hits: JudgedHits) -> dict[str, float]:
    """Return the errors of probabilities of hits."""
    p = predict(hits)
    best = best_of_each(hits.queries, hits.scores)
    return {
        "ece": calibration_error(p, hits.right, hits.weights),
        "ece_by_chance": error_by_chance(p, hits.weights),
        "ece_of_best": calibration_error(p[best], hits.right[best], hits.weights[best]),
        "brier": brier_score(p, hits.right, hits.weights),
    }


def summarized(rows: list[dict[str, float]]) -> dict[str, list[float]]:
    """Return mean and standard deviation of each number over the splits."""
    return {
        key: [round(float(f([row[key] for row in rows])), 5) for f in (np.mean, np.std)] for key in rows[0]
    }


def measure(folder: Path, splits: int) -> tuple[dict[str, Any], tuple[np.ndarray, np.ndarray]]:
    """Return all numbers of a gallery, and held-out probabilities with whether they were right."""
    gallery = Gallery(folder)
    whole = judged_hits(gallery, queries=QUERIES)
    found: dict[str, Any] = {"images": len(gallery), "classes": int(whole.groups.max() + 1)}
    rows: dict[str, list[dict[str, float]]] = {}
    for absent in ABSENT:
        hits = whole.with_absent(absent)
        hits = hits[hits.weights > 0]
        for split in range(splits):
            quality = cross_validate(hits, split)
            values = {name: getattr(quality, name) for name in NUMBERS}
            rows.setdefault(f"cross-validation, absent {absent:g}", []).append(values)
    stored = gallery.embeddings(labelled=True)
    labels = np.unique([label or "" for label in stored.labels], return_inverse=True)[1]
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    for split in range(splits):
        order = np.random.default_rng(split).permutation(labels.max() + 1)

        def part(classes: np.ndarray, split: int = split) -> JudgedHits:
            rows = np.isin(labels, classes)
            return hits_within(stored.vectors[rows], labels[rows], split).with_absent(0.5)

        half, third = len(order) // 2, len(order) // 3
        fitted, held = part(order[:half]), part(order[half:])
        for method in METHODS:
            predict = method(fitted)
            rows.setdefault(f"halves, {method.__name__}", []).append(numbers(predict, held))
        seen.append((predict(held), held.right))
        small, large = part(order[:third]), part(order[third:])
        for method in (cosine_logistic, four_cosines_ceiling):
            rows.setdefault(f"growth, {method.__name__}", []).append(numbers(method(small), large))
    found |= {name: summarized(values) for name, values in rows.items()}
    p, right = (np.concatenate(both) for both in zip(*seen, strict=True))
    return found, (p, right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("galleries", nargs="+", type=Path)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    results, curves = {}, {}
    for folder in args.galleries:
        results[folder.stem], curves[folder.stem] = measure(folder, args.splits)
        print(folder.stem)
        for name, values in results[folder.stem].items():
            print(f"  {name}: {values}", flush=True)
        if args.json:
            args.json.write_text(json.dumps({"splits": args.splits, "sets": results}, indent=1) + "\n")

    def draw(figure: Figure) -> None:
        rows = -(-len(curves) // 4)
        for number, (name, (p, right)) in enumerate(curves.items(), 1):
            axes = figure.add_subplot(rows, min(4, len(curves)), number)
            plot_reliability(reliability(p, right), axes)
            axes.set_title(name, fontsize=11)

    if args.figure:
        save_figure(draw, 13, 3.5 * -(-len(curves) // 4), args.figure, png=False)


if __name__ == "__main__":
    main()
