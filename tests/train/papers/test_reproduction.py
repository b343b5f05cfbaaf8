"""Reproduction of a paper's table: rows over seeds, resumed, beside the published values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from retrieval import InputError
from retrieval.evaluation.report import Report
from tests.conftest import draw
from train import recipes
from train.papers.reproduction import Reproduction, reproduction_table, run_rows
from train.recipes import RecipeRow
from train.settings import parse_changes
from train.yaml_files import to_line

TABLE = {
    "paper": "loop",
    "table": "9",
    "title": "a test",
    "source": "Table 9",
    "runs": 2,
    "name": "{method}-{data}",
    "settings": {
        "split": {"validation": 0},
        "model": {"embedding_dim": 8},
        "preprocess": {"size": 16},
        "batch": {"classes": 3, "per_class": 2, "per_epoch": 2},
        "epochs": 1,
    },
    "parameters": {
        "method": {
            "plain": {"label": "Plain", "set": {"loss": {"name": "triplet"}}},
            "loop": {"label": "LoOp", "set": {"loss": {"name": "triplet", "negatives": "optimal"}}},
            "daml": {"label": "DAML", "reason": "trains a generator"},
        },
        "data": {"csv": {"set": {"data": "csv"}}, "sop": {"set": {"data": "sop"}}},
    },
    "published": [
        {
            "where": {"data": "csv"},
            "columns": ["nmi", "R@1", "coarse R@3"],
            "rows": {"plain": [40, 66.85, None], "loop": [41, 70, 90], "daml": [1, 2, None]},
        },
        {"where": {"data": "sop"}, "columns": ["R@1"], "rows": {"plain": [50]}},
    ],
    "note": "the best epoch on the test images",
}


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RecipeRow]:
    folder = tmp_path / "recipes" / "loop"
    folder.mkdir(parents=True)
    (folder / "table9.yaml").write_text(to_line(TABLE))
    monkeypatch.setattr(recipes, "RECIPES", tmp_path / "recipes")
    monkeypatch.setattr(recipes, "load_table", recipes.load_table.__wrapped__)
    return recipes.find_rows("loop/table9")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four classes in two coarse groups, six images of each: training and test images."""
    folder = tmp_path_factory.mktemp("shop")
    lines = ["path,label,split,coarse"]
    for label in range(4):
        for seed in range(6):
            draw(seed + 1, hue=label).save(folder / f"{label}{seed}.png")
            lines.append(f"{label}{seed}.png,{label},{'test' if seed > 2 else 'train'},{label % 2}")
    (folder / "shop.csv").write_text("\n".join(lines))
    return f"csv:{folder / 'shop.csv'}"


def run(out: Path, rows: list[RecipeRow], shop: str, *changes: str, seeds: tuple[int, ...] | None = None,
        log: list[str] | None = None) -> Reproduction:  # fmt: skip
    messages = [] if log is None else log
    return run_rows(out, rows, [shop], messages.append, changes=parse_changes(changes), seeds=seeds)


def test_table_has_means_over_the_papers_number_of_seeds(
    rows: list[RecipeRow], shop: str, tmp_path: Path
) -> None:
    log: list[str] = []
    found = {result.row.name: result for result in run(tmp_path / "out", rows, shop, log=log).rows}
    assert [line.partition(" (")[0] for line in log[1:]] == [
        f"run {n} of 4: {name}-csv, seed {seed}"
        for n, (seed, name) in enumerate([(0, "plain"), (0, "loop"), (1, "plain"), (1, "loop")], 1)
    ]
    plain = found["loop/table9/plain-csv"]
    values = []
    for seed in (0, 1):
        report = Report.load(tmp_path / "out" / "csv" / "plain-csv" / f"seed-{seed}")
        values += [{r.by: r.values for r in report.results if r.name == "after training"}]
    recalls = [v[None]["recall_at_1"] for v in values]
    coarse = [v["coarse label"]["recall_at_4"] for v in values]
    assert plain.ours["recall_at_1"].mean == pytest.approx(sum(recalls) / 2)
    assert plain.ours["coarse recall_at_4"].mean == pytest.approx(sum(coarse) / 2)
    assert (plain.seeds, plain.finished) == ((0, 1), 2)
    assert plain.theirs == {"nmi": 40, "recall_at_1": 66.85}
    for name in ("loop/table9/daml-csv", "loop/table9/plain-sop"):
        assert (found[name].seeds, found[name].ours) == ((), {})
    saved = json.loads((tmp_path / "out" / "table.json").read_text())
    assert [row["name"] for row in saved["rows"]] == [row.name for row in rows]
    text = (tmp_path / "out" / "table.md").read_text()
    assert "(66.85)" in text
    assert "DAML: trains a generator" in text
    assert "best epoch on the test images" in text

    again: list[str] = []
    assert run(tmp_path / "out", rows, shop, log=again, seeds=(0, 1, 2)).rows[0].finished == 3
    assert [line.partition(" (")[0] for line in again[1:]] == [
        f"run {n} of 6: {name}-csv, seed 2" for n, name in ((5, "plain"), (6, "loop"))
    ]


def test_changed_settings_leave_out_the_published_values(
    rows: list[RecipeRow], shop: str, tmp_path: Path
) -> None:
    found = run(tmp_path / "out", rows[:1], shop, "optimizer.lr=0.01", "device=cpu", seeds=(0,))
    assert (found.rows[0].theirs, found.altered) == ({}, ["optimizer.lr 0.01, not 0.001"])
    assert "left out, because settings are changed: optimizer.lr 0.01" in reproduction_table(found)


def test_data_set_without_a_row_is_refused(rows: list[RecipeRow], tmp_path: Path) -> None:
    for specs, message in (
        (["cub200:x"], "no chosen row is on cub200; the rows are on csv, sop"),
        (["csv:x", "csv:y"], "given twice"),
    ):
        with pytest.raises(InputError, match=message):
            run_rows(tmp_path / "out", rows, specs, print)
    with pytest.raises(InputError, match="cannot be run: trains a generator"):
        run_rows(tmp_path / "out", [row for row in rows if row.reason], ["csv:x"], print)


def test_failed_runs_are_shown_and_do_not_stop_the_others(
    rows: list[RecipeRow], shop: str, tmp_path: Path
) -> None:
    log: list[str] = []
    found = run(tmp_path / "out", rows, shop, "optimizer.lr=1e30", "epochs=3", seeds=(0,), log=log)
    assert found.failed == 2
    assert sum("failed" in line for line in log) == 2
    assert "Failed: loop/table9/loop-csv, seed 0: " in reproduction_table(found)
