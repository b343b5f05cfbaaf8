"""Transition matrix of label noise: counts, the published transitions, runs and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from retrieval import InputError
from retrieval.reports.figures import render_figure
from tests.conftest import draw_classes, lookalike_here
from train.config import NoiseConfig
from train.data import KNOWN, DataSet, LabelledImage, load
from train.loop.run_folder import Run
from train.papers.label_transitions import (
    drawn_transitions,
    run_transitions,
    transitions_figure,
    transitions_size,
    transitions_text,
)

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def labelled(classes: tuple[str, ...], each: int) -> list[LabelledImage]:
    return [LabelledImage(Path(f"{label}-{i}.png"), label) for label in classes for i in range(each)]


def cifar10(each: int = 50) -> DataSet:
    images = labelled(CIFAR10, each)
    return DataSet("cifar10:somewhere", images, images, transitions=KNOWN["cifar10"].transitions)


def test_asymmetric_noise_has_the_matrix_of_the_paper() -> None:
    """DCDL, figure 2 (b, c): truck -> automobile, bird -> airplane, deer -> horse, cat <-> dog."""
    expected = np.eye(10)
    for label, given in ((9, 1), (2, 0), (4, 7), (3, 5), (5, 3)):
        expected[label, label], expected[label, given] = 0.8, 0.2
    found = drawn_transitions(cifar10(), NoiseConfig(kind="asymmetric", rate=0.2), 0)
    np.testing.assert_allclose(found.rates, expected)
    assert found.classes == list(CIFAR10)
    assert found.wrong == 50


def test_symmetric_noise_has_the_matrix_of_the_paper() -> None:
    """DCDL, figure 2 (a): the rate is spread evenly over the other classes, or over all of them."""
    dataset = cifar10(each=2000)
    for include_true, diagonal, other in ((False, 0.7, 0.3 / 9), (True, 0.73, 0.03)):
        found = drawn_transitions(dataset, NoiseConfig(rate=0.3, include_true=include_true), 0)
        expected = np.full((10, 10), other) + np.eye(10) * (diagonal - other)
        np.testing.assert_allclose(found.rates, expected, atol=5 * (0.3 * 0.7 / 2000) ** 0.5)
        np.testing.assert_allclose(found.rates.sum(1), 1)


def test_text_is_a_matrix_or_the_most_frequent_transitions() -> None:
    few = transitions_text(drawn_transitions(cifar10(), NoiseConfig(kind="asymmetric", rate=0.2), 0))
    assert few.splitlines()[0] == (
        "cifar10:somewhere, asymmetric noise, rate 0.2: 50 of 500 labels wrong (10.0%); in percent:"
    )
    assert few.splitlines()[-1].split() == ["truck", "-", "20.0", *["-"] * 7, "80.0"]
    long = tuple(f"a class with a long name {letter}" for letter in "abcd")
    dataset = DataSet("csv:x.csv", labelled(long, 10), labelled(long, 10))
    wide = transitions_text(drawn_transitions(dataset, NoiseConfig(kind="asymmetric", rate=0.3), 0))
    assert wide.splitlines()[1].split() == ["true", "\\", "given", "1", "2", "3", "4"]
    assert wide.splitlines()[4].split()[0] == "3"
    assert max(map(len, wide.splitlines())) < 110
    names = tuple(f"c{number:02d}" for number in range(30))
    many = DataSet("csv:x.csv", labelled(names, 10), labelled(names, 10))
    found = drawn_transitions(many, NoiseConfig(kind="asymmetric", rate=0.3), 0)
    lines = transitions_text(found).splitlines()
    assert len(lines) == 2 + 20
    assert all(line.split()[2] == "30.0" for line in lines[2:])
    svg = render_figure(lambda figure: transitions_figure(found, figure), *transitions_size(found)).decode()
    assert "c29" in svg


@pytest.fixture(scope="module")
def noisy_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with wrong labels that holds out images of every class."""
    folder = tmp_path_factory.mktemp("noisy")
    draw_classes(folder / "images", 3, 12)
    words = ["split.by=images", "split.validation=0.2", "noise.rate=0.3", "noise.kind=asymmetric", "epochs=0"]
    changes = [word for setting in (*words, "preprocess.size=24") for word in ("--set", setting)]
    data = f"folder:{folder / 'images'}"
    done = lookalike_here(
        "train", "--recipe", "scratch", "--data", data, "--out", str(folder / "run"), *changes
    )
    assert "defines no transitions, as cifar10, cifar100 and stl10 do" in done.stderr
    return folder / "run"


def test_command_reads_the_noise_of_a_run(noisy_run: Path, tmp_path: Path) -> None:
    words = ["analyze", "noise", str(noisy_run), "--out", str(tmp_path / "noise.svg"), "--json"]
    done = lookalike_here(*words)
    facts = json.loads(done.stdout)
    assert facts["counts"] == [[7, 3, 0], [0, 7, 3], [3, 0, 7]], "ten of twelve images are trained on"
    assert (facts["images"], facts["wrong"], facts["classes"]) == (30, 9, ["00", "01", "02"])
    assert "each class is mistaken for the next one" in done.stderr
    assert (tmp_path / "noise.svg").read_text().count("<!-- 70.0 -->") == 3, "the diagonal"


def test_command_draws_noise(tmp_path: Path) -> None:
    words = ["analyze", "noise", "--data", "digits", "--rate", "0.3", "--out", str(tmp_path / "noise.svg")]
    assert "270 of 901 labels wrong (30.0%)" in lookalike_here(*words).stdout
    for wrong, message in (
        (words[:4], "Missing option '--out'"),
        ([*words[:4], *words[6:]], "give a run with label noise, or --data and --rate"),
        ([*words[:5], "1.5", *words[6:]], "--rate 1.5: expected more than 0 and below 1"),
    ):
        assert message in lookalike_here(*wrong, code=2).stderr


def test_other_data_and_runs_without_noise_are_refused(noisy_run: Path, untrained_run: Path) -> None:
    with pytest.raises(InputError, match="trained without label noise; to draw some, give --data and --rate"):
        run_transitions(Run.open(untrained_run), load("digits"))
    with pytest.raises(InputError, match=r"no training images of class|more wrong labels than images"):
        run_transitions(Run.open(noisy_run), cifar10())
