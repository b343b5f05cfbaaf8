"""Coverage of a gallery: what its visitors look for and what it has, by the log of their searches.

Searches are compared with the gallery as it is now, so that what was added since is no gap any more. What
would be found by chance is known from a reference: images of the gallery that search it without themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from retrieval.errors import InputError
from retrieval.galleries.searchable import SearchableGallery
from retrieval.metrics.distributions import draws_tail
from retrieval.metrics.statistics import holm, wilson_interval
from retrieval.metrics.two_samples import Difference, difference
from retrieval.search.calibration import DEPTH, summary
from retrieval.search.embeddings import StoredEmbeddings
from retrieval.search.regions import MOST_TILES
from retrieval.storage.query_log import MOST_SEARCHES, Search, Searches, read_searches

NOT_FOUND = 0.25  # probability of the best hit below which a search counts as not found
FAR = 0.05  # share of the reference that is further from the gallery than a search that counts as found
APART = 0.5  # the same for searches that may form a group, which is evidence of its own
LEAST = 3  # searches of a group
MOST_GROUPS = 50
_LEVEL = 0.05
_REFERENCE = 2000  # images of the gallery
_MOST_APART = 4000  # searches that are compared among themselves
_BLOCKS = 20  # of the log, every other of which forms groups, and the others test them
_COPIES, _CHUNK = 2, 1024
_PICTURES = ("image", "vector")  # kinds of searches for something that may not be there
_SETTLING = 3  # first hits whose label would help a search
_LISTED = 20_000  # images among which those that nobody finds are listed


@dataclass(frozen=True)
class Group:
    """Searches that look like each other more than like anything in the gallery.

    Attributes:
        searches: Ids of the searches, oldest first.
        expected: Number that would be expected if searches were distributed as the images of the gallery.
        p: Probability of as many by chance, corrected for the number of groups (Holm); it is that of the half
            of the log which has not formed the group.
        nearest: Ids and similarities of the images of the gallery that are nearest to them.
        first, last: Times of the first and the last search.
    """

    searches: list[str]
    expected: float
    p: float
    nearest: list[tuple[int, float]]
    first: str
    last: str

    @property
    def certain(self) -> bool:
        """Whether there are more than by chance."""
        return self.p < _LEVEL


@dataclass(frozen=True)
class Wanted:
    """An image whose label would help.

    Attributes:
        item: Its id.
        searches: Number of uncertain searches that have it among their first three hits, and no image before
            it in the list.
        gain: Sum of their uncertainties, each 0 to 1.
    """

    item: int
    searches: int
    gain: float


@dataclass(frozen=True)
class Coverage:
    """What the log says of a gallery.

    Attributes:
        searches: Number of searches.
        pictures: Number of those by a picture or a vector, which may show what is not there.
        calibrated: Whether probabilities decide what was found; otherwise similarities do.
        lost: Number of searches by a picture that found nothing and of which nothing was opened.
        lost_interval: 95% interval of their share.
        lost_by_chance: Share of the reference that finds nothing.
        found_since: Searches that found nothing then and would find something now; `None` without
            probabilities.
        filtered_out: Searches whose condition left no hit.
        unopened: Searches of which nothing was opened; `None` if nothing ever was.
        groups: Groups of searches for what may be missing, the largest certain ones first.
        drift: How different searches are from images of the gallery; `None` for too few.
        change: How different newer searches are from older ones.
        images: Number of images.
        never: Number of images that no search has among its first ten.
        never_by_chance: Expected number, if each search found ten images at random.
        never_by_images: Number if as many images of the gallery had searched; `None` if it has fewer.
        unseen: Ids of images that nobody finds, the furthest from all searches first.
        wanted: Images whose labels would help most.
        disagreeing: Number of searches that are uncertain: by the half or more.
        since: Time from which searches count; older ones are those that they are compared with.
        notes: What else a reader has to know.
    """

    searches: int
    pictures: int
    calibrated: bool
    lost: int
    lost_interval: tuple[float, float]
    lost_by_chance: float
    found_since: int | None
    filtered_out: int
    unopened: int | None
    groups: list[Group]
    drift: Difference | None
    change: Difference | None
    images: int
    never: int
    never_by_chance: float
    never_by_images: int | None
    unseen: list[int]
    wanted: list[Wanted]
    disagreeing: int
    since: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def shown(self) -> list[int]:
        """Ids of all images that it names."""
        near = {item for group in self.groups for item, _ in group.nearest}
        return sorted(near | {*self.unseen, *(one.item for one in self.wanted)})


def measure_coverage(
    gallery: SearchableGallery,
    log: Path,
    *,
    since: str | None = None,
    limit: int = 50,
    most: int = MOST_SEARCHES,
) -> Coverage:
    """Compare the searches of a log with a gallery.

    Args:
        gallery: The gallery.
        log: Folder of the log.
        since: Time, ISO 8601, from which searches count. By default all count, and the newer half is
            compared with the older one.
        limit: Largest number of images that are listed, of each kind.
        most: Largest number of searches, the newest.

    Raises:
        InputError: There is no log, or it has no search of this gallery and model.
        LookalikeError: The gallery cannot be read.
    """
    name = gallery.folder.resolve().name
    found = read_searches(log, name, gallery.fingerprint, gallery.manifest.dim, limit=most)
    times = np.array([one.time for one in found.each])
    counted = np.ones(len(times), bool) if since is None else times >= since
    if not counted.any() or not len(gallery):
        raise InputError(_nothing(gallery, log, found, since))
    each = [one for one, is_counted in zip(found.each, counted, strict=True) if is_counted]
    vectors = found.vectors[counted]
    near = _nearest(gallery, vectors, [one.items for one in each])
    reference_ids = np.array(_sample(gallery, _REFERENCE), np.int64)
    stored = gallery.vectors(reference_ids.tolist())
    reference_ids = np.array([item for item in reference_ids.tolist() if item in stored], np.int64)
    reference = np.stack([stored[item] for item in reference_ids.tolist()])
    own = _nearest(gallery, reference, [(item,) for item in reference_ids.tolist()])
    threshold = apart = NOT_FOUND
    if own.probabilities is None:
        threshold, apart = np.quantile(own.best, [FAR, APART]).tolist()
    is_picture = np.array([one.kind in _PICTURES for one in each], bool)
    opened = np.array([bool(one.opened) for one in each], bool)
    is_lost = is_picture & ~opened & near.is_below(threshold)
    pictures, lost = int(is_picture.sum()), int(is_lost.sum())
    groups = _groups(
        _Sample(vectors, is_picture & ~opened & near.is_below(apart), near.best)[is_picture],
        _Sample(reference, own.is_below(apart), own.best),
        [one for one, is_one in zip(each, is_picture, strict=True) if is_one],
        gallery,
    )
    recent, before = _windows(found, since)
    listed = gallery.embeddings(pictures=True, limit=_LISTED)
    never, unseen = _never_found(listed, vectors, near, limit)
    of_images = near[np.array([one.kind != "text" for one in each], bool)]
    uncertainty = _uncertainty(gallery, of_images)
    notes = [f"left out: {count:,} searches of {what}" for what, count in sorted(found.others.items())]
    if found.without:
        notes.append(f"left out: {found.without:,} searches for objects, which have no vector of their own")
    if found.damaged:
        notes.append(f"damaged lines of the log, left out: {found.damaged:,}")
    return Coverage(
        searches=len(each),
        pictures=pictures,
        calibrated=own.probabilities is not None,
        lost=lost,
        lost_interval=wilson_interval(lost, pictures),
        lost_by_chance=float(own.is_below(threshold).mean()),
        found_since=_found_since(each, near, threshold),
        filtered_out=sum(one.where is not None and not one.hits for one in each),
        unopened=int((~opened).sum()) if opened.any() else None,
        groups=groups,
        drift=difference(_distinct(vectors[is_picture]), np.random.default_rng(0).permutation(reference)),
        change=difference(recent, before),
        images=listed.total,
        never=never,
        never_by_chance=_by_chance(listed.total, len(each)),
        never_by_images=listed.total - len(np.unique(own.ids[: len(each)]))
        if len(each) <= len(own.ids)
        else None,
        unseen=unseen,
        wanted=_wanted(gallery, of_images, uncertainty, limit),
        disagreeing=int((uncertainty >= 0.5).sum()),
        since=since,
        notes=notes,
    )


def _nothing(gallery: SearchableGallery, log: Path, found: Searches, since: str | None) -> str:
    if not len(gallery):
        return f"{gallery.folder}: the gallery is empty"
    what = f"{log}: no search of {gallery.folder.resolve().name} with its present model"
    others = "; ".join(f"{count:,} of {name}" for name, count in sorted(found.others.items()))
    return what + (f" since {since}" if since else "") + (f"; it has {others}" if others else "")


# ---- neighbours


@dataclass(frozen=True, eq=False)
class _Near:
    """The nearest images of queries.

    Attributes:
        ids: Ids, int64 [n, 10], the nearest first; -1 beyond the last one.
        scores: Their cosines, float32 [n, 10].
        probabilities: Probability of the nearest, float64 [n]; `None` without a calibration.
    """

    ids: np.ndarray
    scores: np.ndarray
    probabilities: np.ndarray | None

    def __getitem__(self, which: np.ndarray) -> _Near:
        found = None if self.probabilities is None else self.probabilities[which]
        return _Near(self.ids[which], self.scores[which], found)

    @property
    def best(self) -> np.ndarray:
        """Cosine of the nearest, float32 [n]."""
        best: np.ndarray = self.scores[:, 0]
        return best

    def is_below(self, threshold: float) -> np.ndarray:
        """Return where the probability, or else the cosine, is below a threshold: bool [n]."""
        below: np.ndarray = (self.best if self.probabilities is None else self.probabilities) < threshold
        return below


def _nearest(gallery: SearchableGallery, vectors: np.ndarray, own: Sequence[Sequence[int]]) -> _Near:
    """Return the nearest images of queries, without the items that they come from."""
    widest = max(map(len, own), default=0)
    left_out = np.full((len(own), widest), -2)
    for line, items in enumerate(own):
        left_out[line, : len(items)] = items
    # A picture that the gallery has divided counts once.
    times = 1 + MOST_TILES if gallery.manifest.objects else 1
    left_out = _pictures(gallery, left_out) if times > 1 else left_out
    find, asked = gallery.neighbours(), times * (DEPTH + _COPIES + widest)
    ids, scores = np.full((len(vectors), DEPTH), -1), np.full((len(vectors), DEPTH), -np.inf, np.float32)
    calibration = gallery.calibration
    probabilities = None if calibration is None else np.zeros(len(vectors))
    for start in range(0, len(vectors), _CHUNK):
        some = slice(start, start + _CHUNK)
        near, cosines = find(np.ascontiguousarray(vectors[some]), asked)
        is_other = near >= 0
        if times > 1:
            near = _pictures(gallery, near)
            is_other &= ~_is_repeated(near)
        is_other &= ~(near[:, :, None] == left_out[some, None]).any(2)
        order = np.argsort(~is_other, axis=1, kind="stable")  # the others first, as near as before
        near = np.take_along_axis(np.where(is_other, near, -1), order, 1)
        cosines = np.take_along_axis(np.where(is_other, cosines, -np.inf), order, 1)
        ids[some], scores[some] = near[:, :DEPTH], cosines[:, :DEPTH]
        if calibration is not None and probabilities is not None:
            facts = np.array([summary(line[np.isfinite(line)].tolist()) for line in cosines])
            probabilities[some] = calibration.probabilities(np.maximum(cosines[:, 0], -1.0), facts)
    return _Near(ids, scores, probabilities)


def _pictures(gallery: SearchableGallery, ids: np.ndarray) -> np.ndarray:
    """Return the pictures that items are parts of, in the same shape; -1 stays."""
    items, places = np.unique(ids, return_inverse=True)
    known = items >= 0
    items[known] = gallery.pictures_of(items[known])
    found: np.ndarray = items[places.reshape(ids.shape)]
    return found


def _is_repeated(ids: np.ndarray) -> np.ndarray:
    """Return where an id was before in its line: bool, of the shape of the ids, [n, k]."""
    order = np.argsort(ids, axis=1, kind="stable")
    ordered = np.take_along_axis(ids, order, 1)
    repeated = np.zeros(ids.shape, bool)
    np.put_along_axis(repeated, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], 1)
    return repeated


def _sample(gallery: SearchableGallery, count: int) -> list[int]:
    """Return the ids of random items, the same each time, in a random order."""
    drawn = np.array(gallery.sample(min(len(gallery), 10 * count)), np.int64)
    ids = gallery.pictures_among(drawn).tolist()
    chosen = np.random.default_rng(0).permutation(len(ids))[:count]
    return [ids[position] for position in chosen]


def _distinct(vectors: np.ndarray) -> np.ndarray:
    """Return vectors, each once, in their order: one picture may be searched with again and again."""
    if not len(vectors):
        return vectors
    _, first = np.unique(vectors, axis=0, return_index=True)
    return vectors[np.sort(first)]


def _windows(found: Searches, since: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the pictures that were searched with in the newer part of the log, and in the older one."""
    which = [position for position, one in enumerate(found.each) if one.kind in _PICTURES]
    vectors = found.vectors[which]
    if since is None:
        half = len(which) // 2
        return _distinct(vectors[half:]), _distinct(vectors[:half])
    is_new = np.array([found.each[position].time >= since for position in which], bool)
    return _distinct(vectors[is_new]), _distinct(vectors[~is_new])


