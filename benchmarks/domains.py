"""One layer for several domains: learnt on some classes of each, searched for among the others of all.

Half of the classes of each gallery are learnt from, and the images of the other half search each other in one
index of all galleries, as in UnED. Layers that start from half-whitening: learnt from the domain of the query
alone, from all domains, from all in balanced batches, and from all but the domain of the query. Several
divisions of the classes; intervals of 95% resample the classes of each domain, and differences are paired.

    python -m benchmarks.domains birds=birds.gallery cars=cars.gallery --json benchmarks/domains.json

docs/teach.md has the results.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from retrieval import Gallery
from retrieval.evaluation.verdict import judge
from retrieval.metrics.judged import Judgements, rank_judged
from retrieval.metrics.statistics import class_intervals, mean_of_parts
from retrieval.model.layer import Layer
from train.layers.components import fit_starts
from train.layers.learning import learn
from train.layers.settings import TeachingConfig

POWER = 0.5  # of the start
BLEND = 0.5  # of what is learnt; chosen before any result was seen
MEASURES = ("modified_precision_at_5", "recall_at_1")
PLAIN, WHITENED, OWN, ALL, BALANCED, OTHERS = (
    "as they are",
    "half-whitened",
    "own domain",
    "all domains",
    "all, balanced",
    "other domains",
)


def layers(
    vectors: np.ndarray, classes: np.ndarray, domains: np.ndarray
) -> dict[str, dict[int, Layer | None]]:
    """Return the layers of each way to learn, by the domain whose queries they are for.

    Args:
        vectors: Unit vectors to learn from, float32 [N, D].
        classes: Class of each, int [N].
        domains: Domain of each, int [N].
    """
    config = TeachingConfig()
    (start,) = fit_starts(vectors, (POWER,), config.dim)

    def learnt(rows: np.ndarray, balanced: bool) -> Layer:
        matrix = learn(
            start.components(vectors[rows]),
            classes[rows],
            start.learned,
            config,
            categories=domains[rows] if balanced else None,
        )
        return start.blended(matrix, BLEND)

    every = np.arange(len(vectors))
    names = np.unique(domains).tolist()
    return {
        PLAIN: dict.fromkeys(names),
        WHITENED: dict.fromkeys(names, start.layer),
        OWN: {name: learnt(np.flatnonzero(domains == name), False) for name in names},
        ALL: dict.fromkeys(names, learnt(every, False)),
        BALANCED: dict.fromkeys(names, learnt(every, True)),
        OTHERS: {name: learnt(np.flatnonzero(domains != name), True) for name in names},
    }


def measure(
    vectors: np.ndarray, classes: np.ndarray, domains: np.ndarray, seed: int
) -> dict[str, np.ndarray]:
    """Return the measures of each held-out image by each way to learn, float64 [N, measures]; else nan."""
    random = np.random.default_rng(seed)
    numbers = [random.permutation(np.unique(classes[domains == name])) for name in np.unique(domains)]
    held_out = np.isin(classes, np.concatenate([one[: len(one) // 2] for one in numbers]))
    rows = np.flatnonzero(held_out)
    labels = classes[rows]
    members = {one: np.flatnonzero(labels == one) for one in np.unique(labels).tolist()}
    own = [np.array([number]) for number in range(len(rows))]
    relevant = [np.setdiff1d(members[one], mine) for one, mine in zip(labels.tolist(), own, strict=True)]
    found = {}
    for way, by_domain in layers(vectors[~held_out], classes[~held_out], domains[~held_out]).items():
        table = np.full((len(vectors), len(MEASURES)), np.nan)
        for name, layer in by_domain.items():
            moved = vectors[rows] if layer is None else layer(vectors[rows])
            asked = np.flatnonzero(domains[rows] == name)
            judgements = Judgements([relevant[n] for n in asked], [own[n] for n in asked])
            table[rows[asked]] = rank_judged(moved[asked], moved, [judgements])[0].values(MEASURES)
        found[way] = table
    return found


def summarized(
    found: Mapping[str, np.ndarray], classes: np.ndarray, domains: np.ndarray, names: list[str]
) -> dict[str, Any]:
    """Return measures and paired differences in percent, by domain and their mean."""
    known = ~np.isnan(found[PLAIN]).any(1)
    parts = {name: known & (domains == number) for number, name in enumerate(names)}
    rows: dict[str, Any] = {}
    for part, mask in {**parts, "mean of domains": known}.items():
        strata = domains[mask] if part not in parts else None
        rows[part] = {}
        for way, table in found.items():
            ends = class_intervals(table[mask], classes[mask], strata)
            assert ends is not None
            means = mean_of_parts(table[mask], strata)
            rows[part][way] = {
                key: _percent(mean, *pair) for key, mean, pair in zip(MEASURES, means, ends, strict=True)
            }
        for ours, theirs in (
            (WHITENED, PLAIN),
            (OTHERS, WHITENED),
            (ALL, OWN),
            (BALANCED, ALL),
            (BALANCED, PLAIN),
        ):
            sides = (dict(zip(MEASURES, found[way][mask].T, strict=True)) for way in (ours, theirs))
            verdict = judge(ours, theirs, *sides, classes[mask], strata=strata, deciding=MEASURES)
            rows[part][f"{ours} - {theirs}"] = {
                key: _percent(one.difference, *one.deciding) for key, one in verdict.changes.items()
            }
    return rows


def _percent(*values: float) -> list[float]:
    return [round(100 * float(value), 2) for value in values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("galleries", nargs="+", metavar="NAME=GALLERY")
    parser.add_argument("--divisions", type=int, default=3)
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    names, vectors, classes, domains = [], [], [], []
    for number, argument in enumerate(given.galleries):
        name, _, folder = argument.partition("=")
        stored = Gallery.open(folder).embeddings()
        names.append(name)
        vectors.append(stored.vectors)
        classes.append(np.char.add(f"{name} ", np.array(stored.labels, str)))
        domains.append(np.full(len(stored.labels), number))
    every, of = np.concatenate(vectors), np.concatenate(domains)
    numbers = np.unique(np.concatenate(classes), return_inverse=True)[1]
    enough = np.bincount(numbers)[numbers] > 1
    every, of, numbers = every[enough], of[enough], numbers[enough]
    divided = [measure(every, numbers, of, seed) for seed in range(given.divisions)]
    joined = {way: np.concatenate([one[way] for one in divided]) for way in divided[0]}
    times = given.divisions
    result = summarized(joined, np.tile(numbers, times), np.tile(of, times), names)
    given.json.write_text(json.dumps({"divisions": times, "images": len(every), "domains": result}, indent=1))
    for part, rows in result.items():
        print(part)
        for way, values in rows.items():
            print(f"  {way:32}", values)


if __name__ == "__main__":
    main()
