"""Coverage by a log: every number against brute force; classes that are missing come first, and no others."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from retrieval import Gallery, SearchOptions
from retrieval.errors import InputError
from retrieval.evaluation.coverage import Coverage, measure_coverage
from retrieval.ingest.judgements import read_judgements
from retrieval.search.calibration import Calibration, write_calibration
from retrieval.storage import query_log
from retrieval.storage.manifest import Manifest
from retrieval.storage.query_log import LoggedSearch, QueryLog, new_id
from retrieval.storage.store import Store
from tests.conftest import lookalike_here
from tests.retrieval.filling import DIM, new_items

MODEL, CLASSES = "m" * 64, 30
CENTRES = np.random.default_rng(9).standard_normal((CLASSES + 3, DIM))


def drawn(classes: np.ndarray, seed: int, noise: float = 0.7) -> np.ndarray:
    """Return a unit vector of each class."""
    found = CENTRES[classes] + noise * np.random.default_rng(seed).standard_normal((len(classes), DIM))
    unit: np.ndarray = (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)
    return unit


@pytest.fixture
def gallery(tmp_path: Path) -> Gallery:
    """300 images of 30 classes, of which a third has a label."""
    Store.create(tmp_path / "g", Manifest(MODEL, DIM, embedding="random"))
    gallery = Gallery(tmp_path / "g")
    classes = np.arange(300) % CLASSES
    with gallery.store.writing():
        gallery.store.commit(drawn(classes, 1), new_items([f"n{number}" for number in range(300)]))
    gallery.refresh()
    editor = gallery.editor()
    with editor.writing():
        some = {*(np.random.default_rng(0).choice(300, 100, replace=False) + 1).tolist()}
        labels = [f"class {classes[item - 1]}" if item in some else None for item in range(1, 301)]
        editor.relabel(editor.stored_items([*range(1, 301)]), labels)
    gallery.refresh()
    return gallery


class Logging:
    """A log to which searches of a gallery are written, an hour apart."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.count = folder, QueryLog(folder), 0

    def add(self, vectors: np.ndarray, **changed: Any) -> list[str]:
        ids = [new_id() for _ in vectors]
        for id, vector in zip(ids, vectors, strict=True):
            day, hour = divmod(self.count, 24)
            self.count += 1
            values = {"kind": "image", "items": (), "where": None, "hits": [(1, 0.5, None)], **changed}
            with patch.object(
                query_log,
                "now",
                lambda d=day, h=hour: f"2026-{1 + d // 28:02}-{1 + d % 28:02}T{h:02}:00:00+00:00",
            ):
                self.log.append("g", MODEL, [LoggedSearch(id, vector=vector, **values)])
        return ids


@pytest.fixture
def log(tmp_path: Path) -> Logging:
    return Logging(tmp_path / "log")


def rounded(vectors: np.ndarray) -> np.ndarray:
    """Return vectors as the log keeps them."""
    found = vectors.astype(np.float16).astype(np.float32)
    unit: np.ndarray = found / np.linalg.norm(found, axis=1, keepdims=True)
    return unit


def stored(gallery: Gallery) -> np.ndarray:
    return np.stack([gallery.vector(number) for number in range(1, len(gallery) + 1)])


