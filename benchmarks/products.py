"""Recall of a product by one and by several of its pictures, for each score of a product.

Each class of a gallery with labels stands for a product. Three random images of it are the query, and the
others are the views that are searched; so what is measured is not the picture of the query. Intervals of 95%
resample products, and those of differences are paired.

    python -m benchmarks.products birds=birds.gallery cars=cars.gallery --json benchmarks/products.json

docs/products.md has the results.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from retrieval import Gallery
from retrieval.metrics.statistics import bootstrap_intervals
from retrieval.search.composition import compose
from retrieval.search.options import EACH, GROUP_SCORES, SearchOptions
from retrieval.storage.manifest import Manifest
from retrieval.storage.records import FileStamp, NewItem
from retrieval.storage.store import Store

ASKED = 3  # images of a query
DRAWS = 4
KS = (1, 5)


def gallery_of(folder: Path, vectors: np.ndarray, products: Sequence[str]) -> Gallery:
    """Return a gallery of vectors as views of products."""
    store = Store.create(folder, Manifest("", vectors.shape[1], embedding="views"))
    items = [
        NewItem(FileStamp("", "", 0, 0), "", 1, 1, {"product": one}, str(n)) for n, one in enumerate(products)
    ]
    with store.writing():
        store.commit(vectors, items)
    made = Gallery.open(folder)
    made.use_products("product")
    return made


def measure(vectors: np.ndarray, labels: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Return for each way of searching whether each product is among the first K: float64 [products, KS].

    Args:
        vectors: float32 [N, D], unit length.
        labels: Class of each, [N].
        seed: Seed of the draw.
    """
    random = np.random.default_rng(seed)
    names = np.unique(labels)
    rows = [random.permutation(np.flatnonzero(labels == name)) for name in names]
    shown = np.concatenate([one[ASKED:] for one in rows])
    found = {}
    with TemporaryDirectory() as folder:
        gallery = gallery_of(Path(folder) / "gallery", vectors[shown], labels[shown].tolist())

        def recall(queries: Sequence[np.ndarray], **options: Any) -> np.ndarray:
            answers = gallery.find(queries, SearchOptions(max(KS), **options))
            return np.array(
                [
                    [name in [hit.metadata["product"] for hit in hits][:k] for k in KS]
                    for name, hits in zip(names, answers, strict=True)
                ],
                float,
            )

        for count in range(1, ASKED + 1):
            views = [vectors[one[:count]] for one in rows]
            means = [compose(one)[None] for one in views]
            if count == 1:
                found["1, single images"] = recall(views, group_by=EACH)
            for score in GROUP_SCORES:
                found[f"{count}, {score}"] = recall(views, group_score=score)
                if count > 1:
                    found[f"{count}, {score}, mean vector"] = recall(means, group_score=score)
    return found


def summarized(folder: Path) -> dict[str, Any]:
    """Return means and intervals of all ways of searching, and of their differences, in percent."""
    stored = Gallery.open(folder).embeddings(labelled=True)
    labels = np.array(stored.labels)
    draws = [measure(stored.vectors, labels, seed) for seed in range(DRAWS)]
    values = {name: 100 * np.mean([draw[name] for draw in draws], 0) for name in draws[0]}
    pairs = [("1, best", "1, single images"), ("1, soft", "1, best"), ("1, mean", "1, best")]
    for count in range(2, ASKED + 1):
        pairs += [(f"{count}, {score}", f"{count}, {score}, mean vector") for score in ("best", "soft")]
        pairs.append((f"{count}, soft", f"{count}, best"))
    differences = {f"{one} - {other}": values[one] - values[other] for one, other in pairs}
    return {
        "products": len(next(iter(values.values()))),
        "images": len(labels),
        **{name: _row(table) for name, table in {**values, **differences}.items()},
    }


def _row(table: np.ndarray) -> dict[str, list[float]]:
    """Return mean and interval of each column."""
    ends = bootstrap_intervals(table)
    rows = zip(KS, table.mean(0), ends, strict=True)
    return {f"recall_at_{k}": [round(float(one), 1) for one in (mean, *end)] for k, mean, end in rows}


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("gallery", nargs="+", metavar="NAME=GALLERY")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = {}
    for name, folder in (one.split("=", 1) for one in args.gallery):
        found[name] = summarized(Path(folder))
        print(f"{name}: {found[name]['products']} products")
        for how, row in found[name].items():
            if isinstance(row, dict):
                cells = (f"{mean:5.1f} ({low:.1f} to {high:.1f})" for mean, low, high in row.values())
                print(f"  {how:32}", *cells, sep="   ")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
