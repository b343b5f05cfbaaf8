"""Calibration error of probabilities of hits on held-out classes, for several regressions and populations.

Cross-validation: folds of the classes of a gallery, as `lookalike calibrate` does it, with several divisions;
"absent" is the share of the queries whose class is left out of the gallery. Halves: two galleries without a
common class, the regression is fitted in one and measured in the other. Growth: fitted in a gallery with a
third of the classes, measured in one with the others, which is twice as large. Copies: halves, with queries
whose picture is in the gallery, as the same file, scaled to 90% and compressed (JPEG, quality 70), and
cropped by 10% of width and height; the hits beside that picture.

    python -m benchmarks.calibration cars.gallery birds.gallery --json benchmarks/calibration.json \
        --figure docs/calibration.svg
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from retrieval import Gallery
from retrieval.evaluation.calibration_fit import (
    ABSENT_CLASS,
    CHANGED,
    KINDS,
    PRESENT,
    SAME_PICTURE,
    JudgedHits,
    best_of_each,
    change,
    cross_validate,
    fit,
    judged_hits,
)
from retrieval.images.load import load_image
from retrieval.metrics.reliability import (
    Bin,
    brier_score,
    calibration_error,
    error_by_chance,
    reliability,
)
from retrieval.reports.figures import save_figure
from retrieval.reports.reliability import plot_reliability
from retrieval.search.calibration import DEPTH, SAME

Predict = Callable[[JudgedHits], np.ndarray]
ABSENT = (0.0, 0.5, 0.8)
QUERIES = 1500
COPIED = 500  # pictures of which copies are made
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
    return _logistic(hits, lambda some: np.column_stack([some.scores, some.nearest[:, 3]]))


def all_cosines(hits: JudgedHits) -> Predict:
    """The regression of Lookalike without a ceiling."""
    return _logistic(hits, lambda some: some.features)


def without_copies(hits: JudgedHits) -> Predict:
    """The regression of Lookalike, fitted to queries whose picture is not in the gallery."""
    return lookalike(hits)


def lookalike(hits: JudgedHits) -> Predict:
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
    all_cosines,
    without_copies,
    lookalike,
)
WITH_COPIES = (all_cosines, lookalike)  # fitted to queries whose picture is in the gallery as well


# ---- hits of a part of the classes


def hits_within(vectors: np.ndarray, labels: np.ndarray, seed: int) -> JudgedHits:
    """Return the hits of items in the gallery of these items alone, by brute force; see `judged_hits`."""
    asked = np.random.default_rng(seed).permutation(len(vectors))[:QUERIES]
    given = dict.fromkeys((PRESENT, ABSENT_CLASS, SAME_PICTURE), vectors[asked])
    given[CHANGED] = change(vectors[asked])
    parts = []
    for kind, queries in given.items():
        hits, is_original = hits_of(queries, asked, vectors, labels, kind)
        parts.append(hits[~is_original])
    columns = [[getattr(part, name) for part in parts] for name in JudgedHits.__dataclass_fields__]
    return JudgedHits(*(np.concatenate(column) for column in columns))


def hits_of(
    queries: np.ndarray, rows: np.ndarray, vectors: np.ndarray, labels: np.ndarray, kind: int
) -> tuple[JudgedHits, np.ndarray]:
    """Return the first hits of queries made from rows of the gallery, and which of them are these rows."""
    cosines = (queries @ vectors.T).astype(np.float64)
    same = labels[rows][:, None] == labels
    if kind == ABSENT_CLASS:
        cosines[same] = -2
    if kind == PRESENT:
        cosines[np.arange(len(rows)), rows] = -2
    copied = (cosines >= SAME).any(1)
    cosines[cosines >= SAME] = -2
    near = np.argpartition(-cosines, DEPTH, axis=1)[:, :DEPTH]
    scores = np.take_along_axis(cosines, near, 1)
    order = np.argsort(-scores, axis=1)
    scores, near = (np.take_along_axis(values, order, 1) for values in (scores, near))
    summary = np.stack([scores[:, 0], scores[:, 1], scores.mean(1), scores[:, -1], copied], 1)
    each = np.repeat(np.arange(len(rows)), DEPTH)
    hits = JudgedHits(
        scores=scores.ravel(),
        nearest=summary[each],
        right=np.take_along_axis(same, near, 1).ravel() & (kind != ABSENT_CLASS),
        weights=np.ones(len(each)),
        queries=KINDS * each + kind,
        groups=labels[rows][each],
    )
    return hits, (near == rows[:, None]).ravel()


# ---- copies of pictures


def scaled(image: Image.Image, _: np.random.Generator) -> Image.Image:
    """Return an image of 90% of the side, after JPEG compression."""
    buffer = io.BytesIO()
    size = (max(1, round(0.9 * image.width)), max(1, round(0.9 * image.height)))
    image.resize(size, Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=70)
    return Image.open(buffer).convert("RGB")


def cropped(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Return nine tenths of width and height, from anywhere."""
    width, height = max(1, round(0.9 * image.width)), max(1, round(0.9 * image.height))
    left, top = random.integers(image.width - width + 1), random.integers(image.height - height + 1)
    return image.crop((left, top, left + width, top + height))


