"""What a faster precision of a model changes: vectors, neighbours, and Recall@1 where folders are classes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.gpu_check.results import Row
from benchmarks.gpu_check.workload import Workload
from retrieval import Embedder
from retrieval.model.precision import K, measure_drift, neighbours

MOST = 2000  # images


def drift(work: Workload) -> Iterator[Row]:
    """Compare the vectors of each model file on the device, with and without TF32, with those of a CPU.

    The model files are those of --models, of which the first is the reference, and the images those of
    --images; by default an untrained network and generated images, which show the drift of vectors only.
    Every row says whether the bounds are kept, by which a gallery allows TF32.
    """
    files = work.models or (work.model(), work.model("fp16"))
    images = sorted((work.given_images or work.images()).rglob("*.jpg"))[:MOST]
    classes = np.array([path.parent.name for path in images])
    reference = Embedder(files[0], device="cpu").embed(images)
    wanted = neighbours(reference)
    right = (classes[wanted[:, 0]] == classes).mean()
    yield Row(f"{files[0].stem} on the CPU", f"Recall@1 {right:.4f}", numbers={"recall": right})
    for file in files:
        for tf32 in (False, True) if work.device.type == "cuda" else (False,):
            vectors = Embedder(file, device=str(work.device), tf32=tf32).embed(images)
            found = measure_drift(reference, vectors)
            recall = float((classes[neighbours(vectors)[:, 0]] == classes).mean())
            yield Row(
                f"{file.stem}{', TF32' if tf32 else ''}, {len(images)} images",
                f"1 - cosine: mean {1 - found.mean:.2g}, largest {1 - found.least:.2g}; "
                f"{found.kept:.2%} of the first {K} stay; "
                f"Recall@1 {recall:.4f}; {'within' if found.within else 'beyond'} the bounds",
                numbers={
                    "within": found.within,
                    "mean": 1 - found.mean,
                    "largest": 1 - found.least,
                    "kept": found.kept,
                    "recall": recall,
                },
            )
