"""Variants of docs/figures: the command in each header runs, and a figure over a number gets its curve."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from train import settings
from train.commands.sweep import sweep
from train.experiments.experiment import Experiment
from train.experiments.sweep_plan import make_sweep_plan, parse_variants
from train.papers.figures import paper_figures

FOLDER = Path("docs/figures")
FILES = sorted(FOLDER.glob("*.yaml"))
# Files whose variants differ in one number, and its values.
CURVES = {
    "loop-figure3a": ("batch.per_class", [2, 4, 8, 16, 32]),
    "loop-figure3b": ("loss.margin", [0.05, 0.1, 0.2, 0.3, 0.4, 0.5]),
    "loop-figure3c": ("loss.mining.margin", [-0.1, -0.05, -0.02, 0, 0.05, 0.1]),
    "loop-figure3d": ("loss.threshold", [0.3, 0.4, 0.5, 0.6, 0.7]),
}


def command(file: Path) -> list[str]:
    """Return the words of the command in the comment at the head of a file, without `lookalike sweep`."""
    lines = re.findall(r"^#   (.*?)(?: \\)?$", file.read_text(), flags=re.MULTILINE)
    words = shlex.split(" ".join(lines))
    assert words[:2] == ["lookalike", "sweep"]
    return words[2:]


def test_every_file_is_in_the_list_of_figures() -> None:
    listed = {word for figure in paper_figures() for line in figure.commands for word in shlex.split(line)}
    assert {str(file) for file in FILES} <= listed
    assert CURVES.keys() <= {file.stem for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_command_of_a_file_makes_a_plan(file: Path, tmp_path: Path) -> None:
    given = sweep.make_context("sweep", command(file)).params
    assert given["variants_file"] == file
    experiment = Experiment(given["data"], given["recipe"], settings.parse_changes(given["overrides"]))
    plan = make_sweep_plan(tmp_path, experiment, parse_variants((), file), None, given["baseline"])
    configs = plan.configs()
    swept, expected = plan.swept_number(), CURVES.get(file.stem)
    if expected is None:
        assert swept is None
    else:
        assert swept is not None
        assert (swept.setting, list(swept.values.values())) == expected
    for config in configs.values():
        if expected is not None:
            assert config.loss["negatives"] == "optimal"
        if file.stem in ("loop-figure3c", "loop-figure3d"):  # section 4.1: batches of 8, 4 of each class
            assert (config.batch.classes, config.batch.per_class) == (2, 4)
        if file.stem == "loop-figure3a":  # "The number of unique classes in the batch is 4"
            assert config.batch.classes == 4
