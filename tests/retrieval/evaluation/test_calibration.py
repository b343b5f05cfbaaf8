"""Tests of calibration: regression against a peer, judged hits against brute force, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from retrieval import Gallery
from retrieval.errors import InputError, LookalikeError
from retrieval.evaluation.calibration import JudgedHits, calibrate, fit, judged_hits
from retrieval.ingest.judgements import Judgements, read_judgements
from retrieval.metrics.calibration import calibration_error, error_by_chance, reliability
from retrieval.search.calibration import DEPTH, NAME, write_calibration
from retrieval.search.query import SearchOptions
from retrieval.storage.records import FileStamp, NewItem
from tests.conftest import lookalike_here
from tests.retrieval.filling import DIM, bare_gallery

CLASSES, EACH = 24, 6


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """Clusters that overlap, so that some hits are wrong."""
    random = np.random.default_rng(3)
    points = np.repeat(random.standard_normal((CLASSES, DIM)), EACH, 0)
    points += 1.1 * random.standard_normal(points.shape)
    vectors = (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)
    stamps = [FileStamp("/images", f"{n}.jpg", 1, 1, f"c{n // EACH}") for n in range(len(vectors))]
    items = [NewItem(stamp, f"{n:064x}", 4, 3) for n, stamp in enumerate(stamps)]
    gallery = bare_gallery(tmp_path_factory.mktemp("calibration") / "g")
    with gallery.store.writing():
        gallery.store.commit(vectors, items)
    gallery.refresh()
    return gallery


def hits_of(x: np.ndarray, right: np.ndarray) -> JudgedHits:
    n = len(x)
    zeros = np.zeros(n, np.int64)
    return JudgedHits(x[:, 0], x[:, 1:], right, np.ones(n), np.arange(n), zeros, zeros.astype(bool))


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
    x = random.standard_normal((20_000, 4))
    logit = x @ [2.0, -0.5, 0.3, 0.0] - 0.7
    curve = 1 / (1 + np.exp(-logit))
    plain = hits_of(x, random.random(len(x)) < curve)
    peer = LogisticRegression(C=1.0).fit(x, plain.right)
    found = fit(plain)
    assert found.ceiling > 0.97
    np.testing.assert_allclose(found(x), peer.predict_proba(x)[:, 1], atol=0.02)
    capped = fit(hits_of(x, random.random(len(x)) < 0.6 * curve))
    assert capped.ceiling == pytest.approx(0.6, abs=0.05)


def test_judged_hits_by_brute_force(gallery: Gallery) -> None:
    """Each item searches without itself, and without its class; the regression sees the first ten of each."""
    found = gallery.embeddings()
    cosines = found.vectors.astype(np.float64) @ found.vectors.T
    np.fill_diagonal(cosines, -2)
    labels = np.array(found.labels)
    expected = []
    for row, of_row in enumerate(cosines):
        for others in (of_row, np.where(labels == labels[row], -2, of_row)):
            first = np.argsort(-others)[:DEPTH]
            near = others[first]
            summary = (near[0], near.mean(), near[-1])
            expected += [(others[n], *summary, labels[n] == labels[row]) for n in first]
    hits = judged_hits(gallery)
    table = np.column_stack([hits.scores, hits.nearest, hits.right])
    np.testing.assert_allclose(table, np.array(expected), atol=1e-6)
    assert hits.absent.reshape(-1, DEPTH)[1::2].all()
    assert not hits.absent.reshape(-1, DEPTH)[::2].any()
    weights = hits.with_absent(0.2)
    assert weights.weights[hits.absent].sum() == pytest.approx(0.2 * len(hits.right))


def test_probabilities_of_hits(gallery: Gallery) -> None:
    """They are the same for every k and filter, fall with the score, and vanish with another model."""
    query = gallery.embeddings().vectors[:1]
    assert gallery.find(query, SearchOptions(3))[0][0].probability is None
    with pytest.raises(InputError, match="not calibrated"):
        gallery.search_vectors(query, min_probability=0.5)
    calibration, quality = calibrate(gallery)
    assert quality.ece < 0.1
    assert quality.brier < quality.brier_of_share
    write_calibration(gallery.folder, calibration)
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
    with pytest.raises(LookalikeError, match="damaged"):
        gallery.find(query, SearchOptions(2))
    facts = json.loads(json.dumps(calibration.__dict__)) | {"fingerprint": "another"}
    (gallery.folder / NAME).write_text(json.dumps({"format": 1, **facts}))
    assert gallery.find(query, SearchOptions(2))[0][0].probability is None
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
    written.unlink()
