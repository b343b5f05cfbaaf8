"""Options of training, each against the same run without it, on classes that were not trained on.

The data is a table of images with train and test classes that do not overlap, such as Cars196; the backbone
is EfficientNet-Lite0 of ImageNet. Options that leave the backbone alone are measured on its cached features.
Settings are fixed beforehand and all of them are reported; test classes choose nothing. The findings are in
`docs/training_options.md`.

    python -m benchmarks.training_options --data csv:cars.csv --weights lite0.safetensors --only hard
    python -m benchmarks.training_options --data csv:cars.csv --weights lite0.safetensors --json results.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from export.blend import blend_with_start
from retrieval import metrics
from retrieval.images.decode import embed_files
from retrieval.progress import Progress
from train import data, settings
from train.config import Config
from train.loop.frozen_backbone import FrozenBackbone, embed_features
from train.loop.run_folder import Run
from train.loop.trainer import Trainer
from train.models.embedding_model import EmbeddingModel, pixel_embedder

SEEDS = tuple(range(6))
BACKBONE = "timm:tf_efficientnet_lite0"
# Features of the fixed backbone, an embedding layer that starts at random.
FROZEN = [
    "model.trainable=0",
    "model.embedding_dim=64",
    "preprocess={size: 128, mean: [0.498, 0.498, 0.498], std: [0.502, 0.502, 0.502]}",
    "augment={flip: false, rotate: 0, scale: 0, shift: 0}",
    "batch={classes: 16, per_class: 4}",
    "epochs=12",
    "split.validation=0",
    "watch={split: test, every: 100000, ks: [1]}",
]
LOSSES: Mapping[str, str] = {
    "triplet": "loss={name: triplet, margin: 0.2}",
    "multi-similarity": "loss={name: multi-similarity}",
    "proxy-anchor": "loss={name: proxy-anchor}",
}


class Bench:
    """Runs of one data set and backbone."""

    def __init__(self, spec: str, weights: Path) -> None:
        self.dataset = data.load(spec)
        self.common = [f"model.backbone={BACKBONE}", f"model.weights={weights}"]
        self.spec = spec

    def train(self, folder: str, words: Sequence[str]) -> tuple[Trainer, dict[str, Any]]:
        """Train a run; return it with its facts."""
        config = settings.resolve(self.spec, None, [*self.common, *words])
        trainer = Trainer(Run.start(Path(folder), config), self.dataset)
        return trainer, trainer.train()

    def recall(self, *words: str) -> float:
        """Return Recall@1 of the test classes after training, in percent."""
        with tempfile.TemporaryDirectory() as folder:
            _, facts = self.train(folder, words)
        return 100 * float(facts["watched"]["recall_at_1_last"])

    def vectors(self, folder: str, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Train on features; return unit vectors of training and test images, and labels of the latter."""
        trainer, _ = self.train(folder, words)
        backbone = FrozenBackbone(trainer.network.model, trainer.config)
        train, test = (
            embed_features(trainer.network.model, backbone.features([image.path for image in images]).vectors)
            for images in (self.dataset.train, self.dataset.test)
        )
        return train, test, data.class_numbers(self.dataset.test)

    def recall_of(self, model: EmbeddingModel, config: Config) -> float:
        """Return Recall@1 of the test classes of a network, in percent."""
        images = self.dataset.test
        paths, progress = [image.path for image in images], Progress("", len(images), show=False)
        found = embed_files(paths, config.preprocess, pixel_embedder(model), progress)
        labels = data.class_numbers(images)[found.positions]
        return 100 * metrics.recall_at_k(found.vectors, labels, ks=(1,))[1]


def paired(values: Sequence[float], others: Sequence[float]) -> dict[str, Any]:
    """Return the mean difference of two variants over the seeds, with its standard error."""
    gaps = np.array(values) - np.array(others)
    return {
        "mean": float(np.mean(values)),
        "gain": float(gaps.mean()),
        "standard_error": float(gaps.std(ddof=1) / len(gaps) ** 0.5),
        "values": [round(value, 2) for value in values],
    }


def hard_classes(bench: Bench) -> dict[str, Any]:
    """Batches with groups of confused classes: Recall@1 of the test classes by share, for three losses."""
    found: dict[str, Any] = {}
    for name, loss in LOSSES.items():
        rate = ["optimizer.loss_lr=0.1"] if name == "proxy-anchor" else []
        plain: list[float] = []
        for share in (0, 0.5, 1):
            words = [*FROZEN, *rate, loss, f"batch.hard_classes={float(share)}"]
            values = [bench.recall(*words, f"seed={seed}") for seed in SEEDS]
            plain = plain or values
            found.setdefault(name, {})[str(share)] = paired(values, plain)
            print(f"{name} hard_classes={share}: {found[name][str(share)]}", flush=True)
    return found


