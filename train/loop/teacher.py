"""Teacher of a distillation: a model file that embeds all training images once, before training.

The vectors are in the cache of features, so that a resumed run and other runs with this teacher do not
compute them again. The run folder has a `teacher.json`:

    file, sha256    the model file
    dim, preprocess, license    from its metadata; license is null if none is stated
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from retrieval import metrics
from retrieval.errors import InputError
from retrieval.files import atomic_write
from retrieval.images.preprocess import Preprocess
from retrieval.metrics.ranking import NeighbourSearch
from retrieval.model.embedder import Embedder
from retrieval.model.licenses import license_notice, model_license
from retrieval.text import print_notice
from train.config import Config
from train.input.features import FeatureSet, cache_folder, cached_features
from train.input.resize import Resize
from train.loop.process_group import ProcessGroup

TEACHER_FILE = "teacher.json"
NEIGHBOURS = 10


def embed_by_teacher(
    config: Config, files: Sequence[Path], folder: Path, group: ProcessGroup, *, show_progress: bool = False
) -> FeatureSet:
    """Return the teacher's vectors of image files; one process of a machine computes them if they are new.

    Args:
        config: Configuration of a run with a teacher.
        files: Image files.
        folder: Run folder; the main process writes the facts there.
        group: Processes that train together.
        show_progress: Report progress on stderr.

    Raises:
        InputError: The teacher cannot be opened, or is another one than when the run began.
        LookalikeError: The cache cannot be written.
    """
    assert config.distill.teacher is not None
    path = Path(config.distill.teacher)

    @cache
    def teacher() -> Embedder:
        try:
            return Embedder(path)
        except InputError as error:
            raise InputError(f"distill.teacher: {error}") from error

    def extract(squares: Tensor, _: object) -> np.ndarray:
        if teacher().fingerprint != facts["sha256"]:
            raise InputError(f"distill.teacher: {path} is another model than when this run began; restore it")
        return teacher().embed_pixels(squares.numpy())

    facts: dict[str, Any] = {}
    if group.is_main:
        file = folder / TEACHER_FILE
        if file.is_file():
            facts = json.loads(file.read_text())
        else:
            facts = _facts(teacher())
            if restriction := license_notice(facts["license"]):
                print_notice(f"distill.teacher: {restriction}")
            with atomic_write(file) as draft:
                draft.write_text(json.dumps(facts) + "\n")
    facts = group.share(facts)
    preprocess = Preprocess.from_dict(facts["preprocess"])
    title = "embeddings of the teacher"
    return cached_features(
        files,
        Resize(preprocess),
        None,
        extract,
        ["teacher", facts["sha256"]],
        cache_folder(config),
        title=title,
        show_progress=show_progress,
    )


def _facts(teacher: Embedder) -> dict[str, Any]:
    return {
        "file": teacher.path.name,
        "sha256": teacher.fingerprint,
        "dim": teacher.dim,
        "license": model_license(teacher.provenance),
        "preprocess": teacher.metadata["preprocess"],
    }


def neighbour_agreement(
    vectors: np.ndarray, teacher: np.ndarray, queries: int, search: NeighbourSearch
) -> dict[str, np.ndarray]:
    """Return for each query whether and where a network finds its 10 nearest images by the teacher.

    Args:
        vectors: Unit vectors of the network, float32 [N, D].
        teacher: Those of the teacher, float32 [N, T].
        queries: The first so many images are searched among all others.
        search: Exact search.

    Returns:
        recall_at_1 (the nearest image is one of the 10) and map_at_r (R = 10), float64 [queries].
    """
    count = min(NEIGHBOURS, len(vectors) - 1)
    own = np.arange(queries)
    wanted, found = (
        metrics.rank(space[:queries], own, space, np.arange(len(space)), k=count, own=own, search=search).rows
        for space in (teacher, vectors)
    )
    relevant = (found[:, :, None] == wanted[:, None, :]).any(2)  # [queries, count]
    place = np.arange(1, count + 1)
    precision = np.cumsum(relevant, 1) / place
    return {"recall_at_1": relevant[:, 0].astype(float), "map_at_r": (precision * relevant).sum(1) / count}
