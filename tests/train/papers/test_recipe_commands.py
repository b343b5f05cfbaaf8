"""The commands `recipes list`, `recipes show` and `recipes run`."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from train import recipes as recipe_files
from train import settings
from train.papers.recipe_commands import recipes

ROW = "dcdl/table1/np-w-sym03-cifar10"


def invoke(*arguments: str) -> str:
    done = CliRunner().invoke(recipes, [*arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_list_has_a_line_for_each_recipe_and_table() -> None:
    text = invoke("list").splitlines()
    names = [*recipe_files.recipe_names(), *recipe_files.table_names()]
    assert [line.split()[0] for line in text[1 : len(names) + 1]] == names


def test_list_as_json_has_every_row() -> None:
    facts = {fact["name"]: fact for fact in json.loads(invoke("list", "--json"))}
    assert len(facts) == len(recipe_files.recipe_names()) + len(recipe_files.all_rows())
    keys = ("paper", "table", "row", "data", "variant", "setting", "runs", "reason")
    assert [facts[ROW][key] for key in keys] == [
        *("dcdl", "1", "NP + L^W", "cifar10", "paper", "sym 0.3", 1, None)
    ]
    assert facts[ROW]["published"]["accuracy"] == 51.4
    assert facts["demo"]["published"] is None
    assert facts["demo"].keys() == facts[ROW].keys()


def test_show_prints_the_remark_on_a_table() -> None:
    *_, note, command = invoke("show", "sct/figure6").splitlines()
    assert note.startswith(
        "# by the README of github.com/littleredxh/HardNegative, HN collapses on CUB-200-2011"
    )
    data = "--data cub200:ROOT --data cars196:ROOT --data sop:ROOT --data inshop:ROOT --data hotels50k:ROOT"
    assert command == f"# To run it: lookalike recipes run sct/figure6 {data} --out DIR"


def test_list_selects_a_table_of_a_paper() -> None:
    facts = json.loads(invoke("list", "--paper", "dcdl", "--table", "1", "--json"))
    assert len(facts) == 120
    text = invoke("list", "--paper", "dcdl", "--table", "1")
    line = next(line for line in text.splitlines() if line.startswith(ROW))
    assert line.split() == [ROW, "NP", "+", "L^W", "sym", "0.3", "51.4"]
    for wanted, tables in (
        ("3", {"3a", "3b", "3c"}),
        ("3B", {"3b"}),
        ("supp1", {"Supp. 1"}),
        ("Supp. Table 1", {"Supp. 1"}),
    ):
        facts = json.loads(invoke("list", "--paper", "loop", "--table", wanted, "--json"))
        assert {fact["table"] for fact in facts} == tables
    failed = CliRunner().invoke(recipes, ["list", "--table", "99"])
    assert "there is no such table" in str(failed.exception)


@pytest.mark.parametrize("name", [*recipe_files.recipe_names(), ROW])
def test_show_prints_settings_and_a_working_command(name: str) -> None:
    text = invoke("show", name)
    assert yaml.safe_load(text) == recipe_files.read_recipe(name)
    words = shlex.split(text.splitlines()[-1].partition(": ")[2])
    options = dict(zip(words[2::2], words[3::2], strict=True))
    ours = settings.resolve(options["--data"], options["--recipe"], [])
    assert ours.published == settings.complete({"data": "x", **yaml.safe_load(text)}).published
    full = yaml.safe_load(invoke("show", name, "--full"))
    assert settings.parse_config(full).loss == ours.loss


def test_shown_settings_are_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(invoke("show", ROW))
    assert settings.resolve("cifar10:R", str(file), []) == settings.resolve("cifar10:R", ROW, [])


def test_show_marks_choices_that_the_paper_leaves_open() -> None:
    assert "# ours: optimizer.momentum: " in invoke("show", ROW)


def test_rows_with_fewer_values_join_those_of_their_data_set() -> None:
    sop, inshop, _ = (block.splitlines() for block in invoke("show", "raw/table3").split("\n\n")[1:])
    assert sop[0].split() == ["recipe", "row", "setting", "R@1", "R@10", "R@100", "R@1000"]
    assert inshop[0].split()[3:] == ["R@1", "R@10", "R@20", "R@30", "R@40", "R@50"]
    assert [line.split()[:7] for line in sop if "Proxy-NCA" in line] == [
        ["raw/table3/proxy-nca-sop@paper", "Proxy-NCA", "clean", "73.7", "-", "-", "-"]
    ]
    assert (len(sop), len(inshop)) == (1 + 7, 1 + 4)


def test_listing_needs_no_torch() -> None:
    program = (
        "import sys; from retrieval.cli import cli; "
        "cli.main(['recipes', 'list', '--json'], standalone_mode=False); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
