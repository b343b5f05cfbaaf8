"""Gain of a distillation without labels, on classes that nothing was learned from.

    python -m benchmarks.distillation cars=lite0-cars.gallery ... --teacher lite0.onnx [--json FILE]

Each gallery has the labels of its images and the vectors of the teacher. One half of its classes, at most
--train images, is a folder of images without labels; the recipe `distill` is trained on it, with 256
dimensions and PCA ("relations") and with the dimension of the teacher ("vectors"). Recall@1 and MAP@R in
percent are those of classes of the other half, at most --test images, each searched among the others. Nothing
is chosen by them. "before" are the pooled features of the student's backbone at its size, "start" is the
network before the first step, and "asymmetric" the student's queries in the gallery of the teacher.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from retrieval import Embedder, Gallery, metrics
from retrieval.images.load import load_image
from retrieval.metrics import per_query
from retrieval.model.embedder import measure_latency
from train import data, settings
from train.loop.refit import train_run
from train.loop.run_folder import Run
from train.models.embedding_model import EmbeddingModel

VARIANTS = {
    "relations": {"model.embedding_dim": 256},
    "vectors": {"model.embedding_dim": 1280, "model.init": "teacher"},
}
BATCH = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("galleries", nargs="+", metavar="NAME=GALLERY")
    parser.add_argument("--teacher", type=Path, required=True)
    parser.add_argument("--weights", default="lite0", help="model.weights of the student")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--train", type=int, default=1000)
    parser.add_argument("--test", type=int, default=800)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--latency", type=Path, help="exported student, to measure beside the teacher")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    facts: dict[str, Any] = {"epochs": given.epochs, "weights": given.weights, "runs": []}
    if given.latency:
        facts["latency_ms"] = latencies({"teacher": given.teacher, "student": given.latency})
        print(facts["latency_ms"])
    for seed in range(given.seeds):
        for argument in given.galleries:
            name, _, folder = argument.partition("=")
            for variant, found in measure(Gallery.open(folder), seed, given):
                facts["runs"].append({"set": name, "variant": variant, "seed": seed, **found})
                print(name, variant, seed, found, flush=True)
                if given.json is not None:
                    given.json.write_text(json.dumps(facts, indent=1) + "\n")


def measure(gallery: Gallery, seed: int, given: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the variants with what was measured."""
    stored = gallery.embeddings(labelled=True)
    labels = np.array(stored.labels, str)
    paths = np.array([str(path) for path in gallery.paths.lookup(stored.ids.tolist())])
    random = np.random.default_rng(seed)
    names = random.permutation(np.unique(labels))
    learned = np.flatnonzero(np.isin(labels, names[: len(names) // 2]))
    learned = random.permutation(learned)[: given.train]
    tested = np.empty(0, np.int64)
    for label in names[len(names) // 2 :]:
        of_class = np.flatnonzero(labels == label)
        if len(tested) + len(of_class) <= given.test:
            tested = np.concatenate([tested, of_class])
    classes = np.unique(labels[tested], return_inverse=True)[1]
    teacher = stored.vectors[tested]
    with tempfile.TemporaryDirectory() as scratch:
        photos = Path(scratch, "photos")
        photos.mkdir()
        for i in learned.tolist():
            shutil.copyfile(paths[i], photos / f"{i}{Path(paths[i]).suffix}")
        for variant in given.variants:
            changes = {
                "distill.teacher": str(given.teacher),
                "model.weights": given.weights,
                "epochs": given.epochs,
                "seed": seed,
                "device": "cpu",
                "checkpoints.at": [0],
                "loader.cache": str(Path(scratch, "cache")),
                **VARIANTS[variant],
            }
            config = settings.configure(f"images:{photos}", "distill", changes)
            run = Run.start(Path(scratch, variant), config)
            trained = train_run(run, data.load(config.data, unlabelled=True), show_progress=True)[1]
            start, student = run.trained("0"), run.trained("best")
            pixels = np.stack([config.preprocess(load_image(path)) for path in paths[tested]])
            after = embed(student, student, pixels)
            values = {
                "before": score(embed(start.pooled, start, pixels), classes),
                "start": score(embed(start, start, pixels), classes),
                "student": score(after, classes),
                "teacher": score(teacher, classes),
            }
            if after.shape[1] == teacher.shape[1]:
                values["asymmetric"] = score(after, classes, teacher)
            yield (
                variant,
                {
                    "training_images": len(learned),
                    "test_images": len(tested),
                    "test_classes": int(classes.max()) + 1,
                    "seconds": trained["seconds"],
                    "best_epoch": trained["best_epoch"],
                    "neighbours_found": [trained["metric_before"], trained["metric_best"]],
                    "values": values,
                },
            )


@torch.inference_mode()
def embed(
    network: Callable[[torch.Tensor], torch.Tensor], model: EmbeddingModel, pixels: np.ndarray
) -> np.ndarray:
    """Return unit vectors by a network, or by the pooling of a model."""
    model.eval()
    parts = [network(torch.from_numpy(pixels[i : i + BATCH])) for i in range(0, len(pixels), BATCH)]
    found: np.ndarray = torch.nn.functional.normalize(torch.cat(parts)).numpy()
    return found


def score(vectors: np.ndarray, classes: np.ndarray, gallery: np.ndarray | None = None) -> list[float]:
    """Return Recall@1 and MAP@R in percent; each image searches the others."""
    searched = vectors if gallery is None else gallery
    most = int(np.bincount(classes).max())
    own = np.arange(len(vectors))
    ranking = metrics.rank(vectors, classes, searched, classes, k=most, own=own)
    values = per_query.recall(ranking, [1])[:, 0], per_query.map_at_r(ranking)
    return [round(100 * float(np.nanmean(value)), 2) for value in values]


def latencies(files: dict[str, Path]) -> dict[str, dict[str, float]]:
    """Return milliseconds for an image on one thread, of batches of 1 and 16, the least of three."""
    models = {name: Embedder(file, device="cpu", threads=1) for name, file in files.items()}
    times: dict[str, dict[str, float]] = {name: {} for name in models}
    for batch in (1, 16):
        for _ in range(3):
            for name, model in models.items():
                each = 1000 * measure_latency(model, batch) / batch
                times[name][str(batch)] = round(min(each, times[name].get(str(batch), each)), 2)
    return times


if __name__ == "__main__":
    main()
