"""Evaluation on a judged set, by its own measures and protocols, of a run, a model file or a gallery."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np

from retrieval.errors import InputError
from retrieval.evaluation.comparison import Contender, compare_reports
from retrieval.evaluation.findings import JudgedAnswers, JudgedQueries
from retrieval.evaluation.report import Report
from retrieval.evaluation.score import Result, by_key
from retrieval.evaluation.verdict import Verdict
from retrieval.files import sha256_of
from retrieval.galleries.searchable import SearchableGallery
from retrieval.images.decode import EmbeddedFiles
from retrieval.metrics import mean
from retrieval.metrics.judged import RelevantRanks, rank_hits, rank_judged
from retrieval.metrics.ranking import exact_neighbours
from retrieval.metrics.recognition import (
    NEIGHBOURS,
    UNKNOWN,
    Neighbours,
    fit_confidence,
    global_average_precision,
    interval_of,
    resampled_gaps,
)
from retrieval.metrics.statistics import bootstrap_intervals, class_intervals, mean_of_parts
from retrieval.model.runtime import Runtime
from retrieval.progress import Progress
from retrieval.search.options import EACH, SearchOptions
from train.data.judged import JudgedSet, RecognitionSet
from train.experiments.targets import Candidate, open_target, reference_candidates

_DEPTH = 10_000  # hits of a gallery that are ranked where a protocol has no depth of its own
_AT_ONCE = 64  # queries
_MEAN = "mean of domains"


def evaluate_judged(
    target: Path,
    judged: JudgedSet,
    baselines: Sequence[str] = (),
    *,
    options: SearchOptions | None = None,
    which: str | None = None,
    runtime: Runtime | None = None,
    with_backbone: bool = False,
    show_progress: bool = False,
) -> Report:
    """Evaluate a target and baselines on a judged set, one result for each protocol.

    A run or a model ranks all images of the set exactly. A gallery is searched as it is, with its index and
    whatever else is in it.

    Args:
        target: Folder of a run or of a gallery, or a model file.
        judged: The set.
        baselines: See `train.experiments.evaluation.evaluate_target`.
        options: Options of the search of a gallery, such as a re-ranking; `k` is not used.
        which: Checkpoint of a run.
        runtime: Device, batch size and execution provider.
        with_backbone: Whether to measure the off-the-shelf backbone of a run, too.
        show_progress: Whether to report progress on stderr.

    Raises:
        InputError: The target is none of these, the data cannot be used, or an image to find is not in the
            gallery.
    """
    opened = open_target(target, which, runtime)
    references, left_out = reference_candidates(opened, baselines, with_backbone)
    bad: dict[str, str] = {}
    reports: list[Report] = []  # of one candidate each
    with judged.query_files() as files:
        source = dict(zip(map(str, files), (str(query.path) for query in judged.queries), strict=True))
        for candidate in [*references, *opened.candidates]:
            asked = _embed(candidate, files, show_progress)
            if not len(asked.positions):
                raise InputError("none of the queries could be read; check the files")
            bad |= {source[one.source]: one.detail for one in asked.bad}
            searching = opened.gallery if candidate in opened.candidates else None
            search = _Search(candidate, asked, judged, searching, options or SearchOptions(), show_progress)
            found = search.recognized() if isinstance(judged, RecognitionSet) else search.answered()
            bad |= search.bad
            queries = [judged.queries[number] for number in asked.positions]
            paths, things = [query.path for query in queries], [query.thing for query in queries]
            reports.append(
                Report(
                    data=judged.name,
                    protocol=_protocol(judged, opened.gallery),
                    images=len(judged.queries),
                    classes=len({query.thing for query in judged.queries} - {""}),
                    fingerprint=opened.fingerprint,
                    results=found.results,
                    ks=judged.ks,
                    notes=tuple(filter(None, [*(one.note for one in references), left_out])),
                    seed=opened.config.get("seed"),
                    judged=JudgedQueries.of(
                        paths, asked.contents, things, found.answers, found.right, found.confidence
                    ),
                )
            )
    return replace(
        reports[-1],
        results=[result for report in reports for result in report.results],
        bad_files=sorted(bad.items()),
        verdict=_verdict(reports[-1], reports[: len(references)]),
    )


def _verdict(ours: Report, baselines: Sequence[Report]) -> Verdict | None:
    """Compare a candidate with the best baseline, by the last protocol; `None` without one."""
    if not baselines:
        return None
    key = next(iter(ours.headline.known))
    best = max(baselines, key=lambda one: one.headline.known[key])
    sides = [Contender(one.headline.name.partition(", ")[0], (one,)) for one in (best, ours)]
    pairs = compare_reports(sides).pairs
    return pairs[-1].verdict if pairs else None


@dataclass(frozen=True)
class _Found:
    """What a candidate finds: a result for each protocol, the answers, and what is recognized how surely."""

    results: list[Result]
    answers: dict[str, JudgedAnswers]
    right: Sequence[bool] = ()
    confidence: Sequence[float] = ()


@dataclass
class _Search:
    """Search of a judged set by a candidate: exactly, or of a gallery by its own index."""

    candidate: Candidate
    asked: EmbeddedFiles
    judged: JudgedSet
    gallery: SearchableGallery | None
    options: SearchOptions
    show_progress: bool
    bad: dict[str, str] = field(default_factory=dict)  # unusable files of the gallery, with the reason

    def answered(self) -> _Found:
        """Measure by the protocols, and by the mean of those that are domains."""
        things = np.array([self.judged.queries[number].thing for number in self.asked.positions])
        keys = self.judged.measures
        tables = {
            name: ranks.values(keys)
            for name, ranks in (self._exact() if self.gallery is None else self._indexed()).items()
        }
        found = {name: _answers(keys, table) for name, table in tables.items()}
        results = [self._result(name, table, things) for name, table in tables.items()]
        if self.judged.balanced and len(tables) > 1:
            every = np.full((len(things), len(keys)), np.nan)
            parts = np.full(len(things), "", dtype=object)
            for name, table in tables.items():
                known = ~np.isnan(table).any(1)
                every[known], parts[known] = table[known], name
            domains = parts.astype(str)
            found[_MEAN] = replace(_answers(keys, every), part=parts[~np.isnan(every).any(1)].tolist())
            results.append(self._result(_MEAN, every, things, domains))
        return _Found(results, found)

    def recognized(self) -> _Found:
        """Measure recognition by the nearest images; its confidence is fitted on validation queries."""
        judged = self.judged
        assert isinstance(judged, RecognitionSet)
        truth = judged.truth[self.asked.positions]
        known = truth != UNKNOWN
        # Each unknown thing is one for itself.
        things = np.array([judged.queries[n].thing or f" {n}" for n in self.asked.positions.tolist()])
        neighbours_of = self._neighbours()
        found, classes = neighbours_of(self.asked.vectors), int(judged.classes.max()) + 1
        k, sharpness = 1, 1.0  # the order is the same for any sharpness
        tried = _embed(self.candidate, judged.validation, self.show_progress)
        if len(tried.positions):
            self.bad |= {one.source: one.detail for one in tried.bad}
            k, sharpness = fit_confidence(
                neighbours_of(tried.vectors), judged.validation_truth[tried.positions], classes
            )
        right, confidence = found.right(truth), found.confidence(k, sharpness, classes)
        hits = np.where(known, right, np.nan)[:, None]
        result = self._result("", hits, things, keys=judged.measures[2:])
        for key, asked in zip(judged.measures, (np.ones_like(known), known), strict=False):
            side = right[asked], confidence[asked], known[asked]
            result.values[key] = global_average_precision(*side)
            for ranges, of in ((result.intervals, np.arange(len(things))), (result.class_intervals, things)):
                ranges[key] = interval_of(resampled_gaps(*side, of[asked]))
        answers = {"": _answers(judged.measures[2:], hits)}
        return _Found([result], answers, right.tolist(), confidence.tolist())

    def _result(
        self,
        protocol: str,
        table: np.ndarray,
        things: np.ndarray,
        parts: np.ndarray | None = None,
        keys: Sequence[str] = (),
    ) -> Result:
        value, known = mean(table), ~np.isnan(table).any(1)
        table, things, keys = table[known], things[known], keys or self.judged.measures
        if parts is not None:
            parts = parts[known]
            value = mean_of_parts(table, parts)
        over_things = class_intervals(table, things, parts)
        return Result(
            f"{self.candidate.name}{', ' if protocol else ''}{protocol}",
            dict(zip(keys, value.tolist(), strict=True)),
            intervals=by_key(keys, bootstrap_intervals(table, strata=parts)),
            class_intervals={} if over_things is None else by_key(keys, over_things),
        )

    def _searched(self) -> EmbeddedFiles:
        searched = _embed(self.candidate, self.judged.gallery, self.show_progress)
        self.bad |= {one.source: one.detail for one in searched.bad}
        return searched

    def _exact(self) -> dict[str, RelevantRanks]:
        """Rank the images of the set exactly; those that could not be read are not found."""
        searched, protocols = self._searched(), self.judged.protocols
        row_of = np.full(len(self.judged.gallery), -1)
        row_of[searched.positions] = np.arange(len(searched.positions))
        readable = [one.moved(self.asked.positions, row_of) for one in protocols.values()]
        found = rank_judged(self.asked.vectors, searched.vectors, readable, show_progress=self.show_progress)
        return {
            name: replace(ranks, num_relevant=one.num_relevant[self.asked.positions])
            for (name, one), ranks in zip(protocols.items(), found, strict=True)
        }

    def _indexed(self) -> dict[str, RelevantRanks]:
        """Search a gallery by its own index, once for all protocols."""
        assert self.gallery is not None
        ids = _ids(self.gallery, self.judged, self.show_progress)
        protocols = {
            name: one.moved(self.asked.positions, ids) for name, one in self.judged.protocols.items()
        }
        beside = max(len(rows) for one in protocols.values() for rows in one.ignored)
        rows, _ = self._hits(self.asked.vectors, (self.judged.depth or _DEPTH) + beside)
        return {name: rank_hits(rows, int(rows.max()) + 1, one) for name, one in protocols.items()}

    def _hits(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of the hits of each query, best first, -1 beyond the last one, and their scores."""
        assert self.gallery is not None
        depth = min(len(self.gallery), k)
        wanted = replace(self.options, k=depth, group_by=self.options.group_by or EACH, calibrated=False)
        ids, scores = np.full((len(vectors), depth), -1), np.zeros((len(vectors), depth))
        with Progress("searching", len(ids), "queries", show=self.show_progress) as progress:
            for start in range(0, len(ids), _AT_ONCE):
                found = self.gallery.find(vectors[start : start + _AT_ONCE], wanted)
                for number, hits in enumerate(found, start):
                    ids[number, : len(hits)] = [hit.id for hit in hits]
                    scores[number, : len(hits)] = [hit.score for hit in hits]
                progress.update(len(found))
        return ids, scores

    def _neighbours(self) -> Callable[[np.ndarray], Neighbours]:
        """Return a function that finds the nearest images of vectors, with their classes."""
        judged = self.judged
        assert isinstance(judged, RecognitionSet)
        most = max(NEIGHBOURS)
        if self.gallery is None:
            searched = self._searched()
            classes, k = judged.classes[searched.positions], min(most, len(searched.positions))

            def exact(vectors: np.ndarray) -> Neighbours:
                scores, rows = exact_neighbours(vectors, searched.vectors, k)
                return Neighbours(scores, classes[rows])

            return exact
        ids = _ids(self.gallery, judged, self.show_progress)
        class_of = dict(zip(ids.tolist(), judged.classes.tolist(), strict=True)) | {-1: UNKNOWN}
        strange = count(int(judged.classes.max()) + 1)  # other images of the gallery, each its own class

        def indexed(vectors: np.ndarray) -> Neighbours:
            found, scores = self._hits(vectors, most)
            flat = [class_of[one] if one in class_of else next(strange) for one in found.ravel().tolist()]
            return Neighbours(scores, np.array(flat).reshape(found.shape))

        return indexed


