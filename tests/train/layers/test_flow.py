"""The flow of a layer, with a fit made by hand: refused, tried, applied to each target, undone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retrieval import Embedder, Gallery, InputError
from retrieval.model.layer import Layer
from tests.conftest import draw
from tests.retrieval.filling import DIM, commit, small_gallery
from tests.serve.model import write_model
from train.layers.flow import Fit, GalleryTarget, ModelTarget, run, undo

LAYER = Layer(np.diag(np.linspace(1, 2, DIM, dtype=np.float32))[:20], np.full(DIM, 0.01, np.float32))


def fit(refusal: str | None = None) -> Fit:
    return Fit(
        command="widen",
        done="widened",
        facts={"gain": 0.5, "accepted": refusal is None},
        lines=["a gain of 0.5"],
        refusal=refusal,
        note={"gain": 0.5},
        counts={"images": 3},
        learn=lambda: LAYER,
    )


def never() -> Layer:
    raise AssertionError("a layer that is not applied was computed")


@pytest.mark.parametrize(
    ("refusal", "dry_run", "reason"),
    [
        ("it is too small", False, "unchanged, because it is too small"),
        ("it is too small", True, "unchanged, because it is too small"),
        (None, True, "unchanged; without --dry-run it would be widened"),
    ],
)
def test_nothing_changes(tmp_path: Path, refusal: str | None, dry_run: bool, reason: str) -> None:
    """Of a gain that is refused or only measured; the layer is not even computed."""
    gallery = small_gallery(tmp_path)
    commit(gallery, ["a", "b", "c"])
    found = replace(fit(refusal), learn=never)
    outcome = run(GalleryTarget(gallery, by_labels=False), lambda: found, dry_run=dry_run)
    assert outcome.is_accepted == (refusal is None)
    assert outcome.lines == ["a gain of 0.5", f"{gallery.folder}: {reason}"]
    assert [*outcome.facts] == ["gain", "accepted", "widened", "seconds"]
    assert outcome.facts["widened"] is False
    assert not gallery.changed()


def test_gallery(tmp_path: Path) -> None:
    gallery = small_gallery(tmp_path)
    vectors = commit(gallery, ["a", "b", "c"])
    outcome = run(GalleryTarget(gallery, by_labels=False), fit)
    old = tmp_path / "g.old"
    assert outcome.is_accepted
    assert outcome.lines[-1] == (
        f"{gallery.folder}: widened, 20 dimensions; before: {old}; "
        f"`lookalike widen {gallery.folder} --undo` restores it"
    )
    new = Gallery(gallery.folder)
    np.testing.assert_allclose(new.state.vectors(np.arange(3)), LAYER(vectors), atol=1e-6)
    (note,) = new.embedder.provenance["layers"]
    assert (note["command"], note["gain"], note["dim"]) == ("widen", 0.5, 20)
    last = new.info()["runs"][0]
    assert (last["command"], last["counts"]) == ("widen", {"images": 3, "vectors": 3})
    facts = json.loads(json.dumps(outcome.facts))
    assert {name: facts[name] for name in ("widened", "old", "fingerprint", "dim")} == {
        "widened": True,
        "old": str(old),
        "fingerprint": new.fingerprint,
        "dim": 20,
    }
    with pytest.raises(InputError, match="already exists"):
        GalleryTarget(new, by_labels=False)
    back = undo(new)
    assert back.facts["images"] == 3
    assert back.facts["fingerprint"] == gallery.fingerprint
    np.testing.assert_array_equal(Gallery(gallery.folder).state.vectors(np.arange(3)), vectors)


def test_model_file(tmp_path: Path) -> None:
    """Its images keep the labels of their folders; a copy of the file gets the layer."""
    file = write_model(tmp_path / "model.onnx")
    for name in ("red", "green"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        draw(len(name)).save(tmp_path / "photos" / name / "1.png")
    (tmp_path / "photos" / "red" / "2.png").write_bytes(b"no image")
    before, out = Embedder(file), tmp_path / "new" / "out.onnx"
    target = ModelTarget(before, [tmp_path / "photos"], out)
    images = target.images()
    assert images.labels == ["green", "red"]
    np.testing.assert_allclose(images.vectors, before.embed([draw(5), draw(3)]), atol=1e-5)
    outcome = run(target, fit)
    after = Embedder(out)
    assert (outcome.facts["out"], outcome.facts["fingerprint"]) == (str(out), after.fingerprint)
    assert outcome.lines[-1] == f"{out}: written, 20 dimensions"
    np.testing.assert_allclose(after.embed([draw(1)]), LAYER(before.embed([draw(1)])), atol=1e-5)
    assert Embedder(file).fingerprint == before.fingerprint
