"""Learning the calibration of a gallery from labels or decisions, with cross-validation over classes.

The population is what users see: the first hits of a query, not random pairs. With labels, each query is an
item of the gallery, and its hits are judged twice: without the item itself, and without its whole class, as
if the gallery had nothing like it. The share of such queries is an assumption. Beside them, queries whose
picture is in the gallery are fitted to: the item with itself in the gallery, and a changed copy of it. Such
copies are simulated on the vectors, so that no image is read. Classes are divided into folds: the numbers on
quality come from classes that the regression was not fitted to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from retrieval.errors import InputError
from retrieval.evaluation.gallery import learned_images, recall_after_learning
from retrieval.files import now
from retrieval.galleries.items import Hit, item_value
from retrieval.galleries.searchable import SearchableGallery
from retrieval.ingest.judgements import Judgements, connected_components
from retrieval.metrics.reliability import (
    Bin,
    brier_score,
    calibration_error,
    error_by_chance,
    reliability,
)
from retrieval.progress import Progress
from retrieval.search.calibration import DEPTH, SAME, Calibration, features, logistic, summary
from retrieval.search.options import EACH, SearchOptions
from retrieval.search.rerank import unit
from retrieval.storage.records import Value
from retrieval.text import pluralize

QUERIES = 3000
ABSENT = 0.5
FOLDS = 5
THRESHOLDS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
_BATCH = 256  # queries of one search
_MOST = 2048  # hits of a search that looks beyond the class of its query
_RIDGE = 1.0  # on the weights of standardized features, for small galleries
_CEILING_RIDGE, _CEILING_START = 0.05, 2.0  # of the logit of the ceiling
_FLAT = 1e-9  # gradient for each hit at which the fit ends
_NEGLIGIBLE = 1e-12  # relative gain of a step that is the last one
_NO_PROGRESS = 1e9  # damping at which steps are too short to change anything
_LEAST = 20  # right hits, and wrong ones
_MOST_LEARNED = 0.1  # more right best hits than of held-out images: labels that were learned by heart
COPIES = 1.0  # weight of queries whose picture is in the gallery, half of them changed, to that of the others
_FARTHEST = 0.8  # square of the lowest cosine of a changed copy


# Kinds of queries: an item without itself; without its class; with itself; a changed copy of it.
PRESENT, ABSENT_CLASS, SAME_PICTURE, CHANGED = range(4)
KINDS = 4


@dataclass(frozen=True, eq=False)
class JudgedHits:
    """Hits that are known to be right or wrong.

    Attributes:
        scores: Cosines, float64 [n].
        nearest: `summary` of the query of each hit, float64 [n, 5].
        right: Whether it shows the same thing as the query, bool [n].
        weights: Weights, float64 [n], with a mean of 1.
        queries: Number of the query, int64 [n]: of each item `KINDS` of them, in the order of the kinds.
        groups: Class of the query, int64 [n].
        left_out: Number of items that are no queries, since the network may have learned their labels.
    """

    scores: np.ndarray
    nearest: np.ndarray
    right: np.ndarray
    weights: np.ndarray
    queries: np.ndarray
    groups: np.ndarray
    left_out: int = 0

    def __getitem__(self, which: np.ndarray) -> JudgedHits:
        return replace(self, **{name: one[which] for name, one in vars(self).items() if name != "left_out"})

    @property
    def features(self) -> np.ndarray:
        """Features of the regression, float64 [n, 6]."""
        return features(self.scores, self.nearest)

    @property
    def kinds(self) -> np.ndarray:
        """Kind of the query of each hit, int64 [n], from `PRESENT` to `CHANGED`."""
        return self.queries % KINDS

    @property
    def is_copied(self) -> np.ndarray:
        """Whether the picture of the query is in the gallery, bool [n]."""
        return self.kinds >= SAME_PICTURE

    def with_absent(self, share: float) -> JudgedHits:
        """Return the hits with weights such that a share of the queries is without its class.

        Those whose picture is in the gallery are beside these, with a weight of their own.
        """
        count = np.bincount(np.unique(self.queries) % KINDS, minlength=KINDS)
        if not count[PRESENT] or not count[ABSENT_CLASS]:
            return self
        wanted = np.array([1 - share, share, COPIES / 2, COPIES / 2])
        weights = (wanted / np.maximum(count, 1))[self.kinds]
        return replace(self, weights=weights / weights.mean())


@dataclass(frozen=True)
class Threshold:
    """What a lowest probability does.

    Attributes:
        probability: Lowest probability.
        hits: Share of the hits that reach it.
        right: Share of right ones among these; `None` if there are none.
        answered: Share of the queries, of those whose class is in the gallery, with at least one such hit.
        refused: Share of the queries without such a hit, of those whose class is not in the gallery; `None`
            with decisions, which say nothing about that.
    """

    probability: float
    hits: float
    right: float | None
    answered: float
    refused: float | None


@dataclass(frozen=True)
class Quality:
    """Quality of a calibration on held-out classes.

    Attributes:
        queries: Number of queries.
        classes: Number of classes.
        hits: Number of judged hits.
        ece: Expected calibration error, 15 bins of equal weight.
        ece_by_chance: What it would be if each hit were right with its probability, independently.
        ece_of_folds: It on each fold.
        ece_of_best: It of the best hit of each query.
        ece_of_copies: It of queries whose picture is in the gallery, half of them changed copies of it; they
            are in no other number. `None` with decisions.
        brier: Brier score.
        brier_of_share: Brier score of the share of right hits as the probability of all.
        reliability: Bins of the reliability diagram.
        thresholds: What lowest probabilities do.
        left_out: Number of labelled images that were no queries, since the network was trained on them.
    """

    queries: int
    classes: int
    hits: int
    ece: float
    ece_by_chance: float
    ece_of_folds: list[float]
    ece_of_best: float
    ece_of_copies: float | None
    brier: float
    brier_of_share: float
    reliability: list[Bin]
    thresholds: list[Threshold]
    left_out: int = 0


def calibrate(
    gallery: SearchableGallery,
    judgements: Judgements | None = None,
    *,
    absent: float = ABSENT,
    queries: int = QUERIES,
    may_have_learned: bool = False,
    show_progress: bool = False,
) -> tuple[Calibration, Quality]:
    """Fit the calibration of a gallery, and measure it on held-out classes. Nothing is stored.

    Images that the network was trained on, by its model file, are no queries: new pictures are not as near to
    their class.

    Args:
        gallery: The gallery.
        judgements: Labels or decisions; by default the labels of the gallery.
        absent: Share of the queries whose thing is not in the gallery, from 0 to below 1; without effect on
            decisions, whose queries are as they are.
        queries: Number of labelled items beyond which a random sample is used as queries.
        may_have_learned: Whether a layer of the vectors may have learned from these judgements, as it may
            from the labels of the gallery.
        show_progress: Report progress on stderr.

    Raises:
        InputError: The judgements are too few, or a higher cosine is not more often right; or the vectors
            have learned so much from these labels that hits of new images are far less often right, or a
            bridge made some of them.
    """
    gallery.check_own_vectors()
    if judgements is not None and judgements.pairs:
        hits = _hits_of_pairs(gallery, judgements.pairs)
    else:
        labels = None if judgements is None else judgements.labels
        hits = judged_hits(gallery, labels, queries=queries, show_progress=show_progress)
        if judgements is None or may_have_learned:
            _check_unlearned(gallery, hits)
        hits = hits.with_absent(absent)
    check_enough(hits, str(gallery.folder))
    curve = fit(hits)
    if curve.weights[0] <= 0:
        what = f"{gallery.folder}: hits with a higher cosine are not more often right"
        raise InputError(f"{what}; check the labels, or train the model")
    quality = cross_validate(hits)
    numbers = {"queries": quality.queries, "classes": quality.classes, "ece": round(quality.ece, 5)}
    calibration = Calibration(
        fingerprint=gallery.fingerprint,
        images=len(gallery),
        weights=tuple(curve.weights.tolist()),
        offset=curve.offset,
        ceiling=curve.ceiling,
        absent=absent,
        created=now(),
        quality=numbers,
    )
    return calibration, quality


def _check_unlearned(gallery: SearchableGallery, hits: JudgedHits) -> None:
    """Raise an `InputError` if images find their class far more often than held-out ones did.

    Images that a layer has learned from lie closer to their class than new ones do. Those without a label are
    no hits here, but counted as wrong when the layer was measured; they count as being as near as others.
    """
    measured = recall_after_learning(gallery)
    if measured is None:
        return
    present = hits[hits.kinds == PRESENT]
    first = np.unique(present.queries, return_index=True)[1]
    labelled = sum(count for label, count in gallery.contents.label_counts() if label)
    found = float(present.right[first].mean()) * labelled / len(gallery) if len(first) else 0.0
    if found > measured + _MOST_LEARNED:
        raise InputError(
            f"{gallery.folder}: its vectors have learned from labels; by these, {100 * found:.0f}% of the "
            f"best hits are right, and at most {100 * measured:.0f}% were of images that were held out; "
            "calibrate with --labels TABLE of images that were not learned from"
        )


# ---- judged hits


def judged_hits(
    gallery: SearchableGallery,
    labels: Mapping[int, str] | None = None,
    *,
    queries: int = QUERIES,
    show_progress: bool = False,
) -> JudgedHits:
    """Search with labelled items and with changed copies of them, and return their first hits.

    Each item is searched for without itself, without its class, with itself, and with itself by a changed
    copy. Hits without a label are left out: it is not known whether they are right. The picture of a query is
    left out as well: it would make the best hits of other queries too probable. Items whose labels the
    network may have learned are hits, but no queries.

    Args:
        gallery: The gallery.
        labels: Labels by item id; `None` for those of the gallery.
        queries: Number of labelled items beyond which a random sample of them is used.
        show_progress: Report progress on stderr.
    """
    if labels is None:
        found = gallery.embeddings(labelled=True, limit=queries)
        ids, vectors, own = found.ids, found.vectors, [label or "" for label in found.labels]
        sizes = {label: count for label, count in gallery.contents.label_counts() if label}
    else:
        ids = np.array(sorted(labels), np.int64)
        if len(ids) > queries:
            ids = np.sort(np.random.default_rng(0).choice(ids, queries, replace=False))
        stored = gallery.vectors(ids.tolist())
        ids = np.array([number for number in ids.tolist() if number in stored], np.int64)
        vectors = np.stack([stored[number] for number in ids.tolist()]) if len(ids) else np.empty((0, 1))
        own = [labels[number] for number in ids.tolist()]
        sizes = Counter(labels.values())
    learned = learned_images(gallery, ids.tolist(), labels)
    if learned:
        new = np.array([number not in learned for number in ids.tolist()])
        ids, vectors = ids[new], vectors[new]
        own = [label for label, is_new in zip(own, new, strict=True) if is_new]
    classes = {label: number for number, label in enumerate(dict.fromkeys(own))}
    copies = change(vectors)
    products = gallery.products_beside(ids, np.array([classes[label] for label in own], np.int64))
    column = None if products is None else gallery.manifest.product
    stored_items = [] if column is None else gallery.stored_items(ids.tolist())
    product_of = {one.id: item_value(one, column or "") for one in stored_items}
    rows = _Rows()

    def without_own(hits: Iterable[Hit], row: int) -> list[Hit]:
        """Return the hits that are neither the item of a query nor views of its product."""
        others = [hit for hit in hits if hit.id != ids[row]]
        if column is None or (own_product := product_of.get(int(ids[row]))) is None:
            return others
        return [hit for hit in others if item_value(hit, column) != own_product]

    def products_of(hits: Iterable[Hit]) -> list[Hit]:
        """Return the first hit of each product, as a search shows them."""
        if column is None:
            return [*hits]
        first = dict[tuple[Value, int], Hit]()
        for hit in hits:
            value = item_value(hit, column)
            first.setdefault((value, hit.id if value is None else 0), hit)
        return [*first.values()]

    def known(hits: Iterable[Hit]) -> list[str | None]:
        return [hit.label if labels is None else labels.get(hit.id) for hit in hits]

    with Progress("searching", len(ids), "queries", show=show_progress) as progress:
        for start in range(0, len(ids), _BATCH):
            some = range(start, min(start + _BATCH, len(ids)))
            options = SearchOptions(DEPTH + 1, calibrated=False, group_by=column or EACH)
            for row, hits in zip(some, gallery.find(copies[some], options), strict=True):
                query, group = KINDS * row + CHANGED, classes[own[row]]
                rows.add(hits, known(hits), own[row], query, group, original=ids[row])
            wanted, depth = list(some), 2 * DEPTH + 1
            while wanted:
                options = SearchOptions(depth, calibrated=False, group_by=EACH)
                deeper = []
                for row, hits in zip(wanted, gallery.find(vectors[wanted], options), strict=True):
                    mine = without_own(hits, row)
                    near, others = [hit.score for hit in mine], products_of(mine)
                    labels_of = known(others)
                    beyond = [at for at, label in enumerate(labels_of) if label != own[row]]
                    if len(beyond) < DEPTH and len(hits) == depth and depth < _MOST:
                        deeper.append(row)
                        continue
                    group, query = classes[own[row]], KINDS * row
                    if sizes[own[row]] > 1:
                        rows.add(others, labels_of, own[row], query + PRESENT, group, near=near)
                    rows.add(others, labels_of, own[row], query + SAME_PICTURE, group, near=near)
                    rows.add(
                        [others[at] for at in beyond],
                        [labels_of[at] for at in beyond],
                        own[row],
                        query + ABSENT_CLASS,
                        group,
                    )
                wanted, depth = deeper, min(4 * depth, _MOST)
            progress.update(len(some))
    return replace(rows.hits(), left_out=len(learned))


def change(vectors: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return a changed copy of each vector, as of a picture that was scaled, compressed or cropped.

    It is moved into the direction in which two other vectors differ. The square of its cosine with the
    original is uniform from 0.8 to 1; docs/calibration.md has those of real copies.

    Args:
        vectors: Unit vectors, float32 [n, D].
        seed: Seed.
    """
    random = np.random.default_rng(seed)
    order = random.permutation(len(vectors))
    away = vectors[order] - vectors[np.roll(order, 1)]
    away -= np.einsum("nd,nd->n", away, vectors)[:, None] * vectors
    squares = random.uniform(_FARTHEST, 1, (len(vectors), 1)).astype(np.float32)
    return unit(np.sqrt(squares) * vectors + np.sqrt(1 - squares) * unit(away))


