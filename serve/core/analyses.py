"""Analyses of a whole gallery that visitors may start, with bounds: evaluation, near-duplicates, suspected
labels, map, triplet diagram.

Each takes one core for up to a minute or two, so they are background work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from retrieval.analysis import tsne
from retrieval.analysis.embeddings import embeddings_of
from retrieval.curation.duplicate_groups import Group
from retrieval.curation.suspects import Suspects, find_suspects
from retrieval.curation.thinning import plan_thinning
from retrieval.errors import InputError
from retrieval.evaluation import calibration_fit
from retrieval.evaluation.calibration_fit import QUERIES, Quality
from retrieval.evaluation.coverage import Coverage, measure_coverage
from retrieval.evaluation.gallery import check_labels
from retrieval.evaluation.report import Report
from retrieval.galleries.searchable import SearchableGallery
from retrieval.reports.folder import evaluate_and_keep
from retrieval.search.calibration import write_calibration
from serve.core.reports import current_report
from serve.core.service import SearchService

LOWEST = 0.8  # similarity of near-duplicates; below it, groups are large and mean little
MAPPED, MAX_MAPPED = 20_000, 100_000  # images: half a minute, and a few minutes, of one core
MAX_COMPARED = 1_000_000  # images: keep one core busy for about a minute
MAX_VOTING = 100_000  # images whose neighbours are searched: likewise
MAX_DRAWN = 10_000  # images, compared among themselves
_DRAWN = 4  # diagrams that are kept
# What a visitor can start is bounded: queries x images, but enough queries for a meaningful result.
_MAX_COMPARISONS, _MIN_QUERIES = 400_000_000, 1000
_UNLABELLED = "no label"


@dataclass(frozen=True)
class FoundGroups:
    """The near-duplicates of a gallery in one state.

    Attributes:
        groups: Their groups.
        uuid: UUID of the gallery.
        state: Digest of its state.
    """

    groups: list[Group]
    uuid: str
    state: str


@dataclass(frozen=True)
class ThinnedGroup:
    """A group of near-duplicates, and which of them others stand for.

    Attributes:
        group: The group.
        surplus: Ids of those that may be removed; none if the labels of the group differ.
    """

    group: Group
    surplus: list[int]


@dataclass(frozen=True, eq=False)
class GalleryMap:
    """A map of the gallery.

    Attributes:
        found: The map; its points are in the order of `ids`.
        ids: Ids of the mapped items, int64 [n].
        labels: Their labels.
        right: Whether the nearest other item on the map has the same label; None without a label.
        total: Number of items that they are a sample of.
    """

    found: tsne.TsneMap
    ids: np.ndarray
    labels: list[str | None]
    right: list[bool | None]
    total: int


@dataclass(frozen=True)
class TripletDiagram:
    """The similarity of labelled images to the nearest of their own and of another class.

    Attributes:
        state: Digest of the gallery's state that it shows.
        images: Number of images in it.
        total: Number of labelled images, of which those are a random sample.
        left_out: Number of images of the sample that are alone in their class.
        hard_share: Share of the images to which another class is nearer.
        html: The diagram, as a fragment of HTML.
    """

    state: str
    images: int
    total: int
    left_out: int
    hard_share: float
    html: str


@contextmanager
def hide_paths(service: SearchService) -> Iterator[None]:
    """Hide folder and database of the gallery in the errors raised inside."""
    try:
        yield
    except InputError as error:
        message = str(error).replace(str(service.folder), service.name)
        raise InputError(service.gallery.public(message)) from error


def evaluate(service: SearchService) -> Report:
    """Evaluate the gallery on a bounded number of its images, and keep the report in it.

    If it has a report of its present state, return that, so that visitors cannot fill the disk.

    Raises:
        InputError: No image has a label, or the gallery is not writable.
    """
    with hide_paths(service):
        gallery = service.gallery.fixed()
        if current := current_report(gallery):
            return Report.load(current.folder)
        return evaluate_and_keep(gallery, limit=_most_queries(gallery))


def calibrate(service: SearchService, absent: float) -> Quality:
    """Learn from the labels how probable hits are, and keep that in the gallery; return its quality.

    Args:
        service: The gallery, which visitors may change.
        absent: Share of the queries whose thing is not in the gallery, from 0 to below 1.

    Raises:
        InputError: There are too few labels, they do not fit the scores, or the gallery is not writable.
    """
    with hide_paths(service):
        gallery = service.gallery.fixed()
        queries = min(QUERIES, _most_queries(gallery))
        calibration, quality = calibration_fit.calibrate(gallery, absent=absent, queries=queries)
        try:
            write_calibration(gallery.folder, calibration)
        except OSError as error:
            what = f"{gallery.folder}: it cannot keep the calibration ({error.strerror})"
            raise InputError(f"{what}; make its folder writable") from error
        return quality


def coverage(service: SearchService, since: str | None, limit: int) -> Coverage:
    """Compare a bounded number of the newest recorded searches with the gallery; see `measure_coverage`.

    Raises:
        NotRecordedError: Searches are not recorded.
        InputError: None was recorded yet.
    """
    log = service.log_folder
    with hide_paths(service):
        gallery = service.gallery.fixed()
        try:
            return measure_coverage(gallery, log, since=since, limit=limit, most=_most_queries(gallery))
        except InputError as error:
            error.args = (str(error).replace(str(log), "the log of searches"),)
            raise


def _most_queries(gallery: SearchableGallery) -> int:
    return max(_MIN_QUERIES, _MAX_COMPARISONS // max(1, len(gallery)))


def check_comparable(gallery: SearchableGallery, min_score: float) -> None:
    """Raise an `InputError` if the threshold is below `LOWEST` or above 1, or the gallery is too large."""
    if not LOWEST <= min_score <= 1:
        raise InputError(f"the minimum similarity has to be from {LOWEST:g} to 1")
    if len(gallery) > MAX_COMPARED:
        what = f"more than {MAX_COMPARED:,} images are not compared here"
        raise InputError(f"{what}: `lookalike check duplicates` does it on the command line")


def near_duplicates(service: SearchService, min_score: float) -> FoundGroups:
    """Find the groups of near-duplicates; errors as for `check_comparable`."""
    with hide_paths(service):
        gallery = service.gallery.fixed()
        check_comparable(gallery, min_score)
        groups = gallery.duplicates(min_score).groups
        return FoundGroups(groups, gallery.manifest.uuid, gallery.state_digest())


def thinned_duplicates(service: SearchService, min_score: float, rule: str, limit: int) -> list[ThinnedGroup]:
    """Find near-duplicates, and choose by a rule of `retrieval.curation.thinning` which images stay.

    Args:
        service: The gallery.
        min_score: Lowest similarity.
        rule: Rule.
        limit: Largest number of groups in which images are chosen; the others are without.

    Raises:
        InputError: As for `check_comparable`.
    """
    groups = near_duplicates(service, min_score).groups
    with hide_paths(service):
        chosen = plan_thinning(service.gallery.fixed(), groups[:limit], rule, min_score).surplus
    ids = {one.item.id for one in chosen}
    return [ThinnedGroup(group, [item.id for item in group.members if item.id in ids]) for group in groups]


def suspected_labels(service: SearchService, k: int, limit: int | None) -> Suspects:
    """Find the images whose label differs from that of their k nearest neighbours; see `find_suspects`.

    Raises:
        InputError: The gallery is too large.
    """
    with hide_paths(service):
        gallery = service.gallery.fixed()
        if len(gallery) > MAX_VOTING:
            what = f"labels of more than {MAX_VOTING:,} images are not compared here"
            raise InputError(f"{what}: `lookalike check suspects` does it on the command line")
        return find_suspects(gallery, k=k, limit=limit)


def embedding_map(service: SearchService, limit: int | None = None) -> GalleryMap:
    """Compute a t-SNE map of the gallery, of a random sample of at most `limit` images, or `MAPPED`.

    Raises:
        InputError: There are no images, or too few for a map.
    """
    with hide_paths(service):
        gallery = service.gallery.fixed()
        found = gallery.embeddings(pictures=True, limit=limit or MAPPED)
        if not found.total:
            raise InputError("there are no images yet")
        embeddings = embeddings_of(gallery, found, service.name, _UNLABELLED)
        placed = tsne.tsne_map(embeddings, limit=len(found.ids), show_progress=False)
        labels = list(found.labels)
        nearest = (labels[other] for other in placed.nearest.tolist())
        right = [label == other if label else None for label, other in zip(labels, nearest, strict=True)]
        return GalleryMap(placed, found.ids, labels, right, found.total)


@lru_cache(_DRAWN)
def _triplet_diagram(service: SearchService, state: str) -> TripletDiagram:
    from retrieval.analysis import triplets
    from retrieval.reports.figures import render_figure
    from retrieval.reports.pages import figure_fragment

    gallery = service.gallery.fixed()
    check_labels(gallery)
    stored = gallery.embeddings(labelled=True, pictures=True, limit=MAX_DRAWN)
    found = triplets.triplets(embeddings_of(gallery, stored, service.name))
    label = f"Triplet diagram: of {100 * found.hard_share:.1f}% of the images another class is nearer"
    panels = [[triplets.Panel("labelled images", [found])]]
    draw = partial(triplets.draw_triplet_diagram, panels)
    drawing = render_figure(draw, *triplets.diagram_size(panels)).decode()
    html = figure_fragment(drawing, label)
    images = len(found.positive)
    return TripletDiagram(state, images, stored.total, found.left_out, found.hard_share, html)


def triplet_diagram(service: SearchService) -> TripletDiagram:
    """Draw the triplet diagram of a random sample of at most `MAX_DRAWN` labelled images.

    It is kept until the gallery changes, so that visitors cannot keep the server at it.

    Raises:
        InputError: There are too few labels.
    """
    with hide_paths(service):
        return _triplet_diagram(service, service.gallery.state_digest())
