"""Precision of the network alone, deterministic kernels, and settings that depend on the device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from retrieval.errors import LookalikeError
from train import data, settings
from train.loop.precision import Precision, chosen_kernels, full_float32, resolve_precision
from train.loop.process_group import ProcessGroup
from train.loop.run_folder import Run
from train.loop.step import Step
from train.loop.trainer import Trainer

CPU = torch.device("cpu")


def allowed() -> tuple[bool, bool]:
    """Whether matrix products and convolutions may use TF32."""
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


class Recorded(nn.Module):
    """Linear network that records in both passes whether TF32 is allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.seen: list[tuple[bool, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)
        self.seen.append(allowed())
        if found.requires_grad:
            found.register_hook(lambda _: self.seen.append(allowed()))
        return found


@pytest.mark.parametrize("chunk", [None, 2])
def test_tf32_is_allowed_in_the_network_and_not_in_the_loss(chunk: int | None) -> None:
    network, in_loss = Recorded(), list[tuple[bool, bool]]()

    class Loss(nn.Module):
        def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
            in_loss.append(allowed())
            embeddings.register_hook(lambda _: in_loss.append(allowed()))
            return embeddings.square().sum()

    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    step = Step(network, Loss(), optimizer, ProcessGroup(CPU), precision="tf32", chunk=chunk)
    before = allowed()
    step(torch.ones(4, 4), torch.zeros(4), 0)
    assert set(network.seen) == {(True, True)}
    assert in_loss == [before, before]
    assert before == allowed() == (False, True), "torch's defaults"


def test_full_float32_allows_no_tf32() -> None:
    with full_float32():
        assert allowed() == (False, False)
    assert allowed() == (False, True)


def test_cpu_is_in_fp32_unless_asked_otherwise() -> None:
    assert resolve_precision("auto", CPU) == "fp32"
    assert resolve_precision("bf16", CPU) == "bf16"
    assert not Precision("auto", CPU).scales_loss


def test_run_keeps_the_precision_of_its_device(tmp_path: Path) -> None:
    config = settings.resolve("digits", None, [])
    assert config.precision == "auto"
    run = Run.start(tmp_path / "run", config)
    assert run.config.precision == "fp32"
    assert run.differences(config) == []
    moved = settings.placed(config, None).model_copy(update={"device": "cuda:7", "epochs": 3})
    assert run.differences(moved) == ["epochs 20, not 3"]
    bf16 = config.model_copy(update={"precision": "bf16"})
    assert run.differences(bf16) == ["precision fp32, not bf16"]
    run.move_to("cpu")
    assert run.config.device == "cpu"


def trainer(folder: Path) -> Trainer:
    changes = ["deterministic=true", "epochs=1", "batch.per_epoch=2", "model.embedding_dim=8"]
    config = settings.resolve("digits", None, [*changes, "split.validation=0"])
    return Trainer(Run.start(folder, config), data.load("digits"))


def test_training_is_deterministic_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    training, seen = trainer(tmp_path / "run"), list[bool]()
    training.network.loss.register_forward_pre_hook(
        lambda *_: seen.append(torch.are_deterministic_algorithms_enabled())
    )
    training.train()
    assert seen == [True, True]
    assert not torch.are_deterministic_algorithms_enabled()


def test_operation_without_a_deterministic_kernel_is_explained(tmp_path: Path) -> None:
    training = trainer(tmp_path / "run")
    training.network.loss.register_forward_pre_hook(
        lambda *_: torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2)) and None
    )
    with pytest.raises(LookalikeError, match=r"deterministic: put_ does not have .* set deterministic=false"):
        training.train()


def test_cudnn_measures_kernels_on_a_gpu_alone() -> None:
    for device, expected in (("cuda", True), ("cpu", False)):
        with chosen_kernels(torch.device(device), deterministic=False):
            assert torch.backends.cudnn.benchmark is expected
        assert not torch.backends.cudnn.benchmark
    with chosen_kernels(torch.device("cuda"), deterministic=True):
        assert not torch.backends.cudnn.benchmark
