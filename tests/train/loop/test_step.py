"""Training step: equal gradients for whole batches, in chunks (gradient caching), on several processes."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from retrieval.images.preprocess import Preprocess
from tests.train.forking import START_METHOD
from tests.train.pretend_device import Watch, place, pretend_device
from train import losses
from train.config import ModelConfig, OptimizerConfig
from train.loop.optimization import build_optimizer
from train.loop.process_group import ProcessGroup
from train.loop.processes import Processes
from train.loop.step import Step
from train.losses.labelled_pairs import PairObjective
from train.losses.mic import MicObjective
from train.models.embedding_model import EmbeddingModel

HERE = ProcessGroup(torch.device("cpu"))
LABELS = torch.arange(6).repeat_interleave(4)
SPECS = [
    {"name": "triplet", "negatives": "optimal", "margin": 0.2},
    {"name": "triplet", "mining": {"positive": "random", "negative": "random"}},
    {"name": "proxy-anchor"},
    {"name": "recall-at-k", "mixup": True},
    {"name": "proxy-anchor", "mic": 3.0},
    {"name": "cosent", "pairs": [1.0, 0.0, 0.0, 1.0, 0.0, 1.0]},
]
CHUNKS = (None, 5)


class Network(nn.Module):
    """Network from pixels to embeddings [N, 8] by a convolution, with or without batch norm."""

    def __init__(self, *extra: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), *extra, nn.Tanh(), nn.Flatten())
        self.head = nn.Linear(54, 8)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images.permute(0, 3, 1, 2) / 255 - 0.5))


def pixels() -> Tensor:
    return torch.randint(0, 256, (24, 8, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))


def parts(spec: dict, *extra: nn.Module) -> tuple[nn.Module, nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Network(*extra)
    own = {key: value for key, value in spec.items() if key not in ("mic", "pairs")}
    if "mic" in spec:  # the network's outputs are embeddings, auxiliary ones and their projection
        parts_ = [losses.build(own, num_classes=6, embedding_dim=dim) for dim in (2, 4)]
        loss: nn.Module = MicObjective(*parts_, spec["mic"], 12, (2, 4))
    else:
        loss = losses.build(own, num_classes=6, embedding_dim=8)
    if "pairs" in spec:  # labels are the numbers of pairs
        loss = PairObjective(loss, torch.tensor(spec["pairs"]), graded=False)
    return model, loss, torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1)


def after_steps(spec: dict, *extra: nn.Module, steps: int = 3, **options: object) -> dict[str, Tensor]:
    """Return all weights after a few steps."""
    model, loss, optimizer = parts(spec, *extra)
    step = Step(model, loss, optimizer, HERE, **options)
    for number in range(steps):
        step(pixels(), LABELS, number)
    return weights(model, loss)


def weights(model: nn.Module, loss: nn.Module) -> dict[str, Tensor]:
    return {**model.state_dict(), **{f"loss.{name}": value for name, value in loss.state_dict().items()}}


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(
            value, theirs[name], rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: str(spec.get("mining", spec["name"])))
@pytest.mark.parametrize("chunk", [5, 8, 23])
def test_gradient_caching_equals_the_whole_batch(spec: dict, chunk: int) -> None:
    assert_close(after_steps(spec, chunk=chunk), after_steps(spec))


def test_step_equals_forward_backward_and_update() -> None:
    """Compared with a minimal training loop."""
    model, loss, optimizer = parts(SPECS[0])
    for _ in range(3):
        optimizer.zero_grad()
        loss(model(pixels()), LABELS).backward()
        optimizer.step()
    assert_close(after_steps(SPECS[0]), model.state_dict())


@pytest.mark.parametrize("chunk", CHUNKS)
def test_clipped_gradients_equal_torch(chunk: int | None) -> None:
    """The norm of all gradients together, those of the proxies too."""
    spec, limit, sizes = {"name": "proxy-anchor"}, 0.5, []
    model, loss, optimizer = parts(spec)
    for _ in range(3):
        optimizer.zero_grad()
        loss(model(pixels()), LABELS).backward()
        sizes.append(nn.utils.clip_grad_norm_([*model.parameters(), *loss.parameters()], limit).item())
        optimizer.step()
    assert min(sizes) > limit
    assert_close(after_steps(spec, clip=limit, chunk=chunk), weights(model, loss))


def test_gradients_are_clipped_without_the_scale_of_fp16() -> None:
    model, loss, optimizer = parts(SPECS[0])
    step = Step(model, loss, optimizer, HERE, precision="fp16", clip=0.01)
    step.scaler.load_state_dict({**step.scaler.state_dict(), "scale": 2.0**10})
    before = copy.deepcopy(model.state_dict())
    step(pixels(), LABELS, 0)
    moved = [value - before[name] for name, value in model.state_dict().items()]
    assert torch.cat([change.flatten() for change in moved]).norm().item() == pytest.approx(
        0.1 * 0.01, rel=1e-3
    )


@pytest.mark.parametrize(
    ("backbone", "pooling", "chunk"), [("conv4", "gem", 8), ("timm:vit_tiny_patch16_224", "cls", None)]
)
def test_step_reads_nothing_from_the_device(backbone: str, pooling: str, chunk: int | None) -> None:
    """Network, loss with memory, backward pass and optimizer; without autocast, which the device lacks."""
    config = ModelConfig(backbone=backbone, weights=None, embedding_dim=8, pooling=pooling)
    size = 32 if chunk else 224
    model = EmbeddingModel(config, Preprocess(size=size))
    loss = losses.build({"name": "triplet", "negatives": "optimal", "memory": 40}, embedding_dim=8)
    with pretend_device() as device:
        place(model, device)
        place(loss, device)
        optimizer = build_optimizer(model, loss, OptimizerConfig(), fused=True)
        step = Step(model, loss, optimizer, ProcessGroup(device), chunk=chunk, clip=1.0)
        images = torch.zeros(24, size, size, 3, dtype=torch.uint8, device=device)
        labels = torch.arange(24, device=device) // 4
        with Watch() as watch:
            step(images, labels, 0)
    assert watch.found == []


def test_both_passes_of_a_chunk_use_the_same_dropout() -> None:
    """The gradient of each chunk belongs to its embeddings, checked by finite differences."""
    torch.manual_seed(0)
    model, loss = Network(nn.Dropout(0.5)), losses.build({"name": "triplet", "margin": 1.0})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    step = Step(model, loss, optimizer, HERE, chunk=7, seed=3)
    before, _ = step(pixels(), LABELS, 0)
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    slope = sum(g.square().sum() for g in gradients.values())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += 1e-3 / slope * gradients[name]
    after, _ = step(pixels(), LABELS, 0)  # the same number: the same masks
    assert (after - before).item() == pytest.approx(1e-3, rel=0.05)


def test_batch_norm_statistics_are_updated_once() -> None:
    chunked = after_steps(SPECS[0], nn.BatchNorm2d(6), steps=1, chunk=12)
    model, _, _ = parts(SPECS[0], nn.BatchNorm2d(6))
    with torch.no_grad():
        for chunk in pixels().split(12):
            model(chunk)
    torch.testing.assert_close(chunked["body.1.running_var"], model.body[1].running_var)
    torch.testing.assert_close(chunked["body.1.running_mean"], model.body[1].running_mean)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_embeddings_are_those_of_the_step_and_change_nothing(chunk: int | None) -> None:
    model, loss, optimizer = parts(SPECS[1], nn.BatchNorm2d(6), nn.Dropout(0.5))
    step = Step(model, loss, optimizer, HERE, chunk=chunk)
    before = copy.deepcopy(model.state_dict())
    embeddings = step.embed(pixels(), 7)
    assert not embeddings.requires_grad
    for name, value in model.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(value, before[name]), name
    assert not torch.equal(embeddings, step.embed(pixels(), 8))  # other dropout
    _, of_step = step(pixels(), LABELS, 7)
    torch.testing.assert_close(embeddings, of_step)
    assert not torch.equal(embeddings, step.embed(pixels(), 7))  # the step has been taken


def test_only_the_network_uses_half_precision() -> None:
    seen = []
    model, loss, optimizer = parts(SPECS[0])
    model.head.register_forward_hook(lambda *given: seen.append(given[2].dtype))
    loss.register_forward_pre_hook(lambda _, given: seen.append(given[0].dtype))
    Step(model, loss, optimizer, HERE, precision="bf16")(pixels(), LABELS, 0)
    assert seen == [torch.bfloat16, torch.float32]
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_fp16_scales_the_loss_and_skips_overflowing_steps() -> None:
    model, loss, optimizer = parts(SPECS[0])
    step = Step(model, loss, optimizer, HERE, precision="fp16")
    before = copy.deepcopy(model.state_dict())
    step.scaler.load_state_dict({**step.scaler.state_dict(), "scale": 2.0**127})
    step(pixels(), LABELS, 0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert step.scaler.get_scale() == 2.0**126
    step.scaler.load_state_dict({**step.scaler.state_dict(), "scale": 2.0**10})
    step(pixels(), LABELS, 0)
    assert not torch.equal(model.head.weight, before["head.weight"])


def _process(rank: int, folder: str) -> None:
    """Return the weights after every case of `test_two_processes_equal_one`."""
    torch.set_num_threads(1)
    # The rendezvous is a file, because a free port may be taken before it is used.
    dist.init_process_group("gloo", f"file://{folder}/rendezvous", world_size=2, rank=rank)
    share, found = slice(12 * rank, 12 * rank + 12), []
    for spec, chunk in itertools.product(SPECS, CHUNKS):
        model, loss, optimizer = parts(spec)
        step = Step(
            model, loss, optimizer, ProcessGroup(torch.device("cpu"), Processes(rank, 2)), chunk=chunk
        )
        try:
            for number in range(3):
                step(pixels()[share], LABELS[share], number)
        except Exception as error:
            error.add_note(f"with {spec}, chunk {chunk}")
            raise
        found.append(weights(model, loss))
    torch.save(found, f"{folder}/weights{rank}")
    dist.barrier()  # gloo aborts a process whose peer exits before the last message
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Tensor]]]:
    """Weights of each process after every case; computed once."""
    folder = tmp_path_factory.mktemp("two")
    mp.start_processes(_process, (str(folder),), nprocs=2, start_method=START_METHOD)
    return [torch.load(folder / f"weights{rank}", weights_only=True) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: str(spec.get("mining", spec["name"])))
def test_two_processes_equal_one(
    two_processes: list[list[dict[str, Tensor]]], spec: dict, chunk: int | None
) -> None:
    alone = after_steps(spec)
    for found in two_processes:
        assert_close(found[len(CHUNKS) * SPECS.index(spec) + CHUNKS.index(chunk)], alone)
