"""Suspected wrong labels: images that their neighbours give another label.

Each image is classified by the others: a vote of its k nearest labelled neighbours, weighted by
exp(similarity / T) with T = 0.07 (Wu et al. 2018, section 3.4). Those with another label than their own are
ranked by how much nearer the mean of the suggested class is than the mean of their own class without them.
Of the first 250 images so ranked, among 5,000 of CIFAR-100 with 250 labels changed on purpose, two thirds
had a changed label; ranked by their votes, as in confident learning (Northcutt et al. 2021), one third.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_array

from retrieval.errors import InputError
from retrieval.gallery import Gallery
from retrieval.progress import Progress
from retrieval.search.embeddings import StoredEmbeddings
from retrieval.search.selection import Selection
from retrieval.search.vectors import bounded_cosine
from retrieval.searchable import Item, SearchableGallery
from retrieval.storage.decisions import DecisionLog
from retrieval.stores.conditions import FilterTest
from retrieval.stores.gallery import StoreGallery

NEIGHBOURS = 10
MAX_NEIGHBOURS = 100
_TEMPERATURE = 0.07
_CHUNK = 1024  # images that are compared at once


@dataclass(frozen=True)
class Disagreement:
    """A neighbour with the suggested label.

    Attributes:
        item: The neighbour.
        score: Its cosine similarity to the suspect.
    """

    item: Item
    score: float


@dataclass(frozen=True)
class Suspect:
    """An image that its neighbours give another label.

    Attributes:
        item: The image.
        suggested: Label with the most votes.
        lead: Cosine similarity to the mean of the suggested class, less that to the mean of its own class
            without it. The higher, the more likely the label is wrong.
        votes: Share of the votes for the suggested label, 0 to 1.
        own_votes: Share of the votes for its own label.
        neighbours: Its neighbours with the suggested label, nearest first.
    """

    item: Item
    suggested: str
    lead: float
    votes: float
    own_votes: float
    neighbours: tuple[Disagreement, ...]


@dataclass(frozen=True)
class Suspects:
    """Result of `find_suspects`.

    Attributes:
        suspects: By falling lead.
        total: Number of suspects before the limit.
        labelled: Number of images with a label.
        single: Number of them with a label that no other image has: nothing can confirm it.
        confirmed: Number of outvoted ones left out, since their label was given or kept by hand.
    """

    suspects: list[Suspect]
    total: int
    labelled: int
    single: int
    confirmed: int


def find_suspects(
    gallery: SearchableGallery, *, k: int = NEIGHBOURS, limit: int | None = None, show_progress: bool = False
) -> Suspects:
    """Find the images whose label differs from that of their nearest neighbours.

    Images without a label take no part. One whose label no other image has is counted, not suspected, and so
    is one whose label somebody decided on (`retrieval.storage.decisions`). The index of the gallery finds the
    neighbours. Memory: the vectors of all labelled images.

    Args:
        gallery: Gallery to search.
        k: Number of neighbours, 1 to 100.
        limit: Largest number of suspects; `None` for all.
        show_progress: Report progress on stderr.

    Raises:
        InputError: k is out of range.
        LookalikeError: A stored vector or item is damaged.
    """
    if not 1 <= k <= MAX_NEIGHBOURS:
        raise InputError(f"k {k}: must be from 1 to {MAX_NEIGHBOURS}")
    stored = gallery.embeddings(labelled=True)
    names, codes, sizes = np.unique(
        np.array([label or "" for label in stored.labels], object), return_inverse=True, return_counts=True
    )
    means = _ClassMeans(stored.vectors, codes, len(names))
    parts = [_Candidates.none(k)]
    with Progress("comparing labels", len(codes), show=show_progress) as progress:
        for some, near, scores in _neighbours(gallery, stored, k):
            chosen = _outvoted(codes, some, near, scores)
            chosen = chosen[sizes[codes[chosen.places]] > 1]
            at = chosen.places
            lead = means.lead(stored.vectors[at], codes[at], chosen.best)
            parts.append(replace(chosen, lead=lead))
            progress.update(len(some))
    outvoted = _Candidates.joined(parts)
    decisions = DecisionLog(gallery.folder).in_effect()
    confirmed = {(one.content, one.new) for one in decisions if one.action != "remove" and one.content}
    facts = ((stored.contents[at], stored.labels[at]) for at in outvoted.places.tolist())
    open_ = outvoted[np.array([content not in confirmed for content in facts], bool)]
    shown = open_[np.lexsort((open_.places, -open_.lead))[:limit]]
    found = _describe(gallery, stored, names.tolist(), codes, shown)
    left_out, single = len(outvoted.places) - len(open_.places), int(np.count_nonzero(sizes == 1))
    return Suspects(found, len(open_.places), len(codes), single, left_out)


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Suspects as arrays.

    Attributes:
        places: Their places in the embeddings, int64 [m].
        best: Numbers of the suggested labels, int64 [m].
        votes, own_votes: Shares of the votes for the suggested and for the own label, float64 [m].
        near: Places of their neighbours, int64 [m, k]; -1 beyond the last one.
        scores: Cosine similarities to them, float32 [m, k].
        lead: As for `Suspect`, float64 [m].
    """

    places: np.ndarray
    best: np.ndarray
    votes: np.ndarray
    own_votes: np.ndarray
    near: np.ndarray
    scores: np.ndarray
    lead: np.ndarray

    def __getitem__(self, which: np.ndarray) -> _Candidates:
        return _Candidates(*(column[which] for column in vars(self).values()))

    @classmethod
    def none(cls, k: int) -> _Candidates:
        number, share = np.empty(0, np.int64), np.empty(0)
        near, scores = np.empty((0, k), np.int64), np.empty((0, k), np.float32)
        return cls(number, number, share, share, near, scores, share)

    @classmethod
    def joined(cls, parts: Sequence[_Candidates]) -> _Candidates:
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))


