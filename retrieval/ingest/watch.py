"""Watch: keep a gallery in sync with a folder by looking at it again and again.

Polling works on every file system, network ones included, where change notifications do not. A look at a
folder without changes costs about 15 microseconds a file and takes no lock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

from retrieval.errors import LookalikeError
from retrieval.galleries.searchable import SearchableGallery
from retrieval.ingest.indexing import BadFilePolicy, IngestResult
from retrieval.ingest.sync import RemovalLimit, folder_difference, sync

SECONDS = 5.0
_MIN_AGE = 2.0  # seconds since the last modification of a file; a younger one may be incomplete


def watch(
    gallery: SearchableGallery,
    folder: str | Path,
    *,
    seconds: float = SECONDS,
    limit: RemovalLimit | None = None,
    policy: BadFilePolicy | None = None,
    show_progress: bool = False,
    stop: Event | None = None,
) -> Iterator[IngestResult | LookalikeError | OSError]:
    """Sync a gallery with a folder whenever the folder has changed, until it is stopped.

    Files modified in the last two seconds wait for the next look, since they may be incomplete. After an
    error, such as a folder that is not mounted or another writer, it goes on.

    Args:
        gallery: Gallery to change.
        folder: Image folder.
        seconds: Time between two looks; at least as long as a look takes.
        limit: Most items to remove in one sync; `None` for the default limit.
        policy: Treatment of unusable files.
        show_progress: Print the progress of each sync on stderr.
        stop: Ends the watch, also while it waits.

    Yields:
        The result of each sync, and each error that is not the same as the one before.

    Raises:
        KeyboardInterrupt: Interrupted; images embedded before stay.
    """
    problem, stop = "", stop or Event()
    while not stop.is_set():
        start = time.monotonic()
        try:
            if gallery.changed():
                gallery.refresh()
            if folder_difference(gallery, folder, min_age=_MIN_AGE).has_changes:
                yield sync(
                    gallery, folder, limit=limit, policy=policy, min_age=_MIN_AGE, show_progress=show_progress
                )
            problem = ""
        except (LookalikeError, OSError) as error:
            if str(error) != problem:
                yield error
            problem = str(error)
        stop.wait(max(seconds, time.monotonic() - start))
