"""Classes and images held out for validation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval import InputError
from train.config import SplitConfig
from train.data import LabelledImage
from train.data.splits import hold_out


def images(classes: int, each: int = 2) -> list[LabelledImage]:
    return [LabelledImage(Path(f"{c}-{i}"), f"class {c:03d}") for i in range(each) for c in range(classes)]


def labels(found: list[LabelledImage]) -> set[str]:
    return {image.label for image in found}


@given(st.integers(4, 60), st.floats(0, 0.9), st.integers(0, 9))
def test_validation_is_a_share_of_whole_classes_or_empty(classes: int, share: float, seed: int) -> None:
    every, config = images(classes), SplitConfig(validation=share)
    wanted = round(share * classes)
    if wanted > classes - 2:
        with pytest.raises(InputError, match="lower it"):
            hold_out(every, config, seed)
        return
    training, held_out = hold_out(every, config, seed)
    assert len(labels(held_out)) == (wanted if wanted >= 2 else 0), "one class alone cannot be searched"
    assert not labels(training) & labels(held_out)
    assert sorted(training + held_out, key=every.index) == every
    assert [image for image in every if image in training] == training, "in their order"
    assert hold_out(every, config, seed) == (training, held_out)


@given(st.integers(2, 9), st.integers(0, 40), st.integers(0, 9))
def test_every_class_is_in_exactly_one_fold(folds: int, more: int, seed: int) -> None:
    every = images(2 * folds + more)
    parts = [hold_out(every, SplitConfig(folds=folds, fold=fold), seed) for fold in range(folds)]
    sizes = [len(labels(held_out)) for _, held_out in parts]
    assert sum(sizes) == len(labels(every))
    assert set().union(*(labels(held_out) for _, held_out in parts)) == labels(every)
    assert max(sizes) - min(sizes) <= 1
    assert all(labels(training) == labels(every) - labels(held_out) for training, held_out in parts)


def test_folds_of_one_class_are_refused() -> None:
    with pytest.raises(InputError, match=r"split\.folds=4 needs two classes in each, 8 in all; there are 7"):
        hold_out(images(7), SplitConfig(folds=4), 0)


def test_split_depends_on_the_seed_not_on_image_order() -> None:
    every = images(40)
    for config in (SplitConfig(validation=0.25), SplitConfig(folds=4)):
        drawn = {frozenset(labels(hold_out(every, config, seed)[1])) for seed in range(5)}
        assert len(drawn) == 5
        assert labels(hold_out(every[::-1], config, 0)[1]) == labels(hold_out(every, config, 0)[1])


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.floats(0.01, 0.9), st.integers(0, 9))
def test_images_are_held_out_in_the_same_share_of_every_class(
    sizes: list[int], share: float, seed: int
) -> None:
    every = [LabelledImage(Path(f"{c}-{i}"), f"{c}") for c, size in enumerate(sizes) for i in range(size)]
    config = SplitConfig(by="images", validation=share)
    counts = {f"{c}": wanted if (wanted := round(share * size)) >= 2 else 0 for c, size in enumerate(sizes)}
    if any(0 <= size - counts[f"{c}"] < 2 <= counts[f"{c}"] for c, size in enumerate(sizes)):
        with pytest.raises(InputError, match=r"images of class '\d' to train on; lower it"):
            hold_out(every, config, seed)
    elif not any(counts.values()):
        with pytest.raises(InputError, match="holds out fewer than two images of every class"):
            hold_out(every, config, seed)
    else:
        training, held_out = hold_out(every, config, seed)
        assert Counter(image.label for image in held_out) == Counter(counts)
        assert [image for image in every if image not in held_out] == training, "in their order"
        assert [image for image in every if image not in training] == held_out
        assert hold_out(every, config, seed) == (training, held_out)


@given(st.lists(st.integers(8, 30), min_size=1, max_size=6), st.integers(2, 4), st.integers(0, 9))
def test_every_image_is_in_exactly_one_fold(sizes: list[int], folds: int, seed: int) -> None:
    every = [LabelledImage(Path(f"{c}-{i}"), f"{c}") for c, size in enumerate(sizes) for i in range(size)]
    parts = [hold_out(every, SplitConfig(by="images", folds=folds, fold=fold), seed) for fold in range(folds)]
    assert sorted((image for _, held_out in parts for image in held_out), key=every.index) == every
    for label in labels(every):
        counts = [sum(image.label == label for image in held_out) for _, held_out in parts]
        assert max(counts) - min(counts) <= 1


def test_folds_of_few_images_are_refused() -> None:
    with pytest.raises(InputError, match=r"every class in each, 8 in all; class .* has 7"):
        hold_out(images(3, each=7), SplitConfig(by="images", folds=4), 0)


def test_no_images_are_held_out_if_none_are_wanted() -> None:
    every = images(3)
    assert hold_out(every, SplitConfig(by="images", validation=0), 0) == (every, [])
    assert hold_out([], SplitConfig(by="images"), 0) == ([], [])


def test_held_out_images_depend_on_the_seed_not_on_image_order() -> None:
    every = images(4, each=20)
    for config in (SplitConfig(by="images"), SplitConfig(by="images", folds=4)):
        drawn = [set(hold_out(every, config, seed)[1]) for seed in range(5)]
        assert all(drawn[i] != drawn[j] for i in range(5) for j in range(i))
        assert set(hold_out(every[::-1], config, 0)[1]) == drawn[0]
