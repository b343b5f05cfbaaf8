"""What is asked of embeddings: labelled queries, and a gallery of labelled images to answer from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from retrieval.errors import InputError

_LENGTH_TOLERANCE = 0.01


@dataclass(frozen=True)
class Questions:
    """Queries and gallery after every check, as arrays that the rest can rely on.

    Attributes:
        query: float32 [N, D], of unit length or zero.
        gallery: float32 [M, D]; the queries themselves where each is searched for among the others.
        query_classes: int32 [N]; -1: the gallery has none of this class.
        gallery_classes: int32 [M].
        own: int64 [N], the row of the gallery that is the query itself and no answer; -1 for none.
    """

    query: np.ndarray
    gallery: np.ndarray
    query_classes: np.ndarray
    gallery_classes: np.ndarray
    own: np.ndarray

    @cached_property
    def to_find(self) -> np.ndarray:
        """How many images of its class the gallery holds for each query, itself left out, int64 [N]."""
        sizes = np.append(np.bincount(self.gallery_classes), 0)  # the last one is for class -1
        itself = (self.own >= 0) & (self.gallery_classes[self.own] == self.query_classes)
        return sizes[self.query_classes] - itself


def questions(
    query: np.ndarray,
    query_labels: np.ndarray,
    gallery: np.ndarray | None = None,
    gallery_labels: np.ndarray | None = None,
    own: np.ndarray | None = None,
) -> Questions:
    """Check queries and gallery.

    Without a gallery each query is searched for among all the others. Lengths may differ from 1 by 0.01,
    as those of models in half and 8-bit precision do; a zero vector, as a picture of one colour may give, has
    the cosine 0 with everything.

    Args:
        query: float [N, D]; query_labels: [N], numbers or text.
        gallery: float [M, D]; gallery_labels: [M].
        own: int [N], the row of the gallery that is the query itself; -1 for none.

    Raises:
        InputError: shapes that do not fit, no rows, values that are not finite, lengths other than 1 (the
            similarity is the cosine), or rows that the gallery does not have.
    """
    query, query_labels = labelled(query, query_labels, "query")
    if (gallery is None) != (gallery_labels is None):
        raise InputError("queries: give gallery and gallery_labels together, or neither")
    if gallery is None or gallery_labels is None:
        if own is not None:
            raise InputError("own: says which row of a gallery a query is; it needs a gallery")
        numbers = np.unique(query_labels, return_inverse=True)[1].astype(np.int32)
        return Questions(query, query, numbers, numbers, np.arange(len(query)))
    gallery, gallery_labels = labelled(gallery, gallery_labels, "gallery")
    if query.shape[1] != gallery.shape[1]:
        raise InputError(
            f"queries have {query.shape[1]} dimensions, the gallery {gallery.shape[1]}: not of one model"
        )
    if (query_labels.dtype.kind in "US") != (gallery_labels.dtype.kind in "US"):
        raise InputError(f"labels: {query_labels.dtype} of queries and {gallery_labels.dtype} of the gallery")
    names, classes = np.unique(gallery_labels, return_inverse=True)
    place = np.minimum(np.searchsorted(names, query_labels), len(names) - 1)
    known = np.where(names[place] == query_labels, place, -1)
    return Questions(
        query,
        gallery,
        known.astype(np.int32),
        classes.astype(np.int32),
        _checked_own(own, len(query), len(gallery)),
    )


def labelled(embeddings: np.ndarray, labels: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Check embeddings [N, D] and labels [N] -> both as arrays, the first float32; errors as above."""
    embeddings, labels = np.asarray(embeddings), np.asarray(labels)
    if embeddings.ndim != 2 or labels.shape != embeddings.shape[:1]:
        raise InputError(
            f"{name}: expected embeddings [N, D] and labels [N], got {embeddings.shape}, {labels.shape}"
        )
    if len(embeddings) == 0:
        raise InputError(f"{name}: it is empty")
    embeddings = np.ascontiguousarray(embeddings, np.float32)
    lengths = np.sqrt(np.einsum("nd,nd->n", embeddings, embeddings))  # [N], not finite where a value is not
    if not np.isfinite(lengths).all():
        raise InputError(f"{name}: the embeddings hold NaN or infinite values")
    off = (np.abs(lengths - 1) > _LENGTH_TOLERANCE) & (lengths > 0)
    if off.any():
        raise InputError(
            f"{name}: row {off.argmax()} has length {lengths[off.argmax()]:.3g} and not 1; the similarity is "
            "the cosine, so divide every embedding by its length"
        )
    return embeddings, labels


def _checked_own(own: np.ndarray | None, queries: int, gallery: int) -> np.ndarray:
    if own is None:
        return np.full(queries, -1)
    own = np.asarray(own)
    if own.shape != (queries,) or own.dtype.kind not in "iu":
        raise InputError(f"own: expected {queries} row numbers, got {own.dtype} {own.shape}")
    if own.min() < -1 or own.max() >= gallery:
        raise InputError(f"own: rows {own.min()} to {own.max()} of a gallery of {gallery}")
    return own.astype(np.int64)
