"""`lookalike plan`: output, JSON and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import lookalike_here
from tests.serve.model import DIM, write_model

NAMES = {"need", "embedding_hours", "setups", "recommended", "reason"}


def test_table_and_json_agree() -> None:
    words = ["plan", "--images", "1e8", "--dim", "256", "--qps", "50"]
    text = lookalike_here(*words).stdout
    facts = json.loads(lookalike_here(*words, "--json").stdout)
    assert {*facts} == NAMES
    assert facts["need"]["images"] == 10**8
    assert text.startswith("10^8 images x 256 dimensions, recall 0.95, 50 searches a second")
    assert f"Recommended: {facts['recommended']}: " in text
    assert max(map(len, text.splitlines())) <= 100
    shown = {line.partition("  ")[0] for line in text.splitlines()}
    for each in facts["setups"]:
        assert (each["setup"] in shown) == (not each["problem"])
        assert each["disk"] == each["disk_vectors"] + each["disk_index"]


def test_several_sizes_have_one_line_each() -> None:
    words = ["plan", "--images", "1e5", "--images", "3M", "--memory", "8GB"]
    lines = lookalike_here(*words).stdout.splitlines()
    assert [line.split()[0] for line in lines[3:5]] == ["10^5", "3,000,000"]
    assert [each["need"]["images"] for each in json.loads(lookalike_here(*words, "--json").stdout)] == [
        10**5,
        3 * 10**6,
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--images 1e12", "10^12 is not between 1 and 10^11"),
        ("--images 0", "0 is not between 1 and 10^11"),
        ("--images 5GB", "'5GB' is not a count; give a number of images without a unit, such as 1e9"),
        ("--images 1e9 --memory 64XB", "'64XB' is not a size such as 2GB"),
        ("--images 1e9 --recall 95", "--recall: 95 is not above 0 and at most 1; try 0.95"),
        ("--images 1e9 --recall 1", "1 needs exact search, and with flat needs one machine of 2.28 TB"),
        ("--images 1e10 --memory 1MB", "nothing serves 10,000,000,000 images in machines of 1 MB; --memory "),
        ("--images 1e6 --dim 0", "--dim: 0 is not between 1 and 32,768"),
    ],
)
def test_unusable_input(words: str, message: str) -> None:
    assert message in lookalike_here("plan", *words.split(), code=2).stderr


def test_dimension_of_a_model(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.onnx")
    words = ["plan", "--images", "1e6", "--model", str(model)]
    assert json.loads(lookalike_here(*words, "--json").stdout)["need"]["dim"] == DIM
    assert "leave it out" in lookalike_here(*words, "--dim", str(DIM + 1), code=2).stderr
