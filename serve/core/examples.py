"""Examples of a gallery: a few images from all over it, of many labels."""

from __future__ import annotations

from collections import Counter

import numpy as np

from retrieval.galleries.items import Item
from retrieval.galleries.searchable import SearchableGallery

_CANDIDATES = 10  # for each example


def examples(gallery: SearchableGallery, count: int) -> list[Item]:
    """Return a few items, always the same ones: from all over the gallery, of as many labels as possible."""
    found = gallery.items(gallery.sample(_CANDIDATES * count))
    seen: Counter[str | None] = Counter()
    ranked = []  # with the number of items of its label before it
    for _, item in sorted(found.items()):
        ranked.append((seen[item.label], item))
        seen[item.label] += 1
    first = [item for rank, item in ranked if not rank]
    if len(first) >= count:
        return [first[i] for i in np.linspace(0, len(first) - 1, count).astype(int)]
    return [item for _, item in sorted(ranked, key=lambda pair: (pair[0], pair[1].id))][:count]
