"""Synthetic points: compared with their formulas, and their recall with a brute-force loop."""

from pathlib import Path

import click.testing
import numpy as np
import pytest

from retrieval.analysis.embeddings import Embeddings
from retrieval.errors import InputError
from retrieval.reports.figures import render_figure
from train.papers import synthetic
from train.papers.analyze.losses import synthetic as command

SOURCES: tuple[synthetic.PointSource, ...] = ("symmetric", "optimal", "interpolated")


def clusters(seed: int = 0, sizes: tuple[int, ...] = (6, 5, 4, 2, 1, 7), noise: float = 0.5) -> Embeddings:
    """Return loose clusters of these sizes, shuffled."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    vectors = random.normal(size=(len(sizes), 5))[labels] + noise * random.normal(size=(len(labels), 5))
    return Embeddings("clusters", vectors, labels)


@pytest.mark.parametrize("source", SOURCES)
def test_pairs_are_disjoint_and_points_have_unit_length(source: synthetic.PointSource) -> None:
    images = clusters()
    made = synthetic.synthesize_points(images, source)
    assert len(set(made.members.flat)) == made.members.size, "an image in two pairs"
    labels = images.classes[made.members]
    assert (labels[:, 0] == labels[:, 1]).all()
    assert (
        np.bincount(labels[:, 0]).tolist() == (np.bincount(images.classes) // 2)[: labels.max() + 1].tolist()
    )
    np.testing.assert_allclose(np.linalg.norm(made.vectors, axis=1), 1, atol=1e-6)


def test_partner_is_any_other_image_of_the_class_with_equal_probability() -> None:
    """Frequencies over many seeds, against 1 / (n - 1) within four standard deviations."""
    images, draws, counts = clusters(sizes=(5, 4)), 600, np.zeros((9, 9))
    for seed in range(draws):
        members = synthetic.synthesize_points(images, "symmetric", seed=seed).members
        counts[members[:, 0], members[:, 1]] += 1
        counts[members[:, 1], members[:, 0]] += 1
    same = (images.classes[:, None] == images.classes) & ~np.eye(9, dtype=bool)
    size = same.sum(1) + 1
    chance = np.where(size % 2 == 1, (size - 1) / size, 1) / (size - 1)  # an odd class leaves one out
    expected = np.where(same, chance[:, None], 0)
    error = 4 * np.sqrt(expected * (1 - expected) / draws)
    assert (np.abs(counts / draws - expected) <= error).all()
    assert len(np.unique(expected)) == 3


def test_mirrored_points() -> None:
    """x' = 2 r - x, r the projection of x on its partner (Symm eq. 1)."""
    images = clusters()
    made = synthetic.synthesize_points(images, "symmetric")
    assert len(made.vectors) == 2 * len(made.members)
    expected = []
    for side in (0, 1):
        for members in made.members:
            x, axis = images.vectors[members[side]], images.vectors[members[1 - side]]
            expected.append(2 * (x @ axis) * axis - x)
    np.testing.assert_allclose(made.vectors, expected, atol=1e-6)


def test_mirrored_point_of_orthogonal_members_is_the_opposite() -> None:
    made = synthetic.synthesize_points(Embeddings("axes", np.eye(4), np.array([0, 0, 1, 1])), "symmetric")
    np.testing.assert_allclose(np.sort(made.vectors, 0), np.sort(-np.eye(4), 0), atol=1e-7)


def test_interpolated_points() -> None:
    images = clusters()
    made = synthetic.synthesize_points(images, "interpolated")
    first, second = (images.vectors[rows] for rows in made.members.T)
    for number, share in enumerate((1 / 3, 2 / 3)):
        point = (1 - share) * first + share * second
        expected = point / np.linalg.norm(point, axis=1, keepdims=True)
        found = made.vectors[number * len(first) : (number + 1) * len(first)]
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_optimal_points_are_closest_to_an_arc_of_another_class() -> None:
    """Compared with a fine grid over all arcs."""
    images = clusters(3)
    made = synthetic.synthesize_points(images, "optimal")
    share = np.linspace(0, 1, 400)[:, None]
    arcs = []
    for i, j in made.members:
        points = (1 - share) * images.vectors[i] + share * images.vectors[j]
        arcs.append(points / np.linalg.norm(points, axis=1, keepdims=True))
    labels = images.labels[made.members[:, 0]]
    at_the_end = 0
    for number, arc in enumerate(arcs):
        others = np.concatenate([a for a, label in zip(arcs, labels, strict=True) if label != labels[number]])
        nearest = (arc @ others.T).max(1).argmax()
        if nearest in (0, len(share) - 1):
            at_the_end += 1
            assert number not in made.pair
        else:
            found = made.vectors[made.pair == number]
            assert found @ arc[nearest] == pytest.approx(1, abs=1e-3)
    assert 0 < at_the_end < len(arcs)


