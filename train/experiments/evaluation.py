"""Evaluation of a run, model file or gallery on a data set, with baselines and published results."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retrieval import metrics
from retrieval.errors import InputError
from retrieval.evaluation.findings import Findings, ImageSet, find_mistakes
from retrieval.evaluation.gallery import gallery_protocol
from retrieval.evaluation.products import product_results
from retrieval.evaluation.report import Report, trained_note
from retrieval.evaluation.score import CURVE_KS, KS, Evaluation, Result, evaluate
from retrieval.evaluation.verdict import Verdict, judge
from retrieval.galleries.searchable import SearchableGallery
from retrieval.images.decode import EmbeddedFiles
from retrieval.metrics.clustering import effort_note
from retrieval.metrics.inputs import build_inputs
from retrieval.metrics.ranking import exact_neighbours
from retrieval.model.runtime import Runtime
from retrieval.reports.folder import judge_by_kept, keep_report
from retrieval.search.groups import whole_products
from train.config import ProbeLabels, Published
from train.data import DataSet, LabelledImage
from train.experiments.linear_probe import check_closed_set, probe_images, probe_labels
from train.experiments.targets import Candidate, Target, open_target, reference_candidates
from train.losses.matryoshka import prefix_weights
from train.settings import data_set_name

# Values of K that papers on these data sets report, instead of 1, 2, 4 and 8; for Hotels-50K those of hotels
# (1, 10, 100) and of chains (1, 3, 5).
_CUSTOMARY_KS = {
    "sop": (1, 10, 100, 1000),
    "inshop": (1, 10, 20, 30, 40, 50),
    "hotels50k": (1, 3, 5, 10, 100),
}


def evaluate_target(
    target: Path,
    dataset: DataSet,
    baselines: Sequence[str] = (),
    *,
    which: str | None = None,
    linear_probe: ProbeLabels | None = None,
    runtime: Runtime | None = None,
    with_backbone: bool = False,
    show_progress: bool = False,
) -> Report:
    """Evaluate a target and baselines on the test split of a data set.

    With a run or a model file, each test image searches all others, or the gallery of the data set if it has
    one. If a recipe with published results for this data set was used in training, the report includes them,
    and ours for the same values of K.

    Args:
        target: Folder of a run or of a gallery, or a model file. A gallery is itself searched, and keeps the
            report.
        dataset: Data set to evaluate on.
        baselines: "pixels" (raw pixels, shrunk to 32 x 32, mean removed), "backbone" (pretrained, without a
            head) and "untrained".
        which: Checkpoint of a run: the "best" epoch on held-out images, the "last", or the step of a kept
            one, as in "12"; `None` for the best and the last, if they differ.
        linear_probe: Labels for a linear classifier of the training images, whose accuracy is then computed
            too; `None` for those that the settings of the run choose.
        runtime: Device, batch size and execution provider; see `open_target`.
        with_backbone: Whether to measure the off-the-shelf backbone of a run, too; if it has none that can be
            loaded, a note of the report says why.
        show_progress: Whether to report progress on stderr.

    Raises:
        InputError: The target is none of these, or the data or the device cannot be used.
    """
    return evaluate_opened(
        open_target(target, which, runtime),
        dataset,
        baselines,
        linear_probe=linear_probe,
        with_backbone=with_backbone,
        show_progress=show_progress,
    )


def evaluate_opened(
    opened: Target,
    dataset: DataSet,
    baselines: Sequence[str] = (),
    *,
    linear_probe: ProbeLabels | None = None,
    with_backbone: bool = False,
    show_progress: bool = False,
) -> Report:
    """Evaluate an opened target; see `evaluate_target`.

    Raises:
        InputError: The data cannot be used.
    """
    if linear_probe is not None:
        check_closed_set(dataset)
    elif opened.gallery is None:
        linear_probe = probe_labels(opened.config, dataset)
    probed, probe_note = probe_images(opened.config, dataset, linear_probe) if linear_probe else ([], "")
    published = None if opened.gallery else _published(opened.config, dataset)
    results = [] if published is None else _published_results(published, dataset)
    shown_ks, ks = _ks(dataset, published)
    findings: Findings | None = None
    answers: list[_Answers] = []
    bad: dict[str, str] = {}

    def embed(
        candidate: Candidate, images: list[LabelledImage], split: list[LabelledImage] | None = None
    ) -> _EmbeddedImages:
        embedded = _embed(candidate, images, split or images, show_progress)
        bad.update({error.source: error.detail for error in embedded.found.bad})
        return embedded

    references, left_out = reference_candidates(opened, baselines, with_backbone)
    for candidate in [*references, *opened.candidates]:
        queries = embed(candidate, dataset.test)
        if opened.gallery is not None and candidate in opened.candidates:
            scored, findings = _search_gallery(
                candidate.name, dataset, opened.gallery, queries, ks, show_progress
            )
        else:
            searched = queries if dataset.gallery is None else embed(candidate, dataset.gallery)
            is_last = candidate is opened.candidates[-1]
            scored, findings, per_query = _score(
                candidate.name, dataset, queries, searched, ks, opened, is_last, show_progress
            )
            answers.append(_Answers(candidate.name, queries.images, per_query))
            if candidate in opened.candidates:  # before the whole embedding, the headline
                results += _prefix_results(candidate.name, queries, searched, shown_ks, opened)
        if linear_probe is not None:
            scored[0] = _add_linear_probe(scored[0], embed(candidate, probed, dataset.train), queries)
        results += scored
    report = Report(
        data=dataset.name,
        protocol=_protocol(dataset, opened.gallery),
        images=len(queries.images),
        classes=len({image.label for image in queries.images}),
        fingerprint=opened.fingerprint,
        results=results,
        bad_files=sorted(bad.items()),
        ks=shown_ks,
        notes=(
            *_notes(opened, dataset, published, queries.found.contents),
            *filter(None, [probe_note, *(one.note for one in references), left_out]),
        ),
        seed=opened.config.get("seed"),
        findings=findings,
        verdict=_verdict(answers[-1], answers[: len(references)]) if opened.gallery is None else None,
    )
    if opened.gallery is not None:
        report = judge_by_kept(report, opened.gallery.folder)
        keep_report(report, opened.gallery.folder)
    return report


def _published(config: Mapping[str, Any], dataset: DataSet) -> Published | None:
    """Return what the recipe's paper reports, if it is for this data set."""
    if not config.get("published") or data_set_name(config["data"]) != data_set_name(dataset.name):
        return None
    # In a model file the settings are JSON, and the numbers K are texts.
    return Published.model_validate(config["published"], strict=False)


