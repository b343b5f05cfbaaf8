"""Evaluation on a judged set: average precision, by protocol, of a run, a model file or a gallery."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from retrieval.errors import InputError
from retrieval.evaluation.report import Report
from retrieval.evaluation.score import Result, by_key
from retrieval.files import sha256_of
from retrieval.galleries.searchable import SearchableGallery
from retrieval.images.decode import EmbeddedFiles
from retrieval.metrics import mean
from retrieval.metrics.judged import RelevantRanks, rank_hits, rank_judged
from retrieval.metrics.statistics import bootstrap_intervals, class_intervals
from retrieval.model.runtime import Runtime
from retrieval.progress import Progress
from retrieval.search.options import EACH, SearchOptions
from train.data.judged import KS, JudgedSet
from train.experiments.targets import Candidate, open_target, reference_candidates

_DEPTH = 10_000  # hits of a gallery that are ranked where a protocol has no depth of its own
_AT_ONCE = 64  # queries


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
    results: list[Result] = []
    bad: dict[str, str] = {}
    with judged.query_files() as files:
        source = dict(zip(map(str, files), (str(query.path) for query in judged.queries), strict=True))
        for candidate in [*references, *opened.candidates]:
            asked = _embed(candidate, files, show_progress)
            if not len(asked.positions):
                raise InputError("none of the queries could be read; check the files")
            bad |= {source[one.source]: one.detail for one in asked.bad}
            if opened.gallery is not None and candidate in opened.candidates:
                ranks = _search_gallery(
                    opened.gallery, asked, judged, options or SearchOptions(), show_progress
                )
            else:
                searched = _embed(candidate, judged.gallery, show_progress)
                bad |= {one.source: one.detail for one in searched.bad}
                ranks = _search(asked, searched, judged, show_progress)
            things = np.array([judged.queries[number].thing for number in asked.positions])
            results += [
                _result(f"{candidate.name}{', ' if protocol else ''}{protocol}", found, judged.k, things)
                for protocol, found in ranks.items()
            ]
    return Report(
        data=judged.name,
        protocol=_protocol(judged, opened.gallery),
        images=len(judged.queries),
        classes=len({query.thing for query in judged.queries}),
        fingerprint=opened.fingerprint,
        results=results,
        bad_files=sorted(bad.items()),
        ks=KS if judged.k is None else (*KS, judged.k),
        notes=tuple(filter(None, [*(one.note for one in references), left_out])),
        seed=opened.config.get("seed"),
    )


def _embed(candidate: Candidate, files: Sequence[Path], show_progress: bool) -> EmbeddedFiles:
    return candidate.embed(files, files, f"embedding ({candidate.name})", show_progress=show_progress)


def _search(
    asked: EmbeddedFiles, searched: EmbeddedFiles, judged: JudgedSet, show_progress: bool
) -> dict[str, RelevantRanks]:
    """Rank the images of the set exactly; those that could not be read are not found."""
    row_of = np.full(len(judged.gallery), -1)
    row_of[searched.positions] = np.arange(len(searched.positions))
    readable = [one.moved(asked.positions, row_of) for one in judged.protocols.values()]
    found = rank_judged(asked.vectors, searched.vectors, readable, show_progress=show_progress)
    return {
        name: replace(ranks, num_relevant=one.num_relevant[asked.positions])
        for (name, one), ranks in zip(judged.protocols.items(), found, strict=True)
    }


def _search_gallery(
    gallery: SearchableGallery,
    asked: EmbeddedFiles,
    judged: JudgedSet,
    options: SearchOptions,
    show_progress: bool,
) -> dict[str, RelevantRanks]:
    """Search a gallery by its own index, once for all protocols."""
    ids = _ids(gallery, judged, show_progress)
    protocols = {name: one.moved(asked.positions, ids) for name, one in judged.protocols.items()}
    beside = max(len(rows) for one in protocols.values() for rows in one.ignored)
    depth = min(len(gallery), (judged.k or _DEPTH) + beside)
    wanted = replace(options, k=depth, group_by=options.group_by or EACH, calibrated=False)
    rows = np.full((len(asked.vectors), depth), -1)
    with Progress("searching", len(rows), "queries", show=show_progress) as progress:
        for start in range(0, len(rows), _AT_ONCE):
            for number, hits in enumerate(
                gallery.find(asked.vectors[start : start + _AT_ONCE], wanted), start
            ):
                rows[number, : len(hits)] = [hit.id for hit in hits]
            progress.update(min(_AT_ONCE, len(rows) - start))
    return {name: rank_hits(rows, int(rows.max()) + 1, one) for name, one in protocols.items()}


def _ids(gallery: SearchableGallery, judged: JudgedSet, show_progress: bool) -> np.ndarray:
    """Return the id in the gallery of each image of the set that was judged, int64; -1 for others.

    Images are known by their path, and those that are elsewhere by their bytes.

    Raises:
        InputError: One that should be found is not in the gallery.
    """
    sides = [(one.relevant, one.ignored) for one in judged.protocols.values()]
    rows = np.unique(np.concatenate([row for pair in sides for side in pair for row in side])).tolist()
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


def _result(name: str, ranks: RelevantRanks, k: int | None, things: np.ndarray) -> Result:
    if k is None:
        headline, at_ks, title = ranks.trapezoid_average_precision(), ranks.precision(KS), "precision"
    else:
        headline, at_ks, title = ranks.average_precision(k), ranks.recall(KS), "recall"
    keys = ["trapezoid_ap" if k is None else f"map_at_{k}", *(f"{title}_at_{depth}" for depth in KS)]
    table = np.column_stack([headline, at_ks])
    over_things = class_intervals(table, things)
    return Result(
        name,
        dict(zip(keys, mean(table).tolist(), strict=True)),
        intervals=by_key(keys, bootstrap_intervals(table)),
        class_intervals={} if over_things is None else by_key(keys, over_things),
    )


def _protocol(judged: JudgedSet, gallery: SearchableGallery | None) -> str:
    if gallery is not None:
        return f"each searched for in a gallery of {len(gallery):,} images, with its index"
    return f"each searched for among {len(judged.gallery):,} images, distractors included"
