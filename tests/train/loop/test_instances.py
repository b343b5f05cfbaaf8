"""Training on images without labels: learning, validation by copies, export, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from retrieval import Embedder, InputError
from tests.conftest import draw, lookalike_here
from train import data, settings
from train.loop.instances import check_unlabelled
from train.loop.run_folder import Run

SMALL = ["preprocess.size=24", "model.embedding_dim=32", "batch={classes: 16, per_class: 2, per_epoch: 12}"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty different images at two depths, and a damaged one."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "more").mkdir()
    for seed in range(60):
        draw(seed, hue=seed % 7).save(folder / ("more" if seed % 2 else ".") / f"{seed}.png")
    (folder / "damaged.png").write_bytes(b"\x89PNG, but no image")
    return folder


def test_every_image_is_a_class(photos: Path) -> None:
    found = data.load(f"images:{photos}", unlabelled=True)
    assert found.train is found.test
    assert not found.labelled
    assert len({image.label for image in found.train}) == len(found.train) == 61
    assert "more/1.png" in {image.label for image in found.train}
    with pytest.raises(InputError, match="labels are needed"):
        data.load(f"images:{photos}")


def test_learns_without_labels(photos: Path, tmp_path: Path) -> None:
    """Copies of held-out images find their originals more often; the model is exported and embeds."""
    changes = [*SMALL, "epochs=6", "split.validation=0.4", "split.choice=always", "optimizer.lr=0.001"]
    changes += ["augment={crop: resized, min_area: 0.3, color: 0.3, rotate: 0, scale: 0, shift: 0}"]
    changes += ["loss={name: multi-similarity, mining: {name: vthm, margin: 0.1}}"]
    words = [word for change in changes for word in ("--set", change)]
    run, model = tmp_path / "run", tmp_path / "model.onnx"
    source = ("train", "--recipe", "scratch", "--data", f"images:{photos}")
    done = lookalike_here(*source, "--out", str(run), *words, "--json", code=3)
    facts = json.loads(done.stdout)
    assert [Path(bad["path"]).name for bad in facts["bad"]] == ["damaged.png"]
    records = Run.open(run).metrics()
    losses = [record["loss"] for record in records if "loss" in record]
    half = len(losses) // 2
    assert np.mean(losses[half:]) < 0.95 * np.mean(losses[:half])
    scores = [record["recall_at_1"] for record in records if "recall_at_1" in record]
    assert max(scores[1:]) > scores[0]
    copies = len(list((run / "copies").glob("*.png")))
    assert {r["queries"] for r in records if "queries" in r} == {copies}
    assert copies in (23, 24), "a share of 0.4, without the damaged image"
    lookalike_here("export", str(run), "--out", str(model))
    vectors = Embedder(model).embed([photos / "0.png", photos / "more" / "1.png"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    refused = lookalike_here("evaluate", str(run), "--data", f"images:{photos}", code=2)
    assert "labels are needed here" in refused.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("split.by=images", "split.by=images: needs labels"),
        ("noise.rate=0.1", "noise.rate: needs labels"),
        ("model.init=lda", "model.init=lda: needs labels"),
        ("augment={flip: false, rotate: 0, scale: 0, shift: 0}", "all views of an image are equal"),
    ],
)
def test_refuses_what_needs_labels(change: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_unlabelled(settings.resolve("images:photos", None, [change]))


def test_recipe_suits_images_without_labels() -> None:
    config = settings.resolve("images:photos", "instances", ["model.backbone=conv4", "model.weights=null"])
    check_unlabelled(config)
    assert config.batch.per_class >= 2
