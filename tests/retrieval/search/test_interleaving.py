"""Team draft: against the algorithm as it is published, and what makes it fair."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.search.interleaving import Draft, team_draft

rankings = st.permutations(range(12)).flatmap(
    lambda order: st.integers(0, 12).map(lambda length: list(order)[:length])
)


def published(first: list[int], second: list[int], k: int, seed: str) -> Draft[int]:
    """Algorithm 2 of Radlinski, Kurup and Joachims (2008), step by step, behind the places that both share.

    "If |TeamA| < |TeamB|, or both are as large and a coin says so, A chooses", until one of them has no more;
    here the other goes on.
    """
    mixed = list[int]()
    while len(mixed) < min(k, len(first), len(second)) and first[len(mixed)] == second[len(mixed)]:
        mixed.append(first[len(mixed)])
    teams, random = ([], []), Random(seed)  # type: tuple[list[int], list[int]], Random
    turns = list[int]()
    while len(mixed) < k:
        if not turns:
            begins = random.getrandbits(1)
            turns = [begins, 1 - begins]
        team = turns.pop(0)
        rest = [one for one in (first, second)[team] if one not in mixed]
        if rest:
            mixed.append(rest[0])
            teams[team].append(rest[0])
        elif not [one for one in (first, second)[1 - team] if one not in mixed]:
            break
    return Draft(mixed, frozenset(teams[0]), frozenset(teams[1]))


@given(rankings, rankings, st.integers(1, 15), st.text())
def test_draft_is_that_of_the_paper(first: list[int], second: list[int], k: int, seed: str) -> None:
    assert team_draft(first, second, k, seed) == published(first, second, k, seed)


@given(rankings, rankings, st.integers(1, 15), st.text())
def test_what_a_draft_is(first: list[int], second: list[int], k: int, seed: str) -> None:
    draft = team_draft(first, second, k, seed)
    assert len(draft.order) == len({*draft.order}) == min(k, len({*first, *second}))
    assert not draft.first & draft.second
    assert draft.first <= {*first}
    assert draft.second <= {*second}
    if len(first) == len(second) == 12:
        assert abs(len(draft.first) - len(draft.second)) <= 1
    longer = team_draft(first, second, k + 3, seed)
    assert longer.order[: len(draft.order)] == draft.order
    assert draft.first == longer.first & {*draft.order}
    swapped = team_draft(second, first, k, seed)
    assert {*swapped.order} | {*draft.order} <= {*first, *second}


def test_equal_rankings_decide_nothing() -> None:
    assert team_draft([3, 1, 2], [3, 1, 2], 3, "seed") == Draft([3, 1, 2], frozenset(), frozenset())


@pytest.mark.parametrize("bias", [lambda place: 1.0, lambda place: 1 / (1 + place), lambda place: place == 0])
def test_choices_by_place_alone_prefer_nobody(bias: object) -> None:
    """The chance of a choice depends on the place, not on the image: each ranking gets as many."""
    first, second = list(range(10)), [4, 0, 9, 7, 1, 2, 3, 8, 6, 5]
    weight = np.array([float(bias(place)) for place in range(10)])  # type: ignore[operator]
    won = []
    for seed in range(4000):
        draft = team_draft(first, second, 10, str(seed))
        team = np.array([(one in draft.second) - (one in draft.first) for one in draft.order], float)
        won.append(team @ weight / weight.sum())
    assert abs(np.mean(won)) < 4 * np.std(won) / np.sqrt(len(won)) + 1e-12
