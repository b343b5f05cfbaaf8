"""Measure a run, a model file or a gallery on the images of a data set, beside baselines and papers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retrieval import metrics
from retrieval.errors import InputError
from retrieval.evaluation.findings import Findings, Pictures, find
from retrieval.evaluation.gallery import protocol_in
from retrieval.evaluation.report import Report, keep
from retrieval.evaluation.score import CURVE_KS, KS, Evaluation, Result, evaluate
from retrieval.gallery import Gallery
from retrieval.images.decode import EmbeddedFiles, embed_files
from retrieval.metrics.clustering import less_effort
from retrieval.progress import Progress
from train.data import DataSet, LabelledImage
from train.experiments.targets import Contestant, baseline, open_target

# The K that papers on these data sets report; elsewhere it is 1, 2, 4 and 8.
_CUSTOMARY_KS = {"sop": (1, 10, 100, 1000), "inshop": (1, 10, 20, 30), "hotels50k": (1, 10, 100)}


def evaluate_target(
    target: Path,
    dataset: DataSet,
    baselines: Sequence[str] = (),
    *,
    which: str | None = None,
    linear_probe: bool = False,
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
        linear_probe: also classify the test images from the embeddings of the training images.

    Raises:
        InputError: a target that is none of these, or data that cannot be evaluated.
    """
    ours = open_target(target, which)
    if linear_probe:
        _check_closed_set(dataset)
    theirs = None if ours.gallery else _published(ours.config, dataset)
    results = [theirs] if theirs else []
    findings: Findings | None = None
    bad: dict[str, str] = {}

    def embed(contestant: Contestant, images: list[LabelledImage]) -> _Side:
        side = _Side(*_embed(contestant, images, show_progress))
        bad.update({error.source: error.detail for error in side.found.bad})
        return side

    for contestant in [*(baseline(name, ours.config) for name in baselines), *ours.contestants]:
        queries = embed(contestant, dataset.test)
        if ours.gallery is not None and contestant in ours.contestants:
            scored, findings = _in_gallery(contestant.name, dataset, ours.gallery, queries, show_progress)
        else:
            searched = queries if dataset.gallery is None else embed(contestant, dataset.gallery)
            wanted = contestant is ours.contestants[-1]
            scored, findings = _score(contestant.name, dataset, queries, searched, wanted, show_progress)
        if linear_probe:
            scored[0] = _probe(scored[0], embed(contestant, dataset.train), queries)
        results += scored
    report = Report(
        data=dataset.name,
        protocol=_protocol(dataset, ours.gallery),
        images=len(queries.images),
        classes=len({image.label for image in queries.images}),
        fingerprint=ours.fingerprint,
        results=results,
        bad_files=sorted(bad.items()),
        ks=_CUSTOMARY_KS.get(_plain_name(dataset.name), KS),
        notes=_notes(ours.config, dataset, theirs),
        seed=ours.config.get("seed"),
        findings=findings,
    )
    if ours.gallery is not None:
        keep(report, ours.gallery.folder)
    return report


def _published(config: Mapping[str, Any], dataset: DataSet) -> Result | None:
    """The numbers of the paper whose recipe this is, where they are about this data set."""
    theirs = config.get("published")
    if not theirs or _plain_name(config["data"]) != _plain_name(dataset.name):
        return None
    nmi, f1 = (None if theirs.get(name) is None else theirs[name] / 100 for name in ("nmi", "f1"))
    recall = {int(k): percent / 100 for k, percent in theirs["recall"].items()}  # JSON has keys of text
    return Result(f"published ({theirs['source']})", recall, nmi, f1)


# ---- how well it does


@dataclass(frozen=True)
class _Side:
    """The images that could be read, and their vectors."""

    images: list[LabelledImage]
    found: EmbeddedFiles

    @property
    def pictures(self) -> Pictures:
        labels = [image.label for image in self.images]
        return Pictures([image.path for image in self.images], labels, self.found.contents)


def _embed(
    contestant: Contestant, images: list[LabelledImage], show_progress: bool
) -> tuple[list[LabelledImage], EmbeddedFiles]:
    with Progress(f"embedding ({contestant.name})", len(images), show=show_progress) as progress:
        found = embed_files([i.path for i in images], contestant.preprocess, contestant.embed, progress)
    kept = [images[i] for i in found.positions]
    if not kept:
        raise InputError("none of the data set's images could be read")
    return kept, found


