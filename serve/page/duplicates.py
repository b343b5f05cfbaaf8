"""Near-duplicates of a gallery, looked for in a thread: one search at a time, its result kept."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from retrieval.errors import InputError
from retrieval.gallery import Gallery
from retrieval.progress import Stage, told_to
from retrieval.searching.duplicates import Group, find_duplicates
from retrieval.searching.snapshot import Snapshot
from serve.errors import BusyError, UnavailableError
from serve.service import SearchService

LOWEST = 0.8  # below it, groups are large and say little
MOST = 300_000  # pictures, which keep one core busy for two minutes; the work grows with their square
_LOOK_AGAIN_SECONDS = 0.5
_one_at_a_time = threading.Lock()  # in this process, whatever the gallery


class Duplicates:
    """The near-duplicates of one gallery. Threads may share it; what was found last is kept."""

    def __init__(self, service: SearchService) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._latest: _Search | None = None

    def find(self, min_score: float) -> Iterator[float | list[Group]]:
        """How much is done, 0 to 1, now and then; at last the groups, as `find_duplicates` has them.

        The search goes on where nobody waits for it: whoever asks for the same finds it done.

        Raises:
            InputError: a threshold below `LOWEST` or above 1, or a gallery too large to be compared here.
            BusyError: another search is running.
            UnavailableError: the gallery cannot be read, or was replaced meanwhile.
        """
        if not LOWEST <= min_score <= 1:
            raise InputError(f"the lowest similarity has to be from {LOWEST:g} to 1")
        search = self._search(min_score)
        while not search.over.wait(_LOOK_AGAIN_SECONDS):
            yield search.share
        yield search.result()

    def known(self, min_score: float) -> list[Group]:
        """What was found last, without the pictures that are gone since.

        Raises:
            InputError: it was found in another gallery, or with another threshold.
        """
        gallery, latest = self._service.gallery, self._latest
        if latest is None or not latest.over.is_set() or not latest.is_about(gallery, min_score):
            raise InputError("the gallery, or the threshold, is another one by now: look again")
        kept = (_alive(group, gallery) for group in latest.result())
        return [group for group in kept if len(group.members) > 1]

    def _search(self, min_score: float) -> _Search:
        gallery = self._service.gallery
        if len(gallery) > MOST:
            what = f"more than {MOST:,} pictures are not compared here"
            raise InputError(f"{what}: `lookalike duplicates` does it on the command line")
        with self._lock:
            if self._latest is None or not self._latest.answers(gallery.snapshot, min_score):
                self._latest = _Search(self._service, min_score)
            return self._latest


class _Search:
    """One search, in a thread that ends with the process."""

    def __init__(self, service: SearchService, min_score: float) -> None:
        self.over = threading.Event()
        self.share = 0.0
        self._gallery, self._min_score = service.gallery, min_score
        self._of = weakref.ref(self._gallery.snapshot)
        self._found: list[Group] = []
        self._error: Exception | None = None
        if not _one_at_a_time.acquire(blocking=False):
            raise BusyError("near-duplicates are being looked for already: try again when that is done")
        threading.Thread(target=self._run, daemon=True, name="duplicates").start()

    def answers(self, snapshot: Snapshot, min_score: float) -> bool:
        """Whether it is about this state of the gallery and this threshold."""
        return self._error is None and self._of() is snapshot and self._min_score == min_score

    def is_about(self, gallery: Gallery, min_score: float) -> bool:
        """Whether it is about this gallery, in whatever state, and this threshold."""
        return gallery is self._gallery and self._min_score == min_score

    def result(self) -> list[Group]:
        """What was found, or why nothing was."""
        if self._error is not None:
            raise self._error
        return self._found

    def _run(self) -> None:
        try:
            with told_to(self._note):
                self._found = find_duplicates(self._gallery, self._min_score)
            if self._gallery.replaced():
                raise UnavailableError("the gallery was built anew meanwhile: look again")
        except Exception as error:
            self._error = error
        finally:
            _one_at_a_time.release()
            self.over.set()

    def _note(self, stage: Stage) -> None:
        self.share = stage.done / stage.total if stage.total else 0.0


def _alive(group: Group, gallery: Gallery) -> Group:
    """A group without the pictures that are gone."""
    numbers = np.array([item.id for item in group.members])
    rows = gallery.snapshot.rows_of(numbers)
    if (rows >= 0).all():
        return group
    vectors = gallery.snapshot.vectors(rows[rows >= 0])
    members = tuple(item for item, row in zip(group.members, rows.tolist(), strict=True) if row >= 0)
    return replace(group, members=members, lowest=float((vectors @ vectors.T).min(initial=1)))
