"""Run an operation on a gallery repeatedly, killed (-9) one step later each time.

`kill_at_every_step` stores in OUT/<n> the state of a copy of a folder after a kill at the n-th step, and
last the completed operation. A first pass, which is not killed, finds the steps with a state that no earlier
step has; only there a process is killed. A step is any access to the disk: an SQL statement, a flush, a
rename, a deletion, a new file; or, if given, only a call of certain functions. The database gets so little
cache that it writes to its file during a transaction, and must roll back.
"""

from __future__ import annotations

import atexit
import functools
import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import traceback
import uuid
from collections.abc import Callable, Collection
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import faiss
import numpy as np

from retrieval import Embedder, Gallery
from retrieval.galleries.writer import FileWriter
from retrieval.ingest.editor import Editor
from retrieval.ingest.uploads import Upload, store_uploads
from retrieval.model.layer import Layer
from retrieval.search import index
from retrieval.storage.manifest import Manifest
from retrieval.storage.merging import merge_small
from retrieval.storage.queries import ids_by_key
from retrieval.storage.records import Change, IndexSpec
from retrieval.storage.store import Store
from retrieval.upkeep.compact import compact
from retrieval.upkeep.rebuild import rebuild
from retrieval.upkeep.reprojection import reproject, undo
from retrieval.upkeep.snapshot import copy_gallery
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


def decide(folder: Path) -> None:
    """Change a label by hand, then remove another image."""
    editor = Editor(FileWriter(folder))
    with editor.writing():
        ids = ids_by_key(Store(folder), ["a1.jpg", "b1.jpg"])
        (item,) = editor.stored_items([ids["a1.jpg"]])
        editor.amend(item, "other", {})
        editor.remove([ids["b1.jpg"]])


def upload(folder: Path) -> None:
    """Upload two images."""
    given = []
    for name, vector in zip(("x.png", "y.png"), unit_vectors(2, 9), strict=True):
        buffer = io.BytesIO()
        draw(ord(name[0])).save(buffer, "PNG")
        given.append(Upload(name, buffer.getvalue(), vector))
    store = FileWriter(folder)
    with store.writing():
        store_uploads(store, given, "new", {"colour": "red"})


def merge(folder: Path) -> None:
    store = FileWriter(folder)
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
        Gallery.import_vectors(folder, file, name="random")


def snapshot(folder: Path) -> None:
    copy_gallery(folder / "g", folder / "copy")


def reproject_gallery(folder: Path) -> None:
    """Put the vectors of the gallery g through the layer of the model beside it."""
    with np.load(folder / "layer.npz") as layer:
        model = Embedder(folder / "new.onnx")
        reproject(Gallery(folder / "g"), Layer(layer["weight"], layer["mean"]), model, command="teach")


def reproject_texts(folder: Path) -> None:
    """Give the gallery g the text encoder of the pair beside it."""
    reproject(Gallery(folder / "g"), None, Embedder(folder / "pair.zip"), command="teach")


def rebuild_gallery(folder: Path) -> None:
    rebuild(Gallery(folder / "g"), Embedder(folder / "new.onnx"))


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
    "decide": decide,
    "upload": upload,
    "merge": merge,
    "remove": remove,
    "compact": lambda folder: compact(Gallery(folder)),
    "compact_stale": compact_stale,
    "import": import_more,
    "snapshot": snapshot,
    "reproject": reproject_gallery,
    "reproject_texts": reproject_texts,
    "undo": lambda folder: undo(Gallery(folder / "g")),
    "build_index": build_index,
    "rebuild": rebuild_gallery,
    "repair": repair,
    "salvage": repair,
    "create": create,
}


class Killer:
    """Step counter that calls a function with the number of each step, from 1."""

    def __init__(self, at_step: Callable[[int], None]) -> None:
        self._numbers = count(1)
        self._at_step = at_step
        self._busy = False

    def step(self) -> None:
        if self._busy:  # the function accesses the disk as well
            return
        self._busy = True
        try:
            self._at_step(next(self._numbers))
        finally:
            self._busy = False

    def watch(self, owner: Any, name: str) -> None:
        """Count every call of a function as a step."""
        real = getattr(owner, name)

        def watched(*args: Any, **options: Any) -> Any:
            self.step()
            return real(*args, **options)

        setattr(owner, name, watched)

    def arm(self, only: Collection[str]) -> None:
        """Count the steps; only calls of the named functions, if any are named."""
        for owner, names in (
            (os, ("fsync", "open")),
            (Path, ("replace", "rename", "unlink", "mkdir", "open", "hardlink_to")),
            (shutil, ("rmtree", "copyfile")),
            (np, ("save",)),
            (faiss, ("write_index",)),
        ):
            for name in names:
                if not only or name in only:
                    self.watch(owner, name)
        if only:
            return
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


def run(operation: str, folder: Path, at_step: Callable[[int], None], only: Collection[str]) -> int:
    """Run the operation in a forked process; return its exit code, negative if it was killed."""
    child = os.fork()  # this process has no other thread
    if child == 0:
        try:
            os.dup2(2, 1)  # stdout has the answers
            names = (uuid.UUID(int=number) for number in count(1))
            uuid.uuid4 = names.__next__  # type: ignore[assignment]  # the same each time: states compare
            Killer(at_step).arm(only)
            OPERATIONS[operation](folder)
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_once_per_state(operation: str, original: Path, out: Path, only: Collection[str]) -> None:
    folder = shutil.copytree(original, out / "0")
    found = io.FileIO(os.memfd_create("steps"), "r+")  # no step creates or writes it
    seen = set()

    def note(number: int) -> None:
        if (state := look(folder)) not in seen:
            seen.add(state)
            found.write(b"%d\n" % number)

    assert run(operation, folder, note, only) == 0
    found.seek(0)
    numbers = [int(line) for line in found.read().split()]
    found.close()
    for last in numbers:

        def kill(number: int, last: int = last) -> None:
            if number == last:
                os.kill(os.getpid(), signal.SIGKILL)

        copy = shutil.copytree(original, out / f"{last}")
        assert run(operation, copy, kill, only) == -signal.SIGKILL
    folder.rename(out / f"{max(numbers, default=0) + 1}")  # completed


def main() -> None:
    """Read requests from stdin, one a line, and answer each on stdout."""
    for line in sys.stdin:
        operation, original, out, only = json.loads(line)
        try:
            kill_once_per_state(operation, Path(original), Path(out), only)
        except Exception:
            print(json.dumps(traceback.format_exc()), flush=True)
        else:
            print("null", flush=True)


@functools.cache
def _start() -> subprocess.Popen[str]:
    """Run this module in a process of its own, for all operations; it ends when this process does."""
    command, here = [sys.executable, "-m", "tests.retrieval.killing"], Path(__file__).parents[2]
    found = subprocess.Popen(command, cwd=here, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(found.communicate)
    return found


def kill_at_every_step(operation: str, start: Path, out: Path, only: Collection[str] = ()) -> list[Path]:
    """Kill an operation in other processes, and return the states in order of the steps.

    Args:
        operation: One of `OPERATIONS`.
        start: Folder to work on.
        out: Folder for the states.
        only: Names of the functions whose calls are steps; all accesses to the disk if there are none.
    """
    process = _start()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([operation, str(start), str(out), [*only]]) + "\n")
    process.stdin.flush()
    assert (problem := json.loads(process.stdout.readline())) is None, problem
    return sorted(out.iterdir(), key=lambda path: int(path.name))


if __name__ == "__main__":
    main()
