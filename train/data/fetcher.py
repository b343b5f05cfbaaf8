"""Fetcher of known data sets: download, check, unpack, then move into place."""

from __future__ import annotations

import shutil
from pathlib import Path

from retrieval.errors import InputError
from retrieval.files import file_lock
from train.data import download
from train.data.known import KNOWN, KnownDataSet, read_known


def fetch(name: str, root: Path, *, show_progress: bool = False) -> None:
    """Fetch a known data set into a folder; returns immediately if it is there already.

    An interrupted fetch leaves no visible files and is resumed by the next one. An archive that is already
    in the folder is used instead of a download.

    Raises:
        InputError: An unknown name, a data set that has to be obtained manually, or other files in its place.
        LookalikeError: The download failed, or its checksum is wrong.
    """
    known = KNOWN.get(name)
    if known is None:
        raise InputError(f"{name}: no such data set; known: {', '.join(KNOWN)}")
    problem = _problem(name, root)
    if problem is None:
        return
    if known.unpack is None:
        raise InputError(f"{name} cannot be fetched: {known.by_hand}")
    if root.exists() and not root.is_dir():
        raise InputError(f"{root}: a file, not a folder; choose another name")
    root.mkdir(parents=True, exist_ok=True)
    with file_lock(root / ".fetching.lock", lambda _: None):  # one process at a time
        problem = _problem(name, root)  # another process may have fetched it meanwhile
        if problem is not None:
            _install(known, root, root / f".fetching-{name}", problem, show_progress)
            read_known(name, root)


def _problem(name: str, root: Path) -> InputError | None:
    try:
        read_known(name, root)
    except InputError as error:
        return error
    return None


def _install(known: KnownDataSet, root: Path, work: Path, problem: InputError, show_progress: bool) -> None:
    """Unpack below `work`, then move into place; both steps can be repeated."""
    assert known.unpack is not None
    ready = work / "ready"
    if not ready.is_dir():
        for top in known.tops:
            if (root / top).exists():
                raise InputError(f"{root / top} is in the way; move it, or fetch elsewhere ({problem})")
        work.mkdir(exist_ok=True)
        archives = [_obtain_archive(archive, root, work, show_progress) for archive in known.archives]
        draft = work / "draft"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        known.unpack(archives, draft, show_progress)
        draft.replace(ready)
    for top in known.tops:
        if (ready / top).exists():
            (ready / top).replace(root / top)
    shutil.rmtree(work)


def _obtain_archive(archive: download.Archive, root: Path, work: Path, show_progress: bool) -> Path:
    given = root / archive.file
    if given.is_file():
        download.check(archive, given)
        return given
    return download.download(archive, work, show_progress=show_progress)