# ---- what was not found


@dataclass(frozen=True, eq=False)
class _Sample:
    """Queries of which some may belong to what is missing.

    Attributes:
        vectors: float32 [n, D], unit length.
        apart: Whether each may: it found nothing, or is far from the gallery; bool [n].
        best: Its cosine with the nearest image, float32 [n].
    """

    vectors: np.ndarray
    apart: np.ndarray
    best: np.ndarray

    def __getitem__(self, which: np.ndarray) -> _Sample:
        return _Sample(self.vectors[which], self.apart[which], self.best[which])

    def around(self, center: np.ndarray) -> np.ndarray:
        """Return which of those that may are nearer to a vector than to any image: bool [n]."""
        inside: np.ndarray = self.apart & (self.vectors @ center > self.best)
        return inside


def _groups(
    asked: _Sample, reference: _Sample, each: Sequence[Search], gallery: SearchableGallery
) -> list[Group]:
    """Return the groups of searches for what may be missing.

    Every other block of the log forms the groups, and the rest tests them: if searches were distributed as
    the images of the gallery, a group would have as large a share of them as of the reference (Fisher's exact
    test). A picture that is searched with again counts once in the test.
    """
    if not len(each):
        return []
    _, first, which = np.unique(asked.vectors, axis=0, return_index=True, return_inverse=True)
    once = np.zeros(len(each), bool)
    once[first] = True
    blocks = min(_BLOCKS, len(each))
    forms = first[which.ravel()] * blocks // len(each) % 2 == 0  # the copies of a picture are on one side
    centers = _centers(asked[once & forms])
    tested = asked[once & ~forms]
    found = list[tuple[float, float, np.ndarray]]()
    for center in centers:
        ours, theirs = int(tested.around(center).sum()), int(reference.around(center).sum())
        p = draws_tail(ours, len(tested.best), ours + theirs, len(tested.best) + len(reference.best))
        found.append((p, theirs / len(reference.best), center))
    corrected = holm([p for p, _, _ in found])
    of_group = _nearest_center(asked, centers)
    groups = []
    for number, (p, (_, share, _)) in enumerate(zip(corrected, found, strict=True)):
        members = np.flatnonzero(of_group == number).tolist()
        mean = asked.vectors[members].mean(0, keepdims=True)
        near = _nearest(gallery, mean / np.linalg.norm(mean), [()])
        nearest = zip(near.ids[0].tolist(), near.scores[0].tolist(), strict=True)
        groups.append(
            Group(
                [each[member].id for member in members],
                share * len(each),
                p,
                [one for one in nearest if one[0] >= 0],
                each[members[0]].time,
                each[members[-1]].time,
            )
        )
    return sorted(groups, key=lambda one: (not one.certain, one.expected - len(one.searches)))


