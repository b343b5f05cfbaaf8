"""`lookalike gate`: verdict and exit code for galleries and for reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from retrieval import Gallery
from retrieval.evaluation.report import trained_note
from retrieval.model.layer import Layer
from retrieval.model.training_images import UNKNOWN
from retrieval.storage.records import FileStamp, NewItem
from tests.conftest import draw_classes, lookalike_here
from tests.retrieval.filling import DIM, small_gallery
from tests.serve.model import write_model
from train.layers.folding import append_layer

CLASSES, EACH = 16, 5


def gallery_of(folder: Path, noise: float, order: np.ndarray, seed: int = 0) -> Gallery:
    """Return a gallery of noisy classes; the same key has the same class, whatever the order of the items."""
    folder.mkdir()
    gallery = small_gallery(folder)
    random = np.random.default_rng(0)
    classes = np.repeat(np.arange(CLASSES), EACH)
    vectors = random.standard_normal((CLASSES, DIM))[classes]
    vectors += noise * np.random.default_rng(seed).standard_normal(vectors.shape)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    items = [
        NewItem(FileStamp("/photos", f"{row}.jpg", 1, 1, f"c{classes[row]}"), f"sha-{row}", 4, 3)
        for row in order.tolist()
    ]
    with gallery.store.writing():
        gallery.store.commit(vectors[order].astype(np.float32), items)
    gallery.refresh()
    return gallery


def run(*words: str, code: int) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(lookalike_here("gate", *words, "--json", code=code).stdout or "{}")
    return facts


def test_galleries_of_other_ids(tmp_path: Path) -> None:
    """Items are matched by key: the two have them in another order, and one has more."""
    forth, back = np.arange(CLASSES * EACH), np.arange(CLASSES * EACH - 10)[::-1]
    good = str(gallery_of(tmp_path / "good", 1.0, forth).folder)
    bad = str(gallery_of(tmp_path / "bad", 2.5, back).folder)
    same = str(gallery_of(tmp_path / "same", 1.0, back).folder)
    facts = run(bad, good, "--require", "gain", code=0)
    assert (facts["passes"], facts["verdict"]["outcome"]) == (True, "more")
    assert facts["verdict"]["queries"] == CLASSES * EACH - 10
    assert run(good, bad, code=1)["verdict"]["outcome"] == "less"
    assert run(good, same, code=0)["verdict"]["outcome"] == "same"
    assert not run(good, same, "--require", "gain", code=1)["passes"]


def test_reports_and_what_cannot_be_compared(tmp_path: Path) -> None:
    reports = []
    for name, noise in (("good", 1.0), ("bad", 2.5)):
        gallery = gallery_of(tmp_path / name, noise, np.arange(CLASSES * EACH))
        reports.append(str(tmp_path / f"{name}-report"))
        lookalike_here("evaluate", str(gallery.folder), "--out", reports[-1])
    good, bad = reports
    assert run(bad, good, code=0)["verdict"]["outcome"] == "more"
    facts = run(good, bad, code=1)
    assert not facts["passes"]
    assert facts["verdict"]["changes"]["map_at_r"]["class_interval"][1] < 0
    run(good, str(tmp_path / "nothing"), code=2)


def test_reports_on_fewer_images_are_refused(tmp_path: Path) -> None:
    """The same vectors find more among fewer: that says nothing about a model."""
    gallery = gallery_of(tmp_path / "shop", 1.0, np.arange(CLASSES * EACH))
    whole, half = str(tmp_path / "whole"), str(tmp_path / "half")
    lookalike_here("evaluate", str(gallery.folder), "--out", whole)
    gallery.remove(range(1, 1 + EACH * CLASSES // 2))
    lookalike_here("evaluate", str(gallery.folder), "--out", half)
    for pair in ((whole, half), (half, whole)):
        refused = lookalike_here("gate", *pair, code=2)
        assert "images '" in refused.stderr
        assert not refused.stdout


def test_report_of_a_model_that_knows_the_images_is_named(tmp_path: Path) -> None:
    gallery = gallery_of(tmp_path / "shop", 1.0, np.arange(CLASSES * EACH))
    old, new = tmp_path / "old", tmp_path / "new"
    for out in (old, new):
        lookalike_here("evaluate", str(gallery.folder), "--out", str(out))
    facts = json.loads((new / "report.json").read_text())
    (new / "report.json").write_text(json.dumps({**facts, "notes": [trained_note(UNKNOWN)]}))
    said = lookalike_here("gate", str(old), str(new)).stdout
    assert "new may have been trained on these images, which flatters it." in said


def test_models_on_labelled_images(tmp_path: Path) -> None:
    """Of two models, one keeps one direction of the other's embedding."""
    shop = f"folder:{draw_classes(tmp_path / 'shop', 12, 4)}"
    good, bad, nothing = (str(tmp_path / name) for name in ("good.onnx", "bad.onnx", "nothing.onnx"))
    write_model(Path(good))
    one = Layer(np.random.default_rng(0).normal(size=(1, DIM)).astype(np.float32), np.zeros(DIM, np.float32))
    append_layer(Path(good), one, Path(bad), {})
    facts = run(bad, good, "--data", shop, "--require", "gain", code=0)
    assert facts["verdict"]["outcome"] == "more"
    assert facts["verdict"]["changes"]["map_at_r"]["class_interval"][0] > 0
    assert run(good, bad, "--data", shop, code=1)["verdict"]["outcome"] == "less"
    err = lookalike_here("gate", good, nothing, "--data", shop, code=2).stderr
    assert "nothing.onnx: there is no such model file" in err
    assert "a model needs --data" in lookalike_here("gate", good, bad, code=2).stderr
