"""Gain of training on images without labels, on classes that were not trained on.

    python -m benchmarks.instances cars=cars omniglot=omniglot ... [--json benchmarks/instances.json]

Each set is a folder with one folder per class. Half of the classes, drawn with the seed, are trained on
without their labels by the recipe `instances` (EfficientNet-Lite0 of ImageNet, 96 pixels, three epochs, last
epoch kept); the other half is searched. Beside it: the backbone alone, its half-whitening (power 0.25), and
the run before its first step, which is the backbone behind 256 principal components. Settings are fixed
beforehand.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch

from benchmarks.distillation import score
from benchmarks.training_options import paired
from retrieval.images.decode import embed_files
from retrieval.progress import Progress
from train import data, settings
from train.config import Config
from train.data import LabelledImage
from train.layers.whitening import candidates
from train.loop.run_folder import Run
from train.loop.trainer import Trainer
from train.models.embedding_model import EmbeddingModel, headless_model, pixel_embedder

SETTINGS = [
    "model.backbone=timm:tf_efficientnet_lite0",
    "model.weights=lite0",
    "preprocess.size=96",
    "epochs=3",
    "ema=0",
    "patience=null",
    "split.validation=0",
]
VARIANTS = ("backbone", "half-whitening", "before training", "after training")
POWER = 0.25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for argument in given.sets:
        name, _, folder = argument.partition("=")
        rows = [measure(Path(folder).resolve(), seed) for seed in range(given.seeds)]
        found[name] = {
            metric: {
                variant: paired([row[variant][i] for row in rows], [row["backbone"][i] for row in rows])
                for variant in VARIANTS
            }
            for i, metric in enumerate(("recall_at_1", "map_at_r"))
        }
        print(name, json.dumps(rows), flush=True)
        if given.json is not None:
            given.json.write_text(json.dumps({"settings": SETTINGS, "sets": found}, indent=1) + "\n")


def measure(folder: Path, seed: int) -> dict[str, list[float]]:
    """Return Recall@1 and MAP@R in percent of each variant on the half of the classes not trained on."""
    every = data.load(f"folder:{folder}").train
    classes = np.unique([image.label for image in every])
    known = set(np.random.default_rng(seed).permutation(classes)[: len(classes) // 2].tolist())
    test = [image for image in every if image.label not in known]
    values = {}
    with tempfile.TemporaryDirectory() as place:
        photos = Path(place) / "photos"
        photos.mkdir()
        for number, image in enumerate(image for image in every if image.label in known):
            (photos / f"{number}{image.path.suffix}").symlink_to(image.path)
        spec = f"images:{photos}"
        dataset = data.load(spec, unlabelled=True)

        config = settings.resolve(spec, "instances", [*SETTINGS, f"seed={seed}"])
        trainer = Trainer(Run.start(Path(place) / "run", config), dataset)
        backbone = headless_model(config.model, config.preprocess)
        learning = vectors(backbone, config, dataset.train)[0]
        unseen, labels = vectors(backbone, config, test)
        values["backbone"] = score(unseen, labels)
        layer = next(
            layer
            for one, layer in candidates(learning)
            if one.power == POWER and one.dim == learning.shape[1]
        )
        values["half-whitening"] = score(layer(unseen), labels)
        values["before training"] = score(*vectors(trainer.network.model, config, test))
        trainer.train()
        values["after training"] = score(*vectors(trainer.network.model, config, test))
    return values


def vectors(
    model: EmbeddingModel, config: Config, images: list[LabelledImage]
) -> tuple[np.ndarray, np.ndarray]:
    """Return unit vectors and class numbers of the readable ones of some images."""
    model.eval()
    paths, progress = [image.path for image in images], Progress("", len(images), show=False)
    found = embed_files(paths, config.preprocess, pixel_embedder(model), progress)
    return found.vectors, data.class_numbers(images)[found.positions]


if __name__ == "__main__":
    main()
