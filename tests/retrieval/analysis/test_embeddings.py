"""Embeddings in .npz files: round trip and invalid files."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retrieval import InputError
from retrieval.analysis.embeddings import Embeddings

SOME = np.random.default_rng(0).normal(size=(4, 3))
NAMES = np.array(["a", "a", "b", "ü $x$"])


def test_saved_embeddings_are_loaded_again(tmp_path: Path) -> None:
    marks = np.array([False, True, False, False])
    saved = Embeddings("x", SOME, NAMES, np.array(["1.png", "2.png", "3.png", "4.png"]), marks)
    saved.save(tmp_path / "made" / "shop.npz")
    found = Embeddings.load(tmp_path / "made" / "shop.npz")
    assert found.name == "shop"
    for what in ("vectors", "labels", "paths", "synthetic"):
        np.testing.assert_array_equal(getattr(found, what), getattr(saved, what))
    np.testing.assert_allclose(found.vectors, SOME / np.sqrt((SOME**2).sum(1))[:, None], rtol=1e-6)
    assert found.vectors.dtype == np.float32


def test_equal_embeddings_give_equal_files(tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        Embeddings("x", SOME, NAMES).save(tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_plain_numpy_file_is_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", embeddings=SOME.astype(np.float16), labels=np.array([7, 7, 1, 12]))
    found = Embeddings.load(tmp_path / "a.npz")
    assert found.labels.tolist() == ["7", "7", "1", "12"]
    assert found.paths is None
    assert not found.synthetic.any()
    assert found.take(np.array([3, 0])).labels.tolist() == ["12", "7"]


UNUSABLE: list[tuple[dict[str, Any], str]] = [
    ({"embeddings": SOME[0]}, "must be numbers"),
    ({"embeddings": SOME[:0], "labels": NAMES[:0]}, "must be numbers"),
    ({"embeddings": NAMES[:, None]}, "must be numbers"),
    ({"embeddings": np.where(SOME > 1, np.nan, SOME)}, "NaN"),
    ({"embeddings": np.full_like(SOME, np.inf)}, "infinite"),
    ({"embeddings": SOME * [[0], [1], [1], [1]]}, "is zero"),
    ({"labels": NAMES[:3]}, r"labels must be .*one for each of the 4 embeddings, but are <U5 \[3\]"),
    ({"labels": np.array([0.5, 1, 2, 3])}, "labels must be text or whole numbers"),
    ({"paths": np.arange(4)}, "paths must be text"),
    ({"paths": NAMES[:1]}, "paths must be text"),
    ({"synthetic": np.arange(4)}, "synthetic must be true or false"),
    ({"labels": None}, "has no array `labels` but embeddings"),
    ({"labels": np.array([{}, 1, 2, 3], object)}, "not an .npz file with arrays"),
]


@pytest.mark.parametrize(("change", "why"), UNUSABLE, ids=range(len(UNUSABLE)))
def test_invalid_arrays_are_refused(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    arrays = {"embeddings": SOME, "labels": NAMES, **change}
    np.savez(tmp_path / "a.npz", **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(InputError, match=why) as error:
        Embeddings.load(tmp_path / "a.npz")
    assert str(error.value).startswith(f"{tmp_path / 'a.npz'}: ")


def test_other_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    with pytest.raises(InputError, match="no such file"):
        Embeddings.load(file)
    np.savez(file, embeddings=SOME, labels=NAMES)
    whole = file.read_bytes()
    np.save(tmp_path / "single.npy", SOME)
    for content in (b"", b"text", whole[:200], (tmp_path / "single.npy").read_bytes()):
        file.write_bytes(content)
        with pytest.raises(InputError, match="not an"):
            Embeddings.load(file)
    with pytest.raises(InputError, match="not an"):
        Embeddings.load(tmp_path)


class Trap:
    """A pickle that creates a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    np.savez(tmp_path / "b.npz", embeddings=SOME, labels=np.array([Trap(tmp_path / "sprung")] * 4, object))
    for name in ("a.npz", "b.npz"):
        with pytest.raises(InputError, match="not an"):
            Embeddings.load(tmp_path / name)
    assert not (tmp_path / "sprung").exists()


def test_other_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"call it shop\.npz"):
        Embeddings("x", SOME, NAMES).save(tmp_path / "shop.txt")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        Embeddings("x", SOME, NAMES).save(tmp_path / "file" / "shop.npz")


def test_sampled_batch_has_p_classes_of_k_images() -> None:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(9), [6, 6, 6, 6, 6, 6, 6, 3, 1])
    marks = np.arange(len(labels)) == 0
    images = Embeddings("images", random.normal(size=(len(labels), 8)), labels, synthetic=marks)
    drawn = images.sample_batch(classes=5, per_class=4, seed=1)
    names, counts = np.unique(drawn.labels, return_counts=True)
    assert len(names) == 5
    assert (counts == 4).all()
    assert len(np.unique(drawn.vectors, axis=0)) == 20
    np.testing.assert_array_equal(images.sample_batch(classes=5, per_class=4, seed=1).vectors, drawn.vectors)
    assert (
        len(np.unique(images.sample_batch(classes=50, per_class=4).labels)) == 7
    )  # the others are too small
    assert "0" not in images.sample_batch(classes=50, per_class=6).labels  # its first row is no image
    for classes, per_class, why in ((5, 1, "no positives"), (5, 7, "and 0 have as many")):
        with pytest.raises(InputError, match=why):
            images.sample_batch(classes=classes, per_class=per_class)
