"""Selected pairs of anchors: the rule of RAW's section 5.1, and losses without variable thresholds."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from retrieval.analysis.embeddings import Embeddings
from retrieval.reports.figures import render_figure
from tests.conftest import lookalike_here
from train.papers.batch_weights import batch_weights
from train.papers.pair_selection import AnchorPairs, anchor_pairs, draw_selection
from train.papers.specs import read_losses


@pytest.fixture
def batch() -> Embeddings:
    random = np.random.default_rng(0)
    labels = np.repeat(["a", "b", "c", "d", "e"], 4)
    vectors = np.repeat(random.normal(size=(5, 6)), 4, axis=0) + random.normal(size=(20, 6))
    return Embeddings("batch", vectors, labels)


def pairs_of(batch: Embeddings, spec: str, count: int = 20) -> list[AnchorPairs]:
    (of,) = read_losses((spec,))
    return anchor_pairs(batch, batch_weights(batch, of), of, count=count)


@pytest.mark.parametrize("margin", [0.1, -0.05])
def test_selection_follows_the_variable_thresholds(batch: Embeddings, margin: float) -> None:
    found = pairs_of(batch, f"{{name: raw, mining: {{name: vthm, margin: {margin}}}}}")
    assert [one.label for one in found] == batch.labels.tolist()
    left_out = 0
    for one in found:
        assert (len(one.positives), len(one.negatives)) == (3, 16)
        assert one.positive_limit == pytest.approx(one.negatives[-1] + margin)
        assert one.negative_limit == pytest.approx(one.positives[0] - margin)
        expected = [cosine < one.negatives.max() + margin for cosine in one.positives]
        assert one.positive_selected.tolist() == expected
        expected = [cosine > one.positives.min() - margin for cosine in one.negatives]
        assert one.negative_selected.tolist() == expected
        left_out += (~one.negative_selected).sum()
    assert left_out


def test_other_losses_have_no_limits(batch: Embeddings) -> None:
    found = pairs_of(batch, "{name: contrastive, threshold: 0.3, mining: null}", count=3)
    assert len(found) == 3
    for one in found:
        assert one.positive_limit is one.negative_limit is None
        assert one.positive_selected.all()
        assert one.negative_selected.tolist() == (one.negatives > 0.3).tolist()


def test_figure_is_reproducible(batch: Embeddings) -> None:
    draw = partial(draw_selection, "raw", pairs_of(batch, "raw", count=4))
    assert render_figure(draw, 10, 4) == render_figure(draw, 10, 4)


def test_command(batch: Embeddings, tmp_path: Path) -> None:
    batch.save(tmp_path / "e.npz")
    words = ["analyze", "selection", str(tmp_path / "e.npz"), "--anchors", "5", "--json"]
    facts = json.loads(lookalike_here(*words, "--out", str(tmp_path / "s.svg")).stdout)
    assert facts["loss"] == "raw"
    assert len(facts["anchors"]) == 5
    assert len(facts["anchors"][0]["negative_selected"]) == 16
