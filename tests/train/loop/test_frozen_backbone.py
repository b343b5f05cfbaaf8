"""Training on cached features: the same results as with the backbone in every step, and a shared cache."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torchvision.models import squeezenet1_1

from retrieval.images.decode import embed_files
from retrieval.progress import Progress
from tests.conftest import draw, draw_classes
from train import data, settings
from train.commands.train import _summary
from train.experiments.targets import open_target
from train.loop.frozen_backbone import FrozenBackbone
from train.loop.run_folder import Run, initial_model
from train.loop.trainer import Trainer
from train.models.embedding_model import pixel_embedder

PLAIN = "augment={flip: false, rotate: 0, scale: 0, shift: 0}"
SMALL = [
    "model.trainable=0",
    "preprocess.size=24",
    "model.embedding_dim=8",
    "batch={classes: 3, per_class: 4, per_epoch: 4}",
    "split.validation=0.3",
    "optimizer.lr=0.01",
    "epochs=2",
]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine classes of six images, one of them unreadable."""
    folder = draw_classes(tmp_path_factory.mktemp("images"), 9, 6)
    for hue in range(9):  # held out or not, whatever the seed
        (folder / f"{hue:02d}" / "2.png").write_bytes(b"no image")
    return folder


def train(images: Path, out: Path, *overrides: str) -> Trainer:
    words = [*SMALL, f"loader.cache={out.parent / 'cache'}", *overrides]
    run = Run.start(out, settings.resolve(f"folder:{images}", None, words))
    ours = Trainer(run, data.load(run.config.data))
    ours.train()
    return ours


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param([PLAIN], id="one view"),
        pytest.param(["augment={views: 3}"], id="views"),
        pytest.param(["augment={views: 2, crop: random, resize: 30, color: 0.3}", "ema=0.9"], id="crops"),
        pytest.param([PLAIN, "model.hidden=8", "model.dropout=0.2", "batch.chunk=5"], id="mlp"),
        pytest.param([PLAIN, "model.pooling=spatial", "model.init=lda"], id="lda"),
    ],
)
def test_cached_features_give_the_same_run(tmp_path: Path, images: Path, overrides: list[str]) -> None:
    """Losses, validation and the trained head are those of the backbone run in every step."""
    ours, plain = (
        train(images, tmp_path / use, *overrides, f"loader.features={use}") for use in ("auto", "never")
    )
    assert ours.network.on_features
    assert not plain.network.on_features
    assert {bad.source for bad in ours.bad_files} >= {bad.source for bad in plain.bad_files}
    for mine, other in zip(ours.run.metrics(), plain.run.metrics(), strict=True):
        for key in {"loss", "recall_at_1", "mean_similarity"} & set(other):
            assert mine[key] == pytest.approx(other[key], abs=1e-5), key
    for name, weight in plain.run.trained().state_dict().items():
        torch.testing.assert_close(ours.run.trained().state_dict()[name], weight, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dim", [1, 8])
def test_a_head_is_compared_with_the_features(tmp_path: Path, images: Path, dim: int) -> None:
    """The features' MAP@R on the held-out images, by hand; a head of one dimension is worse, and says so."""
    words = [f"model.embedding_dim={dim}", "split.metric=map_at_r", "split.choice=always"]
    ours = train(images, tmp_path / "run", PLAIN, *words)
    features = FrozenBackbone(initial_model(ours.config), ours.config).features(ours.data.files)
    searched = [*ours.data.validation, *ours.data.distractors]
    rows = features.rows([image.path for image in searched]).tolist()
    kept = [place for place, row in enumerate(rows) if row not in features.bad]
    vectors = features.vectors[[rows[place] for place in kept]]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    labels = np.array([searched[place].label for place in kept])
    precision = []
    for query in range(sum(place < len(ours.data.validation) for place in kept)):
        similarity = vectors @ vectors[query]
        similarity[query] = -2
        hits = labels[np.argsort(-similarity)][: (labels == labels[query]).sum() - 1] == labels[query]
        precision.append(np.mean(hits * hits.cumsum() / np.arange(1, len(hits) + 1)))
    facts = ours._summary()
    assert facts["metric_of_features"] == pytest.approx(np.mean(precision), abs=1e-6)
    known = {"seconds": 1.0, "linear_probe": None, "linear_probe_labels": None}
    worse = facts["metric_best"] < facts["metric_of_features"]
    assert worse or dim > 1
    text = _summary(tmp_path, facts | known)
    assert ("WORSE THAN THE FEATURES" in text) == worse
    assert ("export the backbone as it is (`lookalike export --from`)" in text) == worse, "a remedy"


def test_runs_share_the_cache(tmp_path: Path, images: Path) -> None:
    """Other seeds, losses and heads compute nothing; other weights, preprocessing or views do."""
    shutil.copytree(images, tmp_path / "images")
    weights = tmp_path / "weights.safetensors"

    def cached(name: str, *overrides: str) -> int:
        words = [PLAIN, f"model.weights={weights}", "model.backbone=squeezenet1_1", "preprocess.size=32"]
        train(tmp_path / "images", tmp_path / name, *words, "epochs=1", "batch.per_epoch=1", *overrides)
        return len(list((tmp_path / "cache").glob("*.features")))

    torch.manual_seed(0)
    save_file(squeezenet1_1().state_dict(), weights)
    assert cached("first") == 1
    assert cached("again", "seed=3", "loss={name: n-pair}", "model.hidden=4", "split.validation=0.2") == 1
    assert cached("views", "augment={views: 2}") == 3
    assert cached("more views", "augment={views: 3}") == 4
    assert cached("larger", "preprocess.size=40") == 5
    torch.manual_seed(1)
    save_file(squeezenet1_1().state_dict(), weights)
    assert cached("weights") == 6
    draw(99).save(tmp_path / "images" / "00" / "0.png")
    assert cached("file") == 7
    kept = [Run.open(tmp_path / name).folder / "checkpoints" for name in ("first", "again")]
    assert kept[0].joinpath("backbone.safetensors").samefile(kept[1] / "backbone.safetensors")


def test_checkpoints_have_only_the_head(tmp_path: Path, images: Path) -> None:
    ours = train(images, tmp_path / "run", PLAIN, "model.init=pca", "ema=0.5")
    tensors = load_file(tmp_path / "run" / "checkpoints" / "last" / "state.safetensors")
    assert {name.partition(".")[0] for name in tensors} == {"model", "average", "optimizer"}
    assert {name for name in tensors if name.startswith("model.")} == {"model.head.weight", "model.head.bias"}
    shutil.rmtree(tmp_path / "cache")  # a run needs no cache
    assert torch.equal(ours.run.trained("last").head.weight, ours.network.ema.head.weight)
    paths = [image.path for image in data.load(f"folder:{images}").train]
    target = open_target(tmp_path / "run", "last")
    assert target.untrained is not None
    for candidate, model in (
        (target.candidates[0], ours.run.trained("last")),
        (target.untrained(), ours.run.untrained()),
    ):
        found = candidate.embed(paths[:20], paths, "embedding")
        with Progress("embedding", None, show=False) as progress:
            expected = embed_files(paths[:20], ours.config.preprocess, pixel_embedder(model), progress)
        np.testing.assert_allclose(found.vectors, expected.vectors, atol=1e-6)
        assert (found.positions == expected.positions).all()
        assert found.contents == expected.contents
        assert [str(e) for e in found.bad] == [str(e) for e in expected.bad]


def test_resumed_run_is_the_same(tmp_path: Path, images: Path) -> None:
    """Also if the file of the backbone's weights has changed meanwhile."""
    weights = tmp_path / "weights.safetensors"
    torch.manual_seed(0)
    save_file(squeezenet1_1().state_dict(), weights)
    words = [PLAIN, "model.init=pca", "schedule.name=constant", "model.backbone=squeezenet1_1"]
    words += [f"model.weights={weights}", "preprocess.size=32"]
    whole = train(images, tmp_path / "whole", *words)
    half = train(images, tmp_path / "half", *words, "epochs=1")
    (tmp_path / "half" / "config.yaml").write_text(whole.config.to_yaml())
    save_file(squeezenet1_1().state_dict(), weights)
    resumed = Trainer(half.run, data.load(whole.config.data))
    resumed.train(resume=True)
    assert torch.equal(resumed.network.model.head.weight, whole.network.model.head.weight)


def test_backbone_that_learns_or_random_views_need_pixels(tmp_path: Path, images: Path) -> None:
    for name, words in {
        "augmented": [],
        "gem": [PLAIN, "model.pooling=gem"],
        "learns": [PLAIN, "model.trainable=1"],
    }.items():
        ours = train(images, tmp_path / name, *words, "epochs=0")
        assert not ours.network.on_features, name


def test_initial_projection_is_fitted_to_the_training_images(tmp_path: Path, images: Path) -> None:
    """The embeddings of the training images, held-out ones left out, are centred and uncorrelated."""
    ours = train(images, tmp_path / "run", PLAIN, "model.init=pca-whitened", "epochs=0")
    model = initial_model(ours.config)
    found = FrozenBackbone(model, ours.config).features(ours.data.files)
    rows = [row for row in found.rows([i.path for i in ours.data.images]).tolist() if row not in found.bad]
    raw = ours.run.untrained().projection(torch.from_numpy(found.vectors[rows]))
    covariance = (raw.T @ raw / len(rows)).detach().numpy()
    np.testing.assert_allclose(raw.mean(0).detach().numpy(), 0, atol=1e-4)
    np.testing.assert_allclose(covariance / covariance[0, 0], np.eye(8), atol=1e-3)


def test_initial_projection_of_many_images_is_fitted_to_some(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is lowered to 15 of 36 images; a frozen backbone has the features of all anyway."""
    monkeypatch.setattr("train.loop.frozen_backbone._MOST_FITTED", 15)
    words = [PLAIN, "model.init=pca-whitened", "epochs=0"]
    ours = train(images, tmp_path / "run", *words, "model.trainable=1")
    paths = [image.path for image in ours.data.images]
    chosen = [paths[35 * i // 14] for i in range(15)]
    assert (len(paths), len(set(chosen))) == (36, 15)
    found = FrozenBackbone(initial_model(ours.config), ours.config).features(chosen)
    kept = [row for row in range(15) if row not in found.bad]
    raw = ours.run.untrained().projection(torch.from_numpy(found.vectors[kept])).detach().numpy()
    np.testing.assert_allclose(raw.mean(0), 0, atol=1e-4)
    covariance = raw.T @ raw
    np.testing.assert_allclose(covariance / covariance[0, 0], np.eye(8), atol=1e-2)
    whole = train(images, tmp_path / "whole", *words)
    every = whole.run.untrained().head.weight
    assert not torch.equal(every, ours.run.untrained().head.weight)