def first_ten(gallery: Gallery, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scores = queries @ stored(gallery).T
    order = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    return order + 1, np.take_along_axis(scores, order, 1)


def nearest_others(gallery: Gallery) -> np.ndarray:
    """Return the cosine of each image with the nearest other one."""
    scores = stored(gallery) @ stored(gallery).T
    np.fill_diagonal(scores, -1)
    nearest: np.ndarray = scores.max(1)
    return nearest


def test_what_was_not_found(gallery: Gallery, log: Logging) -> None:
    there, missing = drawn(np.arange(150) % CLASSES, 2), drawn(np.full(30, CLASSES), 3)
    log.add(there)
    ids = log.add(missing)
    for id in ids[:7]:
        log.log.append_outcome("g", id, 1, "opened")
    log.log.append_outcome("g", ids[8], 1, "wrong")  # is no success
    log.add(drawn(np.full(9, CLASSES), 4), kind="item", items=(5,))  # of the gallery: is not missing
    log.add(drawn(np.full(9, CLASSES), 5), kind="text")
    log.add(missing[:5], where="label = 'x'", hits=[])
    found = measure_coverage(gallery, log.folder)
    queries = rounded(np.concatenate([there, missing, missing[:5]]))
    limit = np.quantile(nearest_others(gallery), 0.05)
    far = first_ten(gallery, queries)[1][:, 0] < limit
    opened = np.isin(np.arange(len(queries)), range(150, 157))
    assert (found.searches, found.pictures) == (203, 185)
    assert found.lost == int((far & ~opened).sum()) > 20
    assert found.lost_by_chance == pytest.approx(0.05, abs=0.004)
    assert found.lost_interval[0] < found.lost / 185 < found.lost_interval[1]
    assert (found.filtered_out, found.unopened) == (5, 203 - 7)
    assert (found.calibrated, found.found_since) == (False, None)


def test_missing_classes_come_first_and_alone(gallery: Gallery, log: Logging) -> None:
    classes = np.random.default_rng(0).permutation(
        np.repeat(np.arange(CLASSES + 2), [10] * CLASSES + [40, 25])
    )
    ids = np.array(log.add(drawn(classes, 2)))
    found = measure_coverage(gallery, log.folder)
    certain = [group for group in found.groups if group.certain]
    assert len(certain) == 2
    for group, missing in zip(found.groups, (CLASSES, CLASSES + 1), strict=False):
        members = classes[np.isin(ids, group.searches)]
        assert Counter(members.tolist()).most_common(1)[0][0] == missing
        assert (members == missing).mean() > 0.9
        assert len(members) > 0.8 * (classes == missing).sum()
        assert group.expected < 1
        mean = rounded(drawn(classes, 2))[np.isin(ids, group.searches)].mean(0)
        order = np.argsort(-stored(gallery) @ mean, kind="stable")[:10] + 1
        assert [item for item, _ in group.nearest] == order.tolist()
        assert group.first < group.last
    assert not {*found.groups[0].searches} & {*found.groups[1].searches}


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_certain_if_nothing_is_missing(gallery: Gallery, log: Logging, seed: int) -> None:
    log.add(drawn(np.random.default_rng(seed).integers(0, CLASSES, 300), 100 + seed))
    found = measure_coverage(gallery, log.folder)
    assert not [group for group in found.groups if group.certain]


def test_one_visitor_is_no_evidence(gallery: Gallery, log: Logging) -> None:
    """The same picture again and again, as when filters are tried, is one search of the test."""
    log.add(drawn(np.arange(150) % CLASSES, 2))
    log.add(np.repeat(drawn(np.array([CLASSES]), 3), 60, 0))
    log.add(drawn(np.arange(150) % CLASSES, 4))
    assert not [group for group in measure_coverage(gallery, log.folder).groups if group.certain]


def test_calibrated_gallery_is_judged_by_probabilities(gallery: Gallery, log: Logging) -> None:
    weights = (14.0, -2.0, 0.0, 0.0, 0.0, 0.0)
    write_calibration(gallery.folder, Calibration(MODEL, 300, weights, -6.0, 0.9, 0.5, "2026-01-01", {}))
    classes = np.arange(90) % (CLASSES + 3)
    queries = rounded(drawn(classes, 2))
    log.add(queries[:45], hits=[(1, 0.5, 0.01)])
    log.add(queries[45:], hits=[(1, 0.5, 0.9)])
    log.add(stored(gallery)[:3], kind="item", items=(1, 2, 3))
    hits = gallery.find(queries, SearchOptions(1))
    probabilities = np.array([some[0].probability for some in hits])
    found = measure_coverage(gallery, log.folder)
    assert found.calibrated
    assert found.lost == int((probabilities < 0.25).sum()) > 0
    assert found.found_since == int((probabilities[:45] >= 0.25).sum()) > 0
    own = [gallery.find(stored(gallery)[n : n + 1], SearchOptions(1), [(n + 1,)])[0][0] for n in range(300)]
    assert found.lost_by_chance == pytest.approx(np.mean([(hit.probability or 0) < 0.25 for hit in own]))


def test_images_that_nobody_finds(gallery: Gallery, log: Logging) -> None:
    queries = rounded(drawn(np.arange(25) % 5, 2))
    log.add(queries)
    found = measure_coverage(gallery, log.folder, limit=20)
    ids, _ = first_ten(gallery, queries)
    never = sorted({*range(1, 301)} - {*ids.ravel().tolist()})
    likest = (stored(gallery) @ queries.T).max(1)
    assert (found.images, found.never) == (300, len(never))
    assert found.unseen == sorted(never, key=lambda item: likest[item - 1])[:20]
    assert found.never_by_chance == pytest.approx(300 * (1 - 10 / 300) ** 25)
    trials = [
        len({*range(300)} - {i for _ in range(25) for i in some.choice(300, 10, replace=False)})
        for some in map(np.random.default_rng, range(200))
    ]
    assert found.never_by_chance == pytest.approx(np.mean(trials), rel=0.02)
    assert found.never_by_images is not None
    assert found.never_by_images < found.never, "searches for five of thirty classes"


def greedy(gallery: Gallery, ids: np.ndarray, uncertainty: list[float], limit: int) -> list[tuple[int, int]]:
    """Choose images to label one by one, without vectorised code."""
    settled, chosen = [0] * len(ids), list[tuple[int, int]]()
    open_items = sorted(
        {item for line in ids[:, :3].tolist() for item in line if not gallery.item(item).label}
    )
    for _ in range(limit):
        gains = {
            item: sum(
                u
                for line, u, s in zip(ids[:, :3].tolist(), uncertainty, settled, strict=True)
                if item in line and not s
            )
            for item in open_items
            if item not in {one for one, _ in chosen}
        }
        best = max(gains, key=lambda item: (round(gains[item], 9), -item), default=0)
        if gains.get(best, 0) <= 0:
            break
        helped = [n for n, line in enumerate(ids[:, :3].tolist()) if best in line and not settled[n]]
        chosen.append((best, len(helped)))
        for n in helped:
            settled[n] += 1
    return chosen


def test_labels_that_would_help_most(gallery: Gallery, log: Logging) -> None:
    queries = rounded(drawn(np.arange(60) % 14, 2, noise=0.9))
    log.add(queries)
    ids, _ = first_ten(gallery, queries)
    uncertainty = []
    for line in ids.tolist():
        labels = Counter(label for label in (gallery.item(item).label for item in line) if label)
        uncertainty.append(1 - max(labels.values(), default=0) / 10)
    found = measure_coverage(gallery, log.folder, limit=12)
    expected = greedy(gallery, ids, uncertainty, 12)
    assert [(one.item, one.searches) for one in found.wanted] == expected
    assert all(not gallery.item(one.item).label for one in found.wanted)
    assert found.disagreeing == sum(one >= 0.5 for one in uncertainty)


def test_newer_searches_are_compared_with_older_ones(gallery: Gallery, log: Logging) -> None:
    log.add(drawn(np.arange(100) % CLASSES, 2))
    log.add(drawn(np.arange(100) % 3, 3))  # another season
    found = measure_coverage(gallery, log.folder)
    assert found.change is not None
    assert found.change.certain
    assert found.change.auc > 0.9
    later = measure_coverage(gallery, log.folder, since="2026-01-05T04:00:00+00:00")
    assert later.searches == 100
    assert later.change == found.change
    assert later.drift is not None
    assert later.drift.auc > 0.9
    with pytest.raises(InputError, match=r"no search of g with its present model since 2027"):
        measure_coverage(gallery, log.folder, since="2027-01-01")


def test_other_models_and_galleries_are_named(gallery: Gallery, log: Logging) -> None:
    log.log.append("g", "old", [LoggedSearch(new_id(), "image", drawn(np.array([1]), 1)[0], (), None, [])])
    with pytest.raises(InputError, match=r"no search of g with its present model; it has 1 of g, model old"):
        measure_coverage(gallery, log.folder)
    log.add(drawn(np.arange(5), 2))
    found = measure_coverage(gallery, log.folder)
    assert found.searches == 5
    assert found.notes == ["left out: 1 searches of g, model old"]
    assert (found.drift, found.change) == (None, None)


def test_command(gallery: Gallery, log: Logging, tmp_path: Path) -> None:
    classes = np.random.default_rng(0).permutation(np.repeat(np.arange(CLASSES + 1), [10] * CLASSES + [40]))
    log.add(drawn(classes, 2))
    table, sheet = tmp_path / "label.csv", tmp_path / "coverage.html"
    words = ["coverage", str(gallery.folder), "--log", str(log.folder)]
    done = lookalike_here(*words, "--limit", "15", "--list", str(table), "--sheet", str(sheet))
    assert done.stdout.startswith("340 searches: certain to be missing: 1 group of ")
    assert "images nobody finds" in done.stdout
    assert "searches for what may be missing" in sheet.read_text()
    facts = json.loads(lookalike_here(*words, "--json").stdout)
    found: Coverage = measure_coverage(gallery, log.folder)
    assert facts["lost"] == found.lost
    assert facts["groups"][0]["searches"] == found.groups[0].searches
    assert facts["groups"][0]["certain"] is True
    rows = [*csv.DictReader(table.open())]
    assert [row["key"] for row in rows] == [gallery.item(one.item).key for one in found.wanted[:15]]
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows({**row, "label": f"named {number % 3}"} for number, row in enumerate(rows))
    assert len(read_judgements(table, gallery).labels) == 15, "as `improve --labels` takes it"
    none = lookalike_here("coverage", str(gallery.folder), "--log", str(tmp_path / "none"), code=2)
    assert "lookalike serve --query-log" in none.stderr
