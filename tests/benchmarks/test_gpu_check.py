"""The GPU check on the CPU: its losses, the table, and the results in the documentation."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_check import page
from benchmarks.gpu_check.__main__ import CHECKS, Check, measure, run_all, usable_device
from benchmarks.gpu_check.drift import drift
from benchmarks.gpu_check.losses import compare, specifications
from benchmarks.gpu_check.results import Row, limited, to_text
from benchmarks.gpu_check.runtime import decided
from benchmarks.gpu_check.workload import Workload
from retrieval.model.precision import Drift, Precision
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


def test_losses_equal_themselves(tmp_path: Path) -> None:
    compared, _ = compare(Workload.on(torch.device("cpu"), tmp_path))
    assert compared.verdict == "ok"
    assert compared.numbers["worst"] == 0
    assert 0 < compared.numbers["random"] < compared.numbers["specifications"] / 2


def test_differences_are_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third result, that of the device under test, is 1% too large."""
    factors = itertools.cycle([1.0, 1.0, 1.01])
    monkeypatch.setattr(
        "benchmarks.gpu_check.losses.evaluate",
        lambda *_: (torch.tensor(1.0), torch.full((3,), next(factors))),
    )
    compared, _ = compare(Workload.on(torch.device("cpu"), tmp_path))
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


def test_a_check_without_its_packages_says_so(tmp_path: Path) -> None:
    check = Check("losses:compare", ("torch", "a_package_that_nobody_has"))
    (row,) = check.run(Workload.on(torch.device("cpu"), tmp_path))
    assert (row.measured, row.verdict) == ("not installed: a_package_that_nobody_has", "skipped")


def test_a_check_needs_no_package_but_those_it_names() -> None:
    """The packages that only other checks need cannot be imported."""
    needs = {*CHECKS["losses"].needs, *CHECKS["compiled"].needs}
    absent = sorted({package for check in CHECKS.values() for package in check.needs} - needs)
    assert "faiss" in absent
    program = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({absent}))\n"
        "import benchmarks.gpu_check.__main__, benchmarks.gpu_check.losses, benchmarks.gpu_check.compiled\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_rows_that_came_before_the_time_was_up_are_kept(tmp_path: Path) -> None:
    """Resumed runs take longer than the time; what they started ends with them, and the rest is not begun."""
    work = Workload.on(torch.device("cpu"), tmp_path)
    begun = time.monotonic()
    found, _ = run_all(["resume", "losses"], work, 11)
    assert [row.what for row in found["resume"]] == ["stopped"]
    assert found["resume"][0].verdict == "FAILED"
    assert [row.verdict for row in found["losses"]] == ["skipped"]
    assert time.monotonic() - begun < 60
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True).stdout.split()
    assert left == []  # the training that the check had started has ended with it


@pytest.mark.slow
def test_a_coarser_precision_changes_more(tmp_path: Path) -> None:
    """One network as fp32, fp16 and int8, each computed by ONNX Runtime."""
    work = Workload.on(torch.device("cpu"), tmp_path)
    work = replace(work, models=tuple(work.model(precision) for precision in ("fp32", "fp16", "int8")))
    found = {row.what.split(",")[0]: row.numbers for row in drift(work)}
    fp32, fp16, int8 = (found[f"conv4-{precision}"] for precision in ("fp32", "fp16", "int8"))
    assert fp32["within"]
    assert fp16["within"]
    assert int8["largest"] > 5 * fp16["largest"]
    assert int8["kept"] < fp32["kept"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(("name", "verdict"), [("tf32", "ok"), ("fp32", "FAILED")])
def test_decision_of_a_gallery_is_judged_by_the_cpu(tmp_path: Path, name: str, verdict: str) -> None:
    """On a CPU, TF32 changes nothing, so that to refuse it is wrong."""
    work = Workload.on(torch.device("cpu"), tmp_path)
    images = [str(path) for path in sorted(work.images().rglob("*.jpg"))]
    chosen = Precision(name, Drift(1, 1, 1, 256), "CUDAExecutionProvider", "2026-11-26")
    row = decided("fp32", chosen, images, work)
    assert (row.verdict, row.numbers["images"]) == (verdict, len(images))


def test_pieces_are_written_one_by_one_and_merged(tmp_path: Path) -> None:
    work = Workload.on(torch.device("cpu"), tmp_path)
    pieces = []
    for name in ("ceilings", "compiled", "graphs"):
        file = tmp_path / f"{name}.json"
        measured = measure(work, [name], 100, file)
        pieces.append(json.loads(file.read_text()))
        assert pieces[-1]["checks"].keys() == measured["checks"].keys() == {name}
    merged = page.merge(pieces)
    assert [*merged["checks"]] == ["ceilings", "compiled", "graphs"]
    rows, seconds = page.rows(merged)
    assert rows["compiled"][0].verdict == "ok"
    assert [row.verdict for row in rows["graphs"]] == ["ok", "ok"]
    assert seconds.keys() == rows.keys()
    assert "| compiled: multi-similarity, 32: eager |" in page.to_markdown(merged)
    later = page.merge([merged, pieces[2] | {"date": "2031-01-02", "commit": "abc"}])
    text = page.to_markdown(later)
    assert "- 2031-01-02, commit abc: graphs\n" in text
    assert f"- {pieces[0]['date']}, commit {pieces[0]['commit']}: ceilings, compiled\n" in text
    with pytest.raises(SystemExit, match="several devices"):
        page.merge([pieces[0], pieces[1] | {"device": "another"}])