def _published_results(published: Published, dataset: DataSet) -> list[Result]:
    """Return the published results by class and by coarse label."""
    found = [(None, published.percents()), (dataset.coarse_name, published.percents(coarse=True))]
    name = f"published ({published.source})"
    return [
        Result(name, {key: value / 100 for key, value in percents.items()}, by, as_printed=True)
        for by, percents in found
        if percents
    ]


# ---- scores


@dataclass(frozen=True)
class _EmbeddedImages:
    """The readable images of a split with their vectors."""

    images: list[LabelledImage]
    found: EmbeddedFiles

    @property
    def image_set(self) -> ImageSet:
        labels = [image.label for image in self.images]
        return ImageSet([image.path for image in self.images], labels, self.found.contents)


def _embed(
    candidate: Candidate, images: list[LabelledImage], split: list[LabelledImage], show_progress: bool
) -> _EmbeddedImages:
    paths, files = [image.path for image in images], [image.path for image in split]
    found = candidate.embed(paths, files, f"embedding ({candidate.name})", show_progress=show_progress)
    readable = [images[i] for i in found.positions]
    if not readable:
        # One is enough to see which folder the paths are taken to be of.
        first = f", such as {found.bad[0]}" if found.bad else ""
        raise InputError(f"none of the data set's {len(images)} images could be read{first}; check its files")
    return _EmbeddedImages(readable, found)


