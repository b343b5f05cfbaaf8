"""Tables over divisions of the classes: lists, verdicts, resuming, and a small one from end to end."""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks.experiments import divisions
from benchmarks.experiments.catalogue import RULES, UNTRAINED, Claim, Setup, Table, load_setups, load_tables
from benchmarks.experiments.data import DIVISIONS, LISTS, division
from benchmarks.experiments.figures import draw_divisions
from benchmarks.experiments.page import _SUMMARY, expand
from benchmarks.experiments.results import complete, is_collected, load
from benchmarks.experiments.runs import Job, jobs
from retrieval.errors import InputError
from tests.conftest import draw

TABLES = {name: table for name, table in load_tables().items() if table.divisions}
FIRST = {8: {"0", "3", "6", "7"}, 9: {"0", "2", "6", "8"}}  # drawn once
SETS = {"Cars": ("cars", "cars-squeezenet"), "Birds": ("birds",)}


def table(*claims: Claim, count: int = 3, variants: tuple[str, ...] = ("a", "b")) -> Table:
    return Table(
        name="t",
        title="T",
        text="",
        settings={},
        setups={setup: {} for setups in SETS.values() for setup in setups},
        variants={name: {} for name in variants},
        seeds=2,
        trials=2,
        spaces={},
        baseline="a",
        claims=claims,
        diagnostics=(),
        probes=False,
        geometry=False,
        figure=None,
        divisions=count,
        sets=SETS,
    )


def claim(better: str, than: str) -> Claim:
    return Claim("ours", f"{better} is better", better, than, "recall_at_1", False, ())


def cell(features: float = 0.5, **values: tuple[float, ...]) -> dict[str, Any]:
    """Return the results of a division with one backbone: Recall@1 of each seed, MAP@R half of it."""
    variants = {
        name: {
            "last": {"recall_at_1": list(seeds), "map_at_r": [value / 2 for value in seeds]},
            "chosen": {"optimizer.lr": 1e-3},
        }
        for name, seeds in values.items()
    }
    untrained = {name: {"recall_at_1": features, "map_at_r": features / 2} for name in UNTRAINED}
    return {"variants": variants, "untrained": untrained}


def measured(value: Callable[[int, int], Mapping[str, tuple[float, ...]]], count: int = 3) -> dict[str, Any]:
    """Return results of all divisions; `value` gives the seeds of each method by setup and division."""
    setups = [setup for names in SETS.values() for setup in names]
    return {
        "setups": {
            f"{setup}-division-{number}": cell(**value(place, number))
            for place, setup in enumerate(setups)
            for number in range(count)
        }
    }


# ---- the lists


