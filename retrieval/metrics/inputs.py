"""Checked inputs of the metrics: labelled queries and the labelled gallery that they search."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from retrieval.errors import InputError

_LENGTH_TOLERANCE = 0.01


@dataclass(frozen=True)
class Inputs:
    """Queries and gallery after all checks.

    Attributes:
        query: Query embeddings, float32 [N, D], of unit length or zero.
        gallery: Gallery embeddings, float32 [M, D]; the queries themselves if no gallery was given.
        query_classes: Class numbers of the queries, int32 [N]; -1 if the gallery has no such class.
        gallery_classes: Class numbers of the gallery, int32 [M].
        own: Gallery row of each query itself, which is not a result, int64 [N]; -1 for none.
        products: Product of each query, int [N], and of each row of the gallery, int [M]: other views of the
            query's own product are no results either. `None` if images are not of products.
    """

    query: np.ndarray
    gallery: np.ndarray
    query_classes: np.ndarray
    gallery_classes: np.ndarray
    own: np.ndarray
    products: tuple[np.ndarray, np.ndarray] | None = None

    @cached_property
    def most_left_out(self) -> int:
        """Largest number of gallery images that are no results of a query: itself, or its product's views."""
        if self.products is not None:
            return max(1, int(np.unique(self.products[1], return_counts=True)[1].max()))
        return 1

    def left_out(self, queries: slice | np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return which gallery rows are no results of queries: these themselves, and views of their product.

        Args:
            queries: Queries, b of them.
            rows: Gallery rows for each query, int [b, m], or for all, int [m]; -1 for none.

        Returns:
            bool [b, m].
        """
        found: np.ndarray = (rows == self.own[queries, None]) & (rows >= 0)
        if self.products is not None:
            of_queries, of_gallery = self.products
            found |= (of_gallery[rows] == of_queries[queries, None]) & (rows >= 0)
        return found

    @cached_property
    def num_relevant(self) -> np.ndarray:
        """Number of gallery images of each query's class that are not left out, int64 [N]."""
        sizes = np.append(np.bincount(self.gallery_classes), 0)  # the last entry is for class -1
        if self.products is not None:
            left: np.ndarray = sizes[self.query_classes] - self._relevant_left_out(*self.products)
            return left
        itself = (self.own >= 0) & (self.gallery_classes[self.own] == self.query_classes)
        numbers: np.ndarray = sizes[self.query_classes] - itself
        return numbers

    def _relevant_left_out(self, of_queries: np.ndarray, of_gallery: np.ndarray) -> np.ndarray:
        """Return the number of views of each query's own product that are of its class, int64 [N]."""
        pairs = np.stack([of_gallery, self.gallery_classes], 1).astype(np.int64)
        asked = np.stack([of_queries, self.query_classes], 1).astype(np.int64)
        _, numbers = np.unique(np.concatenate([pairs, asked]), axis=0, return_inverse=True)
        counts = np.bincount(numbers[: len(pairs)], minlength=int(numbers.max()) + 1)
        found: np.ndarray = counts[numbers[len(pairs) :]]
        return found


def build_inputs(
    query: np.ndarray,
    query_labels: np.ndarray,
    gallery: np.ndarray | None = None,
    gallery_labels: np.ndarray | None = None,
    own: np.ndarray | None = None,
    products: tuple[np.ndarray, np.ndarray] | None = None,
) -> Inputs:
    """Check queries and gallery, and return them as `Inputs`.

    Without a gallery, each query searches all other queries (leave-one-out).

    Lengths may differ from 1 by 0.01, as those of models in half and 8-bit precision do. A zero vector, which
    an image of a single colour may have, has cosine 0 with everything.

    Args:
        query: Query embeddings, float [N, D].
        query_labels: Labels of the queries, numbers or text, [N].
        gallery: Gallery embeddings, float [M, D].
        gallery_labels: Labels of the gallery, [M].
        own: Gallery row of each query itself, int [N]; -1 for none.
        products: Product of each query, int [N], and of each row of the gallery, int [M], whose other views
            are left out with the query itself; without a gallery the same array twice.

    Raises:
        InputError: Shapes do not match, there are no rows, values are not finite, lengths are not 1 (the
            similarity is the cosine), or `own` has rows beyond the gallery.
    """
    query, query_labels = check_labelled(query, query_labels, "query")
    if (gallery is None) != (gallery_labels is None):
        raise InputError("queries: give gallery and gallery_labels together, or neither")
    if gallery is None or gallery_labels is None:
        if own is not None:
            raise InputError("own: row numbers of a gallery, so it needs a gallery")
        numbers = np.unique(query_labels, return_inverse=True)[1].astype(np.int32)
        return Inputs(query, query, numbers, numbers, np.arange(len(query)), products)
    gallery, gallery_labels = check_labelled(gallery, gallery_labels, "gallery")
    if query.shape[1] != gallery.shape[1]:
        raise InputError(
            f"queries have {query.shape[1]} dimensions, the gallery {gallery.shape[1]}: use the same model"
        )
    if (query_labels.dtype.kind in "US") != (gallery_labels.dtype.kind in "US"):
        raise InputError(f"labels: {query_labels.dtype} of queries and {gallery_labels.dtype} of the gallery")
    names, classes = np.unique(gallery_labels, return_inverse=True)
    place = np.minimum(np.searchsorted(names, query_labels), len(names) - 1)
    known = np.where(names[place] == query_labels, place, -1)
    return Inputs(
        query,
        gallery,
        known.astype(np.int32),
        classes.astype(np.int32),
        _check_own(own, len(query), len(gallery)),
        products,
    )


def check_labelled(embeddings: np.ndarray, labels: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return embeddings [N, D] as float32 and labels [N], both as arrays; errors as for `build_inputs`."""
    embeddings, labels = np.asarray(embeddings), np.asarray(labels)
    if embeddings.ndim != 2 or labels.shape != embeddings.shape[:1]:
        raise InputError(
            f"{name}: expected embeddings [N, D] and labels [N], got {embeddings.shape}, {labels.shape}"
        )
    if len(embeddings) == 0:
        raise InputError(f"{name}: it is empty")
    embeddings = np.ascontiguousarray(embeddings, np.float32)
    lengths = np.sqrt(np.einsum("nd,nd->n", embeddings, embeddings))  # [N], not finite if a value is not
    if not np.isfinite(lengths).all():
        raise InputError(f"{name}: the embeddings contain NaN or infinite values")
    off = (np.abs(lengths - 1) > _LENGTH_TOLERANCE) & (lengths > 0)
    if off.any():
        raise InputError(
            f"{name}: row {off.argmax()} has length {lengths[off.argmax()]:.3g} and not 1; the similarity is "
            "the cosine, so divide each embedding by its length"
        )
    return embeddings, labels


def _check_own(own: np.ndarray | None, queries: int, gallery: int) -> np.ndarray:
    if own is None:
        return np.full(queries, -1)
    own = np.asarray(own)
    if own.shape != (queries,) or own.dtype.kind not in "iu":
        raise InputError(f"own: expected {queries} row numbers, got {own.dtype} {own.shape}")
    if own.min() < -1 or own.max() >= gallery:
        raise InputError(f"own: rows {own.min()} to {own.max()} of a gallery of {gallery}")
    return own.astype(np.int64)
