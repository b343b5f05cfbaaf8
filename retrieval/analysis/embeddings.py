"""Embeddings of labelled images, in memory and as a file."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retrieval.errors import InputError
from retrieval.reports.figures import check_suffix, write_file

if TYPE_CHECKING:
    from retrieval.galleries.searchable import SearchableGallery
    from retrieval.search.embeddings import StoredEmbeddings

# Kinds of NumPy's types.
_TEXT, _NAMES, _MARKS = "U", "Uiu", "b"
_KIND_NAMES = {_TEXT: "text", _NAMES: "text or whole numbers", _MARKS: "true or false"}
_UNIT = 1e-6  # deviation of the length of a unit vector by rounding in float32
_EXPECTED = (
    "an .npz file with arrays `embeddings` [N, D] and `labels` [N], as `lookalike analyze embed` writes"
)


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Embeddings of labelled images, scaled to unit length.

    Attributes:
        name: Name in figures and errors.
        vectors: Embeddings, float32 [N, D], unit length.
        labels: Class of each, text [N].
        paths: Image files, text [N], empty for rows without a file; `None` if unknown.
        synthetic: Whether a row is a point computed from other rows instead of an image, bool [N]; an empty
            array means no row.

    Raises:
        InputError: Arrays have wrong shapes, there are no rows, or values are not finite or all zero.
    """

    name: str
    vectors: np.ndarray
    labels: np.ndarray
    paths: np.ndarray | None = None
    synthetic: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))

    def __post_init__(self) -> None:
        vectors = np.asarray(self.vectors)
        if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or 0 in vectors.shape:
            got = f"{vectors.dtype} {list(vectors.shape)}"
            raise InputError(f"{self.name}: embeddings must be numbers [N, D], at least one, but are {got}")
        vectors = vectors.astype(np.float32)
        if not np.isfinite(vectors).all():
            raise InputError(f"{self.name}: the embeddings hold NaN or infinite values")
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not lengths.all():
            raise InputError(f"{self.name}: an embedding is zero, so it has no direction; leave it out")
        lengths[np.abs(lengths - 1) < _UNIT] = 1  # unit vectors stay the same, to the bit
        labels = self._column("labels", self.labels, _NAMES).astype(str)
        paths = None if self.paths is None else self._column("paths", self.paths, _TEXT).astype(str)
        synthetic = self.synthetic if np.size(self.synthetic) else np.zeros(len(vectors), bool)
        # The dataclass is frozen.
        object.__setattr__(self, "vectors", vectors / lengths)
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "paths", paths)
        object.__setattr__(self, "synthetic", self._column("synthetic", synthetic, _MARKS))

    def _column(self, what: str, values: np.ndarray, kinds: str) -> np.ndarray:
        column = np.asarray(values)
        if column.shape != np.shape(self.vectors)[:1] or column.dtype.kind not in kinds:
            need = f"must be {_KIND_NAMES[kinds]}, one for each of the {len(self.vectors)} embeddings"
            raise InputError(f"{self.name}: {what} {need}, but are {column.dtype} {list(column.shape)}")
        return column

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def classes(self) -> np.ndarray:
        """Labels as numbers 0..C-1 in the order of the sorted names, int64 [N]."""
        return np.unique(self.labels, return_inverse=True)[1].astype(np.int64)

    def take(self, rows: np.ndarray) -> Embeddings:
        """Return some of the rows: int [n], or bool [N]."""
        paths = None if self.paths is None else self.paths[rows]
        return Embeddings(self.name, self.vectors[rows], self.labels[rows], paths, self.synthetic[rows])

    def sample_batch(self, *, classes: int, per_class: int, seed: int = 0) -> Embeddings:
        """Sample a batch of P classes x K images, as in training; synthetic points are left out.

        Args:
            classes: P; fewer if fewer classes have K images.
            per_class: K.
            seed: Seed of the sample.

        Raises:
            InputError: Fewer than two classes with K images, or K below 2.
        """
        if per_class < 2:
            raise InputError(f"{per_class} image per class leaves no positives; take at least 2")
        images = self.take(~self.synthetic)
        numbers = images.classes
        enough = np.flatnonzero(np.bincount(numbers) >= per_class)
        if min(len(enough), classes) < 2:
            raise InputError(
                f"{self.name}: a batch needs 2 classes of {per_class} images, and {len(enough)} have "
                "as many; choose fewer images per class"
            )
        random = np.random.default_rng(seed)
        drawn = random.choice(enough, min(classes, len(enough)), replace=False)
        rows = [random.choice(np.flatnonzero(numbers == one), per_class, replace=False) for one in drawn]
        return images.take(np.concatenate(rows))

    def sample(self, limit: int, seed: int) -> Embeddings:
        """Return a random sample of `limit` rows in their order, or all rows if there are no more."""
        if len(self) <= limit:
            return self
        return self.take(np.sort(np.random.default_rng(seed).choice(len(self), limit, replace=False)))

    def save(self, file: Path) -> None:
        """Write an .npz file.

        Raises:
            InputError: The file cannot be written.
        """
        arrays: dict[str, Any] = {
            "embeddings": self.vectors,
            "labels": self.labels,
            "synthetic": self.synthetic,
        }
        if self.paths is not None:
            arrays["paths"] = self.paths
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        write_file(check_suffix(file, ".npz"), buffer.getvalue())

    @classmethod
    def load(cls, file: Path) -> Embeddings:
        """Load an .npz file with `embeddings`, `labels` and optionally `paths` and `synthetic`.

        Nothing is unpickled.

        Raises:
            InputError: The file is missing or of another kind, or the arrays do not match.
        """
        try:
            with np.load(file, allow_pickle=False) as arrays:
                found = {name: arrays[name] for name in arrays.files}
        except FileNotFoundError as error:
            raise InputError(f"{file}: no such file; `lookalike analyze embed` writes one") from error
        # NumPy raises ValueError for pickled data and AttributeError for a single array.
        except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
            raise InputError(f"{file}: not {_EXPECTED}") from error
        missing = [name for name in ("embeddings", "labels") if name not in found]
        if missing:
            has = ", ".join(found) or "nothing"
            raise InputError(f"{file}: has no array `{missing[0]}` but {has}; it should be {_EXPECTED}")
        marks = found.get("synthetic", np.zeros(0, bool))
        checked = cls(str(file), found["embeddings"], found["labels"], found.get("paths"), marks)
        return replace(checked, name=file.stem)


def embeddings_of(
    gallery: SearchableGallery, found: StoredEmbeddings, name: str, unlabelled: str = ""
) -> Embeddings:
    """Return the stored embeddings of a gallery.

    Args:
        gallery: The gallery.
        found: Its stored embeddings.
        name: Name in figures.
        unlabelled: Class of images without a label.
    """
    items = gallery.items(found.ids.tolist())
    paths = np.array([items[number].path if number in items else "" for number in found.ids.tolist()])
    return Embeddings(name, found.vectors, np.array([label or unlabelled for label in found.labels]), paths)
