"""Degenerate batches give finite values and gradients, 0 without pairs; invalid ones raise an error."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from train import losses

from .oracle.batches import make_batch
from .oracle.matrix import CLASSES, DIM, EVERY_RULE, MATRIX, Combination, build, has_parameters

BATCH = make_batch(41, (3, 4, 2, 1), dim=DIM, spread=1.0)
X, Y = torch.tensor(BATCH.x), torch.tensor(BATCH.y)
REGULARIZERS = list(losses.names("regularizer"))
every_combination = pytest.mark.parametrize("combination", MATRIX, ids=lambda c: c.label)
every_regularizer = pytest.mark.parametrize("regularizer", REGULARIZERS)


def rows(*indices: int) -> torch.Tensor:
    """Return some samples of the batch, with repeats."""
    return X[list(indices)].clone()


def with_zeros() -> torch.Tensor:
    """Two samples of length 0."""
    x = X.clone()
    x[0] = x[5] = 0
    return x


# Name -> (embeddings, labels).
AWKWARD: dict[str, tuple[torch.Tensor, torch.Tensor]] = {
    "no positives": (rows(0, 1, 2, 3), torch.arange(4)),
    "no negatives": (rows(0, 1, 2, 3, 4), torch.ones(5, dtype=torch.long)),
    "one sample": (rows(0), torch.tensor([2])),
    "two of a class": (rows(0, 1), torch.tensor([1, 1])),
    "two classes of one": (rows(0, 1), torch.tensor([0, 1])),
    "one pair, one single": (rows(0, 1, 2), torch.tensor([0, 0, 1])),
    "class of one": (X, Y),
    "duplicates within a class": (rows(0, 0, 1, 1, 2, 2), torch.tensor([0, 0, 1, 1, 2, 2])),
    "duplicates across classes": (rows(0, 1, 0, 1), torch.tensor([0, 0, 1, 1])),
    "all the same": (rows(0, 0, 0, 0, 0, 0), torch.tensor([0, 0, 1, 1, 2, 2])),
    "opposite": (torch.cat([rows(0, 1), -rows(0, 1)]), torch.tensor([0, 1, 0, 1])),
    "zero vectors": (with_zeros(), Y),
    "all zero": (torch.zeros(6, DIM).double(), torch.tensor([0, 0, 1, 1, 2, 2])),
    "axis-aligned": (torch.eye(DIM).double(), torch.tensor([0, 0, 1, 1, 2, 2])),
    "norms of 1e3": (X * 1e3, Y),
    "norms of 1e-6": (X * 1e-6, Y),
    "mixed norms": (X * torch.logspace(-6, 3, len(X)).double()[:, None], Y),
}
NOTHING_TO_LEARN = ("no positives", "no negatives", "one sample", "two of a class", "two classes of one")


def evaluate(
    module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, autocast: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return value and gradient; autocast covers the forward pass only."""
    torch.default_generator.manual_seed(0)  # torch.manual_seed takes 1 ms where CUDA is not in use
    leaf = x.detach().clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        value = module(leaf, y)
    value.backward()
    assert leaf.grad is not None, "the value does not depend on the embeddings"
    return value.detach(), leaf.grad


