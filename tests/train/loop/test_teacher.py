"""Distillation in training: what is learned, when the teacher is asked, combinations, refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from export.model_file import _provenance
from retrieval import Embedder, InputError
from retrieval.images.load import load_image
from retrieval.metrics.ranking import exact_neighbours
from tests.conftest import draw
from train import data, settings
from train.input.features import FeatureSet, Targets
from train.loop.instances import check_unlabelled
from train.loop.process_group import join_process_group
from train.loop.run_folder import Run
from train.loop.teacher import neighbour_agreement
from train.loop.trainer import Trainer
from train.loop.training_data import TrainingData
from train.models.embedding_model import device_embedder

SMALL = {
    "preprocess.size": 24,
    "batch": {"classes": 8, "per_class": 2, "per_epoch": 6},
    "split.validation": 0.2,
    "split.choice": "always",
    "augment": {"flip": True, "rotate": 0.0, "scale": 0.0, "shift": 0.0},
    "device": "cpu",
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty images, and a damaged one."""
    folder = tmp_path_factory.mktemp("photos")
    for seed in range(40):
        draw(seed, hue=seed % 7).save(folder / f"{seed}.png")
    (folder / "7-damaged.png").write_bytes(b"\x89PNG, but no image")
    return folder


def begin(folder: Path, images: str, teacher: Path, **changes: Any) -> tuple[Run, data.DataSet]:
    cache = {"loader.cache": str(folder.parent / "cache"), "distill.teacher": str(teacher)}
    run = Run.start(folder, settings.configure(images, None, {**SMALL, **cache, **changes}))
    return run, data.load(images, unlabelled=True)


def test_approaches_the_teacher_that_is_asked_once(photos: Path, model_file: Path, tmp_path: Path) -> None:
    teacher = Path(shutil.copy(model_file, tmp_path / "teacher.onnx"))
    wanted = Embedder(teacher)
    changes = {"model.embedding_dim": wanted.dim, "seed": 5, "epochs": 5, "optimizer.lr": 0.003}
    run, images = begin(tmp_path / "run", f"images:{photos}", teacher, **changes)
    Trainer(run, images, epochs=1).train()
    teacher.unlink()  # a resumed run has the vectors
    trainer = Trainer(run, images)
    facts = trainer.train(resume=True)
    assert facts["epochs"] == 5
    assert [Path(bad.source).name for bad in trainer.bad_files] == ["7-damaged.png"]
    records = [record for record in run.metrics() if "distillation" in record]
    assert records[-1]["distillation"] < 0.6 * records[0]["distillation"]
    held_out = [i.path for i in trainer.data.validation if "damaged" not in i.path.name]
    scores = [record["queries"] for record in run.metrics() if "queries" in record]
    assert scores == [len(held_out)] * 6
    assert not (run.folder / "copies").exists()

    pixels = np.stack([run.config.preprocess(load_image(path)) for path in held_out])
    target = wanted.embed(held_out)
    cosines = [
        (device_embedder(model)(pixels).numpy() * target).sum(1).mean()
        for model in (run.untrained(), run.trained("last"))
    ]
    assert cosines[1] > cosines[0] + 0.2
    origin = _provenance(run, "last")["teacher"]
    assert (origin["sha256"], origin["dim"]) == (wanted.fingerprint, wanted.dim)


def test_head_begins_with_a_regression_to_the_teacher(photos: Path, model_file: Path, tmp_path: Path) -> None:
    wanted = Embedder(model_file)
    changes: dict[str, Any] = {"epochs": 0, "model.embedding_dim": wanted.dim}
    cosines = {}
    for init in ("default", "teacher"):
        run, images = begin(
            tmp_path / init, f"images:{photos}", model_file, **changes, **{"model.init": init}
        )
        model = Trainer(run, images).network.model.eval()
        files = [path for path in sorted(photos.glob("*.png")) if "damaged" not in path.name]
        pixels = np.stack([run.config.preprocess(load_image(path)) for path in files])
        cosines[init] = float((device_embedder(model)(pixels).numpy() * wanted.embed(files)).sum(1).mean())
    assert 1 - cosines["teacher"] < 0.2 * (1 - cosines["default"])
    changes["model.embedding_dim"] = wanted.dim + 1
    run, images = begin(
        tmp_path / "other", f"images:{photos}", model_file, **changes, **{"model.init": "teacher"}
    )
    with pytest.raises(InputError, match=f"teacher has {wanted.dim} dimensions, not {wanted.dim + 1}"):
        Trainer(run, images)


def test_a_replaced_teacher_is_refused(photos: Path, model_file: Path, tmp_path: Path) -> None:
    run, images = begin(tmp_path / "run", f"images:{photos}", model_file, epochs=0)
    Trainer(run, images).train()
    facts = json.loads(run.teacher_file.read_text())
    run.teacher_file.write_text(json.dumps({**facts, "sha256": "0" * 64}))
    with pytest.raises(InputError, match="another model than when this run began"):
        Trainer(run, images)


