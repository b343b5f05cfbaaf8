"""The GPU check on the CPU: its losses, the table, and the results in the documentation."""

from __future__ import annotations

import itertools

import pytest
import torch

from benchmarks.gpu_check import page
from benchmarks.gpu_check.__main__ import usable_device
from benchmarks.gpu_check.losses import compare, specifications
from benchmarks.gpu_check.results import Row, limited, to_text
from train import losses


def test_page_has_the_committed_results() -> None:
    text = page.PAGE.read_text()
    assert page.with_results(text, page.committed()) == text


def test_every_part_of_a_loss_is_compared() -> None:
    specs = specifications()
    assert {spec.get("name") for spec in specs} >= {*losses.names()}
    assert {spec.get("negatives") for spec in specs} >= {*losses.names("negatives")}
    assert {spec["regularizers"][0]["name"] for spec in specs if "regularizers" in spec} == {
        *losses.names("regularizer")
    }


def test_losses_equal_themselves() -> None:
    compared, _ = compare(torch.device("cpu"))
    assert compared.verdict == "ok"
    assert compared.numbers["worst"] == 0
    assert 0 < compared.numbers["random"] < compared.numbers["specifications"] / 2


def test_differences_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third result, that of the device under test, is 1% too large."""
    factors = itertools.cycle([1.0, 1.0, 1.01])
    monkeypatch.setattr(
        "benchmarks.gpu_check.losses.evaluate",
        lambda *_: (torch.tensor(1.0), torch.full((3,), next(factors))),
    )
    compared, _ = compare(torch.device("cpu"))
    assert compared.verdict == "FAILED"
    assert compared.numbers["worst"] == pytest.approx(0.01)


def test_a_missing_gpu_is_named_with_a_way_out() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit, match=r"cuda does not work here \(.*\); `lookalike doctor`"):
        usable_device("cuda")


def test_table_aligns_its_columns() -> None:
    rows = [Row("short", "1"), limited("longer name", 2.0, 1.0, "%")]
    header, check, first, second = to_text({"part": rows}, {"part": 3.2}).splitlines()
    assert header.index("measured") == first.index("1") == second.index("2% (limit 1%)")
    assert check.split() == ["PART", "3"]
    assert second.endswith("FAILED")
