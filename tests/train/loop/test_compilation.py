"""Which parts are compiled, and what happens if the compiler fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from retrieval.machine.installation import Problem
from train.config import Config
from train.loop import compilation
from train.loop.compilation import Compiled, compiled_parts


def failing(graph: Any, inputs: Any) -> Any:
    raise RuntimeError("no compiler here")


def test_failure_is_reported_once_and_the_module_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_with = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, **_: compile_with(module, backend=failing))
    layer = nn.Linear(3, 2)
    compiled, x = Compiled(layer, "loss"), torch.ones(4, 3)
    for _ in range(2):
        assert torch.equal(compiled(x), layer(x))
    error = capsys.readouterr().err
    assert error.count("the loss could not be compiled") == 1
    assert "no compiler here" in error


def test_errors_of_the_module_are_not_taken_for_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuses(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            torch._assert_async(x.isfinite().all(), "not finite")
            return x

    compile_with = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, **_: compile_with(module, backend="eager"))
    with pytest.raises(RuntimeError, match="not finite"):
        Compiled(Refuses(), "loss")(torch.tensor([torch.nan]))


def test_auto_compiles_the_loss_on_a_gpu_that_could_in_a_trial(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert compiled_parts("auto", cpu) == set()
    assert compiled_parts("all", cpu) == {"network", "loss"}
    assert compiled_parts("network", gpu) == {"network"}
    assert compiled_parts("none", gpu) == set()
    monkeypatch.setattr(compilation, "gpus", lambda: [0, 1])
    monkeypatch.setattr(compilation, "gpu_problem", lambda module, number: None)
    assert compiled_parts("auto", gpu) == {"loss"}
    assert capsys.readouterr().err == ""
    failed = Problem("torch", "torch fails on NVIDIA L4: it is stuck", "try again")
    monkeypatch.setattr(compilation, "gpu_problem", lambda module, number: failed if number == 1 else None)
    assert compiled_parts("auto", torch.device("cuda", 1)) == set()
    assert capsys.readouterr().err == f"compile: the loss runs without: {failed.text}; try again\n"


@pytest.mark.parametrize(("given", "named"), [(True, "network"), (False, "none"), ("all", "all")])
def test_older_configurations_compile_what_they_did(given: Any, named: str) -> None:
    assert Config(data="folder:images", compile=given).compile == named
