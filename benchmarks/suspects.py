"""Stated against true precision of suspected labels, with labels changed on purpose in copies of galleries.

A share of the labels becomes that of another class, drawn at random, or that of the class whose mean is the
nearest to the image: a confusion that looks like the model's own errors. Labels that were wrong before count
as right ones, so the true precision is understated where a data set has errors.

    python -m benchmarks.suspects birds.gallery cub.gallery cifar.gallery --json benchmarks/suspects.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from retrieval import Gallery
from retrieval.curation.suspects import find_suspects
from retrieval.storage.records import Change
from retrieval.upkeep.snapshot import copy_gallery

CASES = (("-", 0.0), *((kind, share) for kind in ("random", "confused") for share in (0.02, 0.05, 0.1)))
SEEDS = 10


def measure(folder: Path, kind: str, share: float, seeds: int) -> dict[str, Any]:
    """Change labels of a gallery, look for them, and change them back; return means over the seeds."""
    gallery = Gallery(folder)
    stored = gallery.embeddings(labelled=True)
    names, codes = np.unique(np.array(stored.labels, str), return_inverse=True)
    rows = []
    for seed in range(seeds):
        random = np.random.default_rng(seed)
        chosen = random.choice(len(codes), round(share * len(codes)), replace=False)
        if kind == "confused":
            means = np.stack([stored.vectors[codes == code].mean(0) for code in range(len(names))])
            near = stored.vectors[chosen] @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T
            near[np.arange(len(chosen)), codes[chosen]] = -2
            given = near.argmax(1)
        else:
            given = (codes[chosen] + random.integers(1, len(names), len(chosen))) % len(names)
        ids = stored.ids[chosen]
        relabel(gallery, ids, names[given])
        found = find_suspects(gallery, limit=len(codes))
        wrong = np.isin([one.item.id for one in found.suspects], ids)
        listed = found.likely
        stated = found.suspects[listed - 1].precision * listed if listed else 0
        rows.append((found.total, listed, stated, wrong[:listed].sum()))
        relabel(gallery, ids, names[codes[chosen]])
    total, listed, stated, right = np.array(rows, float).sum(0)
    return {
        "gallery": folder.name.removesuffix(".gallery"),
        "images": len(codes),
        "classes": len(names),
        "kind": kind,
        "changed": round(share * len(codes)),
        "outvoted": total / seeds,
        "listed": listed / seeds,
        "stated": stated / listed if listed else None,
        "true": right / listed if listed else None,
        "found": right / seeds / round(share * len(codes)) if share else None,
        "empty": float(np.mean([row[1] == 0 for row in rows])),
    }


def relabel(gallery: Gallery, ids: np.ndarray, labels: np.ndarray) -> None:
    """Set the labels of items."""
    with gallery.store.writing():
        items = {item.id: item for item in gallery.store.items(ids.tolist())}
        gallery.store.amend(
            [Change(i, items[i].stamp(label)) for i, label in zip(ids.tolist(), labels.tolist(), strict=True)]
        )
    gallery.refresh()


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("galleries", nargs="+", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    given = parser.parse_args()
    rows = []
    for folder in given.galleries:
        with tempfile.TemporaryDirectory() as temporary:
            copy = Path(temporary) / folder.name
            copy_gallery(folder, copy)
            for kind, share in CASES:
                rows.append(measure(copy, kind, share, given.seeds if share else 1))
                print(json.dumps(rows[-1]), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps({"seeds": given.seeds, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