class _Rows:
    """Judged hits, collected query by query."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, ...]] = []

    def add(
        self,
        hits: Iterable[Hit],
        labels: Sequence[str | None],
        own: str,
        query: int,
        group: int,
        original: int | None = None,
        near: Sequence[float] | None = None,
    ) -> None:
        """Add the first hits of a query that are not its own picture, or the original of it.

        The scores of its nearest images, `near`, are those of the hits if these are not products.
        """
        *near, copied = summary([hit.score for hit in hits] if near is None else near)
        copied = max(copied, float(query % KINDS == SAME_PICTURE))
        first = [(hit, label) for hit, label in zip(hits, labels, strict=True) if hit.score < SAME]
        for hit, label in first[:DEPTH]:
            if label and hit.id != original:
                self._rows.append((hit.score, *near, copied, label == own, query, group))

    def hits(self) -> JudgedHits:
        """Return all hits, with equal weights."""
        table = np.array(self._rows, np.float64).reshape(-1, 9)
        return JudgedHits(
            scores=table[:, 0],
            nearest=table[:, 1:6],
            right=table[:, 6] > 0,
            weights=np.ones(len(table)),
            queries=table[:, 7].astype(np.int64),
            groups=table[:, 8].astype(np.int64),
        )


def _hits_of_pairs(gallery: SearchableGallery, pairs: Sequence[tuple[int, int, bool]]) -> JudgedHits:
    """Return decisions as hits of the first of each pair. Items that are the same are one group."""
    ids = sorted({number for a, b, _ in pairs for number in (a, b)})
    stored = gallery.vectors(ids)
    learned = learned_images(gallery, ids)
    there = [(a, b, same) for a, b, same in pairs if a in stored and b in stored and a != b]
    known = [(a, b, same) for a, b, same in there if a not in learned]
    asked = sorted({a for a, _, _ in known})
    near = {}
    for start in range(0, len(asked), _BATCH):
        some = asked[start : start + _BATCH]
        options = SearchOptions(DEPTH + 1, calibrated=False, group_by=EACH)
        for number, hits in zip(
            some, gallery.find(np.stack([stored[n] for n in some]), options), strict=True
        ):
            near[number] = summary([hit.score for hit in hits if hit.id != number])
    groups = connected_components(ids, [(a, b) for a, b, same in known if same])
    return JudgedHits(
        scores=np.array([stored[a] @ stored[b] for a, b, _ in known], np.float64),
        nearest=np.array([near[a] for a, _, _ in known], np.float64).reshape(-1, 5),
        right=np.array([same for *_, same in known], bool),
        weights=np.ones(len(known)),
        queries=KINDS * np.array([a for a, _, _ in known], np.int64) + PRESENT,
        groups=np.array([groups[a] for a, _, _ in known], np.int64),
        left_out=len({a for a, _, _ in there} & learned),
    )


def check_enough(hits: JudgedHits, where: str) -> None:
    """Raise an `InputError` if hits are too few to fit and test a calibration."""
    hits = hits[~hits.is_copied]
    right, groups = int(hits.right.sum()), len(np.unique(hits.groups))
    wrong = len(hits.right) - right
    if min(right, wrong) < _LEAST or groups < FOLDS:
        found = f"{right} right and {wrong} wrong hits of {groups} classes"
        least = f"at least {_LEAST} of both and {FOLDS} classes"
        more = ""
        if hits.left_out:
            more = (
                f"; {pluralize(hits.left_out, 'labelled image')} that the network was trained on say nothing "
                "of new pictures: add and label some that it was not trained on"
            )
        raise InputError(f"{where}: {found} are known, which is too few; {least} are necessary{more}")


# ---- regression


@dataclass(frozen=True, eq=False)
class Curve:
    """Fitted regression: `ceiling` / (1 + exp(-(x @ weights + offset))) of the features x."""

    weights: np.ndarray
    offset: float
    ceiling: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the probabilities, float64 [n], of features, float64 [n, 6]."""
        found: np.ndarray = self.ceiling * logistic(x @ self.weights + self.offset)
        return found


