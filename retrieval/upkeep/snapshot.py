"""Snapshot: a consistent copy of a gallery, also while another process writes to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

from retrieval.errors import InputError, LockedError, LookalikeError
from retrieval.files import file_lock, folder_size, link_or_copy
from retrieval.progress import Progress
from retrieval.search.calibration import NAME as CALIBRATION
from retrieval.search.detector import NAME as DETECTOR
from retrieval.storage import maintenance, segments
from retrieval.storage.decisions import copy_log
from retrieval.storage.manifest import write_copy
from retrieval.storage.records import UPLOADS
from retrieval.storage.store import Store, delete_abandoned
from retrieval.system import fsync_folder

_TRIES = 10
_LOCK = "LOCK"
_FOLDERS = ("segments", "indexes", "model", "reports")  # of every gallery


@dataclass(frozen=True)
class GalleryCopy:
    """Result of a copy.

    Attributes:
        folder: The copy.
        files: Number of its files besides the database.
        copied: Number of those whose bytes were copied; the others share their disk space with the gallery.
        bytes: Size of the copy.
    """

    folder: Path
    files: int
    copied: int
    bytes: int


def copy_gallery(folder: Path, target: Path, *, show_progress: bool = False) -> GalleryCopy:
    """Copy the last committed state of a gallery into a new folder, which appears complete or not at all.

    Files that are never changed (vectors, index, model, reports, uploads) are hard-linked where the file
    system allows it. The copy is made in the hidden folder `.NAME.snapshot` beside the target; such folders
    of killed processes are deleted. Writers go on meanwhile: if one deletes a file before it is linked, the
    newer state is copied.

    Args:
        folder: Gallery folder.
        target: Folder of the copy, which must not exist.
        show_progress: Report progress on stderr.

    Raises:
        InputError: The folder is not a gallery, or the target exists or is inside the gallery.
        LockedError: Another process copies to the same target.
        LookalikeError: A file of the gallery is missing.
    """
    Store(folder)
    if target.exists() or not target.name:
        raise InputError(f"{target}: exists; choose another name for the copy")
    if target.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{target}: is inside the gallery; choose a folder outside it")

    def refuse(_: IO[str]) -> NoReturn:
        raise LockedError(f"{target}: another process copies a gallery to it; wait for it")

    draft = target.with_name(f".{target.name}.snapshot")
    target.parent.mkdir(parents=True, exist_ok=True)
    delete_abandoned(filter(_is_draft, target.parent.iterdir()))
    draft.mkdir(exist_ok=True)
    with file_lock(draft / _LOCK, refuse):
        for name in _FOLDERS:
            (draft / name).mkdir()
        files, copied = _take(folder, draft, show_progress)
        for part in [draft, *(path for path in draft.rglob("*") if path.is_dir())]:
            fsync_folder(part)
        draft.rename(target)
        fsync_folder(target.parent)
    return GalleryCopy(target, files, copied, folder_size(target))


def _take(folder: Path, draft: Path, show_progress: bool) -> tuple[int, int]:
    """Copy database and files of one state, and return the number of files and of those that were copied."""
    taken: dict[Path, bool] = {}  # by path below the gallery, whether it is a link
    for _ in range(_TRIES):
        store = Store(folder)
        store.state()
        maintenance.copy_database(folder, draft)
        copy = Store(draft)
        files = [*_files(folder, copy)]
        try:
            with Progress("copying", len(files), "files", show=show_progress) as progress:
                for file in files:
                    if file not in taken:
                        # Uploads are not for everybody who can read the rest.
                        mode = (folder / file).parent.stat().st_mode & 0o777
                        (draft / file).parent.mkdir(mode, exist_ok=True)
                        taken[file] = link_or_copy(folder / file, draft / file)
                    progress.update()
        except FileNotFoundError as error:  # a writer has deleted it
            if not store.changed():
                hint = f"run `lookalike index verify {folder} --repair`"
                raise LookalikeError(f"{error.filename}: missing; {hint}") from error
        is_other = store.replaced()  # after a rebuild, all files are those of another gallery
        for file in taken.keys() - (set() if is_other else set(files)):
            (draft / file).unlink()
            del taken[file]
        if len(taken) == len(files) and not is_other:
            write_copy(draft, copy.manifest)
            copy.log_removals()
            copy.mark_last()
            copy_log(folder, draft)
            return len(files), sum(not is_link for is_link in taken.values())
    raise LookalikeError(f"{folder}: files were deleted during {_TRIES} attempts; try again later")


def _files(folder: Path, copy: Store) -> Iterator[Path]:
    """Yield the files that belong to a copied database, relative to the gallery folder."""
    for segment in copy.segments():
        vectors, rows, facts, earlier = (Path("segments", name) for name in segments.files_of(segment.file))
        yield from (vectors, rows, earlier if (folder / earlier).exists() else facts)
    index = copy.state().index
    if index is not None:
        yield from (Path("indexes", index.folder, name) for name in ("index.faiss", "card.json"))
    yield from (Path(name) for name in (CALIBRATION, DETECTOR) if (folder / name).exists())
    yield from (Path(UPLOADS, name) for name in sorted(copy.uploaded_files()))
    for part in ("model", "reports"):
        files = (path for path in (folder / part).rglob("*") if path.is_file())
        yield from (path.relative_to(folder) for path in sorted(files))


def _is_draft(path: Path) -> bool:
    """Return whether a path is the draft of a copy, as opposed to a folder of the user with such a name."""
    if not (re.fullmatch(r"\..+\.snapshot", path.name) and path.is_dir()):
        return False
    return (path / _FOLDERS[0]).is_dir() or {entry.name for entry in path.iterdir()} == {_LOCK}
