"""Tests of the latency measurement, with a fake clock."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from retrieval import Embedder, InputError, Preprocess
from retrieval.model.embedder import measure_latency


class Slow:
    """Fake embedder whose runs take the given seconds; the last duration repeats."""

    preprocess = Preprocess(size=4)

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *durations: float) -> None:
        self.now, self.runs, self.durations = 0.0, 0, durations
        monkeypatch.setattr("retrieval.model.embedder.time", SimpleNamespace(perf_counter=lambda: self.now))

    def embed_in_one_run(self, pixels: np.ndarray) -> None:
        assert pixels.shape == (5, 4, 4, 3)
        assert pixels.dtype == np.uint8
        self.now += self.durations[min(self.runs, len(self.durations) - 1)]
        self.runs += 1


def test_first_run_and_outliers_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Slow(monkeypatch, 100, 0.2, 7, 0.3, 0.1, 0.25)
    assert measure_latency(model, 5, seconds=8) == pytest.approx(0.25)


def test_number_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = Slow(monkeypatch, 9, 0.125)
    assert measure_latency(quick, 5, seconds=2) == 0.125
    assert quick.runs == 1 + 16
    slow = Slow(monkeypatch, 50)
    assert measure_latency(slow, 5, seconds=2) == 50
    assert slow.runs == 1 + 3


def test_real_model(model_file: Path) -> None:
    embedder = Embedder(model_file)
    start = time.perf_counter()
    measured = measure_latency(embedder, 2, seconds=0)
    assert 0 < measured < time.perf_counter() - start


def test_empty_batch_is_rejected(model_file: Path) -> None:
    with pytest.raises(InputError, match="at least 1"):
        measure_latency(Embedder(model_file), 0)
