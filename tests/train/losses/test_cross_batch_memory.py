"""Cross-batch memory: first in, first out, warm-up and exact resumption."""

import copy

import pytest
import torch

from train import losses

DIM = 4


def batches(count: int, size: int = 5) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(size, DIM, generator=generator), torch.randint(0, 3, (size,), generator=generator))
        for _ in range(count)
    ]


@pytest.mark.parametrize("size", [1, 3, 7, 12])
def test_memory_equals_a_queue_of_references(size: int) -> None:
    """Each call equals a call with the last `size` embeddings as references, whatever their number."""
    spec = {"name": "raw"}
    with_memory = losses.build({**spec, "memory": size}, embedding_dim=DIM)
    plain = losses.build(spec)
    past_x, past_y = torch.empty(0, DIM), torch.empty(0, dtype=torch.int64)
    for x, y in batches(5):
        references = {} if not len(past_x) else {"ref_embeddings": past_x, "ref_labels": past_y}
        torch.testing.assert_close(with_memory(x, y), plain(x, y, **references))
        past_x, past_y = torch.cat([past_x, x])[-size:], torch.cat([past_y, y])[-size:]


def test_memory_is_joined_with_given_references() -> None:
    (x, y), (past, past_y), (more, more_y) = batches(3)
    module = losses.build({"name": "contrastive", "memory": 5}, embedding_dim=DIM)
    module(past, past_y)
    both = losses.build({"name": "contrastive"})(
        x, y, ref_embeddings=torch.cat([more, past]), ref_labels=torch.cat([more_y, past_y])
    )
    torch.testing.assert_close(module(x, y, ref_embeddings=more, ref_labels=more_y), both)


def test_warm_up_fills_without_using() -> None:
    module = losses.build({"name": "raw", "memory": {"size": 20, "warmup": 3}}, embedding_dim=DIM)
    plain = losses.build({"name": "raw"})
    for step, (x, y) in enumerate(batches(5)):
        same = torch.allclose(module(x, y), plain(x, y), rtol=1e-6)
        assert same == (step < 3)
    assert int(module.memory.written) == 25


def test_gradient_flows_to_the_batch_only() -> None:
    module = losses.build({"name": "triplet", "negatives": "optimal", "memory": 8}, embedding_dim=DIM)
    for x, y in batches(3):
        x.requires_grad_()
        module(x, y).backward()
        assert torch.isfinite(x.grad).all()
    assert not any(b.requires_grad for b in module.buffers())


def test_evaluation_neither_reads_nor_writes() -> None:
    (x, y), (other, other_y) = batches(2)
    module = losses.build({"name": "raw", "memory": 10}, embedding_dim=DIM)
    module(other, other_y)
    before = copy.deepcopy(module.state_dict())
    module.eval()
    torch.testing.assert_close(module(x, y), losses.build({"name": "raw"})(x, y))
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_resumed_run_is_bit_identical() -> None:
    """Save after every possible step, load into a fresh module: the remaining losses agree bit by bit."""
    spec = {"name": "multi-similarity", "memory": {"size": 8, "warmup": 1}}
    data = batches(6)
    module = losses.build(spec, embedding_dim=DIM)
    states, values = [], []
    for x, y in data:
        states.append(copy.deepcopy(module.state_dict()))
        values.append(module(x, y))
    for start, state in enumerate(states):
        resumed = losses.build(spec, embedding_dim=DIM)
        resumed.load_state_dict(state)
        for (x, y), expected in zip(data[start:], values[start:], strict=True):
            assert torch.equal(resumed(x, y), expected)


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (-1, "at least 1"),
        (2.5, "whole number"),
        ({"sise": 3}, "size"),
        ({"warmup": 3}, "size"),
        (True, "whole"),
    ],
)
def test_invalid_memories_are_refused(memory: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        losses.build({"name": "raw", "memory": memory}, embedding_dim=DIM)


def test_memory_requires_embedding_dim() -> None:
    with pytest.raises(ValueError, match="embedding_dim"):
        losses.build({"name": "raw", "memory": 4})
    module = losses.build({"name": "raw", "memory": 4}, embedding_dim=DIM + 1)
    with pytest.raises(ValueError, match="dimension"):
        module(*batches(1)[0])
