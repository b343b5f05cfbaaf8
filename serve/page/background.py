"""Work that takes longer than a visitor waits for an answer: in a thread, and seen by all who look."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Generic, TypeVar

from retrieval.gallery import Gallery
from retrieval.progress import Stage, progress_listener
from serve.core.errors import BusyError
from serve.core.service import SearchService
from serve.page.failures import sentence

T = TypeVar("T")

# Whatever the work and the gallery, a process does one at a time: searches need the cores, too.
_turn = threading.Lock()


@dataclass(frozen=True)
class Look(Generic[T]):
    """What a visitor sees.

    Attributes:
        key: what the work is about.
        running: whether it goes on.
        stage: how far it is, where it says so.
        result: what came of it.
        failure: what went wrong, as HTML.
    """

    key: str = ""
    running: bool = False
    stage: Stage | None = None
    result: T | None = None
    failure: str = ""


class Background(Generic[T]):
    """One kind of work about one gallery; what came of it last is kept.

    The thread is a daemon: a server that is stopped does not wait for it.
    """

    def __init__(self) -> None:
        self._look: Look[T] = Look()

    def look(self) -> Look[T]:
        """How it stands."""
        return self._look

    def begin(self, key: str, work: Callable[[], T]) -> None:
        """Begin, unless this very work goes on already.

        Raises:
            BusyError: other work goes on in this process.
        """
        if not _turn.acquire(blocking=False):
            if self._look.running and self._look.key == key:
                return
            raise BusyError("other long work goes on in this server: try again when it is done")
        self._look = Look(key, running=True)
        threading.Thread(target=self._run, args=(key, work), name="background", daemon=True).start()

    def _run(self, key: str, work: Callable[[], T]) -> None:
        try:
            with progress_listener(lambda stage: self._tell(key, stage)):
                self._look = Look(key, result=work())
        except Exception as error:
            self._look = Look(key, failure=sentence(error))
        finally:
            _turn.release()

    def _tell(self, key: str, stage: Stage) -> None:
        self._look = Look(key, running=True, stage=stage)


def still(service: SearchService) -> Gallery:
    """A state of the gallery that stays as it is while work goes through it, on one core."""
    return Gallery(service.folder, threads=1)


def progress(of: str, stage: Stage | None, before: str) -> str:
    """How far work is, as HTML; `of` says of which of its works a component has to ask again."""
    words, bar = before, "<progress></progress>"
    if stage is not None:
        words = f"{before}: {stage.what}"
        if stage.total:
            words += f", {stage.done:,} of {stage.total:,} {stage.unit}"
        if stage.total and stage.done:
            bar = f"<progress max='{stage.total}' value='{stage.done}'></progress>"
    labelled = bar.replace("<progress", f"<progress aria-label='{escape(before)}'", 1)
    return f"<p class='running' tabindex='-1' data-running='{of}'>{labelled}<span>{escape(words)}</span></p>"
