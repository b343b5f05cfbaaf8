"""Batch sampler: P classes x K images."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval import InputError
from train.config import BatchConfig
from train.input.sampler import ClassBatchSampler

sizes = st.lists(st.integers(1, 12), min_size=2, max_size=9)


@given(sizes, st.integers(2, 6), st.integers(2, 5), st.integers(0, 99))
def test_every_batch_is_k_images_of_p_classes(counts: list[int], p: int, k: int, seed: int) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    batches = ClassBatchSampler(labels, BatchConfig(classes=p, per_class=k), seed)
    drawn = list(batches.epoch(0))
    p = min(p, len(counts))
    assert len(drawn) == batches.per_epoch == max(1, len(labels) // (p * k))
    for batch in drawn:
        per_class = labels[batch].reshape(p, k)
        assert (per_class == per_class[:, :1]).all(), "images are grouped by class"
        assert len(set(per_class[:, 0])) == p
        for row in batch.reshape(p, k):
            assert len(set(row)) == min(k, counts[labels[row[0]]]), "no repeats unless the class is too small"


@given(sizes, st.integers(0, 99))
def test_epoch_depends_on_seed_and_number_only(counts: list[int], seed: int) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    one, two = (ClassBatchSampler(labels, BatchConfig(classes=2, per_class=2), seed) for _ in range(2))
    list(one.epoch(0))
    np.testing.assert_array_equal(np.concatenate(list(one.epoch(3))), np.concatenate(list(two.epoch(3))))


def test_epochs_and_seeds_differ() -> None:
    labels = np.repeat(np.arange(10), 10)
    firsts = [
        next(ClassBatchSampler(labels, BatchConfig(classes=4, per_class=4), seed).epoch(number)).tolist()
        for seed in range(3)
        for number in range(3)
    ]
    assert len({tuple(batch) for batch in firsts}) == 9


def test_classes_and_images_are_drawn_evenly() -> None:
    labels = np.repeat(np.arange(6), 20)
    drawn = np.concatenate(list(ClassBatchSampler(labels, BatchConfig(classes=3, per_class=4), 0).epoch(0)))
    assert set(Counter(labels[drawn]).values()) == {20}
    assert sorted(drawn) == list(range(120)), "every image exactly once"


@given(sizes, st.integers(2, 6), st.integers(2, 5), st.integers(0, 99))
def test_at_least_k_images_of_every_class_in_a_batch(counts: list[int], p: int, k: int, seed: int) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    batches = ClassBatchSampler(labels, BatchConfig(classes=p, per_class=k, layout="at-least"), seed)
    for batch in batches.epoch(0):
        assert len(batch) == min(p, len(counts)) * k
        assert min(Counter(labels[batch]).values()) >= k
        assert (np.diff(np.flatnonzero(np.diff(labels[batch], prepend=-1))) >= k).all(), "grouped by class"
        for label, count in Counter(labels[batch]).items():
            distinct = len(set(batch[labels[batch] == label]))
            assert distinct == min(count, counts[label]), "no repeats unless the class is too small"


def test_at_least_keeps_natural_frequencies() -> None:
    """A class ten times as large is drawn about ten times as often, if classes rarely share a batch."""
    labels = np.repeat(np.arange(40), [100] * 20 + [10] * 20)
    batches = ClassBatchSampler(
        labels, BatchConfig(classes=2, per_class=2, layout="at-least", per_epoch=1500), 0
    )
    drawn = Counter(labels[np.concatenate(list(batches.epoch(0)))] < 20)
    assert 9 < drawn[True] / drawn[False] < 11


def test_per_epoch_sets_the_number_of_batches() -> None:
    labels = np.repeat(np.arange(4), 4)
    assert (
        len(list(ClassBatchSampler(labels, BatchConfig(classes=2, per_class=2, per_epoch=7), 0).epoch(0)))
        == 7
    )


def test_single_class_is_refused() -> None:
    with pytest.raises(InputError, match="two classes"):
        ClassBatchSampler(np.zeros(5, int), BatchConfig(), 0)


@given(st.integers(5, 12), st.integers(2, 5), st.integers(2, 4), st.floats(0.1, 1), st.integers(0, 99))
def test_groups_are_a_class_and_its_nearest(
    classes: int, p: int, group: int, share: float, seed: int
) -> None:
    """With the neighbours on a circle."""
    labels = np.repeat(np.arange(classes), 3)
    config = BatchConfig(classes=p, per_class=2, hard_classes=share, group=group, per_epoch=30)
    batches = ClassBatchSampler(labels, config, seed)
    batches.nearest = (np.arange(classes)[:, None] + np.arange(1, classes)) % classes
    drawn = [batch.tolist() for batch in batches.epoch(1)]
    assert drawn == [batch.tolist() for batch in batches.epoch(1)], "the same when it is drawn again"
    grouped = round(share * p)
    for batch in drawn:
        found = labels[batch][::2].tolist()
        assert len(set(found)) == p == len(found)
        at = 0
        while at < grouped:
            ring = [c for c in (found[at] + np.arange(classes)) % classes if c not in found[:at]]
            size = max(1, min(group, grouped - at))
            assert found[at : at + size] == ring[:size]
            at += size


def test_groups_change_how_often_a_class_is_drawn_only_as_a_neighbour() -> None:
    labels = np.repeat(np.arange(12), 3)
    batches = ClassBatchSampler(
        labels, BatchConfig(classes=4, per_class=2, hard_classes=0.5, group=2, per_epoch=600), 0
    )
    batches.nearest = np.zeros((12, 1), np.int64)
    batches.nearest[0] = 1
    counts = np.bincount(np.concatenate([labels[batch][::2] for batch in batches.epoch(0)]), minlength=12)
    assert counts[0] > 2 * counts[2:].max(), "the neighbour of all others"
    assert counts[2:].max() < 1.1 * counts[2:].min()


@given(
    st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=5), min_size=2, max_size=5),
    st.integers(2, 8),
    st.integers(1, 5),
    st.integers(0, 99),
)
def test_classes_of_a_batch_come_from_few_categories(
    counts: list[list[int]], p: int, wanted: int, seed: int
) -> None:
    """Each with an equal share, and more of them only where those drawn have too few classes."""
    labels = np.repeat(np.arange(sum(map(len, counts))), np.concatenate(counts))
    category = np.repeat(np.arange(len(counts)), [len(classes) for classes in counts])
    config = BatchConfig(classes=p, per_class=2, categories=min(wanted, p), per_epoch=20)
    batches = ClassBatchSampler(labels, config, seed, category)
    p, wanted = min(p, len(category)), min(wanted, p, len(counts))
    share = -(-p // wanted)
    for batch in batches.epoch(0):
        classes = labels[batch].reshape(p, 2)[:, 0]
        assert len(set(classes)) == p
        if min(map(len, counts)) >= share:
            found = Counter(category[classes])
            assert len(found) <= wanted
            assert set(found.values()) <= {share, p % share}


def test_categories_are_drawn_evenly_and_so_are_their_classes() -> None:
    """One of ten classes and one of two, which come five times as often."""
    labels = np.repeat(np.arange(12), 4)
    category = np.array(["shoes"] * 10 + ["bags"] * 2)
    config = BatchConfig(classes=2, per_class=2, categories=2, per_epoch=300)
    batches = list(ClassBatchSampler(labels, config, 0, category).epoch(0))
    drawn = Counter(np.concatenate([labels[batch][::2] for batch in batches]).tolist())
    assert [drawn[c] for c in range(10)] == [30] * 10
    assert [drawn[c] for c in (10, 11)] == [150] * 2
    related = ClassBatchSampler(labels, config.model_copy(update={"categories": 1}), 0, category)
    of_batch = [set(category[labels[batch]]) for batch in related.epoch(0)]
    assert Counter(next(iter(one)) for one in of_batch if len(one) == 1) == {"shoes": 150, "bags": 150}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"categories": 2, "layout": "at-least"}, "layout=exact"),
        ({"categories": 2, "hard_classes": 0.5}, "both choose the classes"),
        ({"categories": 5, "classes": 4}, "expected batch.classes"),
    ],
)
def test_categories_that_cannot_be_drawn_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        BatchConfig(**settings)
