"""Drift of a faster precision: against loops in plain Python, and of fp16 copies of a model on images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from retrieval import Embedder
from retrieval.model.precision import Drift, Precision, measure_drift
from tests.conftest import draw
from tests.retrieval.filling import unit_vectors
from tests.serve.model import write_model, write_rounded


def moved(vectors: np.ndarray, by: float) -> np.ndarray:
    """Return unit vectors beside some, float32."""
    noise = np.random.default_rng(1).normal(size=vectors.shape) * by
    away = vectors + noise
    return (away / np.linalg.norm(away, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("by", [1e-4, 3e-3, 0.1])
def test_drift_equals_loops(by: float) -> None:
    exact = unit_vectors(60)
    fast = moved(exact, by)
    cosines, kept = [], 0
    for n in range(60):
        cosines.append(sum(float(a) * float(b) for a, b in zip(exact[n], fast[n], strict=True)))
        firsts = []
        for vectors in (exact, fast):
            others = [(float(vectors[n] @ vectors[m]), m) for m in range(60) if m != n]
            firsts.append({m for _, m in sorted(others, reverse=True)[:10]})
        kept += len(firsts[0] & firsts[1])
    found = measure_drift(exact, fast)
    assert found.least == pytest.approx(min(cosines), abs=1e-7)
    assert found.mean == pytest.approx(sum(cosines) / 60, abs=1e-7)
    assert (found.kept, found.images) == (pytest.approx(kept / 600), 60)
    assert found.within == (min(cosines) >= 0.999 and kept >= 594)


def test_copies_of_an_image_may_trade_places() -> None:
    """Twelve copies have the same score but for rounding, so that no ten of them are the first."""
    exact = np.concatenate([unit_vectors(20), np.repeat(unit_vectors(1, 5), 12, axis=0)])
    assert measure_drift(exact, moved(exact, 1e-7)).kept == 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_vectors_that_are_not_finite_are_beyond_the_bounds(value: float) -> None:
    exact = unit_vectors(200)
    fast = exact.copy()
    fast[7, 3] = value
    found = measure_drift(exact, fast)
    assert (found.least, found.within) == (0, False)
    assert found.mean == pytest.approx(199 / 200)


@pytest.mark.parametrize(
    ("drift", "within"),
    [
        (Drift(0.999, 0.9999, 0.99, 256), True),
        (Drift(0.9989, 0.9999, 1, 256), False),
        (Drift(1, 1, 0.989, 256), False),
    ],
)
def test_both_bounds_count(drift: Drift, within: bool) -> None:
    assert drift.within == within


@pytest.mark.parametrize(("scale", "within"), [(1, True), (1000, False)])
def test_fp16_copy_of_a_model(tmp_path: Path, scale: float, within: bool) -> None:
    """Colours of up to 127 in fp16 keep the neighbours; 1000 times as large they overflow."""
    images = [draw(seed, hue=seed) for seed in range(100)]
    exact = Embedder(write_model(tmp_path / "exact.onnx")).embed(images)
    fast = Embedder(write_rounded(tmp_path / "fast.onnx", scale)).embed(images)
    found = measure_drift(exact, fast)
    assert not np.array_equal(exact, fast)
    assert found.within == within


def test_record_round_trip() -> None:
    record = Precision("tf32", Drift(0.99991, 0.99999, 0.9975, 256), "CUDAExecutionProvider", "2026-11-26")
    assert Precision.from_dict(record.as_dict()) == record
    assert str(record) == (
        "TF32 on a GPU, fp32 on a CPU; TF32 against fp32: 1 - cosine at most 9e-05, "
        "99.75% of the first 10 neighbours stay, 256 images (2026-11-26)"
    )
    with pytest.raises(KeyError):
        Precision.from_dict({"name": "tf32"})
