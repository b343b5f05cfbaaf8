"""Suspected wrong labels: images that their neighbours give another label.

Each image is classified by the others: a vote of its k nearest labelled neighbours, weighted by
exp(similarity / T) with T = 0.07 (Wu et al. 2018, section 3.4). Those with another label than their own are
ranked by how much nearer the mean of the suggested class is than the mean of their own class without them.
Of the first 250 images so ranked, among 5,000 of CIFAR-100 with 250 labels changed on purpose, two thirds
had a changed label; ranked by their votes, as in confident learning (Northcutt et al. 2021), one third.

How many of the first ones are wrong is estimated without knowing any: images get another label at random, in
memory, and their leads show where wrong labels stand. A share u of the wrong labels has a lead that a share u
of the planted ones reaches, while the images that the model confuses gather below. So the number of suspects
above a lead, divided by u, falls to the number of wrong labels as the lead grows: Storey's estimate of the
share of uniform p-values, at the threshold of the least expected squared error (Storey, Taylor and Siegmund
2004, with the lowest tenth of the estimates as reference, as in their program qvalue). Wrong labels between
classes that the model confuses are not among those counted: only a look can tell them from its errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from retrieval.errors import InputError
from retrieval.galleries.items import Item
from retrieval.galleries.searchable import SearchableGallery
from retrieval.progress import Progress
from retrieval.search.embeddings import StoredEmbeddings
from retrieval.search.vectors import bounded_cosine
from retrieval.storage.decisions import DecisionLog

NEIGHBOURS = 10
MAX_NEIGHBOURS = 100
_TEMPERATURE = 0.07
LIKELY = 0.5  # expected share of wrong labels among the suspects that are shown by default
OWN_NEIGHBOURS = 4  # images with the present label, to compare with
_CHUNK = 1024  # images that are compared at once
_PLANTED = 10_000  # wrong labels that are tried
_SHARES = np.arange(0.05, 0.95, 0.05)  # of the planted labels, above thresholds that are tried


@dataclass(frozen=True)
class Disagreement:
    """A neighbour with the suggested label, or with the present one.

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
        precision: Expected share of wrong labels among the suspects up to this one.
        neighbours: Its neighbours with the suggested label, nearest first.
        own_neighbours: The `OWN_NEIGHBOURS` nearest images with its present label, however far.
    """

    item: Item
    suggested: str
    lead: float
    votes: float
    own_votes: float
    precision: float
    neighbours: tuple[Disagreement, ...]
    own_neighbours: tuple[Disagreement, ...]


@dataclass(frozen=True)
class Suspects:
    """Result of `find_suspects`.

    Attributes:
        suspects: By falling lead.
        total: Number of all that their neighbours outvote.
        likely: Number of the first ones of them at least half of which are expected to be wrong.
        labelled: Number of images with a label.
        single: Number of them with a label that no other image has: nothing can confirm it.
        confirmed: Number of outvoted ones left out, since their label was given or kept by hand.
    """

    suspects: list[Suspect]
    total: int
    likely: int
    labelled: int
    single: int
    confirmed: int


def find_suspects(
    gallery: SearchableGallery, *, k: int = NEIGHBOURS, limit: int | None = None, show_progress: bool = False
) -> Suspects:
    """Find the images whose label differs from that of their nearest neighbours.

    Images without a label take no part, nor do parts of pictures that the gallery has divided. One whose
    label no other image has is counted, not suspected, and so is one whose label somebody decided on
    (`retrieval.storage.decisions`). Other views of its own product do not vote, unless the label is the
    product. The index of the gallery finds the neighbours. Memory: the vectors of all labelled images.

    Args:
        gallery: Gallery to search.
        k: Number of neighbours, 1 to 100.
        limit: Largest number of suspects; `None` for those that are likely wrong.
        show_progress: Report progress on stderr.

    Raises:
        InputError: k is out of range.
        LookalikeError: A stored vector or item is damaged.
    """
    if not 1 <= k <= MAX_NEIGHBOURS:
        raise InputError(f"k {k}: must be from 1 to {MAX_NEIGHBOURS}")
    stored = gallery.embeddings(labelled=True, pictures=True)
    names, codes, sizes = np.unique(
        np.array([label or "" for label in stored.labels], object), return_inverse=True, return_counts=True
    )
    means = _ClassMeans(stored.vectors, codes, len(names))
    parts, planted = [_Candidates.none(k)], _Planted(codes, sizes)
    with Progress("comparing labels", len(codes), show=show_progress) as progress:
        products = gallery.products_beside(stored.ids, codes)
        for some, near, scores in _neighbours(gallery, stored, k, products):
            chosen = _outvoted(codes, codes[some], some, near, scores)
            chosen = chosen[sizes[codes[chosen.places]] > 1]
            at = chosen.places
            lead = means.lead(stored.vectors[at], codes[at], codes[at], chosen.best)
            parts.append(replace(chosen, lead=lead))
            planted.add(stored.vectors, means, some, near, scores)
            progress.update(len(some))
    outvoted = _Candidates.joined(parts)
    decisions = DecisionLog(gallery.folder).in_effect()
    confirmed = {(one.content, one.new) for one in decisions if one.action != "remove" and one.content}
    facts = ((stored.contents[at], stored.labels[at]) for at in outvoted.places.tolist())
    open_ = outvoted[np.array([content not in confirmed for content in facts], bool)]
    ranked = open_[np.lexsort((open_.places, -open_.lead))]
    ranked = replace(ranked, precision=_precision(planted.share_above(ranked.lead)))
    likely = int(np.count_nonzero(ranked.precision >= LIKELY))
    shown = ranked[np.arange(min(likely if limit is None else limit, len(ranked.places)))]
    found = _describe(gallery, stored, names.tolist(), codes, shown)
    left_out, single = len(outvoted.places) - len(open_.places), int(np.count_nonzero(sizes == 1))
    return Suspects(found, len(open_.places), likely, len(codes), single, left_out)


def _precision(shares: np.ndarray) -> np.ndarray:
    """Return the expected share of wrong labels among the first m suspects, float64 [m].

    Args:
        shares: Share of the planted labels with at least the lead of each suspect, float64 [m], ascending.
    """
    above = np.searchsorted(shares, _SHARES, "right")
    wrong = above / _SHARES
    # Where the variance of the estimate and the square of its excess over the lowest ones are least.
    excess = wrong - np.quantile(wrong, 0.1)
    wrong_labels = wrong[np.argmin((above + 1) / _SHARES**2 + excess**2)]
    precision = np.minimum(wrong_labels * shares / np.arange(1, len(shares) + 1), 1)
    falling: np.ndarray = np.maximum.accumulate(precision[::-1])[::-1]  # the rank is that of the best list
    return falling


class _Planted:
    """Leads of images that get another label at random.

    Args:
        codes: Number of the label of each image, int64 [n].
        sizes: Number of images of each label, int64 [C].
    """

    def __init__(self, codes: np.ndarray, sizes: np.ndarray) -> None:
        random = np.random.default_rng(0)
        usable = np.flatnonzero(sizes[codes] > 1) if len(sizes) > 1 else np.empty(0, np.int64)
        self._places = np.sort(random.choice(usable, _PLANTED)) if len(usable) else usable
        drawn = random.integers(1, max(len(sizes), 2), len(self._places))
        self._codes, self._labels = codes, (codes[self._places] + drawn) % max(len(sizes), 1)
        self._leads: list[np.ndarray] = [np.empty(0)]

    def add(
        self, vectors: np.ndarray, means: _ClassMeans, some: np.ndarray, near: np.ndarray, scores: np.ndarray
    ) -> None:
        """Plant labels in some images; for the parameters see `_outvoted`."""
        first, last = np.searchsorted(self._places, (some[0], some[-1] + 1))
        for start in range(first, last, _CHUNK):
            part = slice(start, min(start + _CHUNK, last))
            places, labels = self._places[part], self._labels[part]
            found = _outvoted(self._codes, labels, places, near[places - some[0]], scores[places - some[0]])
            at = found.places
            self._leads.append(means.lead(vectors[at], self._codes[at], found.own, found.best))

    def share_above(self, leads: np.ndarray) -> np.ndarray:
        """Return the share of the planted labels with at least these leads, float64."""
        known = np.sort(np.concatenate(self._leads))
        found: np.ndarray = (len(known) - np.searchsorted(known, leads)) / max(len(self._places), 1)
        return found


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Suspects as arrays.

    Attributes:
        places: Their places in the embeddings, int64 [m].
        own: Numbers of their own labels, int64 [m].
        best: Numbers of the suggested labels, int64 [m].
        votes, own_votes: Shares of the votes for the suggested and for the own label, float64 [m].
        near: Places of their neighbours, int64 [m, k]; -1 beyond the last one.
        scores: Cosine similarities to them, float32 [m, k].
        lead, precision: As for `Suspect`, float64 [m].
    """

    places: np.ndarray
    own: np.ndarray
    best: np.ndarray
    votes: np.ndarray
    own_votes: np.ndarray
    near: np.ndarray
    scores: np.ndarray
    lead: np.ndarray
    precision: np.ndarray

    def __getitem__(self, which: np.ndarray) -> _Candidates:
        return _Candidates(*(column[which] for column in vars(self).values()))

    @classmethod
    def none(cls, k: int) -> _Candidates:
        number, share = np.empty(0, np.int64), np.empty(0)
        near, scores = np.empty((0, k), np.int64), np.empty((0, k), np.float32)
        return cls(number, number, number, share, share, near, scores, share, share)

    @classmethod
    def joined(cls, parts: Sequence[_Candidates]) -> _Candidates:
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))


