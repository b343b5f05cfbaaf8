"""Evaluation of a gallery on its own labelled images: each searches all others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrieval.errors import InputError, LookalikeError
from retrieval.evaluation.findings import ImageSet, find_mistakes
from retrieval.evaluation.products import best_view_values, product_results, shown_variants
from retrieval.evaluation.report import Report, trained_note
from retrieval.evaluation.score import Result, evaluate
from retrieval.evaluation.verdict import DECIDING, Verdict, judge
from retrieval.galleries.searchable import SearchableGallery
from retrieval.machine.faiss_backend import CpuBackend
from retrieval.metrics.clustering import effort_note
from retrieval.metrics.inputs import build_inputs
from retrieval.metrics.statistics import bootstrap_intervals
from retrieval.metrics.table import METRICS, Evidence
from retrieval.model.embedder import Embedder
from retrieval.model.training_images import UNKNOWN
from retrieval.search.embeddings import StoredEmbeddings
from retrieval.search.groups import whole_products
from retrieval.storage.records import StoredItem
from retrieval.text import pluralize

_NAME = "stored embeddings"
_WITHOUT_VIEWS = ", with the other views of its product"
_CHUNK = 10_000  # items in memory at a time
MOST_COMPARED = 10_000  # images on which two models are compared


def evaluate_gallery(
    gallery: SearchableGallery, *, limit: int | None = None, show_progress: bool = False
) -> Report:
    """Search the gallery with each of its labelled images, by their stored vectors.

    Images without a label are searched but are no queries; as results they count as wrong. Other views of the
    query's own product are left out, as the query itself is, unless the label is the product.

    Args:
        gallery: SearchableGallery to evaluate.
        limit: Number of queries beyond which a random sample of them is used, always the same.
        show_progress: Whether to report progress on stderr.

    Raises:
        InputError: The labels are too few to tell right from wrong.
        LookalikeError: The gallery is damaged.
    """
    check_labels(gallery)
    state = gallery.state_digest()
    found = gallery.embeddings()
    labels = found.labels
    labelled = np.flatnonzero([label is not None for label in labels])
    _check_sizes(gallery, sorted(Counter(filter(None, labels)).values(), reverse=True))
    queries = labelled
    if limit is not None and len(labelled) > limit:
        queries = np.sort(np.random.default_rng(0).choice(labelled, limit, replace=False))
    numbers = np.full(len(labels), -1)
    numbers[labelled] = np.unique([labels[row] for row in labelled], return_inverse=True)[1]
    hits = gallery.products_of(found.ids)
    products = whole_products(hits, numbers)
    evaluation = evaluate(
        _NAME,
        found.vectors[queries],
        numbers[queries],
        found.vectors,
        numbers,
        queries,
        products=None if products is None else (products[queries], products),
        backend=gallery.backend,
        show_progress=show_progress,
    )
    query_images = ImageSet(
        gallery.paths.lookup(found.ids[queries].tolist()),
        [labels[row] for row in queries],
        [found.contents[row] for row in queries],
    )
    searched = ImageSet(gallery.paths.lazy(found.ids.tolist()), labels)
    notes = _notes(gallery, found, len(labelled), len(queries), len(np.unique(numbers[queries])))
    findings, by_product = find_mistakes(evaluation, query_images, searched), list[Result]()
    if hits is not None:
        both = None if products is None else (products[queries], products)
        inputs = build_inputs(found.vectors[queries], numbers[queries], found.vectors, numbers, queries, both)
        measured = product_results(_NAME, inputs, hits, show_progress=show_progress)
        findings, by_product = measured.answers(findings), measured.results
        if (variants := gallery.variants_of(found.ids)) is not None:
            notes += _variant_notes(*shown_variants(inputs, hits, variants), hits[queries])
    classes = len(np.unique(numbers[queries]))
    return Report(
        data=gallery.folder.resolve().name,
        protocol=gallery_protocol(gallery) + (_WITHOUT_VIEWS if products is not None else ""),
        images=len(queries),
        classes=classes,
        fingerprint=gallery.fingerprint,
        results=[evaluation.result, *by_product],
        notes=notes,
        findings=findings,
        gallery_state=state,
    )


# ---- two models


@dataclass(frozen=True)
class ModelComparison:
    """Two models on labelled images of a gallery.

    Attributes:
        verdict: Which finds more.
        images: Number of images compared, each searched for among the others.
        labelled: Number of images with a label.
        remark: Why one of the models may look better here than it is; empty for no reason.
    """

    verdict: Verdict
    images: int
    labelled: int
    remark: str

    @property
    def words(self) -> str:
        """Verdict and remarks, without a full stop."""
        part = f"compared on {self.images:,} of {self.labelled:,} labelled images"
        parts = [self.verdict.sentence[:-1], part if self.images < self.labelled else "", self.remark]
        return "; ".join(filter(None, parts))


def compare_models(
    old: SearchableGallery, new: SearchableGallery, *, by_key: bool = False
) -> ModelComparison | None:
    """Compare the models of two galleries with the same items, on their labelled images, by stored vectors.

    Each image searches all others. Images that one of the galleries lacks, and classes with a single image,
    are left out. Of more than `MOST_COMPARED` images, whole classes are drawn, always the same.

    Args:
        old: Gallery with the old model.
        new: Gallery with the new one, whose labels count.
        by_key: Whether the items of both are matched by key; otherwise they have the same ids.

    Returns:
        The comparison; `None` if there are fewer than two classes of two images.
    """
    items = new.writer.labelled()
    if not items:
        return None
    numbers, labels = zip(*items, strict=True)
    ids, classes = np.array(numbers, np.int64), np.unique(labels, return_inverse=True)[1]
    drawn = _whole_classes(classes, MOST_COMPARED)
    ids, classes = ids[drawn], classes[drawn]
    sides = [gallery.vectors(ids.tolist()) for gallery in (old, new)]
    if by_key:
        sides[0] = _vectors_by_key(old, new, ids)
    both = np.array([number in sides[0] and number in sides[1] for number in ids.tolist()], bool)
    both[both] = np.bincount(classes[both])[classes[both]] > 1
    ids, classes = ids[both], classes[both]
    if len(np.unique(classes)) < 2:
        return None
    products = new.products_beside(ids, classes)
    theirs, ours = (
        _deciding_values(np.stack([side[number] for number in ids.tolist()]), classes, products, new.backend)
        for side in sides
    )
    verdict = judge("the new model", "the old one", ours, theirs, classes, products=products)
    remark = _training_remark(old, new, verdict, new.stored_items(ids.tolist()))
    return ModelComparison(verdict, len(ids), len(items), remark)


def _vectors_by_key(old: SearchableGallery, new: SearchableGallery, ids: np.ndarray) -> dict[int, np.ndarray]:
    """Return the vectors of the old gallery by the ids that their keys have in the new one."""
    new_id = {item.key: item.id for item in new.stored_items(ids.tolist())}
    there = old.sample(len(old))
    found = dict[int, np.ndarray]()
    for start in range(0, len(there), _CHUNK):
        of_old = {
            item.id: new_id[item.key]
            for item in old.stored_items(there[start : start + _CHUNK])
            if item.key in new_id
        }
        found |= {of_old[number]: vector for number, vector in old.vectors(list(of_old)).items()}
    return found


def _whole_classes(classes: np.ndarray, most: int) -> np.ndarray:
    """Return the rows of classes of two or more; of more rows than `most`, those of random classes."""
    sizes = np.bincount(classes)
    order = np.random.default_rng(0).permutation(np.flatnonzero(sizes > 1))
    kept = order[np.cumsum(sizes[order]) <= most] if sizes[order].sum() > most else order
    return np.flatnonzero(np.isin(classes, kept))


def _deciding_values(
    vectors: np.ndarray, classes: np.ndarray, products: np.ndarray | None, backend: CpuBackend
) -> dict[str, np.ndarray]:
    """Return the metrics that decide, query by query; with products, these are the hits."""
    if products is not None:
        values = best_view_values(build_inputs(vectors, classes, products=(products, products)))
        return {key: values[key] for key in DECIDING}
    evidence = Evidence(build_inputs(vectors, classes), classes, (1,), backend=backend)
    return {
        key: metric.per_query(evidence).ravel()
        for metric in METRICS
        for key in metric.keys(evidence.ks)
        if key in DECIDING and metric.per_query is not None
    }


def _training_remark(
    old: SearchableGallery, new: SearchableGallery, verdict: Verdict, items: Iterable[StoredItem]
) -> str:
    """Return what training on these images may have done to the comparison."""
    contents, labels = zip(*((item.content_sha256, item.label) for item in items), strict=True)
    of_old, of_new = (_learned(gallery, contents, labels) for gallery in (old, new))
    of_old, of_new = (UNKNOWN if found is None else found for found in (of_old, of_new))
    if of_old and of_old == of_new:
        return f"both models {of_old.replace('was', 'were')}: `lookalike evaluate` them on others"
    if of_old and of_new:
        return f"the old model {of_old}, the new one {of_new}: `lookalike evaluate` them on others"
    if of_old:
        return f"the old model {of_old}, which flatters it"
    if of_new and verdict.loses:
        return f"it {of_new.replace('may', 'may even').replace('was', 'was even')}"
    return f"the new model {of_new}: `lookalike evaluate` it on others" if of_new else ""


def _learned(gallery: SearchableGallery, contents: Sequence[str], labels: Sequence[str | None]) -> str | None:
    """Return what the model has learned of images: see `TrainingImages.remark`.

    A pretrained backbone has not been trained on them. The parts of a picture have contents of their own,
    and which labels a layer learned is not kept: then it is unknown. `None` if there is no readable model.
    """
    try:
        model = gallery.embedder
    except LookalikeError:
        return None
    if layers_of_labels(model):
        return UNKNOWN
    if "source" in model.provenance:
        return ""
    if model.training_images is None or gallery.manifest.objects:
        return UNKNOWN
    return model.training_images.remark(contents, labels)


def hides_training(gallery: SearchableGallery) -> bool:
    """Return whether the model file does not tell on which images the network was trained.

    It is so of one that was made elsewhere or earlier. A pretrained backbone was trained on images of others;
    false if there is no readable model.
    """
    try:
        model = gallery.embedder
    except LookalikeError:
        return False
    return model.training_images is None and "source" not in model.provenance


def learned_images(
    gallery: SearchableGallery, ids: Sequence[int], labels: Mapping[int, str] | None = None
) -> set[int]:
    """Return which items the network may have learned the labels of; see `TrainingImages.learned`.

    There are none if its model file is missing or does not tell them.

    Args:
        gallery: The gallery.
        ids: Item ids.
        labels: Labels by item id, beside those that the gallery has.
    """
    try:
        known = gallery.embedder.training_images
    except LookalikeError:
        known = None
    if known is None:
        return set()
    of_parts = bool(gallery.manifest.objects)  # a part of a picture has contents of its own
    found = set[int]()
    for start in range(0, len(ids), _CHUNK):
        items = gallery.stored_items(ids[start : start + _CHUNK])
        contents = ["" if of_parts else item.content_sha256 for item in items]
        learned = known.learned(contents, [item.label for item in items])
        if labels is not None:
            learned |= known.learned(contents, [labels[item.id] for item in items])
        found |= {item.id for item, is_learned in zip(items, learned, strict=True) if is_learned}
    return found


def recall_after_learning(gallery: SearchableGallery) -> float | None:
    """Return the Recall@1 that the last layer learned from labels had on held-out images, by its provenance.

    It is the upper end of the interval, of known or of unseen classes, whichever is higher; `None` if there
    is no such layer, or no readable model. Whitening learns from no label.
    """
    try:
        learned = layers_of_labels(gallery.embedder)
        gains = learned[-1]["gains"] if learned else {}
        recalls = [gain["metrics"]["recall_at_1"] for gain in gains.values() if gain]
        return max((one["before"] + one["high"] for one in recalls), default=None)
    except (
        LookalikeError,
        AttributeError,
        KeyError,
        TypeError,
    ):  # a file from somebody else may say anything
        return None


def layers_of_labels(model: Embedder) -> list[Mapping[str, Any]]:
    """Return the notes on the layers of a model that were learned from labels, first to last."""
    layers = model.provenance.get("layers")
    return [
        one
        for one in (layers if isinstance(layers, list) else ())
        if isinstance(one, dict) and "gains" in one and one.get("method") != "whitening"
    ]


# ---- labels


def check_labels(gallery: SearchableGallery) -> None:
    """Check that the labels can tell right from wrong; fast for galleries of any size.

    Raises:
        InputError: There are no labels, a single class, or no class with two images.
    """
    _check_sizes(gallery, [count for label, count in gallery.contents.label_counts() if label])


def gallery_protocol(gallery: SearchableGallery) -> str:
    """Return the protocol of queries to a gallery, in one line."""
    return f"each searched for in a gallery of {len(gallery):,} images, itself left out"


def _check_sizes(gallery: SearchableGallery, sizes: Sequence[int]) -> None:
    """Check the sizes of the classes, largest first; the two largest are enough."""
    if not len(gallery):
        why = "it has no images to search for; `lookalike index add` adds some"
    elif not sizes:
        why = "none of its images has a label, so there are no right results; "
        why += "`lookalike index add` takes labels from folders or from a table"
    elif len(sizes) < 2:
        why = "all its labelled images are of one class, so there are no wrong results; add other classes"
    elif sizes[0] < 2:
        why = "no two of its images share a label, so there is nothing to find; add more images per class"
    else:
        return
    raise InputError(f"{gallery.folder}: {why}")


def _variant_notes(shown: np.ndarray, by_chance: np.ndarray, products: np.ndarray) -> tuple[str, ...]:
    """Return how often products show the variant of the query; nothing if none has a choice."""
    asked = ~np.isnan(shown)
    if not asked.any():
        return ()
    ((low, high),) = 100 * bootstrap_intervals(shown[asked, None], products[asked])
    share, chance = 100 * shown[asked].mean(), 100 * by_chance[asked].mean()
    what = f"The first right product with variants to choose from shows that of the query in {share:.1f}%"
    return (f"{what} ({low:.1f} to {high:.1f}) of {asked.sum():,} queries; a random view in {chance:.1f}%.",)


def _notes(
    gallery: SearchableGallery, found: StoredEmbeddings, labelled: int, queries: int, classes: int
) -> tuple[str, ...]:
    learned = _learned(gallery, found.contents, found.labels)
    notes = [trained_note(learned)] if learned else []
    if gallery.bridged:
        notes.append(f"{pluralize(gallery.bridged, 'vector')} made by a bridge from those of another model.")
    if queries < labelled:
        notes.append(f"The queries are a random sample of the {labelled:,} labelled images.")
    if labelled < len(found.labels):
        without = len(found.labels) - labelled
        notes.append(
            f"Searched without a label: {pluralize(without, 'image')}; as a result, each counts as wrong."
        )
    effort = effort_note(queries, classes)
    return tuple([*notes, effort] if effort else notes)