def _embed(candidate: Candidate, files: Sequence[Path], show_progress: bool) -> EmbeddedFiles:
    return candidate.embed(files, files, f"embedding ({candidate.name})", show_progress=show_progress)


def _answers(keys: Sequence[str], table: np.ndarray) -> JudgedAnswers:
    known = np.flatnonzero(~np.isnan(table).any(1))
    columns = table[known].round(6).T.tolist()
    return JudgedAnswers(known.tolist(), dict(zip(keys, columns, strict=True)))


def _ids(gallery: SearchableGallery, judged: JudgedSet, show_progress: bool) -> np.ndarray:
    """Return the id in the gallery of each image of the set that was judged, int64; -1 for others.

    Images are known by their path, and those that are elsewhere by their bytes.

    Raises:
        InputError: One that should be found is not in the gallery.
    """
    sides = [(one.relevant, one.ignored) for one in judged.protocols.values()]
    rows = np.unique(np.concatenate([row for pair in sides for side in pair for row in side])).tolist()
    if isinstance(judged, RecognitionSet):  # each image has a class
        rows = range(len(judged.gallery))
    real = cache(os.path.realpath)  # of folders
    row_at = {(real(judged.gallery[row].parent), judged.gallery[row].name): row for row in rows}
    ids = np.full(len(judged.gallery), -1)
    with Progress("looking up judged images", len(gallery), show=show_progress) as progress:
        for items in gallery.contents.pages():
            for item in items:
                folder, name = os.path.split(item.path)
                if (row := row_at.get((real(folder), name))) is not None:
                    ids[row] = item.id
            progress.update(len(items))
    elsewhere = [row for row in rows if ids[row] < 0]
    digests = [sha256_of(judged.gallery[row]) for row in elsewhere]
    known = gallery.writer.ids_by_content(digests)
    ids[elsewhere] = [known.get(digest, -1) for digest in digests]
    wanted = np.unique(np.concatenate([row for relevant, _ in sides for row in relevant]))
    absent = wanted[ids[wanted] < 0]
    if len(absent):
        example = judged.gallery[int(absent[0])]
        raise InputError(
            f"{gallery.folder}: {len(absent):,} of {len(wanted):,} images to find are not in the gallery, "
            f"{example} among them; add them by `lookalike index add`"
        )
    return ids


def _protocol(judged: JudgedSet, gallery: SearchableGallery | None) -> str:
    if gallery is not None:
        return f"each searched for in a gallery of {len(gallery):,} images, with its index"
    return f"each searched for among {len(judged.gallery):,} images, distractors included"