def fit(hits: JudgedHits) -> Curve:
    """Fit the regression by maximum likelihood, with a ridge penalty on standardized weights.

    By Fisher scoring, with the damping of Levenberg and Marquardt, since the likelihood is not concave.
    """
    x, y, w = hits.features, hits.right.astype(np.float64), hits.weights
    mean = np.average(x, axis=0, weights=w)
    scale = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=w)) + 1e-12
    design = np.column_stack([(x - mean) / scale, np.ones(len(x))])
    ridge = np.array([_RIDGE] * x.shape[1] + [0.0, _CEILING_RIDGE])

    def loss(beta: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the loss, its gradient [k] and the information [k, k]."""
        top, curve = (logistic(values) for values in (beta[-1], design @ beta[:-1]))
        p = np.clip(top * curve, 1e-12, 1 - 1e-12)
        likelihood = w @ (y * np.log(p) + (1 - y) * np.log1p(-p))
        slopes = np.column_stack([design * (1 - curve)[:, None], np.full(len(p), 1 - top)])  # of log p
        gradient = ridge * beta - slopes.T @ (w * (y - p) / (1 - p))
        information = slopes.T @ (slopes * (w * p / (1 - p))[:, None]) + np.diag(ridge)
        return 0.5 * float(ridge @ beta**2) - likelihood, gradient, information

    share = np.clip(np.average(y, weights=w), 1e-6, 1 - 1e-6)
    beta = np.array([0.0] * x.shape[1] + [np.log(share / (1 - share)), _CEILING_START])
    value, gradient, information = loss(beta)
    damping = 1e-3
    while damping < _NO_PROGRESS and np.abs(gradient).max() > _FLAT * len(x):
        step = np.linalg.solve(information + damping * np.diag(np.diag(information)), gradient)
        tried = loss(beta - step)
        gain = value - tried[0]
        # Offset and ceiling can stand for each other: thousands of steps gain next to nothing.
        if 0 < gain <= _NEGLIGIBLE * (1 + abs(value)):
            break
        if gain > 0:
            beta, (value, gradient, information) = beta - step, tried
            damping /= 10
        else:
            damping *= 10
    weights = beta[:-2] / scale
    return Curve(weights, float(beta[-2] - weights @ mean), float(logistic(beta[-1])))


# ---- quality


def cross_validate(hits: JudgedHits, seed: int = 0) -> Quality:
    """Return the quality on classes that the regression was not fitted to.

    Args:
        hits: The hits.
        seed: Seed of the division of the classes into folds.
    """
    classes = np.unique(hits.groups)
    fold_of = np.random.default_rng(seed).permutation(len(classes)) % FOLDS
    folds = fold_of[np.searchsorted(classes, hits.groups)]
    probabilities = np.empty(len(folds))
    errors = []
    for fold in range(FOLDS):
        held = folds == fold
        probabilities[held] = fit(hits[~held])(hits[held].features)
        held &= ~hits.is_copied
        errors.append(calibration_error(probabilities[held], hits.right[held], hits.weights[held]))
    return measure(hits, probabilities, errors)


def measure(hits: JudgedHits, probabilities: np.ndarray, errors: list[float]) -> Quality:
    """Return the quality of probabilities, float64 [n], of held-out hits, with the errors of the folds."""
    copied = hits.is_copied
    of_copies = calibration_error(probabilities[copied], hits.right[copied]) if copied.any() else None
    hits, probabilities = hits[~copied], probabilities[~copied]
    right, weights = hits.right, hits.weights
    best = best_of_each(hits.queries, hits.scores)
    share = np.full(len(right), np.average(right, weights=weights))
    return Quality(
        queries=len(np.unique(hits.queries // KINDS)),
        classes=len(np.unique(hits.groups)),
        hits=len(right),
        ece=calibration_error(probabilities, right, weights),
        ece_by_chance=error_by_chance(probabilities, weights),
        ece_of_folds=errors,
        ece_of_best=calibration_error(probabilities[best], right[best], weights[best]),
        ece_of_copies=of_copies,
        brier=brier_score(probabilities, right, weights),
        brier_of_share=brier_score(share, right, weights),
        reliability=reliability(probabilities, right, weights),
        thresholds=[_threshold(hits, probabilities, best, value) for value in THRESHOLDS],
        left_out=hits.left_out,
    )


def best_of_each(queries: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the position of the best hit of each query, int64."""
    order = np.lexsort((-scores, queries))
    first = np.unique(queries[order], return_index=True)[1]
    best: np.ndarray = order[first]
    return best


def _threshold(hits: JudgedHits, probabilities: np.ndarray, best: np.ndarray, lowest: float) -> Threshold:
    reached = probabilities >= lowest
    gone = hits.kinds[best] == ABSENT_CLASS
    there, gone = best[~gone], best[gone]
    return Threshold(
        probability=lowest,
        hits=float(np.average(reached, weights=hits.weights)),
        right=float(np.average(hits.right[reached], weights=hits.weights[reached]))
        if reached.any()
        else None,
        answered=float(reached[there].mean()),
        refused=float(1 - reached[gone].mean()) if len(gone) else None,
    )
