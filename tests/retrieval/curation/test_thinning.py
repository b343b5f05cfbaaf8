"""Thinning of near-duplicates against a comparison one by one."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFilter

from retrieval import Gallery, LookalikeError
from retrieval.curation.thinning import plan_thinning
from tests.conftest import draw, lookalike_here
from tests.retrieval.curation.test_duplicates import crowd, make


@settings(max_examples=8)
@given(st.integers(0, 2**32), st.integers(2, 120), st.sampled_from([2, 5, 40]), st.booleans())
def test_surplus_images_are_near_a_kept_one(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, dim: int, across_labels: bool
) -> None:
    """Greedily by id: an image stays unless an earlier one that stays is near; both are in one group."""
    min_score = 0.9
    random = np.random.default_rng(seed)
    vectors = crowd(seed, count, dim)
    contents = [str(c) for c in random.integers(0, 2 * count, count)]
    labels = [["a", "b", None][c] for c in random.choice(3, count, p=[0.6, 0.1, 0.3])]
    gallery = make(tmp_path_factory.mktemp("crowd") / "g", vectors, contents=contents, labels=labels)
    groups = gallery.duplicates(min_score).groups
    found = plan_thinning(gallery, groups, "first", min_score, across_labels=across_labels)
    near = (vectors @ vectors.T >= min_score - 1e-6) | (np.array(contents)[:, None] == np.array(contents))
    expected, left = {}, 0
    for group in groups:
        members = sorted(int(item.key) for item in group.members)
        if len({labels[i] for i in members} - {None}) > 1 and not across_labels:
            left += 1
            continue
        kept: list[int] = []
        for i in members:
            by = next((j for j in kept if near[i, j]), None)
            if by is None:
                kept.append(i)
            else:
                expected[i] = by
    assert {int(one.item.key): int(one.kept.key) for one in found.surplus} == expected
    assert found.across_labels == left
    for one in found.surplus:
        i, j = int(one.item.key), int(one.kept.key)
        assert one.score == pytest.approx(min(1, vectors[i] @ vectors[j]), abs=1e-5)
        assert one.identical == (contents[i] == contents[j])
    gallery.remove_surplus(found)
    kept_keys = {int(item.key) for item in gallery.items(list(range(1, count + 1))).values()}
    assert kept_keys == set(range(count)) - set(expected)


def test_nothing_is_removed_from_a_gallery_that_has_changed(tmp_path: Path) -> None:
    vectors = np.repeat(np.eye(2, 8, dtype=np.float32), 2, axis=0)
    gallery = make(tmp_path / "g", vectors)
    found = plan_thinning(gallery, gallery.duplicates().groups, "first", 0.95)
    assert len(found.surplus) == 2
    Gallery.open(tmp_path / "g").remove(["0"])
    with pytest.raises(LookalikeError, match="changed while"):
        gallery.remove_surplus(found)
    assert len(Gallery.open(tmp_path / "g")) == 3


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory, model_file: Path) -> Path:
    """A gallery with a group of three variants of one image, a group across labels, and other images."""
    folder = tmp_path_factory.mktemp("copies")
    photos = folder / "photos"
    for label in ("red", "green"):
        (photos / label).mkdir(parents=True)
    for seed in range(4):
        draw(seed, (64, 64), hue=seed % 3).save(photos / "red" / f"{seed}.png")
    image = Image.effect_noise((96, 96), 90).convert("RGB").resize((192, 192))
    image.save(photos / "red" / "large.png")
    image.resize((96, 96)).save(photos / "red" / "sharp.png")
    image.filter(ImageFilter.GaussianBlur(2)).resize((160, 160)).save(photos / "red" / "old.png")
    os.utime(photos / "red" / "old.png", (1e9, 1e9))
    shutil.copyfile(photos / "red" / "3.png", photos / "green" / "again.png")
    lookalike_here("index", "build", str(folder / "g"), str(photos), "--model", str(model_file))
    return folder


@pytest.mark.parametrize(("rule", "kept"), [("largest", "large"), ("oldest", "old"), ("sharpest", "sharp")])
def test_rules_choose_by_files(copies: Path, tmp_path: Path, rule: str, kept: str) -> None:
    table, score = tmp_path / "others.csv", cosine(copies)
    words = [str(copies / "g"), "--min-score", str(score), "--keep", rule, "--list", str(table)]
    facts = json.loads(lookalike_here("check", "duplicates", *words, "--json").stdout)["thinning"]
    variants = {"red/large.png", "red/sharp.png", "red/old.png"}
    with table.open(newline="") as file:
        rows = {row["key"]: row for row in csv.DictReader(file) if row["key"] in variants}
    assert {row["kept_key"] for row in rows.values()} == {f"red/{kept}.png"}
    assert set(rows) == variants - {f"red/{kept}.png"}
    assert all(Path(row["path"]).is_file() and row["reason"] == "near-duplicate" for row in rows.values())
    assert facts["across_labels"] >= 1
    assert not {"red/3.png", "green/again.png"} & {one["key"] for one in facts["surplus"]}
    assert facts["removed"] == 0


def cosine(copies: Path) -> float:
    """Return a threshold that all variants reach with each other."""
    gallery = Gallery.open(copies / "g")
    ids = gallery.ids_of(["red/large.png", "red/sharp.png", "red/old.png"])
    vectors = np.stack([gallery.vector(i) for i in ids])
    return float((vectors @ vectors.T).min()) - 1e-4


def test_a_list_of_others_is_removed_by_decide(copies: Path, tmp_path: Path) -> None:
    shutil.copytree(copies / "g", tmp_path / "g")
    gallery, table = str(tmp_path / "g"), tmp_path / "others.csv"
    words = ["check", "duplicates", gallery, "--min-score", str(cosine(copies)), "--list", str(table)]
    lookalike_here(*words)
    with table.open(newline="") as file:
        members = [row["key"] for row in csv.DictReader(file)]
    assert {"red/large.png", "red/sharp.png", "red/old.png"} <= {*members}, (
        "without --keep: all of the groups"
    )
    assert "0 labels changed" in lookalike_here("check", "decide", gallery, str(table)).stdout
    lookalike_here(*words, "--keep", "largest")
    with table.open(newline="") as file:
        others = {row["key"] for row in csv.DictReader(file)}
    assert f"{len(others)} images removed" in lookalike_here("check", "decide", gallery, str(table)).stdout
    left = Gallery.open(tmp_path / "g")
    assert len(left) == len(Gallery.open(copies / "g")) - len(others)
    assert left.ids_of(["red/large.png"])


def test_removal_needs_to_be_asked_for(copies: Path, tmp_path: Path) -> None:
    shutil.copytree(copies / "g", tmp_path / "g")
    Gallery.open(tmp_path / "g").remove(["red/large.png", "red/sharp.png", "red/old.png"])
    words = [
        "check",
        "duplicates",
        str(tmp_path / "g"),
        "--min-score",
        "0.999999",
        "--keep",
        "first",
        "--across-labels",
    ]
    for more, text in (([], "1 image to spare"), (["--remove", "--dry-run"], "1 image would be removed")):
        assert text in lookalike_here(*words, *more).stdout
        assert len(Gallery.open(tmp_path / "g")) == 5
    assert "1 removed" in lookalike_here(*words, "--remove").stdout
    assert len(Gallery.open(tmp_path / "g")) == 4
    assert (copies / "photos" / "red" / "3.png").is_file()
    assert "no near-duplicates" in lookalike_here(*words, "--remove").stdout
    for wrong in (["--remove"], ["--across-labels"], ["--keep", "first", "--dry-run"]):
        assert "need" in lookalike_here("check", "duplicates", str(tmp_path / "g"), *wrong, code=2).stderr
