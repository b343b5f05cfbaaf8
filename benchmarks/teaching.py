"""What `lookalike teach` prints against what images and classes gain that it does not see, and its time.

Of each gallery, half of the classes are never labelled (unseen). Of the others (known), a third of the images
has no label. A fifth of the images of every class stays outside, as photographs with which somebody searches.
A layer is taught as the command does it, by the labels and with all images of the gallery. The gain that its
study gives is compared with that of the images without a label, each searched among all others of the
gallery, and with that of the images outside. Many divisions; each is written when it is done, and found in
the file is not repeated.

    python -m benchmarks.teaching birds=birds.gallery --json benchmarks/teaching.json
    python -m benchmarks.teaching cars=cars.gallery --each 20 --steps 100 --json benchmarks/teaching.json
    python -m benchmarks.teaching --time                     # 100,000 random vectors of 512 dimensions

docs/teach.md has the results.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from retrieval import Gallery, metrics
from retrieval.metrics import per_query
from retrieval.metrics.statistics import bootstrap_intervals
from retrieval.model.layer import Layer
from train.layers.components import fit_starts
from train.layers.folds import KINDS
from train.layers.learning import learn, learn_layer
from train.layers.measuring import METRICS, PURPOSES, Candidate, Study, study
from train.layers.settings import TeachingConfig

INSIDE, OUTSIDE = "in the gallery", "outside"
Values = dict[str, np.ndarray]  # of the queries of each kind and place: [1 + candidates, q, metrics]


def divide(classes: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Return the rows of the gallery, the labelled ones, and the queries of each kind and place."""
    random = np.random.default_rng([seed, 99])
    count = int(classes.max()) + 1
    known = np.isin(classes, random.permutation(count)[: count // 2])
    part = np.zeros(len(classes), int)  # 1: in the gallery without a label, 2: outside
    for number in range(count):
        members = random.permutation(np.flatnonzero(classes == number))
        outside = max(1, len(members) // 5)
        part[members[:outside]] = 2
        rest = members[outside:]
        part[rest[: max(1, len(rest) // 3)] if known[rest[0]] else rest] = 1
    queries = {
        f"{kind}, {place}": np.flatnonzero(mask & (part == number))
        for place, number in ((INSIDE, 1), (OUTSIDE, 2))
        for kind, mask in zip(KINDS, (known, ~known), strict=True)
    }
    return np.flatnonzero(part < 2), np.flatnonzero(known & (part == 0)), queries


def taught(
    vectors: np.ndarray, classes: np.ndarray, seed: int, config: TeachingConfig
) -> tuple[Study, Values, Values, dict[str, Any]]:
    """Return the study of a division, what its queries measure, their classes, and the cost."""
    inside, labelled, queries = divide(classes, seed)
    mine, numbers = vectors[labelled], np.unique(classes[labelled], return_inverse=True)[1]
    others = vectors[np.setdiff1d(inside, labelled)]
    began = time.process_time()
    starts = fit_starts(np.concatenate([mine, others]), config.powers, config.dim)
    found = study(mine, numbers, others, starts, config)
    seconds = time.process_time() - began
    layers: list[Layer | None] = [None]
    for start in starts:
        matrix = learn(start.components(mine), numbers, start.learned, config)
        layers += [start.blended(matrix, blend) for blend in config.blends]
    measured: dict[str, list[np.ndarray]] = {name: [] for name in queries}
    for layer in layers:
        moved = vectors if layer is None else layer(vectors)
        for name, rows in queries.items():
            own = np.searchsorted(inside, rows) if name.endswith(INSIDE) else None
            measured[name].append(_values(moved[rows], classes[rows], moved[inside], classes[inside], own))
    facts = {"labelled": len(labelled), "images": len(inside), "cpu_seconds": round(seconds, 1)}
    stacked = {name: np.stack(values) for name, values in measured.items()}
    return found, stacked, {name: classes[rows] for name, rows in queries.items()}, facts


def _values(
    query: np.ndarray,
    own_classes: np.ndarray,
    gallery: np.ndarray,
    classes: np.ndarray,
    own: np.ndarray | None,
) -> np.ndarray:
    most = int(np.bincount(classes).max())
    ranking = metrics.rank(query, own_classes, gallery, classes, k=min(most, len(gallery) - 1), own=own)
    return np.column_stack([per_query.map_at_r(ranking), per_query.recall(ranking, [1])[:, 0]])


def summarized(found: Study, measured: Values, classes: Values, config: TeachingConfig) -> dict[str, Any]:
    """Return what is printed and measured for each purpose, in percent."""
    offered = [Candidate(power, blend) for power in config.powers for blend in config.blends]
    rows: dict[str, Any] = {}
    for purpose in PURPOSES:
        best = found.conclude(purpose)
        position = 1 + offered.index(best.chosen)
        row: dict[str, Any] = {**vars(best.chosen), "accepted": best.is_accepted}
        for kind, gain in best.gains.items():
            assert gain is not None
            change = gain.metrics[METRICS[0]]
            row[f"{kind}, printed"] = _percent(change.difference, change.low, change.high)
        for name, values in measured.items():
            gains = values[position] - values[0]
            low, high = bootstrap_intervals(gains, classes[name])[0]
            row[name] = _percent(gains[:, 0].mean(), low, high)
            row[f"{name}, Recall@1"] = _percent(gains[:, 1].mean())[0]
        rows[purpose] = row
    rows["before"] = {name: _percent(*values[0].mean(0)) for name, values in measured.items()}
    return rows


def _percent(*values: float) -> list[float]:
    return [round(100 * float(value), 2) for value in values]


def timed(count: int, dim: int) -> dict[str, Any]:
    """Return the time of teaching random vectors around 2,000 centres."""
    random = np.random.default_rng(0)
    classes = random.integers(0, 2000, count)
    vectors = random.standard_normal((2000, dim), np.float32)[classes]
    vectors += 1.5 * random.standard_normal(vectors.shape, np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    config = TeachingConfig()
    began = time.process_time()
    starts = fit_starts(vectors, config.powers, config.dim)
    found = study(vectors, classes, vectors[:0], starts, config)
    best = found.conclude("both").chosen
    start = next(start for start in starts if start.power == best.power)
    learn_layer(vectors, classes, start, best.blend, config)
    facts = {
        "vectors": count,
        "dim": dim,
        "folds": found.folds,
        "cpu_seconds": round(time.process_time() - began, 1),
    }
    print(facts)
    return facts


def table(results: list[dict[str, Any]]) -> str:
    """Return printed and measured gains of MAP@R as Markdown, with how often they agree.

    covers: divisions whose printed interval holds the measured gain; below: whose measured gain is lower than
    it; agree: whose difference is within the errors of both; false: in which a certain gain was none.
    """
    columns = "data | for | images | printed | measured | printed - measured | covers | below | agree | false"
    lines = [f"| {columns} | outside |", "|---" * 11 + "|"]
    for data in dict.fromkeys(row["data"] for row in results):
        mine = [row for row in results if row["data"] == data]
        for purpose in PURPOSES:
            for kind in KINDS:
                rows = [row["purposes"][purpose] for row in mine]
                printed = np.array([row[f"{kind}, printed"] for row in rows])
                seen = np.array([row[f"{kind}, {INSIDE}"] for row in rows])
                outside = np.mean([row[f"{kind}, {OUTSIDE}"][0] for row in rows])
                bias = printed[:, 0] - seen[:, 0]
                reach = np.hypot(*((ends[:, 2] - ends[:, 1]) / 2 for ends in (printed, seen)))
                covers = (printed[:, 1] <= seen[:, 0]) & (seen[:, 0] <= printed[:, 2])
                certain = printed[:, 1] > 0
                spread = (printed[:, 2] - printed[:, 1]).mean() / 2
                cells = [
                    f"{data} ({len(mine)})",
                    purpose,
                    kind,
                    f"{printed[:, 0].mean():+.1f} (± {spread:.1f})",
                    f"{seen[:, 0].mean():+.1f}",
                    f"{bias.mean():+.1f} ± {bias.std(ddof=1):.1f}" if len(bias) > 1 else f"{bias[0]:+.1f}",
                    f"{covers.sum()}",
                    f"{(seen[:, 0] < printed[:, 1]).sum()}",
                    f"{(np.abs(bias) <= reach).sum()}",
                    f"{(certain & (seen[:, 0] <= 0)).sum()} of {certain.sum()}",
                    f"{outside:+.1f}",
                ]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def read(folder: Path, each: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the labelled vectors of a gallery and their classes, at most so many images of each."""
    stored = Gallery(folder).embeddings(labelled=True)
    classes = np.unique(np.array(stored.labels), return_inverse=True)[1]
    random = np.random.default_rng(0)
    of_each = [random.permutation(np.flatnonzero(classes == n))[:each] for n in range(classes.max() + 1)]
    kept = np.sort(np.concatenate(of_each))
    return stored.vectors[kept], classes[kept]


def _write(file: Path | None, facts: Mapping[str, Any]) -> None:
    if file is not None:
        file.write_text(json.dumps(facts, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("galleries", nargs="*", metavar="NAME=GALLERY", help="galleries with labels")
    parser.add_argument("--each", type=int, help="images of each class")
    parser.add_argument("--steps", type=int, default=TeachingConfig().steps)
    parser.add_argument("--divisions", type=int, default=20, help="divisions of each gallery")
    parser.add_argument("--time", action="store_true", help="measure the time for 100,000 random vectors")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    config = TeachingConfig(steps=given.steps)
    known = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    facts: dict[str, Any] = {"divisions": known.get("divisions", []), "time": known.get("time")}
    done = {(row["data"], row["steps"], row["seed"]) for row in facts["divisions"]}
    for text in given.galleries:
        name, _, folder = text.partition("=")
        vectors, classes = read(Path(folder), given.each)
        for seed in range(given.divisions):
            if (name, config.steps, seed) in done:
                continue
            found, measured, of_queries, cost = taught(vectors, classes, seed, config)
            row = {"data": name, "seed": seed, "steps": config.steps, **cost}
            row["purposes"] = summarized(found, measured, of_queries, config)
            facts["divisions"].append(row)
            _write(given.json, facts)
    if facts["divisions"]:
        print(table(facts["divisions"]))
    if given.time:
        facts["time"] = timed(100_000, 512)
        _write(given.json, facts)


if __name__ == "__main__":
    main()
