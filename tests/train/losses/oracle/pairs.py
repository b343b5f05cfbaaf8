"""Pairs, positives and negatives of a batch."""

from collections.abc import Sequence

Labels = Sequence[int]
Pair = tuple[int, int]


def alternate(y: Labels) -> list[Pair]:
    """Disjoint pairs: samples 1 and 2, 3 and 4, … of every class in batch order, an odd one dropped."""
    found = []
    for c in sorted(set(y)):
        members = [i for i in range(len(y)) if y[i] == c]
        found += [(members[n], members[n + 1]) for n in range(0, len(members) - 1, 2)]
    return found


def leftover(y: Labels) -> list[int]:
    """The last sample of every class of odd size."""
    paired = {i for pair in alternate(y) for i in pair}
    return [i for i in range(len(y)) if i not in paired]


def unordered(y: Labels) -> list[Pair]:
    """All i < j of the same class."""
    return [(i, j) for i in range(len(y)) for j in range(i + 1, len(y)) if y[i] == y[j]]


def ordered(y: Labels) -> list[Pair]:
    """All i ≠ j of the same class."""
    return [(i, j) for i in range(len(y)) for j in range(len(y)) if i != j and y[i] == y[j]]


PAIRS = {"alternate": alternate, "unordered": unordered, "ordered": ordered}


def positives(y: Labels, i: int) -> list[int]:
    """P_i, the others of sample i's class."""
    return [j for j in range(len(y)) if j != i and y[j] == y[i]]


def negatives(y: Labels, i: int) -> list[int]:
    """N_i, the samples of other classes."""
    return [j for j in range(len(y)) if y[j] != y[i]]


def rivals(y: Labels, pair: Pair, degenerate: bool = False) -> list[Pair]:
    """Q(p), the alternate pairs of other classes; with `degenerate` also their odd samples as (k, k)."""
    candidates = alternate(y) + ([(k, k) for k in leftover(y)] if degenerate else [])
    return [q for q in candidates if y[q[0]] != y[pair[0]]]
