"""What can be searched for: a picture, one of the gallery, a vector; a part of a picture; several as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retrieval.errors import InputError
from retrieval.search.rerank import mean_query
from serve.core.regions import Region

MAX_TOGETHER = 16  # pictures that a visitor's query is made of
_NOTHING = 1e-3  # the length of a mean of unit vectors that points nowhere in particular


@dataclass(frozen=True)
class Cropped:
    """A region of a picture: of the bytes of one, or of one in the gallery by its id or key."""

    picture: bytes | int | str
    region: Region


# The bytes of a picture, the id or key of one in the gallery, a vector, or a region.
One = bytes | int | str | np.ndarray | Cropped


@dataclass(frozen=True, eq=False)
class Together:
    """Several views of one thing: one query, the mean of them all."""

    queries: Sequence[One]


Asked = One | Together
# A query as a vector, float32 [D] of unit length, with the items that it is.
Resolved = tuple[np.ndarray, tuple[int, ...]]


def ones(queries: Sequence[Asked]) -> list[One]:
    """All single queries, also those that are searched for together."""
    return [one for query in queries for one in (query.queries if isinstance(query, Together) else (query,))]


def joined(parts: Sequence[Resolved | InputError]) -> Resolved | InputError:
    """Several queries as one, or the first thing that is wrong with any of them."""
    good = []
    for part in parts:
        if isinstance(part, InputError):
            return part
        good.append(part)
    vectors = np.stack([vector for vector, _ in good])
    if np.linalg.norm(vectors.mean(0)) < _NOTHING:
        return InputError("the pictures are opposites, so that their mean points nowhere: leave one out")
    return mean_query(vectors), tuple(item for _, items in good for item in items)