def _score(
    name: str,
    dataset: DataSet,
    queries: _EmbeddedImages,
    searched: _EmbeddedImages,
    ks: Sequence[int],
    opened: Target,
    with_findings: bool,
    show_progress: bool,
) -> tuple[list[Result], Findings | None, dict[str, np.ndarray]]:
    """Score by class and, if the data set has coarse labels, by these; queries without one are left out.

    Returns:
        Results, findings, and the metrics by class of the single queries.
    """

    def score(ours: Sequence[str | None], theirs: Sequence[str | None], by: str | None = None) -> Evaluation:
        numbers, searched_numbers = _class_numbers(ours, theirs)
        labelled = np.flatnonzero(numbers >= 0)
        own = labelled if dataset.gallery is None else None  # a query is no result of itself
        vectors = queries.found.vectors[labelled]
        sides = (vectors, numbers[labelled], searched.found.vectors, searched_numbers, own)
        return evaluate(
            name,
            *sides,
            ks=ks,
            by=by,
            backend=opened.backend,
            search=opened.search,
            show_progress=show_progress,
        )

    evaluation = score([i.label for i in queries.images], [i.label for i in searched.images])
    results = [evaluation.result]
    findings = find_mistakes(evaluation, queries.image_set, searched.image_set) if with_findings else None
    if dataset.coarse_name is not None:
        coarse = ([i.coarse for i in queries.images], [i.coarse for i in searched.images])
        results.append(score(*coarse, dataset.coarse_name).result)
    return results, findings, evaluation.per_query


@dataclass(frozen=True)
class _Answers:
    """The metrics of a candidate query by query, as `Evaluation.per_query`."""

    name: str
    images: list[LabelledImage]
    per_query: dict[str, np.ndarray]


def _verdict(ours: _Answers, baselines: Sequence[_Answers]) -> Verdict | None:
    """Compare a candidate with the baseline of the highest Recall@1, among those with the same queries."""
    rivals = [one for one in baselines if one.images == ours.images]
    if not rivals:
        return None
    best = max(rivals, key=lambda one: float(np.nanmean(one.per_query["recall_at_1"])))
    (classes,) = _class_numbers([image.label for image in ours.images])
    return judge(ours.name, best.name, ours.per_query, best.per_query, classes)


def _prefix_results(
    name: str, queries: _EmbeddedImages, searched: _EmbeddedImages, ks: Sequence[int], opened: Target
) -> list[Result]:
    """Return Recall@K of the prefixes that the embedding was trained to be cut off at, except itself."""
    if not opened.config:
        return []
    ours, theirs = ([image.label for image in side.images] for side in (queries, searched))
    labels, searched_labels = _class_numbers(ours, theirs)
    found = []
    for dim in list(prefix_weights(opened.config["loss"], opened.config["model"]["embedding_dim"]))[:-1]:
        sides = [_first(queries.found.vectors, dim), labels]
        if searched is not queries:
            sides += [_first(searched.found.vectors, dim), searched_labels]
        recalls = metrics.recall_at_k(*sides, ks=ks, search=opened.search or exact_neighbours)
        title = f"{name}, first {dim} dimensions"
        found.append(Result(title, {f"recall_at_{k}": value for k, value in recalls.items()}))
    return found


def _first(vectors: np.ndarray, dim: int) -> np.ndarray:
    """Return the first components of vectors, at unit length."""
    cut = vectors[:, :dim]
    unit: np.ndarray = cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return unit