@pytest.mark.parametrize("count", [8, 9])
def test_divisions_are_disjoint_halves_that_can_be_drawn_again(count: int) -> None:
    images = [
        Path(f"set/{part}/{label}/{n}.png") for part in "xy" for label in range(count) for n in range(2)
    ]
    halves = []
    for number in range(DIVISIONS):
        rows = list(division(images, number))
        assert [row.path for row in rows] == [str(path) for path in images]
        assert rows == list(division(images, number))
        labels = {split: {row.label for row in rows if row.split == split} for split in ("train", "test")}
        assert not labels["train"] & labels["test"]
        assert (len(labels["train"]), len(labels["test"])) == (count // 2, count - count // 2)
        backwards = {row.path: row for row in division(images[::-1], number)}
        assert [backwards[row.path] for row in rows] == rows, "the classes decide, not the order of the files"
        halves.append(frozenset(labels["train"]))
    assert len(set(halves)) > 1
    assert halves[0] == FIRST[count], "the seed is the number of the division"


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_a_division_of_a_table_has_its_list_and_its_images(table: Table) -> None:
    every = list(jobs([table], Path("out")))
    assert len(every) == len({job.folder for job in every}) == table.divisions * len(table.setups)
    assert [job.division for job in every] == sorted(job.division for job in every), "balanced while it grows"
    for job in every:
        name = job.recipe()["data"].removeprefix("csv:").removesuffix(".csv")
        source, rows = LISTS[name]
        (own,) = (title for title, setups in table.sets.items() if job.setup.name in setups)
        others = {job.recipe()["data"] for job in every if job.setup.name in table.sets[own]}
        assert len(others) == table.divisions
        assert rows.keywords == {"number": job.division}
        assert job.setup.settings["data"].startswith(f"csv:{source}")


# ---- the verdicts


@pytest.mark.parametrize("counts", [(5, 5, 5), (3, 2, 4), (4, 1, 1)])
def test_the_test_is_that_of_a_linear_model_with_the_set_as_a_factor(counts: tuple[int, ...]) -> None:
    """Least squares with contrasts that sum to zero: the intercept is the mean of the means of the sets."""
    random = np.random.default_rng(sum(counts))
    of_set = {f"{s}": list(random.normal(0.01 * s, 0.01, n)) for s, n in enumerate(counts)}
    found = divisions.stratified(of_set)
    group = np.repeat(np.arange(3), counts)
    contrasts = np.array([[1, 1, 0], [1, 0, 1], [1, -1, -1]], float)[group]
    values = np.concatenate(list(of_set.values()))
    estimate, residual, *_ = np.linalg.lstsq(contrasts, values, rcond=None)
    freedom = len(values) - 3
    error = np.sqrt(residual[0] / freedom * np.linalg.inv(contrasts.T @ contrasts)[0, 0])
    assert found.difference == pytest.approx(estimate[0])
    assert found.p == pytest.approx(2 * stats.t.sf(abs(estimate[0]) / error, freedom))
    ends = estimate[0] + error * stats.t.ppf([0.025, 0.975], freedom)
    assert (found.low, found.high) == pytest.approx(tuple(ends))
    assert found.wins == (values > 0).sum()


def test_one_set_is_a_paired_t_test() -> None:
    values = [0.01, 0.03, -0.01, 0.02]
    found = divisions.stratified({"Cars": values})
    assert found.p == pytest.approx(stats.ttest_1samp(values, 0).pvalue)


def test_single_divisions_have_no_test() -> None:
    found = divisions.stratified({"Cars": [0.1], "Birds": [0.3]})
    assert (found.difference, found.low, found.p) == (pytest.approx(0.2), None, None)


def test_a_division_counts_once_by_the_mean_of_seeds_and_backbones() -> None:
    def value(setup: int, number: int) -> Mapping[str, tuple[float, ...]]:
        gain = [0.1, 0.3, 0.4][setup] + 0.01 * number
        return {"a": (0.5 + gain, 0.5 - gain), "b": (0.4, 0.6 - 2 * gain)}  # a - b is gain for each seed

    found = divisions.compare(table(), measured(value), "a", "b", "recall_at_1")
    assert found is not None
    assert found.of_set["Cars"] == pytest.approx([0.2, 0.21, 0.22])
    assert found.of_set["Birds"] == pytest.approx([0.4, 0.41, 0.42])
    assert found.difference == pytest.approx(0.31)
    against = divisions.compare(table(), measured(value), "a", "features", "map_at_r")
    assert against is not None
    assert against.units == pytest.approx([0] * 6)


def test_claims_are_corrected_over_both_metrics_and_decide_both_ways() -> None:
    random = np.random.default_rng(0)
    noise = random.normal(0, 0.004, (3, 3, 3))

    def value(setup: int, number: int) -> Mapping[str, tuple[float, ...]]:
        shifts = {"a": 0.0, "b": -0.05, "c": 0.001}
        return {
            name: (0.5 + shift + noise[setup, number, at],) for at, (name, shift) in enumerate(shifts.items())
        }

    claims = (claim("a", "b"), claim("b", "a"), claim("c", "a"))
    found = divisions.judge(table(*claims, variants=("a", "b", "c")), measured(value))
    assert [one.metric for one in found] == ["recall_at_1", "map_at_r"] * 3
    assert [one.word for one in found] == ["confirmed"] * 2 + ["refuted"] * 2 + ["undecided"] * 2
    assert found[0].found.difference == -found[2].found.difference
    units = found[0].found.of_set
    within = sum(np.var(values) * 3 for values in units.values()) / 4
    t = found[0].found.difference / np.sqrt(within * 2 / 3) * 2
    assert found[0].found.p == pytest.approx(6 * 2 * stats.t.sf(t, 4)), "Holm's smallest p of six tests"


def test_divisions_without_all_backbones_or_methods_wait() -> None:
    results = measured(lambda setup, number: {"a": (0.6,), "b": (0.5 + 0.01 * number,)})
    del results["setups"]["cars-squeezenet-division-1"]
    del results["setups"]["birds-division-2"]["variants"]["b"]
    assert divisions.measured(table(), results) == {"Cars": [0, 2], "Birds": [0, 1, 2]}
    found = divisions.compare(table(), results, "a", "b", "recall_at_1")
    assert found is not None
    assert {title: len(values) for title, values in found.of_set.items()} == {"Cars": 2, "Birds": 2}
    assert divisions.best(table(), results, ["a", "b"], "recall_at_1") == {"a": 2, "b": 0}
    assert divisions.compare(table(), {"setups": {}}, "a", "b", "recall_at_1") is None


# ---- the page


def test_the_page_says_what_is_measured_and_how_often_it_is_so() -> None:
    results = measured(lambda setup, number: {"a": (0.6 + 0.1 * (number - 1),), "b": (0.55,)})
    one = table(claim("a", "b"))
    text = "{{often t a>b}}\n{{section t}}"
    page = expand(text, {"t": results}, {}, {"t": one})
    assert page.startswith("a > b on 4 of 6, +5.0 [-6.3, +16.3] (MAP@R on 4, +2.5 [-3.2, +8.2]).")
    assert "All 6 divisions are measured." in page
    assert "| a is better (ours) | a > b | Recall@1 | +5.0 [-6.3, +16.3] | 4 of 6 |" in page
    del results["setups"]["birds-division-1"], results["setups"]["cars-division-0"]
    part = expand(text, {"t": results}, {}, {"t": one})
    assert "a > b on 3 of 4," in part
    assert "**Not finished: 4 of 6 divisions are measured** (Cars 2 of 3, Birds 2 of 3)" in part
    none = expand(text, {}, {}, {"t": one})
    assert none.startswith("not measured yet.")
    assert "Not finished: 0 of 6" in none
    with pytest.raises(InputError, match="no such result"):
        expand("{{often t a>c}}", {"t": results}, {}, {"t": one})


def test_the_figure_has_a_panel_for_each_set_and_a_row_for_each_method(tmp_path: Path) -> None:
    results = measured(lambda setup, number: {"a": (0.6 + 0.1 * number,), "b": (0.55,)})
    del results["setups"]["birds-division-1"]
    (file,) = draw_divisions(table(), results, tmp_path)
    drawn = file.read_text()
    assert all(f"<!-- {words} -->" in drawn for words in (*SETS, "a", "b", *UNTRAINED[1:]))
    dots = drawn.count("<use ")
    del results["setups"]["birds-division-0"]
    assert draw_divisions(table(), results, tmp_path)[0].read_text().count("<use ") == dots - 5, (
        "one a method"
    )


def test_who_wins_when_names_claims_that_were_written_down() -> None:
    for name, table in TABLES.items():
        found = re.findall(rf"\{{\{{often {name} (.+?)\}}\}}", _SUMMARY.read_text())
        named = {pair for words in found for pair in words.split()}
        assert not named or named == {f"{one.better}>{one.than}" for one in table.claims}
    assert "{{often divisions" in _SUMMARY.read_text()


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_committed_divisions_have_the_settings_of_the_table(table: Table) -> None:
    wanted = {job.name: job.digest for job in jobs([table], Path("out"))}
    found = load(table.name) or {"setups": {}}
    assert {name: one["settings"] for name, one in found["setups"].items()}.items() <= wanted.items()


# ---- from end to end


def write_blocks(home: Path, classes: int) -> None:
    """Write classes of six small pictures, and their first division."""
    images = []
    for label in range(classes):
        for seed in range(6):
            path = home / f"blocks/{label}/{seed}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            draw(seed, hue=label).save(path)
            images.append(path.relative_to(home))
    with (home / "blocks-division-0.csv").open("w", newline="") as out:
        csv.writer(out).writerows([("path", "label", "split"), *division(images, 0)])


@pytest.fixture
def small(tmp_path: Path) -> tuple[Job, Path]:
    """A job of two methods on the frozen random features of eight classes of small pictures; and the data."""
    home = tmp_path / "data"
    write_blocks(home, 8)
    settings = {
        "data": "csv:blocks.csv",
        "model": {"backbone": "conv4", "trainable": 0, "embedding_dim": 4, "init": "pca"},
        "preprocess": {"size": 16},
        "augment": {"flip": False, "rotate": 0, "scale": 0, "shift": 0},
        "loader": {"cache": str(tmp_path / "cache"), "workers": 0},
        "device": "cpu",
    }
    one = replace(
        table(claim("raw", "proxy"), count=1, variants=("raw", "proxy")),
        name="small",
        settings={
            "batch": {"classes": 2, "per_class": 3, "per_epoch": 2},
            "epochs": 1,
            "split": {"validation": 0},
        },
        setups={"blocks": {"data": "csv:blocks-division-{division}.csv"}},
        sets={"Blocks": ("blocks",)},
        variants={
            "raw": {"loss": {"name": "raw", "beta": {"choices": [50, 10]}, "mining": None}},
            "proxy": {"loss": {"name": "proxy-anchor"}, "optimizer": {"loss_lr": 0.01}},
        },
        spaces={"optimizer.lr": {"choices": [1e-3, 1e-2]}},
        baseline="raw",
        folds=2,
    )
    return Job(one, Setup("blocks", "Blocks", settings), tmp_path / "out", 0), home


def test_a_small_table_from_images_to_the_page(small: tuple[Job, Path], tmp_path: Path) -> None:
    job, data = small
    results = tmp_path / "results"
    assert not is_collected(job, results)
    assert complete(job, data, results) == 0
    found = load("small", results)
    assert found is not None
    one = found["setups"]["blocks-division-0"]
    assert one["settings"] == job.digest
    assert set(one["untrained"]) == set(UNTRAINED)
    for name, searched in (("raw", {"loss.beta", "optimizer.lr"}), ("proxy", {"optimizer.lr"})):
        variant = one["variants"][name]
        assert variant["seeds"] == [0, 1]
        assert set(variant["chosen"]) == searched
        assert len(variant["trials"]) == 2
        best = max(variant["trials"], key=lambda trial: trial["value"])
        assert {key: best[key] for key in searched} == variant["chosen"]
        final = (job.sweep / name / "seed-0/config.yaml").read_text()
        assert f"lr: {variant['chosen']['optimizer.lr']:g}" in final
        assert "folds: 0" in final, "the final runs hold out no classes"
        assert "validation: 0" in final
    assert "raw > proxy on" in expand("{{often small raw>proxy}}", {"small": found}, {}, {"small": job.table})
    # The folders of the runs are not needed to go on, as on another machine.
    shutil.rmtree(job.out)
    assert complete(job, data, results) == 0
    assert not job.out.exists()
    other = replace(job, table=replace(job.table, seeds=3))
    assert not is_collected(other, results)
    assert not is_collected(replace(job, division=1), results)


def test_the_setups_of_the_divisions_exist() -> None:
    setups = load_setups()
    for each in TABLES.values():
        assert set(each.setups) <= set(setups)
        for claim in each.claims:
            methods = {*each.variants, *each.untrained}
            if each.sizes is not None:
                methods |= {*RULES, *(f"{name}-last" for name in each.variants)}
            assert {claim.better, claim.than} <= methods
