"""Groups of rows with the same value of a column, such as the views of one product, and their ranking."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

SOFTNESS = 0.05  # cosine; measured in docs/products.md


@dataclass(eq=False, slots=True)
class Views:
    """The views of some hits: members of their groups that the search may return.

    Attributes:
        rows: The best of each hit, best first, int64 [n, size]; -1 beyond the last one.
        scores: Their scores, float32 [n, size].
        counts: Number of all views of each hit, int64 [n].
        variants: Number of its variants, int64 [n], of which `rows` has the best view of each; `None` if the
            groups have no variants.
        alike: Number of all views of the variant of each of `rows`, int64 [n, size]; `None` as above.
    """

    rows: np.ndarray
    scores: np.ndarray
    counts: np.ndarray
    variants: np.ndarray | None = None
    alike: np.ndarray | None = None

    def __getitem__(self, which: slice | np.ndarray) -> Views:
        return Views(
            self.rows[which],
            self.scores[which],
            self.counts[which],
            None if self.variants is None else self.variants[which],
            None if self.alike is None else self.alike[which],
        )


@dataclass(eq=False, slots=True)  # frozen, it would take three times as long to make
class Ranking:
    """Rows of a snapshot, int64 [n], or ids in a database, with their scores, float [n], best first.

    Attributes:
        rows: As above; of a group, its best view.
        scores: As above.
        views: The views of each, if they are the best of their groups.
    """

    rows: np.ndarray
    scores: np.ndarray
    views: Views | None = None

    def __getitem__(self, which: slice | np.ndarray) -> Ranking:
        return Ranking(
            self.rows[which], self.scores[which], None if self.views is None else self.views[which]
        )

    def all_rows(self) -> list[int]:
        """Return the rows of the hits and of their views."""
        rows: list[int] = self.rows.tolist()
        if self.views is not None and self.views.rows.shape[1] > 1:
            rows += self.views.rows[self.views.rows >= 0].tolist()
        return rows


NOTHING = Ranking(np.empty(0, np.int64), np.empty(0, np.float32))


class HasScores(Protocol):
    """Something with scores, best first."""

    @property
    def scores(self) -> np.ndarray: ...


class Groups:
    """Group numbers of rows.

    Attributes:
        numbers: Equal for equal values of a column, int32 [rows]; a row without a value is a group of its
            own, with a negative number.
    """

    def __init__(self, numbers: np.ndarray) -> None:
        self.numbers = numbers

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it may take."""
        return 4 * self.numbers.nbytes

    @cached_property
    def _order(self) -> np.ndarray:
        """Rows by group and then by row, int64 [rows]."""
        return np.argsort(self.numbers, kind="stable")

    @cached_property
    def _sorted(self) -> np.ndarray:
        numbers: np.ndarray = self.numbers[self._order]
        return numbers

    def members(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return all rows of some groups, int64 [m], and the position of the group of each, int64 [m].

        Args:
            wanted: Numbers of groups, int [n].
        """
        starts = np.searchsorted(self._sorted, wanted)
        sizes = np.searchsorted(self._sorted, wanted, side="right") - starts
        which = np.repeat(np.arange(len(wanted)), sizes)
        within = np.arange(len(which)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        rows: np.ndarray = self._order[np.repeat(starts, sizes) + within]
        return rows, which


def views_of(
    rows: np.ndarray,
    scores: np.ndarray | None,
    which: np.ndarray,
    first: np.ndarray,
    size: int,
    variants: np.ndarray | None = None,
) -> Views:
    """Return the views of hits from the members of their groups, or the best view of each variant.

    Args:
        rows: Members, int64 [m].
        scores: Their scores, float32 [m]; `None` if no more than the first view of each hit is wanted.
        which: Position of the hit of each, int64 [m].
        first: Row of the best view of each hit, int64 [n].
        size: Largest number of views of a hit.
        variants: Variant of each member, int [m]; members without one have a negative number, and are one
            variant of their group. `None` if groups have no variants.
    """
    counts = np.bincount(which, minlength=len(first))
    wanted = np.zeros(len(rows), np.float32) if scores is None else scores
    # The view that the search has found is the first one, whatever rounding says of equal ones.
    order = np.lexsort((rows, -wanted, rows != first[which], which))
    shown, alike = counts, None
    if variants is not None:
        named = np.maximum(variants, -1).astype(np.int64) + 1
        pairs = which * (named.max(initial=0) + 1) + named
        _, best, alike = np.unique(pairs[order], return_index=True, return_counts=True)
        alike = alike[np.argsort(best)]
        order = order[np.sort(best)]
        shown = np.bincount(which[order], minlength=len(first))
    if scores is None:
        found = Views(first[:, None], np.zeros((len(first), 1), np.float32), counts)
    else:
        rank = np.arange(len(order)) - np.repeat(np.cumsum(shown) - shown, shown)
        at = which[order[rank < size]], rank[rank < size]
        found = Views(
            np.full((len(first), size), -1), np.full((len(first), size), -np.inf, np.float32), counts
        )
        found.rows[at], found.scores[at] = rows[order[rank < size]], scores[order[rank < size]]
        if alike is not None:
            found.alike = np.zeros((len(first), size), np.int64)
            found.alike[at] = alike[rank < size]
    found.variants = None if variants is None else shown
    return found


def best_of_each(found: Ranking, groups: np.ndarray) -> Ranking:
    """Return the best of each group, best first.

    Args:
        found: Hits.
        groups: Number of the group of each, int [n].
    """
    _, first = np.unique(groups, return_index=True)
    return found[np.sort(first)]


def rank_groups(kind: str, rows: np.ndarray, cosines: np.ndarray, which: np.ndarray, k: int) -> Ranking:
    """Return the best member of each of the k best groups, with the scores of the groups.

    Args:
        kind: One of `retrieval.search.options.GROUP_SCORES`.
        rows: Members, int64 [n].
        cosines: Their cosines with the views of the query, float32 [n, m].
        which: Number of the group of each member, int64 [n].
        k: Number of groups wanted.
    """
    if not len(rows):
        return NOTHING
    order = np.lexsort((rows, -cosines.mean(1), which))
    starts = np.flatnonzero(np.diff(which[order], prepend=-1))
    best = rows[order[starts]]
    sizes = np.diff(starts, append=len(order))
    by_view = np.ascontiguousarray(cosines[order].T)
    found = group_scores([kind], by_view, starts, sizes)[kind].mean(0)
    return Ranking(best, found)[np.lexsort((best, -found))[:k]]


def is_complete(found: Ranking, near: Sequence[HasScores], k: int, wanted: int) -> bool:
    """Return whether the k best groups are those found among the groups that some searches have met.

    No group has a score above that of its best view. So the groups that were not met are below the last views
    that were, on average over the views of the query (Fagin, Lotem and Naor 2001).

    Args:
        found: Best groups of those that were met.
        near: Nearest rows of each view of the query.
        k: Number of groups wanted.
        wanted: Number of rows that each search was to find.
    """
    if any(len(one.scores) < wanted for one in near):
        return True
    return len(found.rows) == k and bool(found.scores[-1] >= np.mean([one.scores[-1] for one in near]))


def group_scores(
    kinds: Collection[str],
    cosines: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
    hidden: tuple[np.ndarray, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Return the scores of groups for each query, float32 [b, groups], by kind.

    None is above that of the group's best member.

    Args:
        kinds: Some of `retrieval.search.options.GROUP_SCORES`.
        cosines: Cosines of queries with the members of all groups, one group after the other, float32 [b, n];
            those of hidden members are overwritten.
        starts: First member of each group, int [groups].
        sizes: Number of members of each that count: int [groups], or for each query int [b, groups]. The
            score of a group without any has no meaning.
        hidden: Query and position of members that do not count; `None` if all do.
    """
    if hidden is not None:
        cosines[hidden] = -np.inf
    scores = {"best": np.maximum.reduceat(cosines, starts, axis=1)}
    if {*kinds} != {*scores}:
        counts, highest = np.maximum(sizes, 1).astype(np.float32), np.maximum(scores["best"], -1)
        below = cosines - np.repeat(highest, np.diff(starts, append=cosines.shape[1]), axis=1)
        if "mean" in kinds:
            if hidden is not None:
                below[hidden] = 0
            scores["mean"] = highest + np.add.reduceat(below, starts, axis=1) / counts
        if "soft" in kinds:
            below /= np.float32(SOFTNESS)
            np.exp(below, out=below)
            if hidden is not None:
                below[hidden] = 0
            mean = np.maximum(np.add.reduceat(below, starts, axis=1) / counts, np.finfo(np.float32).tiny)
            scores["soft"] = highest + np.float32(SOFTNESS) * np.log(mean)
    return {kind: scores[kind] for kind in kinds}


def whole_products(products: np.ndarray | None, classes: np.ndarray) -> np.ndarray | None:
    """Return products if what is learned or measured keeps them whole, and leaves out the query's own one.

    If no class has two products, as if the label is the name of the product, its other views are what a query
    is to find, and so they are not left out: then this is `None`, as without products.

    Args:
        products: Product of each image, int64 [n]; `None` if images are not of products.
        classes: Class of each, int [n]; -1 for none.
    """
    if products is None:
        return None
    pairs = np.unique(np.stack([classes, products])[:, classes >= 0], axis=1)
    return products if (np.bincount(pairs[0].astype(np.int64)) > 1).any() else None


def class_sizes(classes: np.ndarray, products: np.ndarray | None = None) -> np.ndarray:
    """Return the number of images of each class, or of its products, int64 [largest class + 1].

    Args:
        classes: Class of each image, int [n], from 0.
        products: Product of each, int64 [n]; `None` to count images.
    """
    if products is None:
        return np.bincount(classes)
    return np.bincount(np.unique(np.stack([classes, products]), axis=1)[0])
