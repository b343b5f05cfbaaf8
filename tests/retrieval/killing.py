"""Run an operation on a gallery repeatedly, killed (-9) one step later each time.

    python -m tests.retrieval.killing OPERATION ORIGINAL OUT

stores in OUT/<n> the state of a copy of ORIGINAL after a kill at the n-th step, until the operation
completes; of equal states, only the first is kept. A step is any access to the disk: an SQL statement, a
flush, a rename, a deletion, a new file. The database gets so little cache that it writes to its file during
a transaction, and must roll back.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import faiss
import numpy as np

from retrieval import Gallery
from retrieval.ingest.transfer import import_vectors
from retrieval.ingest.uploads import Upload, store_uploads
from retrieval.search import index
from retrieval.storage.manifest import Manifest
from retrieval.storage.records import Change, IndexSpec
from retrieval.storage.store import Store
from retrieval.upkeep.compact import compact, merge_small
from retrieval.upkeep.snapshot import copy_gallery
from retrieval.upkeep.upgrade import upgrade
from retrieval.upkeep.verify import verify
from tests.conftest import draw
from tests.retrieval.filling import new_items, unit_vectors


def add(folder: Path) -> None:
    """Add two images, one of which replaces another, and a new column."""
    gallery = Gallery(folder)
    with gallery.store.writing():
        gallery.store.commit(unit_vectors(2, 9), new_items(["a1", "new"], colour="red"))


def amend(folder: Path) -> None:
    """Change facts about two items in one transaction."""
    gallery = Gallery(folder)
    numbers = gallery.ids_of(["b1.jpg", "b2.jpg"])
    with gallery.store.writing():
        gallery.store.amend([Change(number, metadata={"size": number}) for number in numbers])


def remove(folder: Path) -> None:
    Gallery(folder).remove(["a2.jpg", "b2.jpg"])


def upload(folder: Path) -> None:
    """Upload two images."""
    given = []
    for name, vector in zip(("x.png", "y.png"), unit_vectors(2, 9), strict=True):
        buffer = io.BytesIO()
        draw(ord(name[0])).save(buffer, "PNG")
        given.append(Upload(name, buffer.getvalue(), vector))
    store = Store(folder)
    with store.writing():
        store_uploads(store, given, "new", {"colour": "red"})


def merge(folder: Path) -> None:
    store = Store(folder)
    with store.writing():
        merge_small(store)


def compact_stale(folder: Path) -> None:
    """Compact with a new index, since many vectors of the old one are gone."""
    with patch.object(index, "_MAX_DEAD", 0.01):
        compact(Gallery(folder))


def import_more(folder: Path) -> None:
    """Import vectors, one of which replaces another."""
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "more.npz"
        np.savez(file, vectors=unit_vectors(3, 9), id=np.array(["a1.jpg", "x", "y"]))
        import_vectors(folder, file, name="random")


def snapshot(folder: Path) -> None:
    copy_gallery(folder / "g", folder / "copy")


def build_index(folder: Path) -> None:
    gallery = Gallery(folder)
    with gallery.store.writing():
        gallery.build_index(IndexSpec("sq8"))


def repair(folder: Path) -> None:
    verify(folder, repair=True)


def create(folder: Path) -> None:
    Store.create(folder / "new", Manifest("", 3), folder / "gallery.db", np.ones(3))


OPERATIONS: dict[str, Callable[[Path], object]] = {
    "add": add,
    "amend": amend,
    "upload": upload,
    "merge": merge,
    "remove": remove,
    "compact": lambda folder: compact(Gallery(folder)),
    "compact_stale": compact_stale,
    "import": import_more,
    "upgrade": upgrade,
    "snapshot": snapshot,
    "build_index": build_index,
    "repair": repair,
    "salvage": repair,
    "create": create,
}


class Killer:
    """Step counter that kills this process at one step."""

    def __init__(self, at: int) -> None:
        self._left = at

    def step(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, owner: Any, name: str) -> None:
        """Count every call of a function as a step."""
        real = getattr(owner, name)

        def watched(*args: Any, **options: Any) -> Any:
            self.step()
            return real(*args, **options)

        setattr(owner, name, watched)

    def arm(self) -> None:
        for owner, names in (
            (os, ("fsync", "open")),
            (Path, ("replace", "rename", "unlink", "mkdir", "open", "hardlink_to")),
            (shutil, ("rmtree", "copyfile")),
            (np, ("save",)),
            (faiss, ("write_index",)),
        ):
            for name in names:
                self.watch(owner, name)
        killer = self

        class Connection(sqlite3.Connection):
            def execute(self, *args: Any) -> sqlite3.Cursor:
                killer.step()
                return super().execute(*args)

            def executemany(self, *args: Any) -> sqlite3.Cursor:
                killer.step()
                return super().executemany(*args)

        real = sqlite3.connect

        def connect(*args: Any, **options: Any) -> sqlite3.Connection:
            db = real(*args, factory=Connection, **options)
            sqlite3.Connection.execute(db, "PRAGMA cache_size = 1")
            return db

        sqlite3.connect = connect  # type: ignore[assignment]


def look(folder: Path) -> tuple[object, ...]:
    """Return a signature of the state on disk: names, sizes, commit counters of the databases."""
    files = sorted((str(path.relative_to(folder)), path.stat().st_size) for path in folder.rglob("*"))
    counters = [path.read_bytes()[24:28] for path in sorted(folder.rglob("gallery.db"))]
    return tuple(files), *counters


def main(operation: str, original: Path, out: Path) -> None:
    at, seen = 0, set()
    while True:
        at += 1
        folder = shutil.copytree(original, out / f"{at}")
        names = (uuid.UUID(int=number) for number in count(1))
        child = os.fork()  # no thread has been started yet
        if child == 0:
            uuid.uuid4 = names.__next__  # type: ignore[assignment]  # the same each time: states compare
            Killer(at).arm()
            OPERATIONS[operation](folder)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            sys.exit(os.WEXITSTATUS(status))
        if look(folder) in seen:
            shutil.rmtree(folder)
        seen.add(look(folder) if folder.exists() else None)


def kill_at_every_step(operation: str, start: Path, out: Path) -> list[Path]:
    """Run this module in a process of its own, and return the states in order of the steps."""
    command = [sys.executable, "-m", "tests.retrieval.killing", operation, str(start), str(out)]
    here = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return sorted(out.iterdir(), key=lambda path: int(path.name))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
