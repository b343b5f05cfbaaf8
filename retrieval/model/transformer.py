"""A model file as a transformer of scikit-learn, to be part of its pipelines and searches."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np

from retrieval.errors import InputError, LookalikeError
from retrieval.machine.extras import needs

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
except ModuleNotFoundError as missing:
    raise LookalikeError(f"EmbeddingTransformer {needs('sklearn')}") from missing

from retrieval.images.load import ImageSource
from retrieval.model.embedder import Embedder

__all__ = ["EmbeddingTransformer"]


class EmbeddingTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Embeds images: a step of a scikit-learn pipeline before a classifier, a regressor or a clustering.

    It takes what `Embedder.embed` takes; from a table, one column of paths. There is nothing to learn, so
    that it can also be used without `fit`. It is pickled with the path of the model file, without the model.

    Args:
        model: Model file.
        device: See `Embedder`.
        provider: See `Embedder`.
        batch_size: Images in memory at a time.

    Attributes:
        fingerprint_: SHA-256 of the model file that `fit` has seen; another file in its place is refused.
        n_features_out_: Length of an embedding.
    """

    def __init__(
        self,
        model: str | Path = "model.onnx",
        *,
        device: str = "auto",
        provider: str = "auto",
        batch_size: int = 32,
    ) -> None:
        self.model = model
        self.device = device
        self.provider = provider
        self.batch_size = batch_size

    def fit(self, X: Iterable[ImageSource], y: Any = None) -> Self:
        """Load the model, and remember which one it is.

        Raises:
            InputError: The model file cannot be used.
        """
        self.__dict__.pop("fingerprint_", None)
        embedder = self._load()
        self.fingerprint_ = embedder.fingerprint
        self.n_features_out_ = embedder.dim
        return self

    def transform(self, X: Iterable[ImageSource]) -> np.ndarray:
        """Return the embeddings of images, float32 [N, D], unit length.

        Raises:
            ImageError: An image cannot be read.
            InputError: The model file cannot be used or is another one than at `fit`, or X has several
                columns.
        """
        return self._load().embed(_column(X), batch_size=self.batch_size)

    @property
    def _n_features_out(self) -> int:
        return self._load().dim

    def _load(self) -> Embedder:
        """Return the model, which stays loaded until the settings change."""
        settings = (str(self.model), self.device, self.provider)
        known: tuple[tuple[str, str, str], Embedder] | None = self.__dict__.get("_loaded")
        if known is None or known[0] != settings:
            known = settings, Embedder(self.model, device=self.device, provider=self.provider)
            self._loaded = known
        fitted = self.__dict__.get("fingerprint_", known[1].fingerprint)
        if known[1].fingerprint != fitted:
            raise InputError(f"{self.model}: another model than at `fit`; restore the file, or fit again")
        return known[1]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_loaded"}

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False  # images, or their paths
        tags.input_tags.string = True
        tags.no_validation = True
        tags.requires_fit = False
        tags.transformer_tags.preserves_dtype = []
        return tags


def _column(images: Any) -> Iterable[ImageSource]:
    """Return the images of a table of one column, as `ColumnTransformer` passes it; others unchanged."""
    array = images if isinstance(images, np.ndarray) else None
    if array is None and hasattr(images, "columns") and hasattr(images, "__array__"):
        array = np.asarray(images)
    if array is None or array.ndim != 2 or array.dtype.kind not in "OSTU":
        found: Iterable[ImageSource] = images
        return found
    if array.shape[1] != 1:
        raise InputError(f"{array.shape[1]} columns; choose the one that has the paths of the images")
    column: Iterable[ImageSource] = array[:, 0].tolist()
    return column
