"""Near-duplicates at the door of every kind of gallery, against a comparison of all pairs one by one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from retrieval import Embedder, Gallery
from retrieval.ingest import indexing
from retrieval.ingest.sync import RemovalLimit
from tests.conftest import draw, lookalike_here
from tests.retrieval.filling import item_ids
from tests.retrieval.galleries.conftest import Kind, close

THRESHOLD = 0.95


def noisy(seed: int, strength: float, noise: int) -> Image.Image:
    """Return the image of a seed, some way towards another one."""
    return Image.blend(draw(seed, hue=seed), draw(7000 + noise, hue=noise), strength)


def write_crowd(folder: Path, seed: int, count: int) -> list[Path]:
    """Write images of which many look like others, more or less; return them in order."""
    random, files = np.random.default_rng(seed), []
    folder.mkdir(parents=True)
    for n in range(count):
        image = noisy(int(random.integers(count // 4)), float(random.uniform(0, 0.7)), n)
        files.append(folder / f"{n:03}.png")
        image.save(files[-1])
    return files


def expected(
    files: Sequence[Path], model: Embedder, known: Sequence[Path] = ()
) -> tuple[list[Path], dict[Path, tuple[Path, float]]]:
    """Return which files are admitted, and for the others the nearest one before and its similarity."""
    vectors = {path: model.embed([path])[0].astype(float) for path in [*known, *files]}
    present, refused = [*known], dict[Path, tuple[Path, float]]()
    for path in files:
        scores = [float(vectors[path] @ vectors[other]) for other in present]
        assert all(abs(score - THRESHOLD) > 1e-5 for score in scores), "the test would be left to rounding"
        if max(scores, default=-1.0) >= THRESHOLD:
            refused[path] = present[int(np.argmax(scores))], max(scores)
        else:
            present.append(path)
    return present, refused


def check(
    gallery: Gallery,
    result: indexing.IngestResult,
    present: Sequence[Path],
    refused: Mapping[Path, tuple[Path, float]],
    *,
    nearest_too: bool = True,
) -> None:
    """Check the decisions; those of a second run may name an image that the first one added later."""
    assert {one.path for one in result.refused} == {str(path) for path in refused}
    for one in result.refused if nearest_too else ():
        nearest, score = refused[Path(one.path)]
        found = gallery.item(one.id)
        assert (found.path, found.key) == (str(nearest), one.key)
        assert one.score == pytest.approx(score, abs=2e-3 if gallery.manifest.dtype == "float16" else 1e-5)
    items = gallery.items(gallery.select(where="id > 0"))
    assert sorted(item.path for item in items.values()) == sorted(map(str, present))


@pytest.mark.parametrize("commit_items", [3, 4096])
def test_equals_comparing_one_by_one(
    kind: Kind, model: Embedder, tmp_path: Path, commit_items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With images of the gallery, of commits of the same run, and of the same batch."""
    monkeypatch.setattr(indexing, "COMMIT_ITEMS", commit_items)
    small = Embedder(model.path, batch_size=7)
    files = write_crowd(tmp_path / "photos", 1, 60)
    gallery = kind.create(tmp_path / "g", small)
    first = gallery.add(files[:20])
    assert (first.added, first.refused) == (20, []), "kept by default"
    present, refused = expected(files[20:], model, files[:20])
    assert 10 < len(refused) < 30
    nearest = {path for path, _ in refused.values()}
    assert nearest & {*files[:20]}
    assert nearest & {*files[20:]}
    result = gallery.add(files, duplicates="refuse")
    assert (result.added, result.unchanged) == (40 - len(refused), 20)
    check(gallery, result, present, refused)
    again = gallery.add(files, duplicates="refuse")
    assert again.added == 0
    check(gallery, again, present, refused, nearest_too=False)
    later = gallery.add(files)
    assert later.added == len(refused), "the files are still there"
    close(gallery)