def _outvoted(
    codes: np.ndarray, labels_of: np.ndarray, some: np.ndarray, near: np.ndarray, scores: np.ndarray
) -> _Candidates:
    """Return those of some images whose neighbours vote for another label; their `lead` is zero.

    Args:
        codes: Number of the label of each image, int64 [n].
        labels_of: Number of the label of some images, int64 [b].
        some: Places of the images, int64 [b].
        near: Places of their neighbours, int64 [b, k]; -1 beyond the last one.
        scores: Cosine similarities to them, float32 [b, k].
    """
    there = near >= 0
    labels = np.where(there, codes[near], -1)
    weights = np.where(there, np.exp((scores - scores.max(1, initial=-1, keepdims=True)) / _TEMPERATURE), 0)
    weights /= np.maximum(weights.sum(1, keepdims=True), 1e-12)
    own = labels == labels_of[:, None]
    # The votes for the label of each neighbour: a sum over the neighbours with the same label.
    votes = ((labels[:, :, None] == labels[:, None, :]) * weights[:, None, :]).sum(2)
    votes[own | ~there] = -1
    first = votes.argmax(1)[:, None]
    best, most = (np.take_along_axis(values, first, 1)[:, 0] for values in (labels, votes))
    own_votes = (weights * own).sum(1)
    none = np.zeros(len(some))
    found = _Candidates(some, labels_of, best, most, own_votes, near, scores, none, none)
    return found[np.flatnonzero(most > own_votes)]


