"""Replacement of a gallery by a successor that was built beside it: check, swap of the two folders."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

from retrieval.errors import LookalikeError
from retrieval.model.runtime import Runtime
from retrieval.search.calibration import NAME as CALIBRATION
from retrieval.storage.store import Store
from retrieval.upkeep.verify import verify

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def check_successor(
    folder: Path, expected: int, runtime: Runtime | None = None, *, show_progress: bool = False
) -> None:
    """Verify a successor before the swap.

    Args:
        folder: The successor.
        expected: Number of items that it should have.
        runtime: Device and provider on which its model is checked.
        show_progress: Report progress on stderr.

    Raises:
        LookalikeError: It is damaged or incomplete.
    """
    found = verify(folder, runtime=runtime, show_progress=show_progress)
    # A damaged calibration is that of the old gallery, and is left out of searches.
    problems = [problem.what for problem in found.problems if not problem.what.startswith(CALIBRATION)]
    if found.items != expected:
        problems.append(f"it has {found.items} images instead of {expected}")
    if problems:
        raise LookalikeError(
            f"{folder}: {problems[0]}; the old gallery is unchanged; delete this folder and try again"
        )


def exchange(draft: Path, folder: Path) -> None:
    """Swap the names of two folders: atomically on Linux, else by three renames."""
    system = ctypes.CDLL(None, use_errno=True)
    if hasattr(system, "renameat2"):
        names = (_AT_FDCWD, os.fsencode(draft), _AT_FDCWD, os.fsencode(folder))
        if system.renameat2(*names, _RENAME_EXCHANGE) == 0:
            return
    spare = draft.with_name(f"{draft.name}.old")
    folder.rename(spare)
    draft.rename(folder)
    spare.rename(draft)


def keep_predecessor(draft: Path, old: Path, uuid: str | None) -> bool:
    """Finish a replacement that was interrupted after the swap; return whether there was one.

    Args:
        draft: Folder in which successors are built; after the swap it holds the predecessor.
        old: Folder under which the predecessor is kept; if there is one already, the draft is deleted.
        uuid: Id of the gallery that the present one replaced, if any.
    """
    if not (draft / "gallery.db").exists() or Store(draft).manifest.uuid != uuid:
        return False
    if old.exists():
        shutil.rmtree(draft)
    else:
        draft.rename(old)
    return True
