"""What is said of a field that nobody knows: which one was meant, or which ones there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel

from retrieval.errors import did_you_mean

# As other search servers call them.
_ELSEWHERE = {
    **{"threshold": "min_score", "score_threshold": "min_score", "min_similarity": "min_score"},
    **{"limit": "k", "top_k": "k", "filter": "where"},
}
_LONGEST = 50  # characters of a name that is compared with others: that takes time


def unknown_field(model: Any, place: Sequence[int | str]) -> str:
    """A sentence about the field at a place of a request that its model forbids.

    Args:
        model: of the request, or a type that has it somewhere in it.
        place: names and numbers that lead to the field, its own name last.
    """
    *above, name = place
    for step in above:
        if isinstance(step, str):
            model = next((one.model_fields[step].annotation for one in _models(model)), None)
    known = [field for one in _models(model) for field in one.model_fields]
    meant = _ELSEWHERE.get(str(name))
    if meant in known:
        return f"there is no such field; did you mean {meant!r}?"
    hint = did_you_mean(str(name)[:_LONGEST], known, f"there are {', '.join(known)}")
    return f"there is no such field; {hint}"


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    """The models in a type such as `list[Query]`."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for part in get_args(kind):
        yield from _models(part)