class _ClassMeans:
    """Means of the vectors of each class.

    Args:
        vectors: float32 [n, D], unit length.
        codes: Number of the class of each one, int64 [n].
        count: Number of classes.
    """

    def __init__(self, vectors: np.ndarray, codes: np.ndarray, count: int) -> None:
        self._sums = np.zeros((count, vectors.shape[1]))
        order = np.argsort(codes, kind="stable")
        present, starts = np.unique(codes[order], return_index=True)
        for code, rows in zip(present, np.split(order, starts[1:]), strict=True):
            self._sums[code] = vectors[rows].sum(0, np.float64)

    def lead(self, vectors: np.ndarray, member: np.ndarray, own: np.ndarray, best: np.ndarray) -> np.ndarray:
        """Return the `lead` of members of classes with several ones, float64 [m].

        Args:
            vectors: float32 [m, D].
            member: Numbers of the classes that they are part of, int64 [m].
            own: Numbers of the classes that their labels name, int64 [m].
            best: Numbers of the suggested classes, int64 [m].
        """
        found: np.ndarray = self._to_others(vectors, member, best) - self._to_others(vectors, member, own)
        return found

    def _to_others(self, vectors: np.ndarray, member: np.ndarray, classes: np.ndarray) -> np.ndarray:
        """Return the cosines to the means of classes without the vectors themselves."""
        return _cosines(vectors, self._sums[classes] - vectors * (member == classes)[:, None])


