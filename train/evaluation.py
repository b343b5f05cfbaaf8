"""Measure a run, a model file or a gallery on the images of a data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from retrieval.decoding import Embedded, embed_files
from retrieval.embedder import Embedder
from retrieval.errors import InputError
from retrieval.evaluation import Result, evaluate
from retrieval.gallery import Gallery
from retrieval.preprocess import Preprocess
from retrieval.progress import Progress
from retrieval.report import Report
from retrieval.store import sha256_of
from train.data import DataSet, LabelledImage, class_numbers

_PIXELS_SIDE = 32
_OURS = "after training"


@dataclass(frozen=True)
class Contestant:
    """A way to turn preprocessed pictures uint8 [N, H, W, 3] into unit vectors float32 [N, D]."""

    name: str
    preprocess: Preprocess
    embed: Callable[[np.ndarray], np.ndarray]


def evaluate_target(
    target: Path, dataset: DataSet, baselines: Sequence[str] = (), *, show_progress: bool = False
) -> Report:
    """Evaluate what lies at a path on the test split of a data set, and baselines beside it.

    Args:
        target: the folder of a run or of a gallery, or a model file. A gallery keeps the report.
        baselines: "pixels" (raw pixels, shrunk to 32 x 32, mean removed) and "untrained".

    Raises:
        InputError: a target that is none of these, or data that cannot be evaluated.
    """
    gallery = Gallery(target) if (target / "gallery.db").exists() else None
    contestants = [_baseline(name, target) for name in baselines]
    results: list[Result] = []
    bad: dict[str, str] = {}
    for contestant in contestants + ([] if gallery else [_contestant(target)]):
        images, found = _embed(contestant, dataset.test, show_progress)
        bad |= {error.source: error.detail for error in found.bad}
        results.append(evaluate(contestant.name, found.vectors, class_numbers(images)))
    protocol = "each searched for among all the others"
    if gallery is not None:
        images, found = _embed(_of_model(gallery.embedder), dataset.test, show_progress)
        bad |= {error.source: error.detail for error in found.bad}
        results.append(_in_gallery(gallery, images, found))
        protocol = f"each searched for in a gallery of {len(gallery)} images, itself left out"
    report = Report(
        data=dataset.name,
        protocol=protocol,
        images=len(images),
        classes=len({image.label for image in images}),
        fingerprint=_fingerprint(target, gallery),
        results=results,
        bad_files=sorted(bad.items()),
    )
    if gallery is not None:
        report.save(gallery.folder / "reports" / report.created.replace(":", ""))
    return report


def _embed(
    contestant: Contestant, images: list[LabelledImage], show_progress: bool
) -> tuple[list[LabelledImage], Embedded]:
    with Progress(f"embedding ({contestant.name})", len(images), show=show_progress) as progress:
        found = embed_files([i.path for i in images], contestant.preprocess, contestant.embed, progress)
    kept = [images[i] for i in found.positions]
    if not kept:
        raise InputError("none of the data set's images could be read")
    return kept, found


def _in_gallery(gallery: Gallery, images: list[LabelledImage], found: Embedded) -> Result:
    vectors, labels, contents, _ = gallery.labelled_vectors()
    rows_of: dict[str, list[int]] = {}
    for row, content in enumerate(contents):
        rows_of.setdefault(content, []).append(row)
    # Of files with the same bytes, each query is one: the others are for it to find.
    own = np.array([rows.pop() if (rows := rows_of.get(content)) else -1 for content in found.contents])
    ours, theirs = [image.label for image in images], [label or "" for label in labels]
    if not set(ours) & set(theirs):
        examples = f"the data set says {ours[0]!r}, the gallery {next(iter(theirs), '')!r}"
        raise InputError(f"{gallery.folder}: none of the data set's labels occurs in the gallery: {examples}")
    names = sorted({*ours, *theirs})
    numbers = {name: number for number, name in enumerate(names)}
    query_labels, gallery_labels = (np.array([numbers[name] for name in side]) for side in (ours, theirs))
    return evaluate(_OURS, found.vectors, query_labels, vectors, gallery_labels, own)


def _contestant(target: Path) -> Contestant:
    if target.is_dir():
        from train.loop import pixel_embedder  # torch takes seconds to import
        from train.run import Run

        run = Run.open(target)
        return Contestant(_OURS, run.config.preprocess, pixel_embedder(run.trained()))
    return _of_model(Embedder(target))


def _of_model(embedder: Embedder) -> Contestant:
    return Contestant(_OURS, embedder.preprocess, embedder.embed_pixels)


def _baseline(name: str, target: Path) -> Contestant:
    if name == "pixels":
        return Contestant("raw pixels", Preprocess(size=_PIXELS_SIDE), _raw_pixels)
    from train import settings
    from train.loop import pixel_embedder
    from train.run import Run, initial_model

    if (target / "config.yaml").is_file():
        configuration = Run.open(target).config
    else:
        file = target / "model" / "model.onnx" if target.is_dir() else target
        configuration = settings.parse(Embedder(file).provenance["config"])
    return Contestant(
        "before training", configuration.preprocess, pixel_embedder(initial_model(configuration))
    )


def _raw_pixels(pixels: np.ndarray) -> np.ndarray:
    flat = pixels.reshape(len(pixels), -1).astype(np.float32)  # [N, H W 3]
    flat -= flat.mean(1, keepdims=True)
    return flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)


def _fingerprint(target: Path, gallery: Gallery | None) -> str | None:
    if gallery is not None:
        return gallery.fingerprint
    return None if target.is_dir() else sha256_of(target)
