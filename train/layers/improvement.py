"""Improvement: all that can be tried on the stored vectors of a gallery within a time, and the best of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.cli import print_status
from retrieval.errors import InputError
from retrieval.evaluation.calibration_fit import calibrate
from retrieval.gallery import Gallery
from retrieval.ingest.judgements import read_judgements
from retrieval.model.layer import Layer
from retrieval.model.runtime import Runtime
from retrieval.progress import Progress
from retrieval.search.calibration import HIGH_ERROR, write_calibration
from retrieval.search.options import CANDIDATES
from retrieval.search.rerank import EXPANSION, expand, k_reciprocal
from retrieval.text import align_columns
from train.layers.choosing import PARTS, Selection, Tried
from train.layers.components import fit_starts
from train.layers.flow import Fit, GalleryTarget
from train.layers.folds import KINDS, Kind
from train.layers.journal import Entry, Journal
from train.layers.lesson import GALLERY, Lesson, print_lesson, read_lesson
from train.layers.measuring import METRICS, Gain, Purpose, beside, kinds, query_values
from train.layers.settings import TeachingConfig
from train.layers.teaching import METRIC_TITLES, TITLES, gain_lines, losses_in, spread_text
from train.layers.trials import TRIALS, Trial, Workbench
from train.layers.whitening import FEWEST_CLASSES, FEWEST_QUERIES, NO_CLASS, fit_whitening

SEED = 0
MOST_LEARNED = 50_000  # labelled images that trials learn from; the layer that is applied learns from all
MOST_SEARCHED = 5000  # images, labelled and others in proportion, but of the labelled ones at least:
_FEWEST_LABELLED = 2000
_RERANKED = 200  # queries
# Rows best first, of all vectors, their cosines to the query, and its own row.
Rerank = Callable[[np.ndarray, np.ndarray, int], np.ndarray]
_SHORT = {"known": "known classes", "unseen": "unseen classes"}


@dataclass(frozen=True)
class Row:
    """Row of the table: a method, what it gained and what it cost.

    Attributes:
        method: Its name.
        tried: Number of layers.
        gains: Gain of each kind, with intervals that hold together for all rows.
        seconds: What trying it took.
        is_option: Whether it is an option of a search, not a layer.
    """

    method: str
    tried: int
    gains: Mapping[Kind, Gain | None]
    seconds: float
    is_option: bool = False


def journal_folder(gallery: Path) -> Path:
    """Return the folder beside a gallery in which finished trials are kept."""
    folder = gallery.resolve()
    return folder.with_name(f"{folder.name}.improve")


def fit_improvement(target: GalleryTarget, labels: str, purpose: Purpose, minutes: float) -> Fit:
    """Return the best layer of all that can be tried within a time.

    Args:
        target: Gallery.
        labels: "gallery", or a CSV or Parquet file; see `train.layers.lesson.read_lesson`.
        purpose: Kinds of images that have to gain.
        minutes: Time for the trials. What an earlier run has tried costs none.

    Raises:
        InputError: The table of labels is invalid, or there are too few images.
    """
    began = time.monotonic()
    gallery = target.gallery
    try:
        lesson = read_lesson(gallery, labels)
        _check_measurable(lesson)
    except InputError as error:
        if labels != GALLERY:
            raise
        return _without_labels(target, str(error))
    print_lesson(gallery, lesson)
    return _Trials(gallery, lesson, purpose, began + 60 * minutes).fit()


def calibrate_improved(folder: Path, labels: str, runtime: Runtime) -> tuple[dict[str, Any], str]:
    """Calibrate a gallery that was improved: a calibration is that of the vectors before.

    It is kept if its error on classes that it was not fitted to is at most `HIGH_ERROR`.

    Args:
        folder: Gallery folder.
        labels: As for `fit_improvement`.
        runtime: Device and batch size of its model.

    Returns:
        Its quality as JSON values, and a line for people.
    """
    gallery = Gallery.open(folder, runtime=runtime)
    try:
        judgements = None if labels == GALLERY else read_judgements(Path(labels), gallery)
        calibration, quality = calibrate(gallery, judgements, may_have_learned=True, show_progress=True)
    except InputError as error:
        return {"written": False, "why": str(error)}, f"not calibrated: {error}"
    is_good = quality.ece <= HIGH_ERROR
    if is_good:
        write_calibration(gallery.folder, calibration)
    line = (
        f"{'calibrated' if is_good else 'not calibrated'}: the probabilities of hits are wrong by "
        f"{100 * quality.ece:.1f} points on average, on classes that they were not fitted to"
    )
    return {"written": is_good, "quality": asdict(quality)}, line


def _check_measurable(lesson: Lesson) -> None:
    """Raise an `InputError` if labels are too few to measure a gain."""
    _, sizes = np.unique(lesson.classes, return_counts=True)
    sizes = sizes[sizes > 1]
    if len(sizes) < FEWEST_CLASSES or sizes.sum() < FEWEST_QUERIES:
        few = f"{len(sizes)} classes with two labelled images or more"
        if lesson.known:
            few += (
                f" that the network was not trained on, beside {lesson.known:,} images that it was trained on"
            )
        raise InputError(f"{few}, of which no gain can be measured; label {FEWEST_CLASSES} classes at least")


def _without_labels(target: GalleryTarget, why: str) -> Fit:
    """Return the half-whitening that serves augmented copies best: all that can be tried without labels."""
    print_status(f"{why}; so whitening is all that is tried, by augmented copies of the images")
    fit = fit_whitening(target.images(), by="copies")
    more = "with labels more can be tried, and what it gains for classes can be measured"
    return replace(fit, command="improve", done="improved", lines=[*fit.lines, more])


class _Trials:
    """Trials on labelled vectors, the choice among them, and its gain.

    Args:
        gallery: Gallery.
        lesson: Its labelled vectors, and others.
        purpose: Kinds of images that have to gain.
        deadline: Time, by `time.monotonic`, at which the trials end.
    """

    def __init__(self, gallery: Gallery, lesson: Lesson, purpose: Purpose, deadline: float) -> None:
        self._gallery, self._lesson, self._purpose, self._deadline = gallery, lesson, purpose, deadline
        vectors, classes, others = lesson.vectors, lesson.classes, lesson.others
        products = lesson.products
        if len(vectors) > MOST_LEARNED:
            some = np.sort(np.random.default_rng(SEED).permutation(len(vectors))[:MOST_LEARNED])
            vectors, classes = vectors[some], classes[some]
            products = None if products is None else products[some]
        self._vectors, self._classes = vectors, classes
        share = len(lesson.vectors) / len(gallery)
        most = max(round(MOST_SEARCHED * share), _FEWEST_LABELLED)
        self._selection = selection = Selection(classes, SEED, most, products)
        everything = np.concatenate([lesson.vectors, others])
        # What has no label is searched and counts as wrong: rather too small a gain than too large a one.
        count = MOST_SEARCHED - len(selection.searched)
        others = others[np.sort(np.random.default_rng(SEED).permutation(len(others))[:count])]
        searched = np.concatenate([vectors[selection.searched], others])
        self._searched_classes = np.append(classes[selection.searched], np.full(len(others), NO_CLASS))
        self._products = None if products is None else beside(products[selection.searched], len(others))
        self._places = np.searchsorted(selection.searched, selection.queries)
        rows = np.append(selection.searched, np.full(len(others), -1))
        # What was learned from stands apart from all else, so that even random labels would seem to help.
        self._unlearned = [np.flatnonzero(~np.isin(rows, selection.training(part))) for part in range(PARTS)]
        arrays = (vectors, classes, lesson.others, self._searched_classes, self._products)
        given = [array.tobytes() for array in arrays if array is not None]
        self._journal = Journal(
            journal_folder(gallery.folder), [*given, repr((SEED, PARTS, TeachingConfig())).encode()]
        )
        self._bench = Workbench(
            everything, searched, fit_starts(everything, (0.0, 0.5), TeachingConfig().dim), SEED
        )
        self._before = np.stack([self._values(searched, part) for part in range(PARTS)])
        self._slowest = 0.0  # seconds of a learned layer, one part

    def fit(self) -> Fit:
        """Try, choose and measure."""
        selection, before, purpose = self._selection, self._before, self._purpose
        for name, rerank in _OPTIONS.items():
            self._rerank(name, rerank)
        trials, tried = self._try_all()
        best, ratio = selection.choose(purpose, before, tried)
        chosen, variant = trials[best.trial], self._bench.variants(trials[best.trial])[best.variant]
        gains = selection.gains_of_choice(purpose, before, tried, may_decline=True)
        rows = self._rows(trials, tried)
        left = TRIALS[len(trials) :]
        proven = all((gain := gains[kind]) is not None and gain.is_proven for kind in kinds(purpose))
        refusal = (
            None if proven and ratio > 1 else _refusal(gains, purpose, is_nothing=ratio <= 1, is_all=not left)
        )
        warnings, more = (
            losses_in(gains),
            _more(self._gallery.folder, left, PARTS * len(left) * self._slowest),
        )
        what = f"{chosen.title}, {'share' if chosen.is_learned else 'dimension'} {variant:g}"
        facts_of_gains = _facts(gains)
        lines = [
            *_table(rows),
            f"intervals: over classes, 95% for all {len(rows)} rows together; differences to the gallery as "
            "it is, in points",
            "",
            f"best: {what}" if ratio > 1 else "best: the gallery as it is",
            "the choice among all of them, on classes and images that it has not used:",
            *gain_lines(gains),
            *warnings,
            *self._searched_lines(),
            "",
            *more,
        ]
        origin = {
            "labels": self._lesson.labels,
            "images": len(self._lesson.classes),
            "classes": len(np.unique(self._lesson.classes)),
        }
        settings = {
            "method": chosen.method,
            "power": chosen.power,
            "loss": chosen.loss,
            "lr": chosen.lr,
            "variant": variant,
        }
        return Fit(
            command="improve",
            done="improved",
            facts={
                "gallery": str(self._gallery.folder),
                **origin,
                "left_out": self._lesson.known,
                "for": purpose,
                "tried": [
                    {
                        "method": row.method,
                        "layers": row.tried,
                        "gains": _facts(row.gains),
                        "seconds": round(row.seconds, 1),
                        "option": row.is_option,
                    }
                    for row in rows
                ],
                "not_tried": [trial.title for trial in left],
                "chosen": settings if ratio > 1 else None,
                "gains": facts_of_gains,
                "accepted": refusal is None,
                "warnings": warnings,
                "next": more,
            },
            lines=lines,
            refusal=refusal,
            note={**origin, "for": purpose, **settings, "gains": facts_of_gains},
            counts={"labels": self._lesson.labels},
            learn=lambda: self._layer(chosen, variant),
            forget=self._journal.delete,
        )

    def _searched_lines(self) -> list[str]:
        """Return what was searched, if it was not the labelled images alone."""
        searched, images = len(self._searched_classes), len(self._gallery)
        lines = []
        if (self._searched_classes == NO_CLASS).any():
            lines.append(
                "images without a label count as wrong, which Recall@1 suffers from; what unseen classes "
                "gain or lose in MAP@R is at least this"
            )
        if searched < images:
            lines.append(
                f"searched: {searched:,} of {images:,} images; among all, less is found, before and after"
            )
        return lines

    def _try_all(self) -> tuple[Sequence[Trial], Sequence[Tried]]:
        """Run the trials that there is time for, and read earlier ones: closed forms and one more at least.

        A part of a trial that the time does not allow to end stays in the journal.
        """
        tried = list[Tried]()
        total = sum(PARTS if trial.is_learned else 1 for trial in TRIALS)
        with Progress("trying", total, "layers") as progress:
            for trial in TRIALS:
                must = trial.loss is None or all(one.loss is None for one in TRIALS[: len(tried)])
                fits = [[part] for part in range(PARTS)] if trial.is_learned else [[*range(PARTS)]]
                found = list[Entry]()
                for parts in fits:
                    progress.update(0, note=trial.title)
                    entry = self._entry(trial, parts, must or self._has_time(len(fits) - len(found)))
                    if entry is None:
                        return TRIALS[: len(tried)], tried
                    found.append(entry)
                    progress.update(1, note=trial.title)
                values = np.concatenate([entry.values for entry in found])
                tried.append(Tried(values, sum(entry.seconds for entry in found)))
        return TRIALS, tried

    def _has_time(self, fits: int) -> bool:
        """Whether there is time for some fits, and for that of the layer to apply."""
        return time.monotonic() + (fits + 1) * self._slowest < self._deadline

    def _entry(self, trial: Trial, parts: Sequence[int], may_work: bool) -> Entry | None:
        """Return the values of a trial learned without some parts, float32 [parts, variants, q, metrics].

        `None`: it is not in the journal, and must not be worked out.
        """
        name = f"{trial.work} without {parts}"
        entry = self._journal.read(name)
        if entry is None:
            if not may_work:
                return None
            began = time.monotonic()
            matrix = None
            if trial.is_learned:
                training = self._selection.training(*parts)
                matrix = self._bench.matrix(trial, self._vectors[training], self._classes[training])
            values = [
                [self._values(moved, part) for part in parts] for moved in self._bench.moved(trial, matrix)
            ]
            entry = Entry(np.stack(values, axis=1), time.monotonic() - began)
            self._journal.write(name, entry)
        if trial.loss is not None:
            self._slowest = max(self._slowest, entry.seconds)
        return entry

    def _values(self, vectors: np.ndarray, part: int) -> np.ndarray:
        """Return the metrics of the queries that test a part, float32 [q, metrics]; of the others nan.

        Known classes are searched for among all images, unseen ones among those that nothing is learned from.
        """
        values = np.full((len(self._places), len(METRICS)), np.nan, np.float32)
        kept = self._unlearned[part]
        known, unseen = (self._selection.tests(part, kind) for kind in KINDS)
        products = self._products
        values[known] = query_values(vectors, self._searched_classes, self._places[known], products)
        places = np.searchsorted(kept, self._places[unseen])
        some = None if products is None else products[kept]
        values[unseen] = query_values(vectors[kept], self._searched_classes[kept], places, some)
        return values

    def _rows(self, trials: Sequence[Trial], tried: Sequence[Tried]) -> list[Row]:
        """Return the rows of the table: methods, in the order of the trials, and options of a search."""
        methods = dict.fromkeys(trial.method for trial in trials)
        comparisons = len(methods) + len(_OPTIONS)
        rows = []
        for method in methods:
            own = [one for trial, one in zip(trials, tried, strict=True) if trial.method == method]
            gains = self._selection.gains_of_choice(self._purpose, self._before, own, comparisons)
            layers = sum(one.values.shape[1] for one in own)
            rows.append(Row(method, layers, gains, sum(one.seconds for one in own)))
        rows += [self._option(name, rerank, comparisons) for name, rerank in _OPTIONS.items()]
        return rows

    def _rerank(self, name: str, rerank: Rerank) -> Entry:
        """Return the metrics of some queries among all images, before and after re-ranking."""
        entry = self._journal.read(name)
        if entry is None:
            began = time.monotonic()
            queries = np.random.default_rng(SEED).permutation(len(self._places))[:_RERANKED]
            searched, classes, places = self._bench.searched, self._searched_classes, self._places
            before = query_values(searched, classes, places, self._products)
            products = np.arange(len(classes)) if self._products is None else self._products
            after = np.full_like(before, np.nan)
            with Progress(name, len(queries), "queries") as progress:
                for query in np.sort(queries).tolist():
                    place = int(places[query])
                    order = rerank(searched, searched[place] @ searched.T, place)
                    others = order[products[order] != products[place]]
                    others = others[
                        np.sort(np.unique(products[others], return_index=True)[1])
                    ]  # one hit each
                    right = classes[others] == classes[place]
                    alike = (classes == classes[place]) & (products != products[place])
                    relevant = len(np.unique(products[alike]))
                    head = right[:relevant]
                    precision = head * np.cumsum(head) / np.arange(1, len(head) + 1)
                    after[query] = precision.sum() / relevant, right[0]
                    progress.update(1)
            entry = Entry(np.stack([before, after]), time.monotonic() - began)
            self._journal.write(name, entry)
        return entry

    def _option(self, name: str, rerank: Rerank, comparisons: int) -> Row:
        """Return what re-ranking gains."""
        entry = self._rerank(name, rerank)
        before, after = np.stack([entry.values] * PARTS, axis=1)
        gains = self._selection.gains(before, after, comparisons)
        return Row(f"search --rerank {name}", 1, gains, entry.seconds, is_option=True)

    def _layer(self, trial: Trial, variant: float) -> Layer:
        """Return the layer, learned from all labels."""
        matrix = None
        if trial.is_learned:
            matrix = self._bench.matrix(trial, self._lesson.vectors, self._lesson.classes, show=True)
        return self._bench.layer(trial, variant, matrix)


# ---- options of a search


def _expanded(searched: np.ndarray, cosines: np.ndarray, place: int) -> np.ndarray:
    """Return the rows by their cosine to the query moved towards its neighbours, best first."""
    first = _nearest(cosines, place, EXPANSION)
    moved = expand(searched[place][None], searched[first][None], cosines[first][None])[0]
    return _nearest(searched @ moved, place, len(searched))


def _k_reciprocal(searched: np.ndarray, cosines: np.ndarray, place: int) -> np.ndarray:
    """Return the first rows by the neighbours that they share with the query, best first."""
    first = _nearest(cosines, place, CANDIDATES)
    distances = k_reciprocal(searched[place], searched[first])
    order: np.ndarray = first[np.argsort(distances, kind="stable")]
    return order


def _nearest(cosines: np.ndarray, place: int, count: int) -> np.ndarray:
    order = np.argsort(-cosines, kind="stable")
    found: np.ndarray = order[order != place][:count]
    return found


_OPTIONS: dict[str, Rerank] = {"query-expansion": _expanded, "k-reciprocal": _k_reciprocal}


# ---- texts


def _table(rows: Sequence[Row]) -> list[str]:
    cells = [("tried", "", *(_SHORT[kind] for kind in KINDS), "seconds")]
    for row in rows:
        title = f"{row.method} ({row.tried})" if row.tried > 1 else row.method
        seconds = f"{row.seconds:.0f}"
        for name, text in METRIC_TITLES.items():
            changes = [gain and gain.metrics[name] for gain in row.gains.values()]
            spreads = [one and spread_text(one.difference, one.low, one.high) for one in changes]
            cells.append((title, text, *(spread or "not measured" for spread in spreads), seconds))
            title = seconds = ""
    return align_columns(cells, right={4})


def _refusal(gains: Mapping[Kind, Gain | None], purpose: Purpose, *, is_nothing: bool, is_all: bool) -> str:
    reasons = []
    for kind in kinds(purpose):
        gain = gains[kind]
        if gain is None:
            reasons.append(f"the gain of {TITLES[kind]} cannot be measured")
        elif not gain.is_proven:
            reasons.append(f"no gain of {TITLES[kind]} is certain")
    advice = "label more images" if is_all else "label more images, or try more with --minutes"
    if is_nothing or not reasons:
        reasons = ["nothing that was tried helps here"]
    return f"{' and '.join(reasons)}; {advice}"


def _certain_alone(selection: Selection, before: np.ndarray, tried: Sequence[Tried]) -> list[str]:
    """Return a line for each kind of images that certainly gains if it alone has to."""
    lines = []
    for kind in KINDS:
        gain = selection.gains_of_choice(kind, before, tried, len(KINDS), may_decline=True)[kind]
        if gain is not None and gain.is_proven:
            change = gain.metrics[METRICS[0]]
            spread = spread_text(change.difference, change.low, change.high)
            lines.append(
                f"certain with --for {kind}: {METRIC_TITLES[METRICS[0]]} {spread} for {TITLES[kind]}"
            )
    return lines


def _more(gallery: Path, left: Sequence[Trial], seconds: float) -> list[str]:
    """Return what else can be tried."""
    lines = []
    if left:
        minutes = max(1, round(seconds / 60))
        names = ", ".join(dict.fromkeys(trial.method for trial in left))
        lines.append(f"not tried for want of time: {names}")
        lines.append(
            f"about {minutes} minutes for these: `lookalike improve {gallery} --minutes {minutes + 1}`"
        )
    lines.append(
        "on a larger machine: `lookalike train --recipe catalogue` trains the whole network on a GPU, and "
        "`lookalike model list` names larger ones; `lookalike index rebuild` takes the result"
    )
    return lines


def _facts(gains: Mapping[Kind, Gain | None]) -> dict[str, Any]:
    return {kind: gain and asdict(gain) for kind, gain in gains.items()}