@pytest.mark.parametrize("source", SOURCES)
def test_recall_matches_a_brute_force_loop(source: synthetic.PointSource) -> None:
    images = clusters(noise=1.0)
    made = synthetic.synthesize_points(images, source)
    found = synthetic.synthetic_recalls(images, made, source)
    pair_of = {int(row): number for number, members in enumerate(made.members) for row in members}
    originals = [
        (v, y, pair_of.get(i)) for i, (v, y) in enumerate(zip(images.vectors, images.labels, strict=True))
    ]
    points = [
        (vector, images.labels[made.members[pair, 0]], int(pair))
        for vector, pair in zip(made.vectors, made.pair, strict=True)
    ]
    paired = [query for query in originals if query[2] is not None]
    for name, queries, gallery in (
        (synthetic.ORIGINALS, paired, originals),
        (synthetic.POINTS, points, originals),
        (synthetic.AMONG, paired, originals + points),
    ):
        hits: dict[int, list[bool]] = {k: [] for k in synthetic.KS}
        for vector, label, pair in queries:
            others = [other for other in gallery if other[2] != pair]
            if not any(other[1] == label for other in others):
                continue
            ranked = sorted(others, key=lambda other: -float(vector @ other[0]))
            for k in synthetic.KS:
                hits[k].append(any(other[1] == label for other in ranked[:k]))
        assert found.counts[name] == len(hits[1])
        assert found.recall[name] == pytest.approx({k: np.mean(hits[k]) for k in synthetic.KS})
    # A class with a single pair has nothing to retrieve.
    assert found.counts[synthetic.ORIGINALS] < len(paired)


def test_unusable_embeddings_are_refused() -> None:
    alone = Embeddings("alone", np.eye(3), np.arange(3))
    with pytest.raises(InputError, match="no class has two"):
        synthetic.synthesize_points(alone, "symmetric")
    one_class = Embeddings("one", np.eye(4), np.zeros(4, int))
    with pytest.raises(InputError, match="one class"):
        synthetic.synthesize_points(one_class, "optimal")
    two_each = Embeddings("two", np.eye(4), np.array([0, 0, 1, 1]))
    with pytest.raises(InputError, match="beyond a pair"):
        synthetic.synthetic_recalls(two_each, synthetic.synthesize_points(two_each, "symmetric"), "symmetric")
    same = Embeddings("same", np.ones((6, 2)), np.array([0, 0, 0, 1, 1, 1]))
    with pytest.raises(InputError, match="no points between"):
        synthetic.synthetic_recalls(same, synthetic.synthesize_points(same, "optimal"), "optimal")


def test_synthetic_command(tmp_path: Path) -> None:
    images, out, points = tmp_path / "images.npz", tmp_path / "synthetic.svg", tmp_path / "both.npz"
    clusters().save(images)
    words = [str(images), "--out", str(out), "--points", str(points), "--negatives", "interpolated"]
    done = click.testing.CliRunner().invoke(command, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert synthetic.AMONG in done.stdout
    both = Embeddings.load(points)
    assert both.synthetic.sum() == 2 * (np.bincount(clusters().classes) // 2).sum()
    assert len(both) == len(clusters()) + both.synthetic.sum()
    # Synthetic points in the input generate no further points.
    words[0], words[4] = str(points), str(tmp_path / "again.npz")
    assert click.testing.CliRunner().invoke(command, words, catch_exceptions=False).exit_code == 0
    assert len(Embeddings.load(tmp_path / "again.npz")) == len(both)
    with pytest.raises(InputError, match="at most 1 with --points"):
        click.testing.CliRunner().invoke(command, [str(images), *words], catch_exceptions=False)


def test_figure_is_deterministic() -> None:
    images = clusters()
    found = [
        synthetic.synthetic_recalls(images, synthetic.synthesize_points(images, source), source)
        for source in SOURCES
    ]
    first, second = (
        render_figure(lambda figure: synthetic.synthetic_recall_figure(found, figure), 12, 5)
        for _ in range(2)
    )
    assert first == second