def assert_finite(
    module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a finite value and gradient; the gradients of the loss's own parameters are finite, too."""
    value, gradient = evaluate(module, x, y)
    assert value.shape == ()
    assert torch.isfinite(value)
    assert gradient.dtype == x.dtype
    assert torch.isfinite(gradient).all()
    for name, parameter in module.named_parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name
    return value, gradient


@every_combination
def test_awkward_batches(combination: Combination) -> None:
    """All batches in turn through one module in float32, as in training; without pairs the loss is 0.

    Some losses keep one-sided terms by their formula.
    """
    module = build(combination.spec).float()
    may_be_nonzero = combination.one_sided or has_parameters(module)
    for name, (x, y) in AWKWARD.items():
        try:
            value, gradient = assert_finite(module, x.float(), y)
        except Exception as error:
            raise AssertionError(name) from error
        if name in NOTHING_TO_LEARN and not may_be_nonzero:
            assert float(value) == 0, name
            assert not gradient.any(), name


HALF = ("no positives", "no negatives", "all the same", "zero vectors", "norms of 1e3")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("combination", [c for c in MATRIX if "mining" not in c.spec], ids=lambda c: c.label)
def test_half_precision_inputs(combination: Combination, dtype: torch.dtype) -> None:
    """Computation is in float32: inputs are rounded, similarities are not."""
    module = build(combination.spec).float()
    for name in HALF:
        x, y = AWKWARD[name]
        try:
            assert_finite(module, x.to(dtype), y)
        except Exception as error:
            raise AssertionError(name) from error
    rounded = X.to(dtype)
    half, _ = evaluate(module, rounded, Y)
    single, _ = evaluate(module, rounded.float(), Y)
    assert float(half) == pytest.approx(float(single), rel=1e-4, abs=1e-5)


@every_combination
def test_autocast(combination: Combination) -> None:
    """Under autocast the products inside the loss stay in float32."""
    module = build(combination.spec).float()
    x = X.float()
    expected, expected_gradient = evaluate(module, x, Y)
    value, gradient = evaluate(module, x, Y, autocast=True)
    layer = torch.nn.Linear(DIM, DIM)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        behind_layer = module(layer(x), Y)
    behind_layer.backward()
    assert value.dtype == torch.float32
    assert float(value) == pytest.approx(float(expected), rel=1e-5, abs=1e-6)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-5)
    assert layer.weight.grad is not None
    assert torch.isfinite(layer.weight.grad).all()


@every_regularizer
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=["f64", "f32", "bf16"])
def test_regularizers_on_awkward_batches(regularizer: str, dtype: torch.dtype) -> None:
    module = build({"regularizers": [{"name": regularizer}]})
    module = module.to(torch.float64 if dtype == torch.float64 else torch.float32)
    for name, (x, y) in AWKWARD.items():
        try:
            assert_finite(module, x.to(dtype), y)
        except Exception as error:
            raise AssertionError(name) from error


@every_regularizer
def test_regularizers_under_autocast(regularizer: str) -> None:
    module = build({"regularizers": [{"name": regularizer}]}).float()
    expected, _ = evaluate(module, X.float(), Y)
    value, _ = evaluate(module, X.float(), Y, autocast=True)
    assert float(value) == pytest.approx(float(expected), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    "form", [{"form": "entropic"}, {"form": "sharp"}, {"form": "exact"}, {"debias": True}], ids=str
)
def test_transport_forms_on_awkward_batches(form: dict[str, Any]) -> None:
    for dtype in (torch.float64, torch.float32):
        module = build({"regularizers": [{"name": "wasserstein", **form}]}).to(dtype)
        for name, (x, y) in AWKWARD.items():
            try:
                assert_finite(module, x.to(dtype), y)
            except Exception as error:
                raise AssertionError(name) from error


def test_transport_reports_convergence() -> None:
    """One iteration does not converge and the diagnostics report it; the default converges."""
    module = build({"regularizers": [{"name": "wasserstein", "max_iterations": 1}]})
    evaluate(module, X, Y)
    short = {k: float(v) for k, v in module.diagnostics.items()}
    module = build({"regularizers": [{"name": "wasserstein"}]})
    evaluate(module, X, Y)
    full = {k: float(v) for k, v in module.diagnostics.items()}
    assert short["transport_error"] > 1e-3
    assert full["transport_error"] < 1e-9
    assert (short["transport_converged"], full["transport_converged"]) == (0, 1)
    assert short["transport_iterations"] == 1
    assert full["transport_iterations"] > 1


RAW = ("n-pair", "angular", "angular-n-pair", "optimal-segment")  # work on lengths
SCALE_FREE = [
    c
    for c in MATRIX
    if not {c.spec["name"], c.spec["negatives"]} & {*RAW}
    and ("mining" not in c.spec or c.spec["name"] in EVERY_RULE)
]


@pytest.mark.parametrize("combination", SCALE_FREE, ids=lambda c: c.label)
def test_normalised_losses_do_not_depend_on_length(combination: Combination) -> None:
    """Normalising losses accept any length, also in float32."""
    module, x = build(combination.spec).float(), X.float()
    expected, _ = evaluate(module, x, Y)
    for scale in (1e3, 1e-6):
        value, gradient = evaluate(module, x * scale, Y)
        assert float(value) == pytest.approx(float(expected), rel=1e-3, abs=1e-6)
        # The loss depends on direction alone, so its gradient has no part along the embedding.
        along = (gradient * x).sum(dim=1).abs()
        assert along.max() <= 1e-4 * max(1.0, float(gradient.abs().max()))