@pytest.mark.parametrize("features", [True, False], ids=["features", "pixels"])
def test_combines_with_a_loss_on_labels(shop: Path, model_file: Path, tmp_path: Path, features: bool) -> None:
    """Every image of a batch has the vector that the teacher gives it."""
    frozen = {"model.trainable": 0, "augment": {"flip": False, "rotate": 0.0, "scale": 0.0, "shift": 0.0}}
    changes = {
        "loss": {"name": "normalized-softmax"},
        "epochs": 1,
        "split.by": "images",
        **(frozen if features else {}),
    }
    run, images = begin(tmp_path / "run", f"folder:{shop}", model_file, **changes)
    trainer = Trainer(run, images)
    assert trainer.network.on_features == features
    paths, order = trainer.data.files, [image.path for image in trainer.data.images]
    vectors = dict(zip(paths, Embedder(model_file).embed(paths), strict=True))
    batch = next(iter(trainer.data.sampler.epoch(0)))
    loaded = next(trainer.loader.load(trainer.data.sampler.epoch, range(1), 0))
    expected = np.stack([vectors[order[i]] for i in batch])
    np.testing.assert_allclose(loaded.targets, expected, atol=1e-5)
    assert len(batch) > len(np.unique(trainer.data.labels[batch])), "several images of a class"
    facts = trainer.train()
    assert 0 < facts["metric_best"] <= 1
    record = next(record for record in run.metrics() if "loss" in record)
    assert record["loss"] > record["distillation"] > 0


def test_alone_takes_different_images(shop: Path, model_file: Path, tmp_path: Path) -> None:
    config = begin(tmp_path / "run", f"folder:{shop}", model_file)[0].config
    assert config.loss == {}
    found = TrainingData(data.load(f"folder:{shop}"), config, join_process_group("cpu"), tmp_path)
    for batch in found.sampler.epoch(0):
        assert len(np.unique(batch)) == len(batch) == 16


def test_agreement_is_that_of_brute_force() -> None:
    random = np.random.default_rng(0)
    ours, teacher = (random.normal(size=(30, d)).astype(np.float32) for d in (4, 6))
    ours[:, 0] += teacher[:, 0] * 2
    ours, teacher = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (ours, teacher))
    found = neighbour_agreement(ours, teacher, 8, exact_neighbours)
    for query in range(8):
        near, wanted = (
            [i for i in np.argsort(-(space @ space[query])).tolist() if i != query][:10]
            for space in (ours, teacher)
        )
        hits = [i in wanted for i in near]
        assert found["recall_at_1"][query] == hits[0]
        precision = sum(sum(hits[: k + 1]) / (k + 1) for k in range(10) if hits[k]) / 10
        assert found["map_at_r"][query] == pytest.approx(precision)


def test_unreadable_images_have_zeros() -> None:
    paths = [Path("a"), Path("b"), Path("c")]
    vectors = np.array([[1, 2], [np.nan, np.nan], [3, 4]], np.float32)
    targets = Targets(FeatureSet(paths, vectors, [], {}), [paths[2], paths[1]])
    torch.testing.assert_close(targets.of([1, 0, 0]), torch.tensor([[0.0, 0], [3, 4], [3, 4]]))
    assert np.isnan(vectors).any(), "the file itself stays"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": {}}, "loss: nothing to learn"),
        ({"model.init": "teacher"}, "model.init: there is no teacher"),
        ({"distill.teacher": "t.onnx", "augment.symmetries": 4}, "augment.symmetries: rotated"),
        ({"distill.teacher": "t.onnx", "batch.hard_classes": 0.5}, "batch.hard_classes: has no effect"),
        ({"distill.teacher": "t.onnx", "batch.categories": 2}, "batch.categories: has no effect"),
        ({"distill.teacher": "t.onnx", "batch.layout": "at-least"}, "batch.layout=at-least: has no effect"),
    ],
    ids=["nothing", "no teacher", "symmetries", "hard-classes", "categories", "layout"],
)
def test_refuses_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        settings.configure("images:photos", None, changes)


@pytest.mark.parametrize("kind", ["missing", "folder", "text"])
def test_refuses_an_unsuitable_teacher(photos: Path, tmp_path: Path, kind: str) -> None:
    teacher = tmp_path / "teacher"
    if kind == "folder":
        teacher.mkdir()
    elif kind == "text":
        teacher.write_text("no model")
    run, images = begin(tmp_path / "run", f"images:{photos}", teacher)
    with pytest.raises(InputError, match=r"^distill\.teacher: .*teacher: [^\n]+$"):
        Trainer(run, images)


def test_recipe_distils_without_labels() -> None:
    changes = {"model.backbone": "conv4", "model.weights": None, "distill.teacher": "t.onnx"}
    config = settings.configure("images:photos", "distill", changes)
    assert config.loss == {}
    check_unlabelled(config)
