"""Near-duplicates of a gallery, as visitors look for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from retrieval.errors import InputError
from retrieval.evaluation.gallery import state_of
from retrieval.gallery import Gallery
from retrieval.upkeep.duplicates import Group, find_duplicates
from serve.core.lru_cache import LRUCache
from serve.core.service import SearchService
from serve.page.background import Background, Look, still
from serve.page.failures import nameless

LOWEST = 0.8  # below it, groups are large and say little
MOST = 300_000  # pictures, which keep one core busy for two minutes; the work grows with their square
_KEPT = 4  # thresholds: several visitors may look at once


@dataclass(frozen=True)
class _Found:
    """The groups of a gallery in one state."""

    groups: list[Group]
    uuid: str
    state: str


class Duplicates:
    """The near-duplicates of one gallery: what was found last is kept. Threads may share it."""

    def __init__(self, service: SearchService) -> None:
        self._service = service
        self._work: Background[None] = Background()
        self._found: LRUCache[str, _Found] = LRUCache(_KEPT)  # by threshold

    def begin(self, min_score: float) -> None:
        """Look for them, unless that goes on or was done for the gallery as it is.

        Raises:
            InputError: a threshold below `LOWEST` or above 1, or a gallery too large to be compared here.
            BusyError: other long work goes on.
            UnavailableError: the gallery cannot be read.
        """
        if not LOWEST <= min_score <= 1:
            raise InputError(f"the lowest similarity has to be from {LOWEST:g} to 1")
        gallery, known = self._service.gallery, self._found.get(str(min_score))
        if len(gallery) > MOST:
            what = f"more than {MOST:,} pictures are not compared here"
            raise InputError(f"{what}: `lookalike duplicates` does it on the command line")
        if known is None or known.state != state_of(gallery):
            self._work.begin(str(min_score), lambda: self._find(min_score))

    def look(self, min_score: float) -> Look[list[Group]]:
        """How that stands; at last the groups, as `find_duplicates` has them, less the pictures gone since.

        Raises:
            InputError: what was found is forgotten, or was found in another gallery.
            UnavailableError: the gallery cannot be read.
        """
        gallery, look, key = self._service.gallery, self._work.look(), str(min_score)
        if look.key == key and (look.running or look.failure):
            return Look(key, look.running, look.stage, None, look.failure)
        found = self._found.get(key)
        if found is None or found.uuid != gallery.store.manifest.uuid:
            raise InputError("this was found in another gallery, or is forgotten by now: look again")
        left = (_alive(group, gallery) for group in found.groups)
        return Look(key, result=[group for group in left if len(group.members) > 1])

    def _find(self, min_score: float) -> None:
        with nameless(self._service):
            gallery = still(self._service)
            uuid = gallery.store.manifest.uuid
            found = _Found(find_duplicates(gallery, min_score), uuid, state_of(gallery))
        self._found.put(str(min_score), found)


def _alive(group: Group, gallery: Gallery) -> Group:
    """A group without the pictures that are gone."""
    numbers = np.array([item.id for item in group.members])
    rows = gallery.snapshot.rows_of(numbers)
    if (rows >= 0).all():
        return group
    vectors = gallery.snapshot.vectors(rows[rows >= 0])
    members = tuple(item for item, row in zip(group.members, rows.tolist(), strict=True) if row >= 0)
    return replace(group, members=members, lowest=float((vectors @ vectors.T).min(initial=1)))
