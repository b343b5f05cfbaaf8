"""Device of a run: where the first GPU is one that the installed torch has no code for."""

from __future__ import annotations

import pytest
import torch

from retrieval.machine.installation import Problem
from train.loop import process_group


def test_auto_leaves_a_gpu_that_torch_has_no_code_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch offers it all the same, and would fail in the first step."""
    asked = []

    def problem(module: str, number: int) -> Problem:
        asked.append((module, number))
        return Problem(
            module, "torch has no code for compute capability 7.0 of Tesla V100", "install another"
        )

    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(process_group, "gpus", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(process_group, "build_problem", problem)
    monkeypatch.setattr(process_group, "report_cpu", lambda *about: asked.append(about))
    assert process_group.find_device("auto") == torch.device("cpu")
    assert asked == [("torch", 3)] * 2
