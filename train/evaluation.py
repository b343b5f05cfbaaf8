"""Measure a run, a model file or a gallery on the images of a data set, beside baselines and papers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.decoding import Embedded, embed_files
from retrieval.embedder import Embedder
from retrieval.errors import InputError
from retrieval.evaluation import CURVE_KS, KS, Result, evaluate
from retrieval.gallery import Gallery
from retrieval.preprocess import Preprocess
from retrieval.progress import Progress
from retrieval.report import Report
from train.data import DataSet, LabelledImage

# The K that papers on these data sets report; elsewhere it is 1, 2, 4 and 8.
_CUSTOMARY_KS = {"sop": (1, 10, 100, 1000), "inshop": (1, 10, 20, 30), "hotels50k": (1, 10, 100)}
_PIXELS_SIDE = 32
# What rows are called; of a run whose last epoch is not its best there are two in place of AFTER.
BEFORE, AFTER = "before training", "after training"
LAST_EPOCH, BEST_EPOCH = "last epoch", "best epoch on held-out classes"


@dataclass(frozen=True)
class Contestant:
    """A way to turn preprocessed pictures uint8 [N, H, W, 3] into unit vectors float32 [N, D]."""

    name: str
    preprocess: Preprocess
    embed: Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class _Target:
    """What is evaluated, and the settings it was trained with, as plain values."""

    contestants: list[Contestant]
    config: Mapping[str, Any]
    fingerprint: str | None = None
    gallery: Gallery | None = None


def evaluate_target(
    target: Path,
    dataset: DataSet,
    baselines: Sequence[str] = (),
    *,
    which: str | None = None,
    show_progress: bool = False,
) -> Report:
    """Evaluate what lies at a path on the test split of a data set, and baselines beside it.

    A run or a model file, and every baseline, searches the test images among themselves, each without itself,
    or in the gallery of a data set that has one. Where a recipe with published numbers made it, and this is
    its data set, these stand beside ours.

    Args:
        target: the folder of a run or of a gallery, or a model file. A gallery is itself searched, and keeps
            the report.
        baselines: "pixels" (raw pixels, shrunk to 32 x 32, mean removed) and "untrained".
        which: of a run, the "best" epoch on held-out classes or the "last"; `None`: both where they differ.

    Raises:
        InputError: a target that is none of these, or data that cannot be evaluated.
    """
    ours = _open(target, which)
    theirs = None if ours.gallery else _published(ours.config, dataset)
    results = [theirs] if theirs else []
    bad: dict[str, str] = {}
    for contestant in [*(_baseline(name, ours.config) for name in baselines), *ours.contestants]:
        images, found = _embed(contestant, dataset.test, show_progress)
        bad |= {error.source: error.detail for error in found.bad}
        if ours.gallery is not None and contestant in ours.contestants:
            results.append(_in_gallery(ours.gallery, images, found))
            continue
        others, gallery = images, found
        if dataset.gallery is not None:
            others, gallery = _embed(contestant, dataset.gallery, show_progress)
            bad |= {error.source: error.detail for error in gallery.bad}
        results += _score(contestant.name, dataset, (images, found.vectors), (others, gallery.vectors))
    report = Report(
        data=dataset.name,
        protocol=_protocol(dataset, ours.gallery),
        images=len(images),
        classes=len({image.label for image in images}),
        fingerprint=ours.fingerprint,
        results=results,
        bad_files=sorted(bad.items()),
        ks=_CUSTOMARY_KS.get(_plain_name(dataset.name), KS),
        notes=_notes(ours.config, dataset, theirs),
    )
    if ours.gallery is not None:
        report.save(ours.gallery.folder / "reports" / report.created.replace(":", ""))
    return report


# ---- what there is to measure


def _open(target: Path, which: str | None) -> _Target:
    gallery = Gallery(target) if (target / "gallery.db").exists() else None
    if gallery is None and target.is_dir():
        return _open_run(target, which)
    if which is not None:
        raise InputError(f"{target}: --which chooses between the checkpoints of a run, and this is none")
    embedder = gallery.embedder if gallery is not None else Embedder(target)
    name, config = AFTER, embedder.provenance.get("config", {})
    if "source" in embedder.provenance:  # a published backbone as it is
        name, config = "off the shelf", {}
    contestant = Contestant(name, embedder.preprocess, embedder.embed_pixels)
    return _Target([contestant], config, embedder.fingerprint, gallery)


def _open_run(folder: Path, which: str | None) -> _Target:
    from train.loop import pixel_embedder  # torch takes seconds to import
    from train.run import Run

    run = Run.open(folder)
    config = run.config
    chosen = {which or "best": AFTER}
    if which is None:
        best, last = run.load("best"), run.load("last")
        if best["recall_at_1"] is not None and best["step"] != last["step"]:
            chosen = {"last": LAST_EPOCH, "best": BEST_EPOCH}
    contestants = [
        Contestant(name, config.preprocess, pixel_embedder(run.trained(checkpoint)))
        for checkpoint, name in chosen.items()
    ]
    return _Target(contestants, config.to_dict())


def _baseline(name: str, config: Mapping[str, Any]) -> Contestant:
    if name == "pixels":
        return Contestant("raw pixels", Preprocess(size=_PIXELS_SIDE), _raw_pixels)
    if not config:
        raise InputError("--baseline untrained: this model was not made by a training run")
    from train import settings
    from train.loop import pixel_embedder
    from train.run import initial_model

    before = settings.parse(config)
    return Contestant(BEFORE, before.preprocess, pixel_embedder(initial_model(before)))


def _raw_pixels(pixels: np.ndarray) -> np.ndarray:
    flat = pixels.reshape(len(pixels), -1).astype(np.float32)  # [N, H W 3]
    flat -= flat.mean(1, keepdims=True)
    return flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)


def _published(config: Mapping[str, Any], dataset: DataSet) -> Result | None:
    """The numbers of the paper whose recipe this is, where they are about this data set."""
    theirs = config.get("published")
    if not theirs or _plain_name(config["data"]) != _plain_name(dataset.name):
        return None
    nmi, f1 = (None if theirs.get(name) is None else theirs[name] / 100 for name in ("nmi", "f1"))
    recall = {int(k): percent / 100 for k, percent in theirs["recall"].items()}  # JSON has keys of text
    return Result(f"published ({theirs['source']})", recall, nmi, f1)


# ---- how well it does


def _embed(
    contestant: Contestant, images: list[LabelledImage], show_progress: bool
) -> tuple[list[LabelledImage], Embedded]:
    with Progress(f"embedding ({contestant.name})", len(images), show=show_progress) as progress:
        found = embed_files([i.path for i in images], contestant.preprocess, contestant.embed, progress)
    kept = [images[i] for i in found.positions]
    if not kept:
        raise InputError("none of the data set's images could be read")
    return kept, found


def _score(
    name: str,
    dataset: DataSet,
    queries: tuple[list[LabelledImage], np.ndarray],
    gallery: tuple[list[LabelledImage], np.ndarray],
) -> list[Result]:
    """Score by class and, where the data set has them, by coarse labels; queries without one are left out."""
    (images, vectors), (others, among) = queries, gallery
    sides: dict[str | None, tuple[Sequence[str | None], ...]]
    sides = {None: ([i.label for i in images], [i.label for i in others])}
    if dataset.coarse_name is not None:
        sides[dataset.coarse_name] = ([i.coarse for i in images], [i.coarse for i in others])
    ks = _CUSTOMARY_KS.get(_plain_name(dataset.name), CURVE_KS)
    results = []
    for by, (wanted, offered) in sides.items():
        numbers, among_numbers = _numbers(wanted, offered)
        asked = np.flatnonzero(numbers >= 0)
        own = asked if dataset.gallery is None else None  # a query is no answer to itself
        results.append(
            evaluate(name, vectors[asked], numbers[asked], among, among_numbers, own, ks=ks, by=by)
        )
    return results


def _in_gallery(gallery: Gallery, images: list[LabelledImage], found: Embedded) -> Result:
    vectors, labels, contents, _ = gallery.labelled_vectors()
    rows_of: dict[str, list[int]] = {}
    for row, content in enumerate(contents):
        rows_of.setdefault(content, []).append(row)
    # Of files with the same bytes, each query is one: the others are for it to find.
    own = np.array([rows.pop() if (rows := rows_of.get(content)) else -1 for content in found.contents])
    ours = [image.label for image in images]
    if not set(ours) & set(labels):
        examples = f"the data set says {ours[0]!r}, the gallery {next(iter(labels), None) or ''!r}"
        raise InputError(f"{gallery.folder}: none of the data set's labels occurs in the gallery: {examples}")
    query_labels, gallery_labels = _numbers(ours, labels)
    return evaluate(AFTER, found.vectors, query_labels, vectors, gallery_labels, own)


def _numbers(*sides: Sequence[str | None]) -> list[np.ndarray]:
    """Labels as numbers, the same on all sides, int64; -1 for none."""
    names = sorted({label for side in sides for label in side if label is not None})
    number_of: dict[str | None, int] = {name: number for number, name in enumerate(names)}
    return [np.array([number_of.get(label, -1) for label in side], np.int64) for side in sides]


# ---- what to say about it


def _protocol(dataset: DataSet, gallery: Gallery | None) -> str:
    if gallery is not None:
        return f"each searched for in a gallery of {len(gallery)} images, itself left out"
    if dataset.gallery is not None:
        return f"each searched for in the data set's gallery of {len(dataset.gallery)} images"
    return "each searched for among all the others"


def _notes(config: Mapping[str, Any], dataset: DataSet, theirs: Result | None) -> tuple[str, ...]:
    notes = []
    if dataset.test == dataset.train and config.get("data") == dataset.name:
        notes.append("Training has seen these images: the data set has no test split.")
    if theirs is not None and config["published"].get("note"):
        notes.append(f"On the published numbers: {config['published']['note']}")
    return tuple(notes)


def _plain_name(data: str) -> str:
    """The data set without its place."""
    return data.partition(":")[0]
