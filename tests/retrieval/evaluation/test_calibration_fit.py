"""Tests of calibration: regression against a peer, judged hits against brute force, and the command."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from retrieval import Gallery
from retrieval.errors import InputError
from retrieval.evaluation.calibration_fit import (
    ABSENT_CLASS,
    COPIES,
    KINDS,
    PRESENT,
    SAME_PICTURE,
    JudgedHits,
    calibrate,
    change,
    fit,
    judged_hits,
)
from retrieval.ingest.judgements import Judgements, read_judgements
from retrieval.metrics.reliability import calibration_error, error_by_chance, reliability
from retrieval.search.calibration import DEPTH, NAME, SAME, write_calibration
from retrieval.search.options import SearchOptions
from retrieval.storage.records import FileStamp, NewItem
from tests.conftest import lookalike_here
from tests.retrieval.filling import (
    DIM,
    bare_gallery,
    gallery_of_unknown_training,
    small_gallery,
    trained_on,
)

CLASSES, EACH = 24, 6


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """Clusters that overlap, so that some hits are wrong."""
    return filled(tmp_path_factory.mktemp("calibration") / "g", clusters(CLASSES, EACH, 3), EACH)


def clusters(classes: int, each: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    points = np.repeat(random.standard_normal((classes, DIM)), each, 0)
    points += 1.1 * random.standard_normal(points.shape)
    return normalized(points)


def normalized(points: np.ndarray) -> np.ndarray:
    unit: np.ndarray = (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)
    return unit


def content(number: int) -> str:
    return hashlib.sha256(b"%d" % number).hexdigest()


def filled(folder: Path, vectors: np.ndarray, each: int, gallery: Gallery | None = None) -> Gallery:
    """Return a gallery of vectors, of which so many follow each other in a class."""
    stamps = [FileStamp("/images", f"{n}.jpg", 1, 1, f"c{n // each}") for n in range(len(vectors))]
    items = [NewItem(stamp, content(n), 4, 3) for n, stamp in enumerate(stamps)]
    gallery = bare_gallery(folder) if gallery is None else gallery
    with gallery.store.writing():
        gallery.store.commit(vectors, items)
    gallery.refresh()
    return gallery


def hits_of(x: np.ndarray, right: np.ndarray) -> JudgedHits:
    n = len(x)
    zeros = np.zeros(n, np.int64)
    return JudgedHits(x[:, 0], x[:, 1:], right, np.ones(n), KINDS * np.arange(n), zeros)


def test_calibration_error_by_hand() -> None:
    p = np.array([0.9, 0.1, 0.2, 0.8])
    right = np.array([True, False, True, True])
    # Two bins of weight 2: (0.15, 0.5) and (0.85, 1).
    assert calibration_error(p, right, bins=2) == pytest.approx((0.35 + 0.15) / 2)
    # With a weight of 3, 0.9 is a bin of its own.
    weighted = reliability(p, right, np.array([3, 1, 1, 1]), bins=2)
    assert [(round(b.probability, 6), round(b.right, 6), b.weight) for b in weighted] == [
        (round(1.1 / 3, 6), round(2 / 3, 6), 0.5),
        (0.9, 1.0, 0.5),
    ]


def test_error_by_chance_is_that_of_labels_drawn_from_the_probabilities() -> None:
    random = np.random.default_rng(7)
    p = random.random(400)
    drawn = [calibration_error(p, random.random(400) < p) for _ in range(100)]
    assert error_by_chance(p) == pytest.approx(np.mean(drawn), rel=0.15)


def test_regression_agrees_with_scikit_learn_and_finds_a_ceiling() -> None:
    random = np.random.default_rng(1)
    x = random.standard_normal((20_000, 6))
    logit = x @ [2.0, -0.5, 0.3, 0.0, 0.1, 0.2] - 0.7
    curve = 1 / (1 + np.exp(-logit))
    plain = hits_of(x, random.random(len(x)) < curve)
    peer = LogisticRegression(C=1.0).fit(x, plain.right)
    found = fit(plain)
    assert found.ceiling > 0.97
    np.testing.assert_allclose(found(x), peer.predict_proba(x)[:, 1], atol=0.02)
    capped = fit(hits_of(x, random.random(len(x)) < 0.6 * curve))
    assert capped.ceiling == pytest.approx(0.6, abs=0.05)


def test_regression_equals_a_minimum_of_scipy(gallery: Gallery) -> None:
    """With weights, a ceiling and the ridge; by BFGS without gradients, in other variables."""
    hits = judged_hits(gallery).with_absent(0.4)
    x, y, w = hits.features, hits.right, hits.weights
    mean = np.average(x, axis=0, weights=w)
    z = (x - mean) / np.sqrt(np.average((x - mean) ** 2, axis=0, weights=w))

    def loss(beta: np.ndarray) -> float:
        p = expit(beta[7]) * expit(z @ beta[:6] + beta[6])
        penalty = (beta[:6] ** 2).sum() / 2 + 0.05 * beta[7] ** 2 / 2
        return float(penalty - w @ np.log(np.where(y, p, 1 - p)))

    best = minimize(loss, [0] * 6 + [-1, 1.5], method="BFGS", options={"gtol": 1e-3}).x
    expected = expit(best[7]) * expit(z @ best[:6] + best[6])
    np.testing.assert_allclose(fit(hits)(x), expected, atol=2e-4)


def test_judged_hits_by_brute_force(gallery: Gallery) -> None:
    """Each item searches without itself, without its class, with itself, and as a changed copy.

    The regression sees the first ten hits of each that are not the picture of the query.
    """
    found = gallery.embeddings()
    vectors, labels = found.vectors.astype(np.float64), np.array(found.labels)
    copies = change(found.vectors).astype(np.float64)
    expected = {kind: [] for kind in range(KINDS)}
    for row, (vector, copy) in enumerate(zip(vectors, copies, strict=True)):
        same = labels == labels[row]
        itself = np.arange(len(labels)) == row
        for kind, (query, left_out) in enumerate(
            [(vector, itself), (vector, same), (vector, itself), (copy, np.zeros_like(itself))]
        ):
            cosines = np.where(left_out, -2, vectors @ query)
            first = np.argsort(-cosines)[:DEPTH]
            near = cosines[first]
            summary = (near[0], near[1], near.mean(), near[-1], kind == SAME_PICTURE)
            expected[kind] += [(cosines[n], *summary, same[n]) for n in first if n != row]
    hits = judged_hits(gallery)
    table = np.column_stack([hits.scores, hits.nearest, hits.right])
    for kind, rows in expected.items():
        np.testing.assert_allclose(table[hits.kinds == kind], np.array(rows), atol=1e-6)
    weights = hits.with_absent(0.2)
    ordinary = weights.weights[~hits.is_copied].sum()
    assert weights.weights[hits.kinds == ABSENT_CLASS].sum() == pytest.approx(0.2 * ordinary)
    of_same = weights.weights[hits.kinds == SAME_PICTURE].sum()
    assert of_same == pytest.approx(COPIES / 2 * ordinary)


def test_copies_are_near_their_originals() -> None:
    vectors = clusters(50, 4, 1)
    cosines = np.einsum("nd,nd->n", change(vectors), vectors)
    assert 0.8**0.5 - 1e-5 < cosines.min() < 0.91
    assert 0.99 < cosines.max() < 1
    one = vectors[:1]
    np.testing.assert_allclose(change(one), one, atol=1e-6)  # nothing to move it towards


def test_pictures_of_the_gallery_as_queries(tmp_path: Path) -> None:
    """Fitted to some classes and measured on others, of which each query is in the gallery.

    The changed copies differ from their originals in every direction, unlike those that were fitted to. One
    picture is in the gallery more often than there are nearest images.
    """
    each = 12
    fitted = filled(tmp_path / "fitted", clusters(80, each, 4), each)
    vectors = clusters(80, each, 5)
    vectors[1:each] = vectors[0]
    gallery = filled(tmp_path / "held", vectors, each)
    calibration, quality = calibrate(fitted)
    assert quality.ece_of_copies is not None
    assert quality.ece_of_copies < 0.05
    write_calibration(gallery.folder, replace(calibration, fingerprint=gallery.fingerprint))
    noise = np.random.default_rng(6).standard_normal(vectors.shape)
    changed = normalized(vectors + 0.35 * normalized(noise))
    for queries in (vectors, changed):
        found = gallery.find(queries, SearchOptions(DEPTH))
        rows = [(row, hit) for row, hits in enumerate(found) for hit in hits]
        p = np.array([hit.probability for _, hit in rows], float)
        right = np.array([hit.label == f"c{row // each}" for row, hit in rows])
        same = np.array([hit.score >= SAME for _, hit in rows])
        assert (p[same] == 1).all()
        assert (p[~same] < 1).all()
        others = np.array([hit.id != row + 1 for row, hit in rows]) & ~same
        assert calibration_error(p[others], right[others]) <= 0.05
        assert p[others].mean() == pytest.approx(right[others].mean(), abs=0.05)
    (one,) = gallery.find(vectors[:1], SearchOptions(3))
    assert [hit.probability for hit in one] == [1, 1, 1]
    (far,) = gallery.find(vectors[:1], SearchOptions(each + 2))
    (filtered,) = gallery.find(vectors[:1], SearchOptions(2, where=f"id > {each}"))
    assert [hit.probability for hit in filtered] == [hit.probability for hit in far[each : each + 2]]


def test_probabilities_of_hits(gallery: Gallery, caplog: pytest.LogCaptureFixture) -> None:
    """They are the same for every k and filter, fall with the score, and vanish with another model."""
    query = gallery.embeddings().vectors[:1]
    assert gallery.find(query, SearchOptions(3))[0][0].probability is None
    with pytest.raises(InputError, match="not calibrated"):
        gallery.search_vectors(query, min_probability=0.5)
    calibration, quality = calibrate(gallery)
    assert quality.ece < 0.1
    assert quality.brier < quality.brier_of_share
    (gallery.folder / f"{NAME}.tmp-0").write_text("of a run that was killed")
    write_calibration(gallery.folder, calibration)
    assert [file.name for file in gallery.folder.glob(f"{NAME}*")] == [NAME]
    whole = gallery.find(query, SearchOptions(40))[0]
    probability = {hit.id: hit.probability or 0.0 for hit in whole}
    values = [*probability.values()]
    assert values == sorted(values, reverse=True)
    assert values[0] > 2 * values[20]
    for options in (
        SearchOptions(2),
        SearchOptions(3, where="id > 20"),
        SearchOptions(3, group_by="label"),
        SearchOptions(5, min_score=0.3),
        SearchOptions(5, min_probability=values[1]),
    ):
        hits = gallery.find(query, options)[0]
        assert [hit.probability for hit in hits] == [probability[hit.id] for hit in hits]
        assert all((hit.probability or 0) >= (options.min_probability or 0) for hit in hits)
    assert len(gallery.search_vectors(query, min_probability=values[1])[0]) == 2
    assert gallery.search_vectors(query, rerank="k-reciprocal")[0][0].probability is None
    with pytest.raises(InputError, match="re-ranking"):
        SearchOptions(rerank="k-reciprocal", min_probability=0.5)
    (gallery.folder / NAME).write_text("{")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert gallery.find(query, SearchOptions(2))[0][0].probability is None
    (said,) = caplog.messages
    assert "calibration.json: damaged" in said, "once, and the search goes on"
    with pytest.raises(InputError, match="not calibrated"):
        gallery.search_vectors(query, min_probability=0.5)
    facts = json.loads(json.dumps(calibration.__dict__))
    (gallery.folder / NAME).write_text(json.dumps({"format": 2, **facts, "fingerprint": "another"}))
    assert gallery.find(query, SearchOptions(2))[0][0].probability is None
    # A file of the first format: four weights, and a summary that knows no copies.
    facts |= {"weights": [4.0, -1.0, 1.5, -2.0], "offset": -0.5, "ceiling": 0.9}
    del facts["knows_copies"]
    (gallery.folder / NAME).write_text(json.dumps({"format": 1, **facts}))
    assert gallery.calibration is not None
    assert not gallery.calibration.knows_copies
    hits = gallery.find(normalized(query + 0.1), SearchOptions(DEPTH))[0]
    near = np.array([hit.score for hit in hits])
    logits = 4 * near - near[0] + 1.5 * near.mean() - 2 * near[-1] - 0.5
    np.testing.assert_allclose([hit.probability for hit in hits], 0.9 / (1 + np.exp(-logits)))
    (gallery.folder / NAME).unlink()
    assert [calibration.is_stale(n) for n in (90, 100, 210, 220)] == [True, False, False, True]


def test_labels_and_decisions_of_tables(gallery: Gallery, tmp_path: Path) -> None:
    found = gallery.embeddings()
    ids, labels = found.ids.tolist(), found.labels
    table = tmp_path / "labels.csv"
    rows = [f"{number},{label}" for number, label in zip(ids, labels, strict=True)]
    table.write_text("\n".join(["id,label", *rows, f"{ids[0]},"]))
    judged = read_judgements(table, gallery)
    assert judged == Judgements(dict(zip(ids, labels, strict=True)), [])
    one, other = calibrate(gallery, judged)[0], calibrate(gallery)[0]
    assert one.weights == pytest.approx(other.weights)
    table.write_text(f"a,b,same\n{ids[0]},{ids[1]},1\n{ids[0]},{ids[9]},no\n{ids[3]},{ids[4]},\n")
    assert read_judgements(table, gallery).pairs == [(ids[0], ids[1], True), (ids[0], ids[9], False)]
    pairs = [(a, b, labels[a - 1] == labels[b - 1]) for a in ids[::2] for b in ids[a % 3 :: 4] if a != b]
    calibration, quality = calibrate(gallery, Judgements({}, pairs))
    assert calibration.weights[0] > 0
    assert quality.thresholds[0].refused is None
    for text, message in (
        ("id,label\n9999,x\n", "line 2"),
        ("id,name\n1,x\n", "needs one of"),
        (f"a,b,same\n{ids[0]},{ids[1]},maybe\n", "write 1 or 0"),
        ("id,label\n1,x\n2,y\n", "too few"),
    ):
        table.write_text(text)
        with pytest.raises(InputError, match=message):
            calibrate(gallery, read_judgements(table, gallery))


def test_command(gallery: Gallery, tmp_path: Path) -> None:
    folder = str(gallery.folder)
    report = tmp_path / "c.html"
    facts = json.loads(lookalike_here("calibrate", folder, "--json", "--report", str(report)).stdout)
    assert facts["quality"]["classes"] == CLASSES
    assert "<svg" in report.read_text()
    answer = lookalike_here("search", folder, "--id", "1", "-k", "3", "--json")
    (found,) = json.loads(answer.stdout)
    assert not found["nothing_like_it"]
    assert all(0 < hit["probability"] < 1 for hit in found["hits"])
    assert (
        f"  {found['hits'][0]['probability']:.0%}  " in lookalike_here("search", folder, "--id", "1").stdout
    )
    words = ("search", folder, "--id", "1", "--min-probability", "1")
    assert "nothing like it here: the best hit has a probability of" in lookalike_here(*words).stdout
    assert json.loads(lookalike_here(*words, "--json").stdout)[0]["nothing_like_it"]
    written = gallery.folder / NAME
    written.write_text(written.read_text().replace(f'"images": {CLASSES * EACH}', '"images": 9'))
    assert "run `lookalike calibrate" in lookalike_here("search", folder, "--id", "1").stderr
    facts = json.loads(written.read_text())
    facts |= {"format": 1, "weights": facts["weights"][:4], "images": CLASSES * EACH}
    written.write_text(json.dumps(facts))
    assert "calibrated by an earlier version" in lookalike_here("search", folder, "--id", "1").stderr
    written.unlink()


def test_images_that_the_network_was_trained_on_are_no_queries(tmp_path: Path) -> None:
    """The hits of the others are as without them."""
    rows = np.arange(CLASSES * EACH)
    trained = rows % EACH < EACH // 2
    vectors = clusters(CLASSES, EACH, 3)
    known = trained_on([content(row) for row in rows[trained]], [f"c{n}" for n in range(CLASSES)])
    gallery = filled(tmp_path / "g", vectors, EACH, small_gallery(tmp_path / "told", known))
    hits = judged_hits(gallery)
    assert hits.left_out == trained.sum()
    ids = gallery.embeddings().ids
    assert len(np.unique(hits.queries // KINDS)) == (~trained).sum()
    every = judged_hits(filled(tmp_path / "untold", vectors, EACH))
    of_new = np.isin(every.queries // KINDS, rows[~trained]) & (every.kinds == PRESENT)
    expected = np.sort(every.scores[of_new])
    np.testing.assert_allclose(np.sort(hits.scores[hits.kinds == PRESENT]), expected, atol=1e-6)
    quality = calibrate(gallery)[1]
    assert (quality.queries, quality.left_out) == ((~trained).sum(), trained.sum())
    labels = dict(zip(ids.tolist(), gallery.embeddings().labels, strict=True))
    assert calibrate(gallery, Judgements(labels, []))[1].left_out == trained.sum()
    pairs = [(a, b, labels[a] == labels[b]) for a in ids.tolist() for b in ids[a % 3 :: 4].tolist() if a != b]
    assert calibrate(gallery, Judgements({}, pairs))[1].left_out == trained.sum()
    done = lookalike_here("calibrate", str(gallery.folder))
    assert f"{trained.sum()} images that the network was trained on were no queries" in done.stdout
    note = "the model file does not tell which images the network was trained on"
    assert note not in done.stderr
    unknown = filled(tmp_path / "unknown", vectors, EACH, gallery_of_unknown_training(tmp_path / "elsewhere"))
    assert note in lookalike_here("calibrate", str(unknown.folder)).stderr


def test_a_network_that_was_trained_on_all_images_is_not_calibrated(tmp_path: Path) -> None:
    rows = np.arange(CLASSES * EACH)
    known = trained_on([content(row) for row in rows], [f"c{n}" for n in range(CLASSES)])
    vectors = clusters(CLASSES, EACH, 3)
    gallery = filled(tmp_path / "g", vectors, EACH, small_gallery(tmp_path / "told", known))
    with pytest.raises(InputError, match=f"{len(rows)} labelled images that the network was trained on"):
        calibrate(gallery)
    held_out = [content(row) for row in rows if row < 10 * EACH]  # classes that chose the epoch
    some = replace(known, held_out=trained_on(held_out, []).contents)
    gallery = filled(tmp_path / "g", vectors, EACH, small_gallery(tmp_path / "some", some))
    quality = calibrate(gallery)[1]
    assert (quality.classes, quality.queries, quality.left_out) == (10, 10 * EACH, len(rows) - 10 * EACH)


@pytest.mark.filterwarnings("error")
def test_one_image_is_too_few(tmp_path: Path) -> None:
    gallery = filled(tmp_path / "g", clusters(1, 1, 0), 1)
    with pytest.raises(InputError, match=r"g: 0 right and 0 wrong hits of 0 classes .* too few"):
        calibrate(gallery)
