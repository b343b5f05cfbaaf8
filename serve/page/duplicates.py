"""Near-duplicates of a gallery: the search for them, and the groups that it found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from markupsafe import Markup

from retrieval.errors import InputError
from retrieval.lru_cache import LRUCache
from retrieval.searchable import Item, SearchableGallery
from retrieval.upkeep.duplicate_groups import Group
from serve.core.analyses import FoundGroups, check_comparable, near_duplicates
from serve.core.background import Background, Status
from serve.core.service import GallerySummary, SearchService
from serve.page.assets import render

PAGE_SIZE = 20  # groups
_MEMBERS = 24  # of a group that are shown
_LABELS = 5  # of a group that are listed
_CACHED = 4  # thresholds: several visitors may look at once


class Duplicates:
    """The near-duplicates of one gallery, with the last results cached. Thread-safe."""

    def __init__(self, service: SearchService) -> None:
        self._service = service
        self._work: Background[None] = Background()
        self._found: LRUCache[str, FoundGroups] = LRUCache(_CACHED)  # by threshold

    def start(self, min_score: float) -> None:
        """Search for them, unless that is running or the result for the current state is cached.

        Raises:
            InputError: As for `check_comparable`.
            BusyError: Other long work is running.
            UnavailableError: The gallery cannot be read.
        """
        gallery, known = self._service.gallery, self._found.get(str(min_score))
        check_comparable(gallery, min_score)
        if known is None or known.state != gallery.state_digest():
            self._work.start(str(min_score), lambda: self._find(min_score))

    def status(self, min_score: float) -> Status[list[Group]]:
        """Return the state of the search; at last the groups, without the images removed since.

        Raises:
            InputError: The result is not cached any more, or is that of another gallery.
            UnavailableError: The gallery cannot be read.
        """
        gallery, status, key = self._service.gallery, self._work.status(), str(min_score)
        if status.key == key and (status.running or status.failure):
            return Status(key, status.running, status.stage, None, status.failure)
        found = self._found.get(key)
        if found is None or found.uuid != gallery.manifest.uuid:
            raise InputError("these groups are not current any more: search again")
        left = _without_removed(found.groups, gallery)
        return Status(key, result=[group for group in left if len(group.members) > 1])

    def _find(self, min_score: float) -> None:
        self._found.put(str(min_score), near_duplicates(self._service, min_score))


def _without_removed(groups: Sequence[Group], gallery: SearchableGallery) -> list[Group]:
    ids = [item.id for group in groups for item in group.members]
    there = iter(gallery.present(ids).tolist())
    left = [tuple(item for item in group.members if next(there)) for group in groups]
    return [
        group if len(members) == len(group.members) else _thinned(group, members, gallery)
        for group, members in zip(groups, left, strict=True)
    ]


def _thinned(group: Group, members: tuple[Item, ...], gallery: SearchableGallery) -> Group:
    vectors = np.array([*gallery.vectors([item.id for item in members]).values()])
    lowest = float((vectors @ vectors.T).min(initial=1)) if len(vectors) else 1.0
    return replace(group, members=members, lowest=lowest)


def groups_view(
    groups: Sequence[Group], score: str, page: int, gallery: GallerySummary, *, removes: bool
) -> Markup:
    """Return one page of the groups.

    Args:
        groups: All groups.
        score: The threshold with which they were found.
        page: Number of the page, from 0; the last page if there are fewer.
        gallery: The gallery.
        removes: Whether all but the first image of a group can be removed.
    """
    page = min(max(page, 0), max(0, (len(groups) - 1) // PAGE_SIZE))
    return render(
        "duplicates",
        groups=groups[page * PAGE_SIZE : (page + 1) * PAGE_SIZE],
        total=len(groups),
        members=sum(len(group.members) for group in groups),
        disagreeing=sum(len(group.labels) > 1 for group in groups),
        score=score,
        page=page,
        size=PAGE_SIZE,
        gallery=gallery,
        removes=removes,
        max_members=_MEMBERS,
        max_labels=_LABELS,
    )
