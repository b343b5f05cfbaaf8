"""Gain of one round of relevance feedback: the first ten hits, marked right and wrong by their labels.

Images of a gallery with labels search it. Of the first ten hits, those of the query's class join the wanted
vectors, the others are unwanted; then the remaining images are ranked again. Measured are the remaining
images only, so that hits which a person has seen count in none of the variants. The weight of the unwanted
vectors is chosen on half of the classes and measured on the other half, in several divisions.

    python -m benchmarks.feedback cars=cars.gallery cifar=cifar.gallery --json benchmarks/feedback.json

docs/feedback.md has the results.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from retrieval import Gallery, metrics
from retrieval.metrics import per_query
from retrieval.metrics.ranking import Ranking
from retrieval.search.composition import NEGATIVE_WEIGHT, compose

SHOWN = 10
DIVISIONS = 5
QUERIES = 1000
WEIGHTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
METRICS = {"MAP@R": per_query.map_at_r, "R-precision": per_query.r_precision}


def remaining(ranking: Ranking, shown: np.ndarray, classes: np.ndarray, own: np.ndarray) -> Ranking:
    """Return a ranking without the hits that were shown, int [N, 10]."""
    is_left = ~(ranking.rows[:, :, None] == shown[:, None, :]).any(2)
    left = np.argsort(~is_left, axis=1, kind="stable")[:, : ranking.rows.shape[1] - SHOWN]
    seen = (classes[shown] == classes[own][:, None]).sum(1)
    rows, scores, relevant = (
        np.take_along_axis(part, left, 1) for part in (ranking.rows, ranking.scores, ranking.relevant)
    )
    return Ranking(rows, scores, relevant, ranking.num_relevant - seen)


def measure(vectors: np.ndarray, classes: np.ndarray, rows: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    """Return the metrics of each query, float64 [N], for each variant of feedback.

    Args:
        vectors: float32 [M, D], unit length.
        classes: Class numbers, int [M].
        rows: Rows of the queries, int [N].
    """
    shown = metrics.rank(vectors[rows], classes[rows], vectors, classes, k=SHOWN, own=rows).rows
    is_right = classes[shown] == classes[rows][:, None]
    most = int(np.bincount(classes).max())

    def scored(has_right: bool, weight: float) -> dict[str, np.ndarray]:
        queries = [
            compose(
                vectors[[row, *(hits[right] if has_right else ())]],
                vectors[hits[~right]] if weight else None,
                weight,
            )
            for row, hits, right in zip(rows, shown, is_right, strict=True)
        ]
        ranking = metrics.rank(np.stack(queries), classes[rows], vectors, classes, k=most + SHOWN, own=rows)
        left = remaining(ranking, shown, classes, rows)
        return {name: metric(left) for name, metric in METRICS.items()}

    found = {"no feedback": scored(False, 0), "right hits": scored(True, 0)}
    found["wrong hits"] = scored(False, NEGATIVE_WEIGHT)
    return found | {f"right and wrong hits, weight {weight}": scored(True, weight) for weight in WEIGHTS}


def summarized(folder: Path) -> dict[str, Any]:
    """Return the values of all queries of a gallery, and those of divisions with a chosen weight."""
    stored = Gallery(folder).embeddings(labelled=True)
    classes = np.unique(np.array(stored.labels), return_inverse=True)[1]
    rows = np.random.default_rng(0).permutation(len(classes))[:QUERIES]
    found = measure(stored.vectors, classes, rows)
    weighted = [name for name in found if "weight" in name]
    divisions = []
    for seed in range(DIVISIONS):
        count = int(classes.max()) + 1
        choosing = np.isin(classes[rows], np.random.default_rng([seed, 1]).permutation(count)[: count // 2])
        best = max(weighted, key=lambda name: np.nanmean(found[name]["MAP@R"][choosing]))
        named = {"chosen": best, "default": f"right and wrong hits, weight {NEGATIVE_WEIGHT}"}
        values = {
            how: percent(found[name]["MAP@R"][~choosing])
            for how, name in {"no feedback": "no feedback", "right hits": "right hits", **named}.items()
        }
        divisions.append({"seed": seed, "chosen weight": float(best.split()[-1]), "MAP@R": values})
    facts = {"images": len(classes), "classes": len(np.unique(classes)), "queries": len(rows)}
    all_values = {how: {name: percent(v) for name, v in values.items()} for how, values in found.items()}
    return {**facts, "all classes": all_values, "held-out classes": divisions}


def percent(values: np.ndarray) -> float:
    """Return the mean over the queries that something relevant is left for."""
    return round(100 * float(np.nanmean(values)), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("galleries", nargs="*", metavar="NAME=GALLERY", help="galleries with labels")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results = {}
    for text in given.galleries:
        name, _, folder = text.partition("=")
        results[name] = found = summarized(Path(folder))
        print(f"{name}: {found['queries']} queries among {found['images']} images")
        for how, values in found["all classes"].items():
            print(f"  {how:35}", "  ".join(f"{key} {value:5.2f}" for key, value in values.items()))
        for division in found["held-out classes"]:
            print("  held-out classes:", division)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
