"""From image files to a gallery: scan, embed, commit. Interrupted runs continue."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import numpy as np

from retrieval import store
from retrieval.decoding import BATCH, Decoded, decode_ahead
from retrieval.errors import ImageError, InputError
from retrieval.gallery import Gallery
from retrieval.images import SUFFIXES
from retrieval.progress import Progress
from retrieval.store import BadFile, FileStamp, NewItem

COMMIT_ITEMS = 4096
COMMIT_SECONDS = 30.0


@dataclass
class Outcome:
    """What an indexing run did."""

    added: int = 0
    unchanged: int = 0
    ignored: int = 0
    bad: list[BadFile] = field(default_factory=list)


@dataclass
class Scan:
    """What lies in the sources: image files in a fixed order, names that cannot be kept, and the rest."""

    files: dict[Path, FileStamp] = field(default_factory=dict)
    unnameable: list[BadFile] = field(default_factory=list)
    ignored: int = 0


def add_images(
    gallery: Gallery,
    sources: Iterable[str | Path],
    *,
    kind: str = "auto",
    reindex: bool = False,
    retry: bool = False,
    command: str = "add",
    show_progress: bool = False,
) -> Outcome:
    """Embed what is new or changed among files and folders, and index it.

    A folder is searched through all its sub-folders; the label of an image is the folder it lies in, seen
    from the folder that was named. Unusable files are recorded and skipped. What is done is committed every
    few thousand images, so that a run that is cut off continues where it stopped.

    Args:
        sources: image files and folders.
        kind: of index, for when one is built.
        reindex: bring the index up to date at the end; otherwise only when much is outside it.
        retry: try files again that were unusable before and have not changed.
        command: what to call this in the gallery's history.
        show_progress: report on stderr.

    Raises:
        InputError: a source that does not exist, or holds no image.
    """
    # The whole run holds the lock: two writers would embed the same files twice.
    with gallery.store.writing():
        started, found = store.now(), scan(sources, _roots(gallery))
        outcome = Outcome(ignored=found.ignored)
        todo = _changed(gallery, found.files.values(), outcome, retry)
        if todo or found.unnameable:
            with Progress("embedding", len(todo), show=show_progress) as progress:
                _embed(gallery, todo, found.unnameable, outcome, progress)
            gallery.refresh()
        if gallery.outside_index > (0 if reindex else max(10_000, len(gallery) // 10)):
            gallery.build_index(kind)
        counts = {"added": outcome.added, "unchanged": outcome.unchanged, "bad": len(outcome.bad)}
        gallery.store.record_run(command, started, counts, _versions())
    return outcome


def _embed(
    gallery: Gallery, todo: list[FileStamp], unusable: list[BadFile], outcome: Outcome, progress: Progress
) -> None:
    """Decode, embed and commit in batches."""
    embedder = gallery.embedder
    files = zip(todo, decode_ahead((stamp.full for stamp in todo), embedder.preprocess), strict=True)
    vectors: list[np.ndarray] = []
    items: list[NewItem] = []
    bad = list(unusable)

    def commit() -> None:
        gallery.store.commit(np.concatenate(vectors) if items else np.empty((0, embedder.dim)), items, bad)
        outcome.added += len(items)
        outcome.bad += bad
        for done in (vectors, items, bad):
            done.clear()

    deadline = time.monotonic() + COMMIT_SECONDS
    while batch := list(islice(files, BATCH)):
        good = [(stamp, file) for stamp, file in batch if isinstance(file, Decoded)]
        bad += [BadFile(stamp, e.reason, e.detail) for stamp, e in batch if isinstance(e, ImageError)]
        vectors.append(embedder.embed_pixels([file.pixels for _, file in good]))
        items += [NewItem(stamp, f.content_sha256, f.width, f.height) for stamp, f in good]
        count = len(outcome.bad) + len(bad)
        progress.update(len(batch), f"{count} unusable" if count else "")
        if len(items) >= COMMIT_ITEMS or time.monotonic() > deadline:
            commit()
            deadline = time.monotonic() + COMMIT_SECONDS
    commit()


def scan(sources: Iterable[str | Path], roots: Iterable[str] = ()) -> Scan:
    """Find the image files among files and folders.

    Hidden files are passed over. A file named outright is taken whatever its suffix. Where a source lies
    within one of `roots`, paths and labels are taken from there.
    """
    found, known = Scan(), sorted(map(Path, roots), key=lambda root: -len(root.parts))
    for source in map(Path, sources):
        top = source.resolve()
        if not top.exists():
            raise InputError(f"{source}: there is no such file or folder")
        root = next((r for r in known if top.is_relative_to(r)), top if top.is_dir() else top.parent)
        images = 0
        for path in _files(top):
            if top.is_dir() and path.suffix.lower() not in SUFFIXES:
                found.ignored += 1
                continue
            images += 1
            stamp = _stamp(path, root)
            if not _is_text(stamp.path):
                written = os.fsencode(stamp.path).decode("utf-8", "backslashreplace")
                detail = "its name is not valid UTF-8: rename it"
                found.unnameable.append(BadFile(replace(stamp, path=written), "name", detail))
            else:
                found.files.setdefault(path, stamp)
        if not images:
            raise InputError(f"{source}: no image files in it ({', '.join(SUFFIXES[:6])}, ...)")
    return found


def _changed(gallery: Gallery, stamps: Iterable[FileStamp], outcome: Outcome, retry: bool) -> list[FileStamp]:
    """The files to embed: new, or of another size or time than when they were last seen."""
    good, bad = gallery.store.stamps(), {file.stamp.key: file for file in gallery.store.bad_files()}
    todo = []
    for stamp in stamps:
        seen = (stamp.size, stamp.mtime_ns)
        known_bad = bad.get(stamp.key)
        if good.get(stamp.key) == seen:
            outcome.unchanged += 1
        elif known_bad and not retry and (known_bad.stamp.size, known_bad.stamp.mtime_ns) == seen:
            outcome.bad.append(known_bad)
        else:
            todo.append(stamp)
    return todo


def _roots(gallery: Gallery) -> list[str]:
    return [
        root for (root,) in gallery.store.rows("SELECT DISTINCT root FROM items WHERE deleted_at IS NULL")
    ]


def _files(top: Path) -> Iterator[Path]:
    if not top.is_dir():
        yield top
        return
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(names) if not name.startswith("."))


def _stamp(path: Path, root: Path) -> FileStamp:
    relative = path.relative_to(root)
    label = relative.parent.as_posix() if relative.parent.parts else None
    try:
        status = path.stat()
        size, mtime = status.st_size, status.st_mtime_ns
    except OSError:  # vanished, or a broken link: reading it will say so
        size, mtime = 0, 0
    return FileStamp(str(root), relative.as_posix(), size, mtime, label)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # the operating system's bytes, smuggled through as surrogates
        return False
    return True


def _versions() -> dict[str, str]:
    names = ("lookalike", "onnxruntime", "pillow", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}
