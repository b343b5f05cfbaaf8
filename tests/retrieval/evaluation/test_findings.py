"""Mistakes in a report, against a loop over all queries."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.evaluation.findings import (
    CONFUSIONS,
    HARDEST,
    NEIGHBOURS,
    Findings,
    ImageSet,
    common_root,
    find_mistakes,
)
from retrieval.evaluation.score import Evaluation, evaluate

NAMES = "abcdefg"


def random_case(seed: int, count: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors, float32 [N, 6], and their class numbers, each at least twice."""
    random = np.random.default_rng(seed)
    labels = np.r_[np.repeat(np.arange(classes), 2), random.integers(0, classes, count)]
    vectors = random.normal(size=(len(labels), 6)) + random.normal(size=(classes, 6))[labels]
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), labels


def images(labels: np.ndarray) -> ImageSet:
    paths = [Path(f"/data/{NAMES[label]}/{number}.png") for number, label in enumerate(labels)]
    return ImageSet(
        paths, [NAMES[label] for label in labels], [f"{number:064x}" for number in range(len(labels))]
    )


def findings_of(vectors: np.ndarray, labels: np.ndarray) -> tuple[Evaluation, Findings]:
    evaluation = evaluate("ours", vectors, labels, ks=(1, 4))
    return evaluation, find_mistakes(evaluation, images(labels), images(labels))


def neighbours_by_loop(vectors: np.ndarray) -> list[list[int]]:
    """All other rows for each query, best first."""
    cosines = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    return [
        sorted((j for j in range(len(vectors)) if j != i), key=lambda j, row=row: -row[j])
        for i, row in enumerate(cosines)
    ]


@given(st.integers(0, 10_000), st.integers(2, 25), st.integers(2, 6))
def test_findings_equal_a_loop_over_queries(seed: int, count: int, classes: int) -> None:
    vectors, labels = random_case(seed, count, classes)
    _, found = findings_of(vectors, labels)
    order = neighbours_by_loop(vectors)
    ranks = [next(r for r, j in enumerate(row, 1) if labels[j] == labels[i]) for i, row in enumerate(order)]
    assert found.queries.first_right == [rank if rank <= 4 else None for rank in ranks]
    mistakes = Counter((labels[i], labels[order[i][0]]) for i, rank in enumerate(ranks) if rank > 1)
    asked = Counter(labels.tolist())

    assert found.classes.name == list(NAMES[:classes])
    for number in range(classes):
        right = sum(rank == 1 for rank, label in zip(ranks, labels, strict=True) if label == number)
        assert found.classes.recall_at_1[number] == pytest.approx(right / asked[number])
        taken = {other: n for (label, other), n in mistakes.items() if label == number}
        worst = found.classes.mistaken_for[number]
        assert (worst is None) == (not taken)
        assert worst is None or taken[NAMES.index(worst)] == max(taken.values())

    assert sum(map(sum, (confusion.counts for confusion in found.confusions))) == sum(mistakes.values())
    for confusion in found.confusions:
        a, b = map(NAMES.index, confusion.classes)
        assert confusion.counts == (mistakes[a, b], mistakes[b, a])
        assert confusion.queries == (asked[a], asked[b])
        assert {found.label_of(confusion.query), confusion.answer.label} == set(confusion.classes)
        best = max(
            vectors[i] @ vectors[order[i][0]]
            for i in range(len(labels))
            if {labels[i], labels[order[i][0]]} == {a, b}
        )
        assert confusion.answer.score == pytest.approx(best, abs=1e-4)
    totals = [sum(confusion.counts) for confusion in found.confusions]
    assert totals == sorted(totals, reverse=True)

    for i in range(len(labels)):
        answer, j = found.nearest(i), order[i][0]
        assert answer is not None
        assert (answer.path, answer.label) == (f"{NAMES[labels[j]]}/{j}.png", NAMES[labels[j]])
        assert answer.score == pytest.approx(vectors[i] @ vectors[j], abs=1e-4)

    missed = [i for i, rank in enumerate(ranks) if rank > 1]
    depth = {i: min(ranks[i], 5) for i in missed}
    hardest = [hard.query for hard in found.hardest]
    assert len(set(hardest)) == len(hardest) == min(len(missed), HARDEST)
    assert sorted((depth[i] for i in missed), reverse=True)[:HARDEST] == [depth[i] for i in hardest]
    for hard in found.hardest:
        shown = order[hard.query][: min(NEIGHBOURS, 4)]
        assert [n.path for n in hard.neighbours] == [f"{NAMES[labels[j]]}/{j}.png" for j in shown]
        assert [n.right for n in hard.neighbours] == [labels[j] == labels[hard.query] for j in shown]
        first = order[hard.query][ranks[hard.query] - 1]
        assert hard.nearest_right.path == f"{NAMES[labels[first]]}/{first}.png"


def test_histograms_count_all_pairs() -> None:
    vectors, labels = random_case(3, 40, 4)
    evaluation, found = findings_of(vectors, labels)
    same = labels[:, None] == labels
    assert sum(found.similarities.positive) == same.sum() - len(labels)
    assert sum(found.similarities.negative) == (~same).sum()
    assert 0 < found.similarities.overlap < 1
    for ours, theirs in zip(
        found.queries.average_precision, evaluation.similarities.average_precision, strict=True
    ):
        assert ours == pytest.approx(theirs, abs=1e-6)


def test_findings_survive_json() -> None:
    found = findings_of(*random_case(1, 30, 5))[1]
    assert Findings.from_dict(json.loads(json.dumps(dataclasses.asdict(found)))) == found


def test_unanswerable_queries_and_unlabelled_images_are_no_mistakes() -> None:
    """A query whose class is nowhere else, and a gallery image without a class."""
    query = np.eye(3, dtype=np.float32)
    gallery = np.concatenate([query, 0.8 * query + 0.6 * np.roll(query, 1, axis=1)])
    labels = np.array([0, 1, 2])
    evaluation = evaluate("ours", query, labels, gallery, np.array([-1, 1, 3, 0, 3, 3]), ks=(1, 4))
    searched = ImageSet([Path(f"/shop/{i}.png") for i in range(6)], [None, "b", "d", "a", "d", "d"])
    found = find_mistakes(evaluation, images(labels), searched)
    assert found.queries.first_right[1:] == [1, None]
    assert found.queries.average_precision[2] is None
    assert found.classes.queries == [1, 1, 0]
    assert found.classes.recall_at_1 == [0.0, 1.0, None]
    assert found.classes.mistaken_for == [None, None, None]
    assert found.confusions == []
    assert [hard.query for hard in found.hardest] == [0]
    assert found.hardest[0].neighbours[0].label is None
    assert found.hardest[0].nearest_right.path == "/shop/3.png"


def test_only_the_most_confused_pairs_are_kept() -> None:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(400), 2)
    vectors = random.normal(size=(800, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    side = ImageSet(
        [Path(f"/data/{i}.png") for i in range(800)], [str(label) for label in labels], ["0"] * 800
    )
    found = find_mistakes(evaluate("ours", vectors, labels), side, side)
    assert len(found.confusions) == CONFUSIONS
    assert len(found.hardest) == HARDEST


def test_root_is_the_common_folder_of_all_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert common_root([Path("shop/red/1.png"), Path("shop/blue/1.png")]) == tmp_path / "shop"
    assert common_root([Path("shop/red/1.png")]) == tmp_path / "shop" / "red"