def _centers(asked: _Sample) -> list[np.ndarray]:
    """Return the vectors around which searches are that may belong to what is missing: float32 [D] each.

    Two belong together if they are more like each other than like any image. Again and again, the one with
    the most others is taken, and they are left out, until fewer than `LEAST` are together.
    """
    apart = asked[np.flatnonzero(asked.apart)[-_MOST_APART:]]
    like = apart.vectors @ apart.vectors.T
    together = (like > apart.best[:, None]) & (like > apart.best)
    np.fill_diagonal(together, True)
    left, found = np.ones(len(together), bool), list[np.ndarray]()
    counts = together.sum(1)
    while len(found) < MOST_GROUPS and left.any():
        center = int(np.argmax(np.where(left, counts, 0)))
        if counts[center] < LEAST:
            break
        members = np.flatnonzero(together[center] & left)
        found.append(apart.vectors[center])
        left[members] = False
        counts = counts - together[:, members].sum(1)
    return found


def _nearest_center(asked: _Sample, centers: Sequence[np.ndarray]) -> np.ndarray:
    """Return the number of the nearest center around which each search is, int64 [n]; -1 for none."""
    if not centers:
        return np.full(len(asked.best), -1)
    stacked = np.stack(centers)
    inside = np.stack([asked.around(center) for center in centers], 1)
    likest = np.where(inside, asked.vectors @ stacked.T, -np.inf).argmax(1)
    return np.where(inside.any(1), likest, -1)