def _outvoted(codes: np.ndarray, some: np.ndarray, near: np.ndarray, scores: np.ndarray) -> _Candidates:
    """Return those of some images whose neighbours vote for another label; their `lead` is zero.

    Args:
        codes: Number of the label of each image, int64 [n].
        some: Places of the images, int64 [b].
        near: Places of their neighbours, int64 [b, k]; -1 beyond the last one.
        scores: Cosine similarities to them, float32 [b, k].
    """
    there = near >= 0
    labels = np.where(there, codes[near], -1)
    weights = np.where(there, np.exp((scores - scores.max(1, initial=-1, keepdims=True)) / _TEMPERATURE), 0)
    weights /= np.maximum(weights.sum(1, keepdims=True), 1e-12)
    own = labels == codes[some][:, None]
    # The votes for the label of each neighbour: a sum over the neighbours with the same label.
    votes = ((labels[:, :, None] == labels[:, None, :]) * weights[:, None, :]).sum(2)
    votes[own | ~there] = -1
    first = votes.argmax(1)[:, None]
    best, most = (np.take_along_axis(values, first, 1)[:, 0] for values in (labels, votes))
    own_votes = (weights * own).sum(1)
    found = _Candidates(some, best, most, own_votes, near, scores, np.zeros(len(some)))
    return found[np.flatnonzero(most > own_votes)]


class _ClassMeans:
    """Means of the vectors of each class.

    Args:
        vectors: float32 [n, D], unit length.
        codes: Number of the class of each one, int64 [n].
        count: Number of classes.
    """

    def __init__(self, vectors: np.ndarray, codes: np.ndarray, count: int) -> None:
        members = csr_array((np.ones(len(codes)), (codes, np.arange(len(codes)))), (count, len(codes)))
        self._sums = np.asarray(members @ vectors, np.float64)

    def lead(self, vectors: np.ndarray, own: np.ndarray, best: np.ndarray) -> np.ndarray:
        """Return the `lead` of members of classes with several ones, float64 [m].

        Args:
            vectors: float32 [m, D].
            own: Numbers of their classes, int64 [m].
            best: Numbers of the suggested classes, int64 [m].
        """
        others = self._sums[own] - vectors
        found: np.ndarray = _cosines(vectors, self._sums[best]) - _cosines(vectors, others)
        return found