def test_stored_in_half_precision(model: Embedder, tmp_path: Path) -> None:
    files = write_crowd(tmp_path / "photos", 2, 40)
    gallery = Gallery.create(tmp_path / "g", model, storage="float16")
    result = gallery.add(files, duplicates="refuse")
    check(gallery, result, *expected(files, model))


def test_bytes_changes_and_moves(kind: Kind, model: Embedder, tmp_path: Path) -> None:
    """A changed file is taken in any case, and its old picture is not compared with any more."""
    photos = tmp_path / "photos"
    photos.mkdir()
    for n, name in enumerate("bcd"):
        draw(n, hue=n).save(photos / f"{name}.png")
    gallery = kind.create(tmp_path / "g", model)
    gallery.add([photos])
    shutil.copy(photos / "d.png", photos / "same.png")
    if kind.database is None:  # an addition to a database does not look for files that are gone
        (photos / "c.png").rename(photos / "moved.png")
    noisy(0, 0.02, 1).save(photos / "x.png")  # as b was
    draw(9, hue=1).save(photos / "b.png")
    os.utime(photos / "b.png", ns=(1, 1))
    draw(50, hue=2).save(photos / "y.png")
    Image.open(photos / "b.png").resize((96, 80), Image.Resampling.NEAREST).save(photos / "z.png")
    result = gallery.add([photos], duplicates="refuse")
    found = {Path(one.path).name: (one.key, round(one.score, 3)) for one in result.refused}
    assert found == {"same.png": ("d.png", 1.0), "z.png": ("b.png", 1.0)}
    assert (result.moved, result.replaced, result.copied) == (int(kind.database is None), 1, 0)
    names = {Path(item.path).name for item in gallery.items(gallery.select(where="id > 0")).values()}
    assert names == {path.name for path in photos.iterdir()} - {"same.png", "z.png"}
    synced = gallery.sync(photos, limit=RemovalLimit(1.0))
    assert synced.added == 2, "a sync keeps what looks alike"
    close(gallery)


_KILLED = """
import os, signal, sys
from pathlib import Path
from retrieval import Gallery
from retrieval.galleries.writer import FileWriter
from retrieval.ingest import indexing
indexing.COMMIT_ITEMS = 4
left, commit = int(sys.argv[3]), FileWriter.commit
def counted(self, *given):
    global left
    commit(self, *given)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
FileWriter.commit = counted
Gallery(sys.argv[1]).add([Path(sys.argv[2])], duplicates="refuse")
"""


@pytest.mark.parametrize("commits", [1, 2, 4])
def test_killed_run_is_continued_with_the_same_decisions(
    model: Embedder, tmp_path: Path, commits: int
) -> None:
    files = write_crowd(tmp_path / "photos", 3, 160)
    present, refused = expected(files, model)
    gallery = Gallery.create(tmp_path / "g", model)
    command = [sys.executable, "-c", _KILLED, str(tmp_path / "g"), str(tmp_path / "photos"), str(commits)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    gallery.refresh()
    assert 0 < len(item_ids(gallery)) < len(present)
    result = gallery.add([tmp_path / "photos"], duplicates="refuse")
    check(gallery, result, present, refused, nearest_too=False)
    assert gallery.verify().problems == []


def test_command_lists_what_it_leaves_out(model: Embedder, tmp_path: Path) -> None:
    files = write_crowd(tmp_path / "photos", 4, 24)
    Gallery.create(tmp_path / "g", model)
    words = ("index", "add", str(tmp_path / "g"), str(tmp_path / "photos"), "--duplicates", "refuse")
    done = lookalike_here(*words)
    _, refused = expected(files, model)
    assert f"({len(refused)} near-duplicates left out)" in done.stdout
    path, (nearest, score) = next(iter(refused.items()))
    assert f"{path}: {score:.4f} like {nearest.name} (item " in done.stderr
    facts = json.loads(lookalike_here(*words, "--json").stdout)
    assert {one["path"]: round(one["score"], 4) for one in facts["refused"]} == {
        str(path): round(score, 4) for path, (_, score) in refused.items()
    }