def _cosines(vectors: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Return the cosines between unit vectors and other ones, line by line: float64 [m]."""
    lengths = np.maximum(np.linalg.norm(sums, axis=1), 1e-12)
    found: np.ndarray = (vectors * sums).sum(1) / lengths
    return found


def _neighbours(
    gallery: SearchableGallery, stored: StoredEmbeddings, k: int, products: np.ndarray | None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield places in the embeddings, int64 [b], with the places and scores of the k nearest other ones.

    Both are [b, k], nearest first; -1 and -inf beyond the last one. With the product of each, int [n], views
    of the same product are left out: they would confirm a wrong label that they share.
    """
    find = gallery.neighbours(stored.ids)
    own = np.arange(len(stored.ids)) if products is None else products
    views = int(np.unique(own, return_counts=True)[1].max(initial=1))
    for start in range(0, len(stored.ids), _CHUNK):
        some = np.arange(start, min(start + _CHUNK, len(stored.ids)))
        near, scores = find(stored.vectors[some], k + views)
        near = _places(stored.ids, near)
        out = (own[near] == own[some, None]) & (near >= 0)
        near, scores = np.where(out, -1, near), np.where(out, np.float32(-np.inf), scores)
        # The image itself goes to the end; where equal vectors hide it, the last of them is left out.
        order = np.argsort(out, axis=1, kind="stable")[:, :k]
        yield some, np.take_along_axis(near, order, 1), np.take_along_axis(scores, order, 1)


def _places(ids: np.ndarray, near: np.ndarray) -> np.ndarray:
    """Return the places of some ids among others, which ascend: int64, -1 for no id."""
    found: np.ndarray = np.where(near < 0, -1, np.searchsorted(ids, near))
    return found


def _nearest_of_own(
    stored: StoredEmbeddings, codes: np.ndarray, chosen: _Candidates
) -> tuple[np.ndarray, np.ndarray]:
    """Return places and scores of the nearest images with the same label as each suspect.

    Both are [m, `OWN_NEIGHBOURS`], nearest first; -1 and -inf beyond the last one.
    """
    shape = (len(chosen.places), OWN_NEIGHBOURS)
    near, scores = np.full(shape, -1, np.int64), np.full(shape, -np.inf, np.float32)
    for own in np.unique(chosen.own):
        members = np.flatnonzero(codes == own)
        vectors = stored.vectors[members]
        for row in np.flatnonzero(chosen.own == own):
            # One by one: the product of two matrices is rounded differently in a longer list.
            found = vectors @ stored.vectors[chosen.places[row]]
            found[members == chosen.places[row]] = -np.inf
            best = np.argsort(-found, kind="stable")[: min(OWN_NEIGHBOURS, len(members) - 1)]
            near[row, : len(best)], scores[row, : len(best)] = members[best], found[best]
    return near, scores


def _describe(
    gallery: SearchableGallery,
    stored: StoredEmbeddings,
    names: Sequence[str],
    codes: np.ndarray,
    chosen: _Candidates,
) -> list[Suspect]:
    """Return the suspects with their items; those removed meanwhile are left out."""
    agree = (chosen.near >= 0) & (codes[chosen.near] == chosen.best[:, None])
    same, same_scores = _nearest_of_own(stored, codes, chosen)
    ids = stored.ids[np.concatenate([chosen.places, chosen.near[agree], same[same >= 0]])]
    items = gallery.items(np.unique(ids).tolist())

    def described(near: np.ndarray, scores: np.ndarray) -> tuple[Disagreement, ...]:
        pairs = zip(stored.ids[near].tolist(), scores.tolist(), strict=True)
        return tuple(
            Disagreement(items[other], bounded_cosine(score)) for other, score in pairs if other in items
        )

    found = []
    for at, agrees in enumerate(agree):
        number = int(stored.ids[chosen.places[at]])
        if number not in items:
            continue
        neighbours = described(chosen.near[at][agrees], chosen.scores[at][agrees])
        there = same[at] >= 0
        own_neighbours = described(same[at][there], same_scores[at][there])
        columns = (chosen.lead, chosen.votes, chosen.own_votes, chosen.precision)
        lead, votes, own, precision = (float(column[at]) for column in columns)
        label = names[chosen.best[at]]
        found.append(Suspect(items[number], label, lead, votes, own, precision, neighbours, own_neighbours))
    return found
