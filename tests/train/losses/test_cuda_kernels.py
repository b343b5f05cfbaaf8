"""Kernels of compiled losses for an NVIDIA GPU, counted on a machine without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not torch.__version__.startswith("2.15."), reason="rests on private parts of torch 2.15"
    ),
]

# Kernels and other calls, at most, of forward and backward pass.
MOST: list[tuple[dict[str, Any], int]] = [
    ({"name": "contrastive"}, 11),
    ({"name": "multi-similarity"}, 9),
    *(({"name": name}, 9) for name in ("supcon", "info-nce", "circle")),
    ({"name": "siglip"}, 14),
    ({"name": "recall-at-k"}, 19),
    ({"name": "smooth-ap"}, 21),
    ({"name": "triplet", "negatives": "optimal"}, 21),
    ({"name": "n-pair", "negatives": "symmetric"}, 21),
    ({"name": "angular", "negatives": "symmetric"}, 31),
    ({"name": "triplet", "regularizers": [{"name": "wasserstein", "max_iterations": 4}]}, 28),
]


@pytest.fixture(scope="module")
def counted() -> list[dict[str, int]]:
    command = [
        sys.executable,
        "-m",
        "tests.train.losses.cuda_kernels",
        *(json.dumps(spec) for spec, _ in MOST),
    ]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("number", range(len(MOST)), ids=[json.dumps(spec) for spec, _ in MOST])
def test_a_compiled_loss_stays_a_few_kernels(counted: list[dict[str, int]], number: int) -> None:
    found = counted[number]
    assert 5 <= found["kernels"] + found["calls"] <= MOST[number][1]
