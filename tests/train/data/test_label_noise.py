"""Label noise: exact amounts, published transitions, and the file of wrong labels."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare

from retrieval import InputError
from train.config import NoiseConfig
from train.data import KNOWN, LabelledImage
from train.data.label_noise import with_wrong_labels, write_noise

labels = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=60).filter(
    lambda names: len(set(names)) > 1
)
rates = st.floats(0, 0.99)


def images(names: list[str]) -> list[LabelledImage]:
    return [LabelledImage(Path(f"{i}.png"), name, coarse=name.upper()) for i, name in enumerate(names)]


def changed(before: list[LabelledImage], after: list[LabelledImage]) -> list[tuple[str, str]]:
    """Return (right, wrong) of the labels that differ; nothing else may differ."""
    assert [replace(image, label="") for image in before] == [replace(image, label="") for image in after]
    return [(b.label, a.label) for b, a in zip(before, after, strict=True) if a.label != b.label]


@given(labels, rates, st.integers(0, 99))
def test_symmetric_noise_changes_exactly_the_share(names: list[str], rate: float, seed: int) -> None:
    before, config = images(names), NoiseConfig(kind="symmetric", rate=rate)
    after = with_wrong_labels(before, config, seed, {})
    assert len(changed(before, after)) == round(rate * len(names))
    assert {image.label for image in after} <= set(names)
    assert before == images(names), "the list handed in is left alone"
    assert with_wrong_labels(before, config, seed, {}) == after


@given(labels, rates, st.integers(0, 99))
def test_asymmetric_noise_changes_the_share_of_each_class(names: list[str], rate: float, seed: int) -> None:
    before = images(names)
    found = Counter(
        changed(before, with_wrong_labels(before, NoiseConfig(kind="asymmetric", rate=rate), seed, {}))
    )
    classes = sorted(set(names))
    following = dict(zip(classes, classes[1:] + classes[:1], strict=True))
    assert found == Counter({(c, following[c]): round(rate * names.count(c)) for c in classes})


def test_symmetric_noise_is_spread_evenly() -> None:
    before = images(list("abcde") * 2000)
    found = Counter(
        changed(before, with_wrong_labels(before, NoiseConfig(kind="symmetric", rate=0.5), 3, {}))
    )
    assert len(found) == 20, "every class becomes every other"
    assert chisquare(list(found.values())).pvalue > 0.001


def test_a_random_label_may_be_the_true_one() -> None:
    """With `include_true` the new labels of the drawn images are uniform over all classes."""
    before = images(list("abcde") * 2000)
    config = NoiseConfig(kind="symmetric", rate=0.5, include_true=True)
    wrong = Counter(changed(before, with_wrong_labels(before, config, 3, {})))
    drawn = 5000  # exactly round(rate N); those drawn that keep their label are not seen
    assert binomtest(wrong.total(), drawn, 4 / 5).pvalue > 0.001
    assert chisquare([*wrong.values(), drawn - wrong.total()], [*[drawn / 25] * 20, drawn / 5]).pvalue > 0.001


@given(labels, rates, st.integers(0, 99))
def test_true_labels_included_never_make_more_wrong_ones(names: list[str], rate: float, seed: int) -> None:
    before, config = images(names), NoiseConfig(rate=rate, include_true=True)
    after = with_wrong_labels(before, config, seed, {})
    assert len(changed(before, after)) <= round(rate * len(names))
    assert {image.label for image in after} <= set(names)


def test_asymmetric_noise_refuses_true_labels() -> None:
    with pytest.raises(InputError, match=r"noise\.include_true: asymmetric noise has one wrong class"):
        NoiseConfig(kind="asymmetric", rate=0.1, include_true=True)


def test_which_images_are_wrong_depends_on_the_seed() -> None:
    before = images(list("ab") * 50)
    for kind in ("symmetric", "asymmetric"):
        drawn = [with_wrong_labels(before, NoiseConfig(kind=kind, rate=0.3), seed, {}) for seed in range(4)]
        assert all(drawn[i] != drawn[j] for i in range(4) for j in range(i))


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("cifar10", "truck>automobile bird>airplane deer>horse cat>dog dog>cat"),
        ("stl10", "truck>car bird>airplane deer>horse cat>dog dog>cat"),
    ],
)
def test_published_transitions(name: str, pairs: str) -> None:
    there = "airplane automobile bird car cat deer dog frog horse monkey ship truck"
    before = images(there.split() * 10)
    after = with_wrong_labels(before, NoiseConfig(kind="asymmetric", rate=0.4), 0, KNOWN[name].transitions)
    assert Counter(changed(before, after)) == {tuple(pair.split(">")): 4 for pair in pairs.split()}


def test_absent_classes_are_skipped() -> None:
    """With classes held out for validation, no image may get a label that has no images."""
    before = images(["beaver", "otter", "whale", "cat", "bird"] * 10)
    transitions = {**KNOWN["cifar100"].transitions, "cat": "dog", "dog": "cat", "bird": "airplane"}
    after = with_wrong_labels(before, NoiseConfig(kind="asymmetric", rate=0.2), 0, transitions)
    expected = {("beaver", "otter"): 2, ("otter", "whale"): 2, ("whale", "beaver"): 2}
    assert Counter(changed(before, after)) == expected, "dolphin and seal are skipped; cat and bird stay"


def test_zero_rate_changes_nothing_and_one_class_is_refused() -> None:
    before = images(["a", "a"])
    assert with_wrong_labels(before, NoiseConfig(kind="symmetric", rate=0.0), 0, {}) == before
    for kind in ("symmetric", "asymmetric"):
        with pytest.raises(InputError, match=r"noise\.rate=0\.5: wrong labels need two classes, got 1"):
            with_wrong_labels(before, NoiseConfig(kind=kind, rate=0.5), 0, {})


def test_asymmetric_noise_without_a_class_to_replace_is_refused() -> None:
    with pytest.raises(InputError, match=r"noise\.kind=asymmetric: none of the 2 classes .* set noise\.kind"):
        with_wrong_labels(images(["a", "b"]), NoiseConfig(kind="asymmetric", rate=0.5), 0, {"c": "a"})


def test_noise_file_lists_the_wrong_labels_only(tmp_path: Path) -> None:
    before = images(['with "quotes", and a comma', "b\nline"] * 5)
    after = with_wrong_labels(before, NoiseConfig(kind="symmetric", rate=0.3), 1, {})
    write_noise(tmp_path / "noise.csv", before, after)
    with (tmp_path / "noise.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    wrong = [i for i, (b, a) in enumerate(zip(before, after, strict=True)) if a != b]
    assert len(wrong) == 3
    assert rows == [
        {"path": str(before[i].path), "label": before[i].label, "given": after[i].label} for i in wrong
    ]
    assert list(tmp_path.iterdir()) == [tmp_path / "noise.csv"]


def test_positions_are_uniform_over_the_data_set() -> None:
    before = images(list("ab") * 50)
    hits = np.zeros(100)
    for seed in range(300):
        after = with_wrong_labels(before, NoiseConfig(kind="symmetric", rate=0.2), seed, {})
        hits += [b != a for b, a in zip(before, after, strict=True)]
    assert chisquare(hits).pvalue > 0.001
