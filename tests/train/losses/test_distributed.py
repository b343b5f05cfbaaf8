"""Two gloo processes against one: the same values, gradients of the network and of the loss's parameters."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from tests.train.forking import START_METHOD
from train import losses

WORLD, LOCAL, DIM, CLASSES = 2, 9, 6, 4

SPECS: list[dict[str, Any]] = [
    {"name": "triplet", "negatives": "optimal"},
    {"name": "multi-similarity", "memory": 8},
    {"name": "histogram"},
    {
        "name": "proxy-anchor",
        "regularizers": [{"name": "wasserstein", "weight": 0.5}, {"name": "cross-entropy"}],
    },
    {"name": "n-pair", "negatives": "symmetric"},
]


def setting() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """A network, inputs and labels; classes reach across the processes."""
    torch.manual_seed(0)
    network = torch.nn.Linear(5, DIM).double()
    return network, torch.randn(WORLD * LOCAL, 5).double(), torch.randint(0, CLASSES, (WORLD * LOCAL,))


def build(spec: dict[str, Any]) -> torch.nn.Module:
    torch.manual_seed(1)
    return losses.build(spec, num_classes=CLASSES, embedding_dim=DIM).double()


def outcome(network: torch.nn.Module, loss: torch.nn.Module, value: torch.Tensor) -> dict[str, Any]:
    parameters = [*network.parameters(), *loss.parameters()]
    return {"value": value.detach(), "gradients": [p.grad.clone() for p in parameters]}


def worker(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    network, x, y = setting()
    local = slice(rank * LOCAL, (rank + 1) * LOCAL)
    found = []
    for spec in SPECS:
        network.zero_grad()
        model, loss = DistributedDataParallel(network), build(spec)
        for _ in range(2):  # the memory is filled in the second call
            network.zero_grad()
            loss.zero_grad()
            value = loss(*losses.gather(model(x[local]), y[local]))
            value.backward()
        found.append(outcome(network, loss, value))
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    mp.start_processes(worker, (str(tmp_path),), nprocs=WORLD, start_method=START_METHOD)
    network, x, y = setting()
    for rank in range(WORLD):
        found = torch.load(tmp_path / f"{rank}.pt")
        for spec, result in zip(SPECS, found, strict=True):
            loss = build(spec)
            for _ in range(2):
                network.zero_grad()
                loss.zero_grad()
                value = loss(network(x), y)
                value.backward()
            expected = outcome(network, loss, value)
            torch.testing.assert_close(result["value"], expected["value"], rtol=1e-10, atol=0)
            for gradient, wanted in zip(result["gradients"], expected["gradients"], strict=True):
                torch.testing.assert_close(gradient, wanted, rtol=1e-8, atol=1e-12)
            assert any(g.abs().max() > 1e-6 for g in expected["gradients"])
