"""The experiments: data lists, verdicts, and a page that agrees with the committed results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import ttest_rel

from benchmarks.experiments import page
from benchmarks.experiments.catalogue import Claim, Table, load_setups, load_tables, merge
from benchmarks.experiments.data import LISTS
from benchmarks.experiments.geometry import arc_geometry
from benchmarks.experiments.page import expand, make_page
from benchmarks.experiments.results import load
from benchmarks.experiments.verdicts import judge
from retrieval.errors import InputError
from retrieval.metrics.statistics import paired
from train.config import Config
from train.data.classes import CIFAR100_SUPER_CLASS
from train.experiments.search_space import fill_spaces, is_space
from train.losses import build
from train.settings import parse_config


def test_page_agrees_with_the_results() -> None:
    assert page.PAGE.read_text() == make_page(), "run `python -m benchmarks.experiments page`"


def test_figures_of_the_page_exist() -> None:
    text = page.PAGE.read_text()
    assert all(str(file.relative_to(page.PAGE.parent)) in text for file in page.FIGURES.glob("*.svg"))


@pytest.mark.parametrize("table", load_tables().values(), ids=lambda table: table.name)
def test_settings_and_losses_of_a_table_are_valid(table: Table) -> None:
    setup = load_setups()[next(iter(table.setups))]
    for changes in table.variants.values():
        values = merge(setup.settings, table.settings, table.setups[setup.name], fill_spaces(changes, {}))
        values["model"] = {**values["model"], "init": "default"}
        config: Config = parse_config(values)
        build(config.loss, num_classes=8, embedding_dim=4)
    for setting, space in table.spaces.items():
        assert is_space(space), setting


def images(name: str) -> list[Path]:
    """Return two paths of each class of an archive."""
    if name in ("cars", "birds"):
        folders = [f"cars/{number:03d}.Make_Model" for number in range(1, 197)]
    elif name == "cifar100":
        folders = [
            f"cifar100/{split}/{label}" for split in ("train", "test") for label in CIFAR100_SUPER_CLASS
        ]
    elif name == "furniture":
        folders = [f"furniture/type{number}" for number in range(12)]
    else:
        parts = ("images_background", "images_evaluation")
        folders = [f"omniglot/{part}/{part}{a}__c{c}" for part in parts for a in range(3) for c in range(2)]
    return [Path(folder) / f"{number}.png" for folder in folders for number in range(2)]


@pytest.mark.parametrize("name", LISTS)
def test_lists_keep_classes_and_images_apart(name: str) -> None:
    source, rows_of = LISTS[name]
    rows = list(rows_of(images(source)))
    assert [row.path for row in rows] == [str(path) for path in images(source)]
    labels = {split: {row.label for row in rows if row.split == split} for split in ("train", "test")}
    if name in ("cifar100-closed", "cifar100-superclass-open"):
        assert labels["train"] == labels["test"]
        assert len(labels["train"]) == 20
    else:
        assert labels["train"]
        assert not labels["train"] & labels["test"]
    if name == "cifar100-superclass-open":  # the classes below the labels are new
        below = [{Path(row.path).parent.name for row in rows if row.split == part} for part in labels]
        assert not below[0] & below[1]


def results(ours: list[float], theirs: list[float]) -> dict[str, object]:
    variants = {
        name: {"seeds": [0, 1, 2, 3], "last": {"recall_at_1": values}, "diagnostics": {}}
        for name, values in (("a", ours), ("b", theirs))
    }
    return {"setups": {"cars": {"variants": variants}}}


def table(*, lower: bool = False) -> Table:
    claim = Claim("paper", "a is better", "a", "b", "recall_at_1", lower, ("cars",))
    return Table(
        "t", "T", "", {}, {"cars": {}}, {"a": {}, "b": {}}, 4, None, {}, "b", (claim,), (), False, False, None
    )


@pytest.mark.parametrize(
    ("ours", "lower", "word"),
    [
        ([0.51, 0.52, 0.51, 0.52], False, "confirmed"),
        ([0.51, 0.52, 0.51, 0.52], True, "refuted"),
        ([0.31, 0.32, 0.31, 0.32], False, "refuted"),
        ([0.31, 0.32, 0.31, 0.32], True, "confirmed"),
        ([0.41, 0.38, 0.43, 0.39], False, "undecided"),
    ],
)
def test_verdicts_follow_the_paired_test(ours: list[float], lower: bool, word: str) -> None:
    theirs = [0.40, 0.41, 0.41, 0.40]
    (found,) = judge([table(lower=lower)], {"t": results(ours, theirs)})["t"]
    expected = paired(ours, theirs)
    assert found.word == word
    assert found.paired == expected
    assert found.p == expected.p  # a single claim needs no correction


def test_p_values_of_the_page_are_corrected_over_all_claims() -> None:
    """By the definition of Holm over every claim of every table, by scipy's test of their values."""
    tables = {name: table for name, table in load_tables().items() if not table.divisions}
    found = {name: load(name) for name in tables}
    verdicts = [one for some in judge(list(tables.values()), found).values() for one in some]
    ps = []
    for name, table in tables.items():
        for claim in table.claims:
            for setup in claim.setups:
                variants = found[name]["setups"].get(setup, {}).get("variants", {})
                sides = [variants[one] for one in (claim.better, claim.than)]
                values = [
                    side["last"].get(claim.metric) or side["diagnostics"][claim.metric] for side in sides
                ]
                assert sides[0]["seeds"] == sides[1]["seeds"]
                ps.append(ttest_rel(*values).pvalue)
    order = np.argsort(ps)
    holm = np.maximum.accumulate([(len(ps) - rank) * ps[at] for rank, at in enumerate(order)])
    expected = np.empty(len(ps))
    expected[order] = np.minimum(holm, 1)
    assert [one.p for one in verdicts] == pytest.approx(expected.tolist())
    assert [one.word == "undecided" for one in verdicts] == (expected >= 0.05).tolist()
    decided = [one for one in verdicts if one.word != "undecided" and one.claim.metric == "recall_at_1"]
    other = [one for one in decided if one.paired.difference * one.precision.difference < 0]
    marked = [line for line in page.PAGE.read_text().splitlines() if "** ‡ |" in line]
    assert len(other) == len(marked) > 0
    for one, line in zip(other, marked, strict=True):
        assert f"| {one.claim.better} > {one.claim.than} | {one.setup} |" in line


def test_numbers_of_the_summary_come_from_the_results() -> None:
    found = {"t": results([0.5, 0.6, 0.5, 0.6], [0.4, 0.4, 0.5, 0.5])}
    assert expand("{{mean t cars a}} and {{gain t cars a b}}", found) == "55.0 and +10.0 [-3.0, +23.0]"
    with pytest.raises(InputError, match="no such result"):
        expand("{{mean t cars c}}", found)


def test_optimal_points_are_never_farther_than_the_corners() -> None:
    vectors = torch.nn.functional.normalize(torch.randn(64, 5, generator=torch.manual_seed(0)))
    labels = np.repeat(np.arange(8), 8)
    found = arc_geometry(vectors.numpy(), labels, classes=4, per_class=4, seed=0)
    assert 0 < found["below_corner"] < found["corner_distance"] < 2
    assert found["nearest_corner_distance"] < found["corner_distance"]
    assert 0 < found["synthetic"] <= 1
    tight = np.repeat(vectors.numpy()[:8], 8, 0)  # classes of one point each: the corners are the arcs
    assert arc_geometry(tight, labels, 4, 4, seed=0)["below_corner"] == pytest.approx(0, abs=1e-9)