def _search_gallery(
    name: str,
    dataset: DataSet,
    gallery: SearchableGallery,
    queries: _EmbeddedImages,
    ks: Sequence[int],
    show_progress: bool,
) -> tuple[list[Result], Findings | None]:
    stored = gallery.embeddings()
    vectors, labels, contents, ids = stored.vectors, stored.labels, stored.contents, stored.ids.tolist()
    rows_of: dict[str, list[int]] = {}
    for row, content in enumerate(contents):
        rows_of.setdefault(content, []).append(row)
    # Among files with the same bytes, each query is one of them; it may find the others.
    own = np.array(
        [rows.pop() if (rows := rows_of.get(content)) else -1 for content in queries.found.contents]
    )
    ours = [image.label for image in queries.images]
    if not set(ours) & set(labels):
        examples = f"the data set has {ours[0]!r}, the gallery {next(iter(labels), None) or ''!r}"
        raise InputError(f"{gallery.folder}: none of the data set's labels occurs in the gallery: {examples}")
    query_labels, gallery_labels = _class_numbers(ours, labels)
    sides = (queries.found.vectors, query_labels, vectors, gallery_labels, own)
    hits = gallery.products_of(stored.ids)
    products, both = whole_products(hits, gallery_labels), None
    if products is not None:  # a query that the gallery has not is of a product of its own
        strange = int(products.min()) - 1 - np.arange(len(own))
        both = np.where(own >= 0, products[own], strange), products
    evaluation = evaluate(
        name, *sides, products=both, ks=ks, backend=gallery.backend, show_progress=show_progress
    )
    items = gallery.items(ids)
    searched = ImageSet([Path(items[i].path) for i in ids], labels)
    findings = find_mistakes(evaluation, queries.image_set, searched)
    if hits is None:
        return [evaluation.result], findings
    measured = product_results(name, build_inputs(*sides, both), hits, show_progress=show_progress)
    return [evaluation.result, *measured.results], measured.answers(findings)


def _add_linear_probe(result: Result, train: _EmbeddedImages, test: _EmbeddedImages) -> Result:
    ours, theirs = (np.array([image.label for image in side.images]) for side in (train, test))
    accuracy = metrics.linear_probe(train.found.vectors, ours, test.found.vectors, theirs)
    return dataclasses.replace(result, values={**result.values, "linear_probe": accuracy})


def _ks(dataset: DataSet, published: Published | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the values of K to show, with all those of the published results, and those to compute."""
    customary = _CUSTOMARY_KS.get(data_set_name(dataset.name))
    theirs = {*published.recall, *published.coarse_recall} if published else set()
    shown = tuple(sorted({*(customary or KS), *theirs}))
    return shown, shown if customary else tuple(sorted({*CURVE_KS, *theirs}))


def _class_numbers(*sides: Sequence[str | None]) -> list[np.ndarray]:
    """Return labels as class numbers, consistent over all sides, int64; -1 for no label."""
    names = sorted({label for side in sides for label in side if label is not None})
    number_of: dict[str | None, int] = {name: number for number, name in enumerate(names)}
    return [np.array([number_of.get(label, -1) for label in side], np.int64) for side in sides]


# ---- texts


def _protocol(dataset: DataSet, gallery: SearchableGallery | None) -> str:
    if gallery is not None:
        return gallery_protocol(gallery)
    if dataset.gallery is not None:
        return f"each searched for in the data set's gallery of {len(dataset.gallery)} images"
    return "each searched for among all the others"


def _notes(
    opened: Target, dataset: DataSet, published: Published | None, contents: Sequence[str]
) -> tuple[str, ...]:
    notes = []
    known = opened.training_images
    if learned := "" if known is None else known.remark(contents, ()):
        notes.append(trained_note(learned))
    elif dataset.test == dataset.train and opened.config.get("data") == dataset.name:
        notes.append("Training has seen these images: the data set has no test split.")
    if published is not None and published.note:
        notes.append(f"On the published results: {published.note}")
    effort = effort_note(len(dataset.test), len({image.label for image in dataset.test}))
    return tuple([*notes, effort] if effort else notes)