def _score(
    name: str, dataset: DataSet, queries: _Side, searched: _Side, wanted: bool, show_progress: bool
) -> tuple[list[Result], Findings | None]:
    """Score by class and, where the data set has them, by coarse labels; queries without one are left out.

    Args:
        wanted: whether to look at the mistakes by class, too.
    """

    def score(ours: Sequence[str | None], theirs: Sequence[str | None], by: str | None = None) -> Evaluation:
        numbers, among = _numbers(ours, theirs)
        asked = np.flatnonzero(numbers >= 0)
        own = asked if dataset.gallery is None else None  # a query is no answer to itself
        sides = (queries.found.vectors[asked], numbers[asked], searched.found.vectors, among, own)
        return evaluate(name, *sides, ks=_ks(dataset), by=by, show_progress=show_progress)

    evaluation = score([i.label for i in queries.images], [i.label for i in searched.images])
    results = [evaluation.result]
    findings = find(evaluation, queries.pictures, searched.pictures) if wanted else None
    if dataset.coarse_name is not None:
        coarse = ([i.coarse for i in queries.images], [i.coarse for i in searched.images])
        results.append(score(*coarse, dataset.coarse_name).result)
    return results, findings


def _in_gallery(
    name: str, dataset: DataSet, gallery: Gallery, queries: _Side, show_progress: bool
) -> tuple[list[Result], Findings | None]:
    stored = gallery.embeddings()
    vectors, labels, contents, ids = stored.vectors, stored.labels, stored.contents, stored.ids.tolist()
    rows_of: dict[str, list[int]] = {}
    for row, content in enumerate(contents):
        rows_of.setdefault(content, []).append(row)
    # Of files with the same bytes, each query is one: the others are for it to find.
    own = np.array(
        [rows.pop() if (rows := rows_of.get(content)) else -1 for content in queries.found.contents]
    )
    ours = [image.label for image in queries.images]
    if not set(ours) & set(labels):
        examples = f"the data set says {ours[0]!r}, the gallery {next(iter(labels), None) or ''!r}"
        raise InputError(f"{gallery.folder}: none of the data set's labels occurs in the gallery: {examples}")
    query_labels, gallery_labels = _numbers(ours, labels)
    sides = (queries.found.vectors, query_labels, vectors, gallery_labels, own)
    evaluation = evaluate(name, *sides, ks=_ks(dataset), show_progress=show_progress)
    items = gallery.items(ids)
    searched = Pictures([Path(items[i].path) for i in ids], labels)
    return [evaluation.result], find(evaluation, queries.pictures, searched)


def _check_closed_set(dataset: DataSet) -> None:
    """Refuse a linear probe where there is nothing to learn from."""
    if dataset.train == dataset.test or not dataset.train:
        raise InputError(f"{dataset.name}: a linear probe needs training images, and there is no such split")
    unseen = {image.label for image in dataset.test} - {image.label for image in dataset.train}
    if unseen:
        what = f"the training images have none of class {min(unseen)!r}"
        raise InputError(f"{dataset.name}: a linear probe needs the classes of the test images, and {what}")


def _probe(result: Result, train: _Side, test: _Side) -> Result:
    ours, theirs = _numbers([i.label for i in train.images], [i.label for i in test.images])
    accuracy = metrics.linear_probe(train.found.vectors, ours, test.found.vectors, theirs)
    return dataclasses.replace(result, linear_probe=accuracy)


def _ks(dataset: DataSet) -> Sequence[int]:
    """Every K to measure."""
    return _CUSTOMARY_KS.get(_plain_name(dataset.name), CURVE_KS)


def _numbers(*sides: Sequence[str | None]) -> list[np.ndarray]:
    """Labels as numbers, the same on all sides, int64; -1 for none."""
    names = sorted({label for side in sides for label in side if label is not None})
    number_of: dict[str | None, int] = {name: number for number, name in enumerate(names)}
    return [np.array([number_of.get(label, -1) for label in side], np.int64) for side in sides]


# ---- what to say about it


def _protocol(dataset: DataSet, gallery: Gallery | None) -> str:
    if gallery is not None:
        return protocol_in(gallery)
    if dataset.gallery is not None:
        return f"each searched for in the data set's gallery of {len(dataset.gallery)} images"
    return "each searched for among all the others"


def _notes(config: Mapping[str, Any], dataset: DataSet, theirs: Result | None) -> tuple[str, ...]:
    notes = []
    if dataset.test == dataset.train and config.get("data") == dataset.name:
        notes.append("Training has seen these images: the data set has no test split.")
    if theirs is not None and config["published"].get("note"):
        notes.append(f"On the published numbers: {config['published']['note']}")
    effort = less_effort(len(dataset.test), len({image.label for image in dataset.test}))
    return tuple([*notes, effort] if effort else notes)


def _plain_name(data: str) -> str:
    """The data set without its place."""
    return data.partition(":")[0]
