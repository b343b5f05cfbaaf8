"""Hard classes: the nearest classes against a loop over all pairs, and the batches of a run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from retrieval import InputError
from retrieval.images.decode import embed_files
from retrieval.metrics.ranking import exact_neighbours
from retrieval.progress import Progress
from tests.conftest import draw_classes
from train import data, settings
from train.loop.hard_classes import nearest_classes
from train.loop.knn import device_neighbours
from train.loop.process_group import join_process_group
from train.loop.run_folder import Run
from train.loop.trainer import Trainer
from train.loop.training_data import TrainingData
from train.models.embedding_model import pixel_embedder


def by_hand(vectors: np.ndarray, labels: np.ndarray, classes: int, count: int) -> list[list[int]]:
    """Votes of the 10 nearest images of other classes; among equals the nearer mean."""
    means = np.stack([vectors[labels == c].sum(0) for c in range(classes)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    found = []
    for c in range(classes):
        votes: Counter[int] = Counter()
        for image in np.flatnonzero(labels == c):
            others = sorted(
                np.flatnonzero(labels != c), key=lambda other: -float(vectors[image] @ vectors[other])
            )
            votes.update(int(labels[other]) for other in others[:10])
        rest = [other for other in range(classes) if other != c]
        found.append(sorted(rest, key=lambda o: (-votes[o], -float(means[c] @ means[o])))[:count])
    return found


@pytest.mark.parametrize("count", [1, 3, 8])
def test_nearest_classes_equal_a_loop_over_all_pairs(count: int) -> None:
    random = np.random.default_rng(count)
    labels = random.permutation(np.repeat(np.arange(9), random.integers(1, 9, 9)))
    vectors = random.normal(size=(len(labels), 6)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = by_hand(vectors, labels, 9, count)
    assert nearest_classes(vectors, labels, 9, count, exact_neighbours).tolist() == expected

    def on_device(
        query: np.ndarray, gallery: np.ndarray, k: int, *, show_progress: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        return device_neighbours(query, gallery, k, device=torch.device("cpu"))

    assert nearest_classes(vectors, labels, 9, count, on_device).tolist() == expected


def test_class_without_readable_images_gets_some_neighbours() -> None:
    vectors = np.eye(4, dtype=np.float32)
    found = nearest_classes(vectors, np.array([0, 0, 2, 3]), 4, 2, exact_neighbours)
    assert found.shape == (4, 2)
    assert all(len({c, *row}) == 3 for c, row in enumerate(found.tolist()))


@pytest.mark.parametrize("frozen", [False, True], ids=["pixels", "features"])
def test_confused_classes_meet_in_batches(tmp_path: Path, frozen: bool) -> None:
    """The neighbours of the first epoch are those of the untrained network."""
    words = [
        "preprocess.size=16",
        "augment={flip: false, rotate: 0, scale: 0, shift: 0}",
        "split.validation=0",
        "batch={classes: 4, per_class: 2, hard_classes: 0.5, group: 2, per_epoch: 12}",
        "epochs=1",
        f"loader.cache={tmp_path.parent / 'cache'}",
        *(["model.trainable=0"] if frozen else []),
    ]
    folder = draw_classes(tmp_path, 12, 4)
    run = Run.start(
        tmp_path.parent / f"{tmp_path.name}-run", settings.resolve(f"folder:{folder}", None, words)
    )
    ours = Trainer(run, data.load(run.config.data))
    seen: list[list[int]] = []
    forward = ours.network.loss.forward

    def note(embeddings: torch.Tensor, labels: torch.Tensor, **more: object) -> torch.Tensor:
        seen.append(labels[::2].tolist())
        return forward(embeddings, labels, **more)

    ours.network.loss.forward = note
    ours.train()
    assert ours.network.on_features == frozen
    nearest = ours.sampler.nearest
    assert nearest is not None
    assert len(seen) == 12
    assert all(batch[1] == nearest[batch[0], 0] for batch in seen)
    untrained = run.untrained()
    images = ours.data.images
    embedded = embed_files(
        [image.path for image in images],
        run.config.preprocess,
        pixel_embedder(untrained),
        Progress("", len(images), show=False),
    )
    assert nearest[:, :1].tolist() == by_hand(embedded.vectors, ours.data.labels, 12, 1)


def test_batches_that_depended_on_networks_are_refused(tmp_path: Path, shop: Path) -> None:
    config = settings.resolve(f"folder:{shop}", None, ["batch.hard_classes=0.5", "split.validation=0"])
    of_run = TrainingData(data.load(config.data), config, join_process_group("cpu"), tmp_path)
    with pytest.raises(InputError, match=r"batch\.hard_classes: the batches of this run depended"):
        of_run.batch(1)
    with pytest.raises(InputError, match=r"drawn in batch\.layout=exact only"):
        settings.resolve("digits", None, ["batch.hard_classes=0.5", "batch.layout=at-least"])
