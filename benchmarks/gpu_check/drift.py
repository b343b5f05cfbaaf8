"""What a faster precision of a model changes: vectors, neighbours, and Recall@1 where folders are classes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.gpu_check.results import Row
from benchmarks.gpu_check.runtime import with_tf32
from benchmarks.gpu_check.workload import Workload
from retrieval import Embedder

K = 10
MOST = 2000  # images
# A precision beyond these would not be chosen by itself: lowest cosine, which a gallery takes for another
# machine's rounding, and share of the first K that stay.
COSINE, KEPT = 0.999, 0.99


def drift(work: Workload) -> Iterator[Row]:
    """Compare the vectors of each model file on the device, with and without TF32, with those of a CPU.

    The model files are those of --models, of which the first is the reference, and the images those of
    --images; by default an untrained network and generated images, which show the drift of vectors only.
    Every row says whether the bounds are kept.
    """
    files = work.models or (work.model(), work.model("fp16"))
    images = sorted((work.given_images or work.images()).rglob("*.jpg"))[:MOST]
    classes = np.array([path.parent.name for path in images])
    reference = Embedder(files[0], device="cpu").embed(images)
    wanted = neighbours(reference)
    right = (classes[wanted[:, 0]] == classes).mean()
    yield Row(f"{files[0].stem} on the CPU", f"Recall@1 {right:.4f}", numbers={"recall": right})
    for file in files:
        for tf32 in "01" if work.device.type == "cuda" else "0":
            vectors = with_tf32(file, work, tf32).embed(images)
            found = neighbours(vectors)
            far = 1 - np.einsum("nd,nd->n", vectors.astype(float), reference.astype(float))
            kept = float(np.mean([np.isin(w, f).mean() for w, f in zip(wanted, found, strict=True)]))
            recall = float((classes[found[:, 0]] == classes).mean())
            within = bool(1 - far.max() >= COSINE and kept >= KEPT)
            yield Row(
                f"{file.stem}{', TF32' if tf32 == '1' else ''}, {len(images)} images",
                f"1 - cosine: mean {far.mean():.2g}, largest {far.max():.2g}; "
                f"{kept:.2%} of the first {K} stay; "
                f"Recall@1 {recall:.4f}; {'within' if within else 'beyond'} the bounds",
                numbers={
                    "within": within,
                    "mean": float(far.mean()),
                    "largest": float(far.max()),
                    "kept": kept,
                    "recall": recall,
                },
            )


def neighbours(vectors: np.ndarray) -> np.ndarray:
    """Return the rows of the nearest K others, int64 [N, K]."""
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -np.inf)
    return np.argsort(-scores, axis=1, kind="stable")[:, :K]