def _found_since(each: Sequence[Search], near: _Near, threshold: float) -> int | None:
    """Return how many searches found nothing when they were made, and find something now."""
    if near.probabilities is None:
        return None
    then = np.array([max((hit[2] or 0.0 for hit in one.hits), default=0.0) for one in each])
    known = np.array(
        [
            one.kind in _PICTURES and one.where is None and bool(one.hits) and one.hits[0][2] is not None
            for one in each
        ]
    )
    return int((known & (then < threshold) & ~near.is_below(threshold)).sum())


# ---- what nobody finds


def _by_chance(images: int, searches: int) -> float:
    """Return how many images are expected to be found by none of some searches that find ten at random."""
    return float(images * (1 - min(DEPTH, images) / images) ** searches)


def _never_found(
    stored: StoredEmbeddings, vectors: np.ndarray, near: _Near, limit: int
) -> tuple[int, list[int]]:
    """Return how many images no search finds, and the ids of those that are the furthest from all."""
    found = np.unique(near.ids[near.ids >= 0])
    rest = ~np.isin(stored.ids, found)
    ids, unseen = stored.ids[rest], stored.vectors[rest]
    likest = np.full(len(ids), -np.inf, np.float32)
    for start in range(0, len(vectors), _CHUNK):
        likest = np.maximum(likest, (unseen @ vectors[start : start + _CHUNK].T).max(1))
    return stored.total - len(found), ids[np.argsort(likest, kind="stable")[:limit]].tolist()


