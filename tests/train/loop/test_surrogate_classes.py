"""Surrogate classes of MIC: standardization by hand, batches, clusters over a run, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from retrieval import InputError
from retrieval.metrics import kmeans, nmi
from tests.conftest import draw_classes
from train import data, settings
from train.loop.process_group import join_process_group
from train.loop.run_folder import Run
from train.loop.surrogate_classes import SurrogateClasses, standardized
from train.loop.trainer import Trainer
from train.loop.training_data import TrainingData

MARGIN = "{name: margin, learn: per-class, mining: {positive: random, negative: distance-weighted}}"
SMALL = [
    "preprocess.size=16",
    "model.embedding_dim=8",
    "augment={flip: false, rotate: 0, scale: 0, shift: 0}",
    "split.validation=0",
    "batch={classes: 3, per_class: 4, per_epoch: 5}",
    "mic={clusters: 4, every: 2, dim: 6, width: 16}",
    f"loss={MARGIN}",
]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_classes(tmp_path_factory.mktemp("pictures"), 6, 7)


def trainer(folder: Path, pictures: Path, *words: str) -> Trainer:
    config = settings.resolve(
        f"folder:{pictures}", None, [*SMALL, f"loader.cache={folder / 'cache'}", *words]
    )
    return Trainer(Run.start(folder / "run", config), data.load(config.data))


def test_standardization_equals_a_loop_over_classes() -> None:
    random = np.random.default_rng(0)
    labels = np.array([3, 0, 0, 3, 7, 0, 3, 0])
    vectors = random.normal(size=(8, 5)).astype(np.float32)
    vectors[labels == 3, 2] = 0.25  # equal in one dimension
    found = standardized(vectors, labels)
    for label in (0, 3):
        rows = vectors[labels == label].astype(np.float64)
        deviation = rows.std(0)
        expected = (rows - rows.mean(0)) / np.where(deviation > 0, deviation, 1)
        np.testing.assert_allclose(found[labels == label], expected, rtol=1e-5, atol=1e-6)
    assert not found[labels == 3, 2].any()
    assert not found[labels == 7].any()  # a single image


def test_clusters_follow_what_classes_share() -> None:
    """A shift within classes is found again, although the classes are much farther from each other."""
    random = np.random.default_rng(1)
    labels, view = np.repeat(np.arange(10), 20), np.tile(np.arange(2), 100)
    centres = 10 * random.normal(size=(10, 6))
    vectors = centres[labels] + np.outer(2 * view - 1, np.ones(6)) + 0.1 * random.normal(size=(200, 6))
    assert nmi(view, kmeans(standardized(vectors, labels), 2)) == pytest.approx(1)
    assert nmi(view, kmeans(vectors.astype(np.float32), 2)) < 0.1


@pytest.mark.parametrize("frozen", [False, True], ids=["pixels", "features"])
def test_batches_have_classes_and_then_clusters(tmp_path: Path, pictures: Path, frozen: bool) -> None:
    ours = trainer(tmp_path, pictures, "epochs=3", *(["model.trainable=0"] if frozen else []))
    seen: list[tuple[int, torch.Tensor, torch.Tensor]] = []
    forward = ours.network.loss.forward

    def note(outputs: torch.Tensor, labels: torch.Tensor, **more: object) -> torch.Tensor:
        assert ours.surrogates is not None
        seen.append((outputs.shape[1], labels, ours.surrogates.clusters.clone()))
        return forward(outputs, labels, **more)

    ours.network.loss.forward = note
    ours.train()
    assert ours.network.on_features == frozen
    assert len(seen) == 15
    clusters = [found for _, _, found in seen]
    assert torch.equal(clusters[0], clusters[9])  # epochs 1 and 2
    assert not torch.equal(clusters[9], clusters[10])
    assert all(torch.equal(clusters[10], found) for found in clusters[10:])
    plain = TrainingData(data.load(ours.config.data), ours.config, join_process_group("cpu"), tmp_path)
    numbers = [batch for epoch in range(3) for batch in plain.sampler.epoch(epoch)]
    for (width, labels, found), batch in zip(seen, numbers, strict=True):
        assert width == 8 + 6 + 8
        assert labels[:12].tolist() == plain.labels[batch].tolist()
        others = labels[12:].reshape(3, 4)
        assert (others == others[:, :1]).all()
        assert set(others.flatten().tolist()) <= set(found.tolist())
    positions = next(iter(ours.surrogates.epoch(2))).positions
    assert found[positions[12:]].tolist() == seen[10][1][12:].tolist()


def test_auxiliary_encoder_learns_and_is_left_out_of_the_model(tmp_path: Path, pictures: Path) -> None:
    ours = trainer(tmp_path, pictures, "epochs=8", "ema=0.9", "optimizer.loss_lr=0.01")
    encoder = ours.network.auxiliary
    assert encoder is not None
    before = [parameter.clone() for parameter in encoder.parameters()]
    ours.train()
    assert all(not torch.equal(old, new) for old, new in zip(before, encoder.parameters(), strict=True))
    run = Run.open(tmp_path / "run")
    last = [record for record in run.metrics() if "loss" in record][-1]
    weighted = ours.config.mic.weight / 8 * last["correlation"]
    total = last["class_loss"] + last["auxiliary_loss"] - weighted
    assert last["loss"] == pytest.approx(total, rel=1e-4)
    assert not [name for name in run.trained("last").state_dict() if "auxiliary" in name]
    pixels = torch.zeros(2, 16, 16, 3, dtype=torch.uint8)
    assert run.trained("last")(pixels).shape == (2, 8)


def test_correlation_is_smaller_with_a_larger_weight(tmp_path: Path, pictures: Path) -> None:
    found = {}
    for weight in (20.0, 2000.0):
        ours = trainer(tmp_path / str(weight), pictures, "epochs=30", f"mic.weight={weight}")
        ours.train()
        records = [r for r in ours.run.metrics() if "correlation" in r]
        found[weight] = np.mean([record["correlation"] for record in records[-5:]])
    assert found[2000.0] < found[20.0]


def test_unreadable_images_are_in_no_cluster(tmp_path: Path) -> None:
    folder = draw_classes(tmp_path / "pictures", 4, 5)
    broken = sorted(folder.rglob("*.png"))[2]
    broken.write_bytes(b"broken")
    ours = trainer(tmp_path, folder, "epochs=1")
    ours.train()
    assert ours.surrogates is not None
    place = [image.path for image in ours.data.images].index(broken)
    assert ours.surrogates.clusters[place] == -1
    assert (np.delete(ours.surrogates.clusters.numpy(), place) >= 0).all()
    assert all(place not in batch.positions[12:] for batch in ours.surrogates.epoch(0))
    assert str(broken) in [error.source for error in ours.bad_files]


def test_fewer_clusters_than_classes_fill_the_batch(tmp_path: Path, pictures: Path) -> None:
    ours = trainer(tmp_path, pictures, "epochs=1", "mic.clusters=2")
    ours.train()
    assert ours.surrogates is not None
    for batch in ours.surrogates.epoch(0):
        assert len(batch.positions) == len(batch.labels) == 24
        assert set(batch.labels[12:].tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["loss={regularizers: [{name: energy}]}"], "clusters are learned with the loss"),
        (["augment.symmetries=4"], r"or augment\.symmetries"),
        (["mic.clusters=1"], "mic"),
    ],
)
def test_settings_that_do_not_go_together(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        settings.resolve("digits", None, [*SMALL, *words])


def test_data_that_cannot_be_clustered(tmp_path: Path, pictures: Path) -> None:
    with pytest.raises(InputError, match=r"mic\.clusters: there are 42 training images; set 42 or less"):
        trainer(tmp_path / "few", pictures, "mic.clusters=43")
    config = settings.resolve(f"images:{pictures}", None, [*SMALL, "augment.crop=resized"])
    with pytest.raises(InputError, match=r"mic\.clusters: needs labels"):
        Trainer(Run.start(tmp_path / "unlabelled", config), data.load(config.data, unlabelled=True))
    ours = trainer(tmp_path / "alike", pictures)
    assert isinstance(ours.surrogates, SurrogateClasses)
    ours.surrogates.clusters.zero_()
    with pytest.raises(InputError, match=r"mic\.clusters: the images of a class are all alike"):
        next(iter(ours.surrogates.epoch(0)))
    with pytest.raises(InputError, match=r"mic\.clusters: the batches of this run depended"):
        ours.data.batch(1)
