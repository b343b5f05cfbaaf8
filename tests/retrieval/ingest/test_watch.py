"""Tests of watching a folder, in a real process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retrieval import Gallery
from tests.conftest import draw, wait_until


def old(path: Path) -> Path:
    """Give a file a modification time at which it is surely complete."""
    os.utime(path, (1e9, 1e9))
    return path


def agrees(gallery: Gallery, photos: Path) -> bool:
    """Return whether the gallery has the files of the folder, each with the vector of its bytes."""
    gallery.refresh()
    ids = gallery.state.item_ids(gallery.state.live_rows()).tolist()
    items = gallery.items(ids)
    if {item.path for item in items.values()} != {str(path) for path in photos.rglob("*.png")}:
        return False
    vectors = gallery.embedder.embed([Path(item.path) for item in items.values()])
    return np.allclose([gallery.vector(i) for i in items], vectors, atol=1e-6)


class Watching:
    """A process that watches a folder."""

    def __init__(self, gallery: Gallery, photos: Path, *options: str) -> None:
        words = [
            "index",
            "sync",
            str(gallery.folder),
            str(photos),
            "--watch",
            "--poll",
            "0.05",
            "--json",
            *options,
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lookalike", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def next(self) -> dict[str, Any]:
        """Return the result of the next sync."""
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def next_message(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def stop(self, number: signal.Signals) -> str:
        """Return the last line on stderr."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, errors
        return errors.splitlines()[-1]


@pytest.fixture
def watching(gallery: Gallery, photos: Path) -> Iterator[Watching]:
    started = Watching(gallery, photos)
    yield started
    started.process.kill()
    started.process.communicate()


def test_changes_of_a_folder_are_followed(watching: Watching, gallery: Gallery, photos: Path) -> None:
    added = 0
    while added < 6:  # young files wait, each for its own time
        added += watching.next()["added"]
    gallery.refresh()
    ids = gallery.ids_of(["red/0.png", "red/1.png"])
    draw(50).save(photos / ".new.png")
    old(photos / ".new.png").rename(photos / "red" / "new.png")
    assert watching.next()["added"] == 1
    draw(51).save(photos / ".changed.png")
    old(photos / ".changed.png").rename(photos / "red" / "0.png")
    assert watching.next()["replaced"] == 1
    (photos / "red" / "1.png").rename(photos / "moved.png")
    assert watching.next()["moved"] == 1
    (photos / "green" / "2.png").unlink()
    assert watching.next()["removed"] == 1
    wait_until(lambda: agrees(gallery, photos))
    assert gallery.ids_of(["red/0.png", "moved.png"]) == ids
    assert watching.stop(signal.SIGINT) == f"{photos}: stopped; 6 images in the gallery"


def test_errors_do_not_end_the_watch(
    watching: Watching, gallery: Gallery, photos: Path, tmp_path: Path
) -> None:
    assert "watching" in watching.next_message()
    for number in range(12):
        draw(60 + number).save(photos / f"{number}.png")
    for file in photos.rglob("*.png"):
        old(file)
    counts = [watching.next()["images"]]
    while counts[-1] != 18:
        counts.append(watching.next()["images"])
    photos.rename(tmp_path / "away")
    assert "there is no such folder" in watching.next_message()
    photos.mkdir()
    shutil.copy2(tmp_path / "away" / "1.png", photos / "1.png")
    message = watching.next_message()
    while "nothing was changed" not in message:  # there was no image for a moment
        message = watching.next_message()
    assert "17 of 18 images (94.4%)" in message
    with gallery.store.writing():
        shutil.copytree(tmp_path / "away", photos, dirs_exist_ok=True)
        old(photos / "1.png")
        draw(80).save(tmp_path / "x.png")
        old(tmp_path / "x.png").rename(photos / "x.png")
        assert "being written by process" in watching.next_message()
    assert watching.next()["images"] == 19
    assert watching.stop(signal.SIGTERM) == f"{photos}: stopped; 19 images in the gallery"
    assert agrees(gallery, photos)