# ---- which labels would help


def _uncertainty(gallery: SearchableGallery, near: _Near) -> np.ndarray:
    """Return how uncertain each search is, float64 [n], 0 to 1.

    By the probability p of its best hit, 4 p (1 - p); without a calibration, by the share of its first hits
    that have the most frequent label, one less it. Hits without a label agree with none.
    """
    if near.probabilities is not None:
        found: np.ndarray = 4 * near.probabilities * (1 - near.probabilities)
        return found
    ids = np.unique(near.ids[near.ids >= 0])
    if not len(ids):
        return np.ones(len(near.ids))
    labels = _labels(gallery, ids)
    numbers = np.unique([label or "" for label in labels], return_inverse=True)[1].ravel()
    is_labelled = np.array([bool(label) for label in labels], bool)
    classes = np.where(is_labelled, numbers, -1)
    of_hits = np.where(near.ids >= 0, classes[np.searchsorted(ids, near.ids.clip(ids[0]))], -1)
    same = (of_hits[:, :, None] == of_hits[:, None]) & (of_hits >= 0)[:, :, None]
    return np.asarray(1 - same.sum(2).max(1) / np.maximum((near.ids >= 0).sum(1), 1))


def _labels(gallery: SearchableGallery, ids: np.ndarray) -> list[str | None]:
    """Return the labels of items by id, in their order."""
    found = dict[int, str | None]()
    for start in range(0, len(ids), _CHUNK):
        found |= {one.id: one.label for one in gallery.stored_items(ids[start : start + _CHUNK].tolist())}
    return [found.get(item) for item in ids.tolist()]


def _wanted(gallery: SearchableGallery, near: _Near, uncertainty: np.ndarray, limit: int) -> list[Wanted]:
    """Return the images whose labels would help the most uncertain searches, the best first.

    Those without a label; if all that are found have one, those whose label is to be looked at. One of its
    first three hits is enough for a search, so that the list does not repeat itself: greedy maximum coverage
    (Nemhauser, Wolsey and Fisher 1978), at least 63% of the best possible.
    """
    first = near.ids[:, :_SETTLING]
    lines, places = np.nonzero(first >= 0)
    items, position = np.unique(first[lines, places], return_inverse=True)
    labels = _labels(gallery, items)
    is_open = np.array([not label for label in labels], bool)
    if not is_open.any():
        is_open[:] = True
    settled, found = np.zeros(len(first), bool), list[Wanted]()
    while len(found) < limit and is_open.any():
        counts = ~settled[lines]
        gains = np.bincount(position, uncertainty[lines] * counts, len(items)) * is_open
        best = int(np.argmax(gains.round(9)))  # of equal ones, the first
        if gains[best] <= 0:
            break
        helped = lines[(position == best) & counts]
        found.append(Wanted(int(items[best]), len(helped), float(gains[best])))
        settled[helped] = True
        is_open[best] = False
    return found
