"""What an order and diversity cost, against brute force."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from retrieval import Gallery, InputError
from retrieval.evaluation.ranking_rules import ranking_cost
from retrieval.metrics.statistics import bootstrap_intervals
from retrieval.search.diversity import diversified
from retrieval.search.options import SearchOptions
from retrieval.storage.records import Facts
from tests.conftest import lookalike_here
from tests.retrieval.filling import bare_gallery, unit_vectors

COUNT, CLASSES = 120, 10


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """Noisy classes, with a column of stock that has nothing to do with them."""
    gallery = bare_gallery(tmp_path_factory.mktemp("ranking") / "g")
    labels = [f"c{row % CLASSES}" if row < COUNT - 1 else None for row in range(COUNT)]
    dim = gallery.manifest.dim
    vectors = unit_vectors(CLASSES, 1)[np.arange(COUNT) % CLASSES] + 1.2 * unit_vectors(COUNT, 2)
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    assert vectors.shape == (COUNT, dim)
    nothing = [0] * COUNT
    keys = [f"k{row:03d}" for row in range(COUNT)]
    facts = Facts(keys, [""] * COUNT, [""] * COUNT, nothing, nothing, [""] * COUNT, nothing, nothing, labels)
    stock = np.random.default_rng(3).integers(0, 2, COUNT).tolist()
    with gallery.store.writing():
        gallery.store.append(vectors, facts, {"stock": stock})
    gallery.refresh()
    return gallery


def rankings(gallery: Gallery) -> tuple[np.ndarray, list[str | None], np.ndarray]:
    """Scores without those of an image with itself, labels, and stock of all items, in a loop over them."""
    ids = range(1, COUNT + 1)
    vectors = np.stack([gallery.vector(one) for one in ids])
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -np.inf)
    items = gallery.items(ids)
    stock = np.array([items[one].metadata["stock"] for one in ids], float)
    return scores, [items[one].label for one in ids], stock


@pytest.mark.parametrize("weight", [0.05, 0.5])
def test_order_costs_what_brute_force_says(gallery: Gallery, weight: float) -> None:
    scores, labels, stock = rankings(gallery)
    found = ranking_cost(gallery, SearchOptions(order=f"score + {weight} * stock desc"))
    asked = [row for row, label in enumerate(labels) if label]
    assert (found.queries, found.classes) == (len(asked), CLASSES)
    per_query = []
    for row in asked:
        right = np.array([label == labels[row] for label in labels])
        plain, ranked = (np.argsort(-values)[:10] for values in (scores[row], scores[row] + weight * stock))
        per_query.append(
            [
                *(float(right[first][0]) for first in (plain, ranked)),
                *(float(right[first].any()) for first in (plain, ranked)),
                *(right[first].mean() for first in (plain, ranked)),
                len({*ranked} - {*plain}) / 10,
            ]
        )
    values = np.array(per_query)
    keys = ("recall_at_1", "recall_at_10", "precision_at_10")
    assert [found.plain[key] for key in keys] == pytest.approx(values.mean(0)[[0, 2, 4]])
    assert [found.ranked[key] for key in keys] == pytest.approx(values.mean(0)[[1, 3, 5]])
    assert found.moved == pytest.approx(values[:, 6].mean())
    differences = values[:, [1, 3, 5]] - values[:, [0, 2, 4]]
    classes = np.array([labels[row] for row in asked])
    intervals = bootstrap_intervals(differences, classes)
    for key, mean, ends in zip(keys, differences.mean(0), intervals, strict=True):
        assert found.changes[key].difference == pytest.approx(mean)
        assert found.changes[key].class_interval == pytest.approx(tuple(ends))
    if weight > 0.1:
        assert found.changes["precision_at_10"].difference < 0, "stock has nothing to do with the classes"


def test_diversity_costs_what_its_own_order_says(gallery: Gallery) -> None:
    scores, labels, _ = rankings(gallery)
    found = ranking_cost(gallery, SearchOptions(diversity=0.6))
    vectors = np.stack([gallery.vector(one) for one in range(1, COUNT + 1)])
    right = []
    for row, label in enumerate(labels):
        if label:
            near = np.argsort(-scores[row])[: COUNT - 1]
            first = near[diversified(scores[row][near], vectors[near], 0.6, 10)]
            right.append(np.mean([labels[one] == label for one in first]))
    assert found.ranked["precision_at_10"] == pytest.approx(np.mean(right))
    assert found.ranked["precision_at_10"] < found.plain["precision_at_10"]


def test_sample_is_the_same_every_time(gallery: Gallery) -> None:
    options = SearchOptions(order="score + 0.1 * stock desc")
    found = [ranking_cost(gallery, options, limit=30) for _ in range(2)]
    assert found[0] == found[1]
    assert found[0].queries == 30


def test_command_shows_the_costs(gallery: Gallery) -> None:
    words = ("evaluate", str(gallery.folder), "--order", "score + 0.5 * stock desc")
    shown = lookalike_here(*words).stdout
    assert "differ." in shown
    assert "other classes like these" in shown
    ranking = json.loads(lookalike_here(*words, "--json").stdout)["ranking"]
    found = ranking_cost(gallery, SearchOptions(order="score + 0.5 * stock desc"))
    assert ranking["ranked"] == found.ranked
    refused = lookalike_here(*words, "--data", "digits", code=2)
    assert "leave out --data" in refused.stderr


def test_labels_are_needed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no two images have the same label"):
        ranking_cost(bare_gallery(tmp_path / "g"), SearchOptions(diversity=0.5))