# Wrong input.

LOSSES: list[dict[str, Any]] = [
    {"name": "triplet"},
    {"name": "raw", "negatives": "optimal"},
    {"name": "proxy-nca"},
]
LOSSES += [{"regularizers": [{"name": "wasserstein"}]}]
each_loss = pytest.mark.parametrize("spec", LOSSES, ids=str)


def finite_but(value: float) -> torch.Tensor:
    """One bad number."""
    x = X.clone()
    x[2, 1] = value
    return x


WRONG: dict[str, Callable[[], tuple[Any, Any]]] = {
    "empty": lambda: (X[:0], Y[:0]),
    "vector": lambda: (X[0], Y),
    "three dimensions": lambda: (X[None], Y),
    "fewer labels": lambda: (X, Y[:-1]),
    "more labels": lambda: (X, torch.cat([Y, Y[:1]])),
    "labels of two dimensions": lambda: (X, Y[:, None]),
    "integer embeddings": lambda: (X.long(), Y),
    "complex embeddings": lambda: (X.to(torch.complex64), Y),
    "floating labels": lambda: (X, Y.double()),
    "boolean labels": lambda: (X, Y.bool()),
    "array embeddings": lambda: (X.numpy(), Y),
    "list of labels": lambda: (X, list(BATCH.y)),
    "nan": lambda: (finite_but(float("nan")), Y),
    "infinity": lambda: (finite_but(float("inf")), Y),
    "minus infinity": lambda: (finite_but(-float("inf")), Y),
}


@each_loss
@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_input_is_refused(spec: dict[str, Any], wrong: str) -> None:
    module = build(spec)
    x, y = WRONG[wrong]()
    with pytest.raises((ValueError, TypeError), match=r"(?i)embedding|label"):
        module(x, y)


@pytest.mark.parametrize(
    "references",
    [
        {"ref_embeddings": X},
        {"ref_labels": Y},
        {"ref_embeddings": X[:, :3], "ref_labels": Y},
        {"ref_embeddings": X, "ref_labels": Y[:-1]},
        {"ref_embeddings": finite_but(float("nan")), "ref_labels": Y},
        {"ref_embeddings": X, "ref_labels": Y.double()},
    ],
    ids=[
        "no labels",
        "no embeddings",
        "other dimension",
        "fewer labels",
        "nan",
        "floating labels",
    ],
)
def test_invalid_references_are_refused(references: dict[str, torch.Tensor]) -> None:
    with pytest.raises((ValueError, TypeError), match=r"(?i)ref|embedding|label"):
        build({"name": "triplet"})(X, Y, **references)


@pytest.mark.parametrize("name", ["proxy-nca", "proxy-anchor", "soft-triple", "normalized-softmax"])
def test_labels_out_of_range_are_refused(name: str) -> None:
    for bad in (CLASSES, -1):
        y = Y.clone()
        y[0] = bad
        with pytest.raises(ValueError, match=r"(?i)label|class"):
            build({"name": name})(X, y)


def test_refused_batch_is_not_stored() -> None:
    """A refused batch does not enter the memory."""
    module = build({"name": "contrastive", "memory": 16})
    with pytest.raises(ValueError, match=r"(?i)embedding"):
        module(finite_but(float("nan")), Y)
    plain = build({"name": "contrastive"})
    assert float(module(X, Y)) == pytest.approx(float(plain(X, Y)), rel=1e-12)


def test_input_is_not_modified() -> None:
    """Neither embeddings nor labels are modified."""
    for combination in MATRIX:
        x, y = X.clone(), Y.clone()
        build(combination.spec)(x, y)
        assert torch.equal(x, X), combination.label
        assert torch.equal(y, Y), combination.label


def test_labels_of_any_integer_type() -> None:
    module = build({"name": "triplet", "negatives": "optimal"})
    expected = float(module(X, Y))
    for dtype in (torch.int32, torch.int16, torch.uint8):
        assert float(module(X, Y.to(dtype))) == expected
    assert np.isfinite(expected)
