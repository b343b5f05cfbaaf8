"""Interleaving of two rankings, so that the choices of visitors say which is better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Draft(Generic[T]):
    """One list of two rankings.

    Attributes:
        order: What is shown, best first.
        first: Those that the first ranking gave; a choice of one of them counts for it.
        second: Those that the second ranking gave. What neither gave, both have at the same place.
    """

    order: list[T]
    first: frozenset[T]
    second: frozenset[T]


def team_draft(first: Sequence[T], second: Sequence[T], k: int, seed: str) -> Draft[T]:
    """Interleave two rankings by team draft (Radlinski, Kurup and Joachims, CIKM 2008, algorithm 2).

    Like two captains, the rankings choose in turns: each takes its best that is not taken, and a coin says
    who begins each turn. So a visitor who chooses at random, or by the place alone, prefers neither.

    What both have at the same places from the top on is shown there and counts for neither: a coin would
    decide for whom, which adds noise and no information. A longer list of the same seed begins with the
    shorter one.

    Args:
        first, second: The rankings, best first, each without repetitions.
        k: Largest number to show.
        seed: Seed of the coins.
    """
    shared = 0
    while shared < min(len(first), len(second), k) and first[shared] == second[shared]:
        shared += 1
    order, taken = list(first[:shared]), set(first[:shared])
    teams: tuple[list[T], list[T]] = ([], [])
    left = (iter(first[shared:]), iter(second[shared:]))
    random = Random(seed)
    while len(order) < k:
        before = len(order)
        begins = random.getrandbits(1)
        for team in (begins, 1 - begins):
            best = next((one for one in left[team] if one not in taken), None)
            if best is not None and len(order) < k:
                taken.add(best)
                order.append(best)
                teams[team].append(best)
        if len(order) == before:
            break
    return Draft(order, frozenset(teams[0]), frozenset(teams[1]))
