"""Pictures of the gallery to begin with."""

from __future__ import annotations

from collections import Counter

import numpy as np

from retrieval.gallery import Gallery, Item

_SHOWN = 6
_LOOKED_AT = 64


def examples(gallery: Gallery) -> list[Item]:
    """A few items, always the same ones: from all over the gallery, of as many labels as there are."""
    ids = gallery.snapshot.ids
    ids = np.sort(ids[ids > 0])
    if not len(ids):
        return []
    places = np.linspace(0, len(ids) - 1, min(_LOOKED_AT, len(ids))).astype(int)
    found = gallery.items(ids[places].tolist())
    seen: Counter[str | None] = Counter()
    ranked = []  # how many of its label came before it
    for _, item in sorted(found.items()):
        ranked.append((seen[item.label], item))
        seen[item.label] += 1
    first = [item for rank, item in ranked if not rank]
    if len(first) >= _SHOWN:
        return [first[i] for i in np.linspace(0, len(first) - 1, _SHOWN).astype(int)]
    return [item for _, item in sorted(ranked, key=lambda pair: (pair[0], pair[1].id))][:_SHOWN]
