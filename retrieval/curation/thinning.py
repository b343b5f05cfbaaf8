"""Thinning of near-duplicates: which image of a group stays, and which others it stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from retrieval.curation.duplicate_groups import Group
from retrieval.curation.quality import measure_files
from retrieval.errors import ImageError, LookalikeError
from retrieval.files import now
from retrieval.galleries.database import DatabaseView
from retrieval.galleries.files import FilesView
from retrieval.galleries.items import Item
from retrieval.galleries.searchable import SearchableGallery
from retrieval.progress import Progress
from retrieval.search.vectors import bounded_cosine
from retrieval.storage.decisions import Decision, DecisionLog, decide
from retrieval.storage.records import StoredItem

RULES = ("largest", "oldest", "sharpest", "first")
_ROUNDING = 1e-6  # of float32
_FILES = 256  # measured between two lines of progress


@dataclass(frozen=True)
class Surplus:
    """An image that another one stands for.

    Attributes:
        item: The image.
        kept: The image that stays.
        score: Cosine similarity of the two.
        identical: Whether their files have the same bytes.
    """

    item: Item
    kept: Item
    score: float
    identical: bool

    @property
    def reason(self) -> str:
        """Why it is surplus."""
        return "identical file" if self.identical else "near-duplicate"


@dataclass(frozen=True)
class Thinning:
    """Result of `plan_thinning`.

    Attributes:
        surplus: The images to leave out, by group.
        thinned: Number of groups that they are from.
        across_labels: Number of groups left alone because their labels differ.
    """

    surplus: list[Surplus]
    thinned: int
    across_labels: int


def plan_thinning(
    gallery: SearchableGallery,
    groups: Sequence[Group],
    rule: str,
    min_score: float,
    *,
    across_labels: bool = False,
    show_progress: bool = False,
) -> Thinning:
    """Choose the images of each group that stay, without changing anything.

    The best image by the rule stays, and those as similar to it as the threshold or with the same bytes are
    surplus. In a chain others are left, of which the best one stays, and so on: each surplus image reaches
    the threshold with an image that stays.

    Args:
        gallery: Gallery in which the groups were found.
        groups: Groups of near-duplicates.
        rule: "largest" in pixels, "oldest" by the modification time of the file, "sharpest" as measured by
            `retrieval.curation.quality`, or "first" in the gallery. Ties are resolved by id; images without a
            file come last.
        min_score: Threshold of the cosine similarity, with which the groups were found.
        across_labels: Also thin groups with several labels. Those with several products are never thinned:
            an image of one product does not stand for another.
        show_progress: Report progress on stderr.
    """
    chosen = [group for group in groups if across_labels or len(group.labels) < 2]
    if (product := gallery.manifest.product) is not None:
        chosen = [group for group in chosen if len(group.products(product)) == 1]
    stored = {item.id: item for item in gallery.stored_items(sorted(m.id for g in chosen for m in g.members))}
    rank = _rank(rule, chosen, stored, show_progress)
    surplus, thinned = [], 0
    for group in chosen:
        members = sorted((m for m in group.members if m.id in stored), key=lambda item: (rank(item), item.id))
        found = _surplus(gallery, members, [stored[m.id].content_sha256 for m in members], min_score)
        surplus += found
        thinned += bool(found)
    return Thinning(surplus, thinned, len(groups) - len(chosen))


def remove_from_database(gallery: DatabaseView, thinning: Thinning) -> int:
    """Remove the surplus images, log the decision, and return their number.

    Others may change the database at any time: surplus images are removed whose kept image is still there.
    """
    there = gallery.present([id for one in thinning.surplus for id in (one.item.id, one.kept.id)])
    both = np.flatnonzero(there.reshape(-1, 2).all(1)).tolist()
    ids = [thinning.surplus[place].item.id for place in both]
    with DecisionLog(gallery.folder).before(_removals(gallery, ids)):
        return gallery.remove(ids)


def remove_from_files(gallery: FilesView, thinning: Thinning) -> int:
    """Remove the surplus images in one transaction, log the decision, and return their number.

    Raises:
        LookalikeError: The gallery has changed since, or another process is writing.
    """
    with gallery.store.writing():
        if gallery.changed():
            what = "changed while its images were compared, so nothing is removed"
            raise LookalikeError(f"{gallery.folder}: {what}; run the command again")
        started, ids = now(), [one.item.id for one in thinning.surplus]
        with DecisionLog(gallery.folder).before(_removals(gallery, ids)):
            removed = gallery.store.remove(gallery.store.with_parts(ids))
        gallery.store.record_run("duplicates", started, {"removed": removed})
        gallery.store.clear_leftovers()  # their uploaded files
        gallery.refresh()
    return removed


def _removals(gallery: SearchableGallery, ids: Sequence[int]) -> list[Decision]:
    return [decide("remove", item) for item in gallery.stored_items(ids)]


def _surplus(
    gallery: SearchableGallery, members: Sequence[Item], contents: Sequence[str], min_score: float
) -> list[Surplus]:
    """Return the surplus images among the members of a group, best first."""
    known = gallery.vectors([item.id for item in members])
    vectors = np.stack([known[item.id] for item in members])
    digests = np.array(contents)
    left = np.ones(len(members), bool)
    found = []
    for kept in range(len(members)):
        if not left[kept]:
            continue
        left[kept] = False
        scores = vectors @ vectors[kept]
        same = (digests == digests[kept]) & (digests != "")
        for at in np.flatnonzero(left & (same | (scores >= min_score - _ROUNDING))).tolist():
            left[at] = False
            score = bounded_cosine(float(scores[at]))
            found.append(Surplus(members[at], members[kept], score, bool(same[at])))
    return found


def _rank(
    rule: str, groups: Iterable[Group], stored: dict[int, StoredItem], show_progress: bool
) -> Callable[[Item], float]:
    """Return the key by which the members of a group are sorted, best first."""
    if rule == "largest":
        return lambda item: -stored[item.id].width * stored[item.id].height
    if rule == "oldest":
        return lambda item: stored[item.id].mtime_ns or float("inf")
    if rule == "sharpest":
        sharpness = _sharpness(
            [item for group in groups for item in group.members if item.path], show_progress
        )
        return lambda item: -sharpness.get(item.id, -1.0)
    return lambda item: item.id


def _sharpness(items: Sequence[Item], show_progress: bool) -> dict[int, float]:
    """Return the sharpness of images by id, without those that cannot be read."""
    found = {}
    with Progress("measuring", len(items), show=show_progress) as progress:
        for start in range(0, len(items), _FILES):
            some = items[start : start + _FILES]
            for item, measured in zip(some, measure_files([Path(i.path) for i in some]), strict=True):
                if not isinstance(measured, ImageError):
                    found[item.id] = measured["sharpness"]
            progress.update(len(some))
    return found
