"""Recall@1 of small indexes over real embeddings, with exact re-scoring: int8, one bit, leading dimensions.

For an index of leading dimensions, the embeddings are rotated to their principal axes, which changes no
cosine, so that the first dimensions matter most, as those of a Matryoshka model. Each index is built with the
recall that is asked for; its candidates get exact scores from the whole vectors. Queries are items of the
gallery without themselves; a query is right if its first hit has its label.

    python -m benchmarks.index_codes cars.gallery cifar.gallery --json benchmarks/index_codes.json
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when FAISS and numpy are imported

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from retrieval import Gallery
from retrieval.errors import LookalikeError
from retrieval.search import kinds
from retrieval.search.index import build_index
from retrieval.search.vectors import Vectors, top_k
from retrieval.storage.records import IndexSpec

QUERIES = 2000
K = 10
INDEXES = (
    ("sq8", 0),
    ("sq8", 256),
    ("sq8", 64),
    ("ivf-sq8", 64),
    ("ivf-rabitq", 0),
    ("ivf-rabitq", 256),
    ("hnsw-rabitq", 0),
    ("hnsw", 64),
)


def rotated(vectors: np.ndarray) -> np.ndarray:
    """Return vectors in the coordinates of their principal axes, the strongest first."""
    _, axes = np.linalg.eigh(vectors.T.astype(np.float64) @ vectors)
    return np.ascontiguousarray(vectors @ axes[:, ::-1].astype(np.float32))


def measure(folder: Path, recall: float) -> dict[str, Any]:
    """Return the numbers of all indexes over the embeddings of a gallery."""
    found = Gallery(folder).embeddings(labelled=True)
    labels = np.unique([label or "" for label in found.labels], return_inverse=True)[1]
    both = [Vectors([points], points.shape[1]) for points in (found.vectors, rotated(found.vectors))]
    asked = np.sort(np.random.default_rng(0).permutation(len(labels))[:QUERIES])

    def first_right(rows: np.ndarray) -> float:
        """Return the share of queries whose first hit but themselves has their label."""
        others = np.where(rows[:, 0] == asked, rows[:, 1], rows[:, 0])
        return float((labels[others] == labels[asked]).mean())

    exact_scores, exact_rows = both[0].scan(both[0].take(asked), K + 1)
    exact, whole = first_right(exact_rows), 4 * both[0].dim
    results: dict[str, Any] = {"images": len(labels), "bytes": whole, "recall_at_1": exact}
    for kind, dim in INDEXES:
        name, vectors = f"{kind}, {dim or both[0].dim} dimensions", both[dim > 0]
        try:
            built = build_index(vectors, IndexSpec(kind, recall=recall, dim=dim))
        except LookalikeError:
            results[name] = "does not reach the recall"
            continue
        assert built is not None
        card, queries = built.card, vectors.take(asked)
        numbers = kinds.candidates(built.index, queries, K + 1, card["effort"], card["oversample"])
        rows = vectors.rows_of(numbers)
        scores, rows = top_k(vectors.score(queries, rows), rows, K + 1)
        results[name] = {
            "bytes": card["bytes_per_vector"],
            "share_of_bytes": round(card["bytes_per_vector"] / whole, 4),
            "candidates": K * card["oversample"],
            "neighbours_found": round(float((scores >= exact_scores[:, -1:] - 1e-5).mean()), 4),
            "of_exact_recall_at_1": round(first_right(rows) / exact, 4),
        }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("galleries", nargs="+", type=Path)
    parser.add_argument("--recall", type=float, default=0.99)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = {}
    for folder in args.galleries:
        results[folder.stem] = measure(folder, args.recall)
        print(folder.stem)
        for name, values in results[folder.stem].items():
            print(f"  {name}: {values}", flush=True)
        if args.json:
            args.json.write_text(json.dumps({"recall": args.recall, "sets": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
