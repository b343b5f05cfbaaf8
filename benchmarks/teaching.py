"""Gain of `lookalike teach` on images and classes that it does not see, and the time that it takes.

Of each gallery, half of the classes are hidden (unseen), and half of the images of the others (known). A
layer is taught on the rest, as the command does: it chooses and accepts on held-out parts of the rest alone.
Hidden images are then searched among all images of the gallery. Several divisions; the table has their means
and standard deviations.

    python -m benchmarks.teaching cars=cars.gallery cub=cub.gallery --json benchmarks/teaching.json
    python -m benchmarks.teaching cars=cars.gallery --losses raw contrastive proxy-anchor --seeds 1
    python -m benchmarks.teaching --time                     # 100,000 random vectors of 512 dimensions

docs/teach.md has the results.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from retrieval import Gallery, metrics
from retrieval.layer import Layer
from retrieval.metrics import per_query
from train.models.heads import fit_projection
from train.teaching.layers import fit_starts, learn_layer
from train.teaching.measuring import PURPOSES, Measurement, study
from train.teaching.settings import TeachingConfig

MOST = 1000  # queries of each kind


def divide(classes: np.ndarray, seed: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the rows to teach, and the hidden rows of known and of unseen classes."""
    random = np.random.default_rng([seed, 99])
    count = int(classes.max()) + 1
    unseen = np.isin(classes, random.permutation(count)[: count // 2])
    hidden = np.zeros(len(classes), bool)
    for number in np.unique(classes[~unseen]):
        members = random.permutation(np.flatnonzero(classes == number))
        hidden[members[: len(members) // 2]] = True
    some = {"known": np.flatnonzero(hidden), "unseen": np.flatnonzero(unseen)}
    return np.flatnonzero(~hidden & ~unseen), {k: random.permutation(v)[:MOST] for k, v in some.items()}


def values(vectors: np.ndarray, classes: np.ndarray, queries: dict[str, np.ndarray]) -> dict[str, float]:
    """Return MAP@R and Recall@1 of hidden images of both kinds among all images, in percent."""
    found = {}
    most = int(np.bincount(classes).max())
    for kind, rows in queries.items():
        ranking = metrics.rank(vectors[rows], classes[rows], vectors, classes, k=most, own=rows)
        found[f"{kind} MAP@R"] = 100 * float(np.nanmean(per_query.map_at_r(ranking)))
        found[f"{kind} R@1"] = 100 * float(np.nanmean(per_query.recall(ranking, [1])))
    return found


def lda(vectors: np.ndarray, classes: np.ndarray, dim: int) -> Layer:
    """Return linear discriminant analysis, the closed form."""
    numbers = np.unique(classes, return_inverse=True)[1]
    weight, bias = fit_projection("lda", vectors, numbers, min(dim, len(vectors) - 1))
    return Layer(weight, np.linalg.lstsq(weight, -bias, rcond=None)[0].astype(np.float32))


def described(found: Measurement) -> dict[str, Any]:
    """Return the choice of a measurement, and whether it was accepted."""
    gains = {
        kind: None if gain is None else round(100 * gain.metrics["map_at_r"].difference, 2)
        for kind, gain in found.gains.items()
    }
    return {**vars(found.chosen), "accepted": found.is_accepted, "measured gain of MAP@R": gains}


def rows_of(name: str, folder: Path, seed: int, losses: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the results of one division of one gallery."""
    stored = Gallery(folder).embeddings(labelled=True)
    classes = np.unique(np.array(stored.labels), return_inverse=True)[1]
    rows, queries = divide(classes, seed)
    mine, labels, nothing = stored.vectors[rows], classes[rows], stored.vectors[:0]
    print(f"{name}, division {seed}: {len(rows)} images of {len(np.unique(labels))} classes", flush=True)

    def row(how: str, layer: Layer | None, seconds: float = 0.0, **facts: Any) -> dict[str, Any]:
        vectors = stored.vectors if layer is None else layer(stored.vectors)
        found = {"data": name, "seed": seed, "how": how, **values(vectors, classes, queries)}
        print("  ", how, {k: round(v, 2) for k, v in found.items() if "@" in k}, facts, flush=True)
        return {k: round(v, 2) if isinstance(v, float) else v for k, v in found.items()} | {
            "cpu_seconds": round(seconds, 1),
            **facts,
        }

    yield row("present vectors", None)
    yield row("start alone, power 0.5", fit_starts(mine, (0.5,), TeachingConfig().dim)[0].layer)
    yield row("LDA", lda(mine, labels, TeachingConfig().dim))
    for loss in losses:
        config = TeachingConfig(loss={"name": loss})
        began = time.process_time()
        found = study(mine, labels, nothing, config)
        studied = time.process_time() - began
        yield row(f"{loss}, not blended", learn_layer(mine, labels, nothing, 0.5, 1.0, config))
        for purpose in PURPOSES:
            began, best = time.process_time(), found.conclude(purpose)
            layer = learn_layer(mine, labels, nothing, best.chosen.power, best.chosen.blend, config)
            seconds = studied + time.process_time() - began
            yield row(f"{loss}, for {purpose}", layer, seconds, **described(best))


def timed(count: int, dim: int) -> dict[str, Any]:
    """Return the time of teaching random vectors around 2,000 centres."""
    random = np.random.default_rng(0)
    classes = random.integers(0, 2000, count)
    vectors = random.standard_normal((2000, dim), np.float32)[classes]
    vectors += 1.5 * random.standard_normal(vectors.shape, np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    began = time.process_time()
    found = study(vectors, classes, vectors[:0], TeachingConfig())
    best = found.conclude("both").chosen
    learn_layer(vectors, classes, vectors[:0], best.power, best.blend, TeachingConfig())
    facts = {
        "vectors": count,
        "dim": dim,
        "folds": found.folds,
        "cpu_seconds": round(time.process_time() - began, 1),
    }
    print(facts)
    return facts


def table(results: list[dict[str, Any]]) -> str:
    """Return the means and standard deviations over the divisions as Markdown."""
    columns = ["known MAP@R", "known R@1", "unseen MAP@R", "unseen R@1"]
    lines = [f"| data | layer | {' | '.join(columns)} | accepted |", "|---" * 7 + "|"]
    for data, how in dict.fromkeys((r["data"], r["how"]) for r in results):
        mine = [r for r in results if (r["data"], r["how"]) == (data, how)]
        cells = []
        for column in columns:
            numbers = [r[column] for r in mine]
            spread = f" ± {statistics.stdev(numbers):.1f}" if len(numbers) > 1 else ""
            cells.append(f"{statistics.mean(numbers):.1f}{spread}")
        accepted = [r["accepted"] for r in mine if "accepted" in r]
        cells.append(f"{sum(accepted)} of {len(accepted)}" if accepted else "")
        lines.append(f"| {data} | {how} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("galleries", nargs="*", metavar="NAME=GALLERY", help="galleries with labels")
    parser.add_argument("--losses", nargs="+", default=["raw"])
    parser.add_argument("--seeds", type=int, default=3, help="divisions of each gallery")
    parser.add_argument("--time", action="store_true", help="measure the time for 100,000 random vectors")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results: list[dict[str, Any]] = []
    for text in given.galleries:
        name, _, folder = text.partition("=")
        for seed in range(given.seeds):
            results += rows_of(name, Path(folder), seed, given.losses)
    if results:
        print(table(results))
    facts = {"divisions": results, "time": timed(100_000, 512) if given.time else None}
    if given.json:
        given.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