DIMS = (8, 16, 32, 64)


def matryoshka(bench: Bench) -> dict[str, Any]:
    """Recall@1 of prefixes: of a plain embedding, of its principal components, and trained for it."""
    runs: dict[str, list[dict[int, float]]] = {"plain": [], "plain, PCA": [], "matryoshka": []}
    for seed in SEEDS:
        for name, dims in (("plain", ""), ("matryoshka", ", dims: [8, 16, 32]")):
            words = [*FROZEN, f"loss={{name: multi-similarity{dims}}}", f"seed={seed}"]
            with tempfile.TemporaryDirectory() as folder:
                train, test, labels = bench.vectors(folder, words)
            runs[name].append(by_prefix(test, labels))
            if name == "plain":
                centred = train - train.mean(0)
                directions = np.linalg.svd(centred, full_matrices=False)[2].T
                runs["plain, PCA"].append(by_prefix(test @ directions, labels))
    found: dict[str, Any] = {}
    for name, values in runs.items():
        found[name] = {
            str(dim): paired([run[dim] for run in values], [run[dim] for run in runs["plain"]])
            for dim in DIMS
        }
        print(name, {dim: round(entry["mean"], 2) for dim, entry in found[name].items()}, flush=True)
    return found


def by_prefix(vectors: np.ndarray, labels: np.ndarray) -> dict[int, float]:
    """Return Recall@1 in percent of the first components of vectors."""
    found = {}
    for dim in DIMS:
        cut = vectors[:, :dim] / np.linalg.norm(vectors[:, :dim], axis=1, keepdims=True)
        found[dim] = 100 * metrics.recall_at_k(np.ascontiguousarray(cut), labels, ks=(1,))[1]
    return found


# Fine-tuning of the whole network on small images, with a fifth of the training classes held out. Batch norms
# are frozen: measured again on these images, their statistics cost the pretrained network most of its recall.
TUNED = [
    "model.embedding_dim=64",
    "model.batch_norm=frozen",
    "preprocess={size: 64, mean: [0.498, 0.498, 0.498], std: [0.502, 0.502, 0.502]}",
    "augment={rotate: 0, scale: 0, shift: 0}",
    "batch={classes: 16, per_class: 4}",
    "optimizer={lr: 3e-4, head_lr: 1e-3}",
    "loss={name: multi-similarity}",
    "epochs=2",
    "split={validation: 0.2, choice: always}",
]
SHARES = (0.3, 0.5, 0.7, 1.0)


def wise_ft(bench: Bench) -> dict[str, Any]:
    """Blends of start and end: Recall@1 of the test classes by share, and of the share that is chosen."""
    rows: list[dict[str, float]] = []
    for seed in SEEDS[:3]:
        with tempfile.TemporaryDirectory() as folder:
            trainer, _ = bench.train(folder, [*TUNED, f"seed={seed}"])
            run = Run.open(Path(folder))
            chosen = blend_with_start(run, run.trained("last"), None)
            row = {"chosen alpha": chosen.alpha}
            for share in sorted({*SHARES, chosen.alpha}):
                model = run.trained("last")
                blend_with_start(run, model, share)
                row[f"{share:g}"] = bench.recall_of(model, trainer.config)
            row["chosen"] = row[f"{chosen.alpha:g}"]
            rows.append(row)
            print(row, flush=True)
    ends = [row["1"] for row in rows]
    common = [name for name in rows[0] if all(name in row for row in rows)]
    return {name: paired([row[name] for row in rows], ends) for name in common}


PARTS: Mapping[str, Callable[[Bench], dict[str, Any]]] = {
    "hard": hard_classes,
    "matryoshka": matryoshka,
    "wise-ft": wise_ft,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", help="data set with a test split, such as csv:cars.csv")
    parser.add_argument("--weights", type=Path, help="weights of EfficientNet-Lite0, a .safetensors file")
    parser.add_argument("--only", choices=PARTS, help="measure one option")
    parser.add_argument("--json", type=Path, help="file of the results; parts that are not run stay in it")
    arguments = parser.parse_args()
    if arguments.data is None or arguments.weights is None:
        print("give --data and --weights; there is nothing to measure without them")
        sys.exit()
    bench = Bench(arguments.data, arguments.weights)
    found = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {}
    for name in [arguments.only] if arguments.only else PARTS:
        found[name] = PARTS[name](bench)
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
