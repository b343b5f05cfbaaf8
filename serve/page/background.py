"""Background work: a thread for work that takes longer than a request, with its progress for all visitors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from markupsafe import Markup

from retrieval.progress import Stage, progress_listener
from retrieval.searchable import SearchableGallery
from retrieval.stores.gallery import StoreGallery, open_gallery
from serve.core.errors import BusyError
from serve.core.service import SearchService
from serve.page.assets import render
from serve.page.messages import error_message

T = TypeVar("T")

# A process does one work at a time, whatever its kind and gallery: searches need the cores, too.
_slot = threading.Lock()


@dataclass(frozen=True)
class Status(Generic[T]):
    """The state of background work.

    Attributes:
        key: Identifies the work.
        running: Whether it is still running.
        stage: Its progress, if it reports any.
        result: Its result, once it is done.
        failure: The error message as HTML; None unless it failed.
    """

    key: str = ""
    running: bool = False
    stage: Stage | None = None
    result: T | None = None
    failure: Markup | None = None


class Background(Generic[T]):
    """One kind of work on one gallery; the last result is kept.

    The thread is a daemon: a server that is stopped does not wait for it.
    """

    def __init__(self) -> None:
        self._status: Status[T] = Status()
        self._lock = threading.Lock()  # the slot is free as soon as the status says so

    def status(self) -> Status[T]:
        """Return the state of the work that was started last."""
        return self._status

    def start(self, key: str, work: Callable[[], T]) -> None:
        """Start work, unless work of the same key is running.

        Raises:
            BusyError: Other work is running in this process.
        """
        with self._lock:
            if not _slot.acquire(blocking=False):
                if self._status.running and self._status.key == key:
                    return
                raise BusyError("other long work is running on this server: try again when it is done")
            self._status = Status(key, running=True)
        threading.Thread(target=self._run, args=(key, work), name="background", daemon=True).start()

    def _run(self, key: str, work: Callable[[], T]) -> None:
        ended: Status[T] = Status(key)
        try:
            with progress_listener(lambda stage: self._report(key, stage)):
                ended = Status(key, result=work())
        except Exception as error:
            ended = Status(key, failure=error_message(error))
        finally:
            with self._lock:
                _slot.release()
                self._status = ended

    def _report(self, key: str, stage: Stage) -> None:
        self._status = Status(key, running=True, stage=stage)


def fixed_gallery(service: SearchService) -> SearchableGallery:
    """Open the gallery for background work: its state does not change, and it uses one core.

    One in a database has no states, and an embedded database cannot be opened twice.
    """
    gallery = service.gallery
    return (
        gallery
        if isinstance(gallery, StoreGallery)
        else open_gallery(service.folder, runtime=service.runtime)
    )


def progress(key: str, stage: Stage | None, title: str) -> Markup:
    """Return a progress bar.

    Args:
        key: The work that the component asks about again, see `poll.js`.
        stage: How far the work is; None if it has not started or reports nothing.
        title: What is being done: "Evaluating".
    """
    return render("progress", key=key, stage=stage, title=title)