def _cosines(vectors: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Return the cosines between unit vectors and other ones, line by line: float64 [m]."""
    lengths = np.maximum(np.linalg.norm(sums, axis=1), 1e-12)
    found: np.ndarray = (vectors * sums).sum(1) / lengths
    return found


def _neighbours(
    gallery: SearchableGallery, stored: StoredEmbeddings, k: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield places in the embeddings, int64 [b], with the places and scores of the k nearest other ones.

    Both are [b, k], nearest first; -1 and -inf beyond the last one.
    """
    find = _store_search(gallery, stored) if isinstance(gallery, StoreGallery) else _search(gallery, stored)
    for start in range(0, len(stored.ids), _CHUNK):
        some = np.arange(start, min(start + _CHUNK, len(stored.ids)))
        near, scores = find(stored.vectors[some], k + 1)
        # The image itself goes to the end; where equal vectors hide it, the last of them is left out.
        order = np.argsort(near == some[:, None], axis=1, kind="stable")[:, :k]
        yield some, np.take_along_axis(near, order, 1), np.take_along_axis(scores, order, 1)


_Search = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]
"""Function of queries, [b, D], and k that returns places in the embeddings and scores, [b, k]."""


def _search(gallery: SearchableGallery, stored: StoredEmbeddings) -> _Search:
    assert isinstance(gallery, Gallery)
    snapshot = gallery.snapshot
    rows = snapshot.rows_of(stored.ids)
    place_of = np.full(len(snapshot) + 1, -1)  # the last one for row -1
    place_of[rows] = np.arange(len(rows))
    labelled = None if len(rows) == snapshot.size else Selection(place_of[:-1] >= 0)

    def find(queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        scores, found = snapshot.nearest(queries, k, labelled)
        return place_of[found], scores

    return find


def _store_search(gallery: StoreGallery, stored: StoredEmbeddings) -> _Search:
    labelled = FilterTest("label", "not null")

    def find(queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        near, scores = np.full((len(queries), k), -1), np.full((len(queries), k), -np.inf, np.float32)
        for line, found in enumerate(gallery.engine.nearest(queries, k, labelled)):
            known = found[np.isin(found.ids, stored.ids)]  # not those added meanwhile
            near[line, : len(known.ids)] = np.searchsorted(stored.ids, known.ids)
            scores[line, : len(known.ids)] = known.scores
        return near, scores

    return find


def _describe(
    gallery: SearchableGallery,
    stored: StoredEmbeddings,
    names: Sequence[str],
    codes: np.ndarray,
    chosen: _Candidates,
) -> list[Suspect]:
    """Return the suspects with their items; those removed meanwhile are left out."""
    agree = (chosen.near >= 0) & (codes[chosen.near] == chosen.best[:, None])
    ids = stored.ids[np.concatenate([chosen.places, chosen.near[agree]])]
    items = gallery.items(np.unique(ids).tolist())
    found = []
    for at, agrees in enumerate(agree):
        number = int(stored.ids[chosen.places[at]])
        if number not in items:
            continue
        near = stored.ids[chosen.near[at][agrees]].tolist()
        neighbours = tuple(
            Disagreement(items[other], bounded_cosine(score))
            for other, score in zip(near, chosen.scores[at][agrees].tolist(), strict=True)
            if other in items
        )
        lead, votes, own = (float(column[at]) for column in (chosen.lead, chosen.votes, chosen.own_votes))
        found.append(Suspect(items[number], names[chosen.best[at]], lead, votes, own, neighbours))
    return found
