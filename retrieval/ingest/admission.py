"""Admission: which new images are near-duplicates of others, in the order in which they arrive.

An image is refused if its similarity to an image of the gallery, or to one admitted before it, reaches the
threshold. One that was refused is not compared with: of a chain of images, several are admitted. So the
decisions depend on the order of the images alone, and a run that is repeated after it was killed makes the
same ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retrieval.galleries.searchable import SearchableGallery
from retrieval.search.options import NEAR_DUPLICATE
from retrieval.search.vectors import bounded_cosine

_ROUNDING = 1e-6  # of float32
_ROOM = 256  # vectors for which there is room at first


@dataclass(frozen=True)
class Arrival:
    """An image that is to be added.

    Attributes:
        vector: Embedding, float32 [D].
        content: SHA-256 of the file.
        item: Id of the item that it replaces: a changed file, which is admitted in any case; `None` for a
            new image.
    """

    vector: np.ndarray
    content: str
    item: int | None = None


@dataclass(frozen=True)
class Original:
    """The image of which another one is a near-duplicate.

    Attributes:
        image: Id of its item, or the SHA-256 of its file if it was admitted just before.
        score: Cosine similarity of both.
    """

    image: int | str
    score: float

    def id(self, ids: Mapping[str, int]) -> int:
        """Return the id of the item.

        Args:
            ids: Items of those admitted before, by SHA-256.
        """
        return ids[self.image] if isinstance(self.image, str) else self.image


class Admission:
    """Admits new images and refuses near-duplicates.

    Galleries in files compare all vectors if they have no index. An index, and a database, find the near ones
    with their recall.

    Args:
        gallery: Gallery in its present state, which no other process changes meanwhile; one in a database may
            be changed, and what others add at the same time may not be compared with.
    """

    def __init__(self, gallery: SearchableGallery) -> None:
        self._gallery = gallery
        self._nearest = gallery.neighbours()
        # Those admitted that are not in this state yet: their SHA-256, what they replace, and their vectors.
        self._contents: list[str] = []
        self._replaced: list[int | None] = []
        self._vectors = np.empty((0, gallery.manifest.dim), np.float32)

    def committed(self, count: int) -> None:
        """Take note that the first images admitted, of those not yet committed, are in the gallery now."""
        self._gallery.refresh()
        self._nearest = self._gallery.neighbours()
        self._vectors = self._vectors[count : len(self._contents)].copy()
        del self._contents[:count], self._replaced[:count]

    def review(self, arrivals: Sequence[Arrival]) -> list[Original | None]:
        """Return for each image the one that it is a near-duplicate of; `None` if it is admitted."""
        if not arrivals:
            return []
        vectors = np.stack([one.vector for one in arrivals])
        ids, scores = self._in_gallery(vectors)
        before = len(self._contents)
        similar = np.full((len(arrivals), before + len(arrivals)), -np.inf, np.float32)
        similar[:, :before] = vectors @ self._vectors[:before].T
        found = list[Original | None]()
        for place, one in enumerate(arrivals):
            original = None
            if one.item is None:
                if ids[place] in self._replaced:
                    ids[place], scores[place] = self._beside_replaced(one.vector)
                original = self._original(int(ids[place]), float(scores[place]), similar[place])
            found.append(original)
            if original is None:
                stored = self._admit(one)
                similar[place + 1 :, len(self._contents) - 1] = vectors[place + 1 :] @ stored
        return found

    def _admit(self, arrival: Arrival) -> np.ndarray:
        """Keep an image, and return its vector as it is stored, so that it does not matter where it is."""
        count = len(self._contents)
        if count == len(self._vectors):
            self._vectors = np.resize(self._vectors, (max(_ROOM, 2 * count), self._vectors.shape[1]))
        self._vectors[count] = arrival.vector.astype(self._gallery.manifest.dtype)
        self._contents.append(arrival.content)
        self._replaced.append(arrival.item)
        stored: np.ndarray = self._vectors[count]
        return stored

    def _original(self, item: int, score: float, similar: np.ndarray) -> Original | None:
        """Return the nearest image if it is near enough: the item, or one of those admitted before."""
        nearest = int(similar.argmax())
        image: int | str = item
        if similar[nearest] > score:
            image, score = self._contents[nearest], float(similar[nearest])
        return Original(image, bounded_cosine(score)) if score >= NEAR_DUPLICATE - _ROUNDING else None

    def _in_gallery(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the nearest item of each vector, int64 [n], -1 for none, and its similarity, float [n]."""
        if not len(self._gallery):
            return np.full(len(vectors), -1), np.full(len(vectors), -np.inf)
        ids, scores = self._nearest(vectors, 1)
        return ids[:, 0], scores[:, 0]

    def _beside_replaced(self, vector: np.ndarray) -> tuple[int, float]:
        """Return the nearest item that is not replaced by an image admitted before, and its similarity."""
        replaced = [item for item in self._replaced if item is not None]
        k = 1
        while True:
            k *= 4
            ids, scores = (found[0] for found in self._nearest(vector[None], k))
            left = np.flatnonzero((ids >= 0) & ~np.isin(ids, replaced))
            if len(left):
                return int(ids[left[0]]), float(scores[left[0]])
            if ids[-1] < 0:
                return -1, -np.inf
