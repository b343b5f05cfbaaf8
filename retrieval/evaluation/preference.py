"""Which of two galleries visitors prefer: what they chose from lists in which hits of both were mixed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from retrieval.errors import InputError
from retrieval.galleries.searchable import SearchableGallery
from retrieval.storage.query_log import Against, MixedSearches, Search, read_mixed_searches

LEVEL = 0.05
_FEWEST, _MOST = 10, 10_000_000  # decisions of a forecast, and those that it goes up to


@dataclass(frozen=True)
class Preference:
    """What visitors prefer.

    A query is a vector with a condition. It counts once, by its first search that decides: more hits of one
    gallery than of the other were opened or marked as right. So a search that is repeated counts once.

    Attributes:
        searches: Number of searches in which hits of both were mixed.
        chosen: Number of queries of which something was chosen.
        first: Number of queries that the first gallery won.
        second: Number of queries that the second gallery won.
        share: Share of the second among those that decide; 0.5 if there is none.
        low, high: Its 95% confidence sequence: an interval that holds at all times together, however often
            it is looked at.
        p: Probability under equal galleries that it ever differs as much; valid likewise.
        needed: Number of further queries that decide until it is certain, if the share stays; `None` if it is
            certain, after fewer than ten, or if the forecast is beyond reason.
    """

    searches: int
    chosen: int
    first: int
    second: int
    share: float
    low: float
    high: float
    p: float
    needed: int | None

    @property
    def certain(self) -> bool:
        """Whether visitors certainly prefer one of the two."""
        return self.p < LEVEL


def measure_preference(first: SearchableGallery, second: SearchableGallery, log: Path) -> Preference:
    """Measure which of two galleries visitors prefer.

    Args:
        first: The gallery that was served.
        second: The one whose hits were mixed in (`lookalike serve --against`).
        log: Folder of the log of searches.

    Raises:
        InputError: There is no log, or no search was mixed from these two with their present models.
    """
    models = first.fingerprint, second.fingerprint
    mixed = read_mixed_searches(log, first.folder.resolve().name, models)
    if not mixed.count:
        known = "; ".join(f"{count:,} of {name}" for name, count in mixed.others.items())
        both = f"{first.folder}, model {models[0][:12]}, and {second.folder}, model {models[1][:12]}"
        what = f"there are {known}" if known else "`lookalike serve --against` does that"
        raise InputError(f"{log}: no search was mixed of {both}; {what}")
    return preference_of(mixed)


def preference_of(mixed: MixedSearches) -> Preference:
    """Return which of two galleries visitors prefer, of the searches in which hits of both were mixed."""
    votes = dict[tuple[bytes, str | None], int]()
    for query, search in mixed.chosen:
        if not votes.get(query):
            votes[query] = _vote(search)
    first, second = (sum(vote == sign for vote in votes.values()) for sign in (-1, 1))
    decided = first + second
    low, high = confidence_sequence(second, decided)
    p = min(1.0, math.exp(-log_evidence(second, decided, 0.5)))
    share = second / decided if decided else 0.5
    needed = None if p < LEVEL else _needed(share, decided)
    return Preference(mixed.count, len(votes), first, second, share, low, high, p, needed)


def _vote(search: Search) -> int:
    """Return 1 if more of the second gallery's hits were chosen, -1 if fewer, else 0."""
    mixed = search.against
    assert isinstance(mixed, Against)
    chosen = search.opened - search.wrong
    difference = len(chosen.intersection(mixed.second)) - len(chosen.intersection(mixed.first))
    return (difference > 0) - (difference < 0)


def log_evidence(wins: float, count: int, share: float) -> float:
    """Return the logarithm of the evidence against a share: a martingale of mean 1 if the share is right.

    It is the likelihood ratio of a uniform mixture of all shares to this one. By Ville's inequality it ever
    exceeds 1 / α with a probability of at most α, however often it is looked at (Robbins, Annals of
    Mathematical Statistics 1970; Howard et al., Annals of Statistics 2021).

    Args:
        wins: Number of wins.
        count: Number of decisions.
        share: Share of wins that is tested, above 0 and below 1.
    """
    losses = count - wins
    mixture = math.lgamma(wins + 1) + math.lgamma(losses + 1) - math.lgamma(count + 2)
    return mixture - wins * math.log(share) - losses * math.log1p(-share)


def confidence_sequence(wins: int, count: int) -> tuple[float, float]:
    """Return the 95% interval of a share that holds at all times together.

    It consists of the shares against which the evidence is below 20.
    """
    limit = -math.log(LEVEL)
    best = wins / count if count else 0.5

    def end(outer: float) -> float:
        """Return the share between the best one and `outer` at which the evidence reaches the limit."""
        inside, outside = best, outer
        if (wins == 0 and outer == 0) or (wins == count and outer == 1):
            return outer
        for _ in range(60):
            middle = (inside + outside) / 2
            if log_evidence(wins, count, middle) < limit:
                inside = middle
            else:
                outside = middle
        return outside

    return end(0.0), end(1.0)


def _needed(share: float, count: int) -> int | None:
    """Return the number of further decisions until the evidence suffices, if the share stays."""

    def is_enough(more: int) -> bool:
        total = count + more
        return log_evidence(share * total, total, 0.5) > -math.log(LEVEL)

    if count < _FEWEST or not is_enough(_MOST):
        return None
    low, high = 0, _MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
