"""How many searches show which of two galleries is better, by what simulated visitors choose from mixed hits.

Visitors search with images of the gallery, each left out of its hits, and see ten hits, mixed as a server
does it. They go through them from the first on, choose one with a probability that depends on whether it has
the class of the query, and then stop with another; the probabilities are those of Hofmann, Whiteson and de
Rijke (CIKM 2011): "perfect" visitors choose all right hits and no other, "navigational" ones mostly stop at
the first right one, "informational" ones choose much, wrong hits among it. After each search somebody looks
whether the preference is certain, and stops then.

Measured over many logs: how often it ever is for the gallery that finds more or for the other, after how many
searches, and how often if a coin decides for each search which gallery is which, so that none is better.

    python -m benchmarks.interleaving birds=new.gallery:old.gallery --json benchmarks/interleaving.json

docs/interleaving.md has the results.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from retrieval import Gallery
from retrieval.evaluation.preference import LEVEL, log_evidence
from retrieval.search.interleaving import team_draft

K = 10
MOST = 2000  # searches of a log
# Probability of a choice of a wrong and of a right hit, and of stopping after it.
VISITORS = {
    "perfect": ((0.0, 1.0), (0.0, 0.0)),
    "navigational": ((0.05, 0.95), (0.2, 0.9)),
    "informational": ((0.4, 0.9), (0.1, 0.5)),
}


def vectors_of(first: Path, second: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the vectors of both galleries for the images of the first, and their classes, int [n]."""
    galleries = [Gallery(first), Gallery(second)]
    stored = [one.embeddings(labelled=True) for one in galleries]
    keys = [
        [one.item(number).key for number in found.ids.tolist()]
        for one, found in zip(galleries, stored, strict=True)
    ]
    place = {key: row for row, key in enumerate(keys[1])}
    labels = np.unique([str(label) for label in stored[0].labels], return_inverse=True)[1]
    return stored[0].vectors, stored[1].vectors[[place[key] for key in keys[0]]], labels


def nearest(vectors: np.ndarray) -> np.ndarray:
    """Return the ten nearest others of each image, int [N, K]."""
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -np.inf)
    found: np.ndarray = np.argsort(-scores, axis=1, kind="stable")[:, :K]
    return found


def chosen(right: np.ndarray, visitor: str, random: np.random.Generator) -> np.ndarray:
    """Return which hits a visitor chooses, bool [K], by whether each is right, bool [K]."""
    choice, stop = (np.array(one)[right.astype(int)] for one in VISITORS[visitor])
    taken = random.random(len(right)) < choice
    ends = np.flatnonzero(taken & (random.random(len(right)) < stop))
    if len(ends):
        taken[ends[0] + 1 :] = False
    return taken


def log_of(
    ours: np.ndarray, theirs: np.ndarray, labels: np.ndarray, visitor: str, seed: int, *, fair: bool
) -> tuple[int, int | None]:
    """Return for whom the preference becomes certain in a log, and after how many searches.

    1 is for the second gallery, -1 for the first; 0 and `None` if it does not.
    """
    random = np.random.default_rng(seed)
    wins = decided = 0
    for number in range(MOST):
        query = int(random.integers(len(labels)))
        sides = [ours[query].tolist(), theirs[query].tolist()]
        if fair and random.random() < 0.5:
            sides.reverse()
        draft = team_draft(sides[0], sides[1], K, f"{seed} {number}")
        hits = np.array(draft.order)
        taken = {*hits[chosen(labels[hits] == labels[query], visitor, random)].tolist()}
        difference = len(taken & draft.second) - len(taken & draft.first)
        if difference:
            decided += 1
            wins += difference > 0
            if log_evidence(wins, decided, 0.5) >= -math.log(LEVEL):
                return (1 if wins > decided / 2 else -1), number + 1
    return 0, None


def measured(first: Path, second: Path, logs: int) -> dict[str, Any]:
    """Return how the comparison of two galleries ends, by visitor."""
    *both, labels = vectors_of(first, second)
    ours, theirs = map(nearest, both)
    recall = [float((labels[one[:, :1]] == labels[:, None]).mean()) for one in (ours, theirs)]
    same = float((ours == theirs).all(1).mean())
    found: dict[str, Any] = {"images": len(labels), "recall_at_1": recall, "same_hits": same, "visitors": {}}
    better = 1 if recall[1] > recall[0] else -1
    for visitor in VISITORS:
        ends = [log_of(ours, theirs, labels, visitor, seed, fair=False) for seed in range(logs)]
        fair = [log_of(ours, theirs, labels, visitor, seed, fair=True) for seed in range(logs)]
        after = [count for _, count in ends if count is not None]
        found["visitors"][visitor] = {
            "for_the_better": sum(sign == better for sign, _ in ends) / logs,
            "for_the_worse": sum(sign == -better for sign, _ in ends) / logs,
            "searches": None if not after else [int(x) for x in np.quantile(after, (0.5, 0.9))],
            "false_alarms": sum(sign != 0 for sign, _ in fair) / logs,
        }
    return found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", nargs="+", metavar="NAME=GALLERY:GALLERY")
    parser.add_argument("--logs", type=int, default=200)
    parser.add_argument("--json", type=Path, help="output file")
    args = parser.parse_args()
    results = {}
    for pair in args.pairs:
        name, _, folders = pair.partition("=")
        first, _, second = folders.partition(":")
        results[name] = one = measured(Path(first), Path(second), args.logs)
        r1 = " to ".join(f"{100 * value:.1f}" for value in one["recall_at_1"])
        print(
            f"{name}: {one['images']:,} images, Recall@1 {r1} %, the same ten hits in {one['same_hits']:.0%}"
        )
        for visitor, ends in one["visitors"].items():
            print(f"  {visitor:14}", ends, flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
