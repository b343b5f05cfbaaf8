"""Validation on labelled pairs of held-out images: AUC or Spearman's correlation, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from retrieval.errors import ImageError, InputError
from retrieval.metrics.pair_values import auc, image_interval, spearman
from train.data import LabelledImage
from train.data.dataset import LabelledPairs
from train.loop.choice import Score
from train.loop.pair_division import metric_of
from train.loop.shared_images import ImageSource
from train.models.embedding_model import EmbeddingModel


class PairValidator:
    """Scores networks on the pairs of held-out images, by AUC or Spearman's correlation of their cosines.

    Args:
        images: Held-out images.
        pairs: Their pairs.
        source: Source of the images.
        files: All images of the training split.
    """

    def __init__(
        self,
        images: Sequence[LabelledImage],
        pairs: LabelledPairs,
        source: ImageSource,
        files: Sequence[Path],
    ) -> None:
        numbered = [LabelledImage(image.path, str(number)) for number, image in enumerate(images)]
        self._images = source.share(numbered, files)
        self._pairs, self._count = pairs, len(images)

    @property
    def bad(self) -> list[ImageError]:
        """Errors of unreadable images, complete after the first validation."""
        return self._images.bad

    def score(self, model: EmbeddingModel, metric: str | None = None) -> Score | None:
        """Return the score of a network, with an interval over images.

        Raises:
            InputError: Too few images can be read.
        """
        names, vectors = self._images.embed(model)
        row = np.full(self._count, -1)
        row[np.array(names).astype(np.int64)] = np.arange(len(names))
        pairs = self._pairs
        first, second = row[pairs.first], row[pairs.second]
        kept = (first >= 0) & (second >= 0)
        first, second, values = first[kept], second[kept], pairs.values[kept]
        cosines = np.einsum("pd,pd->p", vectors[first], vectors[second])
        estimate = spearman(cosines, values) if pairs.graded else auc(cosines, values)
        if np.isnan(estimate.value):
            raise InputError(
                "split.validation: the pairs of held-out images that can be read have one value, or all "
                "embeddings are equal; check the files, or set split.validation=0"
            )
        bounds = (-1.0, 1.0) if pairs.graded else (0.0, 1.0)
        low, high, error = image_interval(estimate, first, second, bounds)
        name = metric_of(pairs)
        return Score(
            name,
            {name: estimate.value, f"{name}_low": low, f"{name}_high": high},
            error,
            queries=len(values),
            classes=len(np.unique(np.concatenate([first, second]))),
            distractors=0,
            unit="pairs",
        )