def copies_of(gallery: Gallery, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Return the vectors of changed copies of items, float32 [n, D], by the change."""
    embedder, found = gallery.embedder, {}
    paths = list(gallery.paths.lookup(ids.tolist()))
    for alter in (scaled, cropped):
        parts = []
        for start in range(0, len(paths), embedder.batch_size):
            images = [
                alter(load_image(path), np.random.default_rng([7, start + place]))
                for place, path in enumerate(paths[start : start + embedder.batch_size])
            ]
            parts.append(embedder.embed_pixels(np.stack([embedder.preprocess(image) for image in images])))
        found[alter.__name__] = np.concatenate(parts)
    return found


def numbers_of_copies(predict: Predict, hits: JudgedHits, own: np.ndarray) -> dict[str, float]:
    """Return the error of the probabilities of hits beside the original, and the two means."""
    p, right = predict(hits)[~own], hits.right[~own]
    return {"ece": calibration_error(p, right), "probability": float(p.mean()), "right": float(right.mean())}


def numbers(predict: Predict, hits: JudgedHits) -> dict[str, float]:
    """Return the errors of probabilities of hits of queries whose picture is not in the gallery."""
    hits = hits[~hits.is_copied]
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


def measure(folder: Path, splits: int) -> dict[str, Any]:
    """Return all numbers of a gallery."""
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
    seen: list[tuple[np.ndarray, np.ndarray]] = []  # held-out probabilities, and whether they were right
    originals = np.sort(np.random.default_rng(7).permutation(len(labels))[:COPIED])
    copies = {"same file": stored.vectors[originals], **copies_of(gallery, stored.ids[originals])}
    for name, made in list(copies.items())[1:]:
        cosines = np.einsum("nd,nd->n", made, stored.vectors[originals])
        found[f"cosine, {name}"] = np.quantile(cosines, (0.05, 0.5, 0.95)).round(3).tolist()
    for split in range(splits):
        order = np.random.default_rng(split).permutation(labels.max() + 1)

        def part(classes: np.ndarray, split: int = split) -> JudgedHits:
            rows = np.isin(labels, classes)
            return hits_within(stored.vectors[rows], labels[rows], split).with_absent(0.5)

        def part_of_copies(classes: np.ndarray, made: np.ndarray) -> tuple[JudgedHits, np.ndarray]:
            rows = np.flatnonzero(np.isin(labels, classes))
            here = np.isin(originals, rows)
            of = np.searchsorted(rows, originals[here])
            return hits_of(made[here], of, stored.vectors[rows], labels[rows], CHANGED)

        half, third = len(order) // 2, len(order) // 3
        fitted, held = part(order[:half]), part(order[half:])
        for method in METHODS:
            predict = method(fitted if method in WITH_COPIES else fitted[~fitted.is_copied])
            rows.setdefault(f"halves, {method.__name__}", []).append(numbers(predict, held))
            if method in (without_copies, lookalike):
                for name, made in copies.items():
                    hits, own = part_of_copies(order[half:], made)
                    row = numbers_of_copies(predict, hits, own)
                    rows.setdefault(f"copies, {name}, {method.__name__}", []).append(row)
        held = held[~held.is_copied]
        seen.append((predict(held), held.right))
        small, large = part(order[:third]), part(order[third:])
        for method in (cosine_logistic, lookalike):
            predict = method(small if method in WITH_COPIES else small[~small.is_copied])
            rows.setdefault(f"growth, {method.__name__}", []).append(numbers(predict, large))
    found |= {name: summarized(values) for name, values in rows.items()}
    bins = reliability(*(np.concatenate(both) for both in zip(*seen, strict=True)))
    found["reliability"] = [[round(value, 5) for value in astuple(one)] for one in bins]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("galleries", nargs="*", type=Path, help="measured and added to those of --json")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    results = json.loads(args.json.read_text())["sets"] if args.json and args.json.exists() else {}
    for folder in args.galleries:
        results[folder.stem] = measure(folder, args.splits)
        print(folder.stem)
        for name, values in results[folder.stem].items():
            print(f"  {name}: {values}", flush=True)
        if args.json:
            args.json.write_text(json.dumps({"splits": args.splits, "sets": results}, indent=1) + "\n")

    def draw(figure: Figure) -> None:
        rows = -(-len(results) // 4)
        for number, (name, facts) in enumerate(results.items(), 1):
            axes = figure.add_subplot(rows, min(4, len(results)), number)
            plot_reliability([Bin(*values) for values in facts["reliability"]], axes)
            axes.set_title(name, fontsize=11)

    if args.figure:
        save_figure(draw, 13, 3.5 * -(-len(results) // 4), args.figure, png=False)


if __name__ == "__main__":
    main()
