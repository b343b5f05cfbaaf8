"""Which parts are compiled, and what happens if the compiler fails."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from retrieval.errors import InputError
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


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_what_cannot_be_recorded_runs_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    """By inductor itself: a module on the CPU has no CUDA graph."""
    layer = nn.Linear(3, 2)
    compiled = Compiled(layer, "loss", graph=True)
    with torch._inductor.config.patch({"compile_threads": 1, "cpp.vec_isa_ok": True}):
        for size in (4, 4, 5):
            x = torch.randn(size, 3, requires_grad=True)
            value = compiled(x)
            torch.testing.assert_close(value, layer(x))
            value.sum().backward()
            torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(size, 3))
    error = capsys.readouterr().err
    assert error.count("records no CUDA graph of a part of the loss, which runs compiled") == 1
    assert compiled._compiled is not None


def test_results_of_a_replay_are_copied(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in of a graph, which overwrites the results of the replay before."""

    class Reports(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.diagnostics = {"mean": x.mean()}
            return x.sum()

    memory = torch.zeros(2)

    def replayed(module: nn.Module, **_: Any) -> Any:
        def run(x: Tensor) -> Tensor:
            memory[0] = module(x)
            memory[1] = module.diagnostics["mean"]
            module.diagnostics = {"mean": memory[1]}
            return memory[0]

        return run

    monkeypatch.setattr(torch, "compile", replayed)
    module = Reports()
    compiled = Compiled(module, "loss", graph=True)
    first, mean = compiled(torch.ones(4)), module.diagnostics["mean"]
    compiled(torch.zeros(4))
    assert (first, mean) == (4, 1)
    torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] += 1
    for _ in range(2):
        assert compiled(torch.ones(3)) == 3
    assert capsys.readouterr().err.count("no CUDA graph of a part of the loss") == 1


def test_graphs_are_refused_without_an_nvidia_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled_parts("graph", torch.device("cuda")) == {"loss", "graph"}
    with pytest.raises(InputError, match="CUDA graphs need an NVIDIA GPU, and this run is on cpu"):
        compiled_parts("graph", torch.device("cpu"))
    monkeypatch.setattr(torch.version, "hip", "6.0")
    with pytest.raises(InputError, match="NVIDIA"):
        compiled_parts("graph", torch.device("cuda"))


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
    assert compiled_parts("auto", gpu, long_run=True) == {"network", "loss"}
    assert compiled_parts("loss", gpu, long_run=True) == {"loss"}
    assert compiled_parts("auto", cpu, long_run=True) == set()
    assert capsys.readouterr().err == ""
    failed = Problem("torch", "torch fails on NVIDIA L4: it is stuck", "try again")
    monkeypatch.setattr(compilation, "gpu_problem", lambda module, number: failed if number == 1 else None)
    assert compiled_parts("auto", torch.device("cuda", 1), long_run=True) == set()
    assert capsys.readouterr().err == f"compile: the loss runs without: {failed.text}; try again\n"


@pytest.mark.parametrize(("given", "named"), [(True, "network"), (False, "none"), ("all", "all")])
def test_older_configurations_compile_what_they_did(given: Any, named: str) -> None:
    assert Config(data="folder:images", compile=given).compile == named
