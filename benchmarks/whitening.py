"""Gain of half-whitening on classes that nothing was learned or chosen from.

    python -m benchmarks.whitening lite0-cars=cars.gallery ... [--json benchmarks/whitening.json]

For each gallery with labels, the classes are divided into halves several times. The layer is fitted and
chosen on one half and measured on the other ("other classes"); and it is fitted and chosen by copies on the
images of the measured half itself, without their labels ("gallery itself"). Recall@1 and MAP@R in percent.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from retrieval import Gallery, metrics
from retrieval.metrics import per_query
from train.layers.copies import embed_copies
from train.layers.whitening import COPY_POWERS, MOST_QUERIES, candidates, gain_by_copies, gain_by_labels

SPLITS = 3
COPIES = 300
LIMIT = 8000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("galleries", nargs="+", metavar="NAME=GALLERY")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = []
    for argument in given.galleries:
        name, _, folder = argument.partition("=")
        rows = measure(Gallery.open(folder))
        found.append({"name": name, "splits": rows})
        print(name)
        for variant in rows[0]["values"]:
            values = np.array([row["values"][variant] for row in rows])
            change = values - np.array([row["values"]["before"] for row in rows])
            print(
                f"  {variant:24} R@1 {values[:, 0].mean():5.1f} MAP@R {values[:, 1].mean():5.1f}  "
                f"change {change[:, 0].mean():+5.1f} sd {change[:, 0].std(ddof=1):4.1f}, "
                f"{change[:, 1].mean():+5.1f} sd {change[:, 1].std(ddof=1):4.1f}"
            )
    if given.json is not None:
        given.json.write_text(json.dumps({"splits": SPLITS, "galleries": found}, indent=1) + "\n")


def measure(gallery: Gallery) -> list[dict[str, Any]]:
    stored = gallery.embeddings(labelled=True, limit=LIMIT)
    classes = np.unique(np.array(stored.labels, str), return_inverse=True)[1]
    paths = gallery.paths.lookup(stored.ids.tolist())
    rows = []
    for split in range(SPLITS):
        random = np.random.default_rng(split)
        first = np.isin(classes, random.permutation(classes.max() + 1)[: (classes.max() + 1) // 2])
        learning, unseen = stored.vectors[first], stored.vectors[~first]
        values = {"before": _values(unseen, classes[~first])}
        chosen = {}
        offers = {"other classes": candidates(learning), "gallery itself": candidates(unseen)}

        def copies(mask: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
            return embed_copies(gallery.embedder, [paths[i] for i in np.flatnonzero(mask)], COPIES, seed)

        moderate = {
            where: [one for one in offered if one[0].power in COPY_POWERS]
            for where, offered in offers.items()
        }
        gains = {
            "other classes, labels": gain_by_labels(learning, classes[first], offers["other classes"]),
            "other classes, copies": gain_by_copies(
                learning, *copies(first, split), moderate["other classes"]
            ),
            "gallery itself, copies": gain_by_copies(
                unseen, *copies(~first, split), moderate["gallery itself"]
            ),
        }
        for variant, gain in gains.items():
            layer = next(layer for one, layer in offers[variant.partition(",")[0]] if one == gain.chosen)
            values[variant] = _values(layer(unseen), classes[~first])
            chosen[variant] = [gain.chosen.power, gain.chosen.dim, gain.is_proven]
        for where, offered in offers.items():
            for one, layer in offered:
                if one.power in (0.25, 0.5, 1.0) and one.dim == stored.vectors.shape[1]:
                    values[f"{where}, power {one.power:g}"] = _values(layer(unseen), classes[~first])
        rows.append({"values": values, "chosen": chosen})
    return rows


def _values(vectors: np.ndarray, classes: np.ndarray) -> list[float]:
    """Return Recall@1 and MAP@R in percent."""
    queries = np.sort(np.random.default_rng(0).permutation(len(vectors))[: 2 * MOST_QUERIES])
    most = min(int(np.bincount(classes).max()), len(vectors) - 1)
    ranking = metrics.rank(vectors[queries], classes[queries], vectors, classes, k=most, own=queries)
    values = per_query.recall(ranking, [1])[:, 0], per_query.map_at_r(ranking)
    return [round(100 * float(np.nanmean(value)), 2) for value in values]


if __name__ == "__main__":
    main()
