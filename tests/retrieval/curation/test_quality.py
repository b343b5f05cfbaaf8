"""The report on poor and odd images against SciPy and a comparison with all other images."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter
from scipy import ndimage, stats

from retrieval import Gallery, IndexSpec
from retrieval.curation.quality import FAULTS, SIDE, Fault, inspect_gallery, measure_files
from tests.conftest import lookalike_here
from tests.retrieval.curation.test_duplicates import crowd, make
from tests.retrieval.reports.html_page import Page

ODD = ("blurred", "dark", "flat", "tiny", "narrow")


def photo(seed: int, size: tuple[int, int] = (120, 100)) -> Image.Image:
    """Return an image with edges and noise."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (6, 8, 3), np.uint8)).resize(
        size, Image.Resampling.NEAREST
    )
    return Image.fromarray(
        np.clip(coarse + random.normal(0, 12, (size[1], size[0], 1)), 0, 255).astype(np.uint8)
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, model_file: Path) -> Path:
    """A gallery `g` of 30 ordinary images and one with each fault."""
    folder = tmp_path_factory.mktemp("quality")
    (folder / "photos").mkdir()
    images = {f"{seed}": photo(seed, (110 + seed, 100)) for seed in range(30)}
    images["blurred"] = photo(40).filter(ImageFilter.GaussianBlur(3))
    images["dark"] = ImageEnhance.Brightness(photo(41)).enhance(0.1)
    images["flat"] = ImageEnhance.Contrast(photo(42)).enhance(0.05)
    images["tiny"] = photo(43, (24, 20))
    images["narrow"] = photo(44, (700, 100))
    for name, image in images.items():
        image.save(folder / "photos" / f"{name}.png")
    lookalike_here("index", "build", str(folder / "g"), str(folder / "photos"), "--model", str(model_file))
    return folder


def test_each_fault_is_found(place: Path) -> None:
    found = inspect_gallery(Gallery.open(place / "g"))
    keys = {finding.fault.name: [item.key for item, _ in finding.images] for finding in found.findings}
    assert all(f"{name}.png" in keys[name] for name in ODD)
    flawed = {key for name in ODD for key in keys[name]}
    assert flawed == {f"{name}.png" for name in ODD}, "no ordinary image has a fault"
    assert keys["narrow"] == ["narrow.png"]
    assert keys["tiny"] == ["tiny.png"]
    for finding in found.findings:
        values = [value for _, value in finding.images]
        assert values == sorted(values, reverse=finding.fault.above), "the worst first"
    assert (found.images, found.unreadable) == (35, [])


def test_measures_match_scipy(tmp_path: Path) -> None:
    for number, size in enumerate([(120, 100), (256, 300), (1, 1)]):
        photo(number, size).save(tmp_path / f"{number}.png")
    for path, found in zip(
        sorted(tmp_path.iterdir()), measure_files(sorted(tmp_path.iterdir())), strict=True
    ):
        with Image.open(path) as image:
            grey = np.asarray(image.convert("L"), float)
        assert isinstance(found, dict)
        assert found["sharpness"] == pytest.approx(
            ndimage.laplace(grey, mode="nearest").var(), rel=1e-4, abs=1e-6
        )
        assert found["brightness"] == pytest.approx(grey.mean() / 255, rel=1e-5)
        assert found["contrast"] == pytest.approx(grey.std() / 255, rel=1e-4, abs=1e-6)
        assert (found["side"], found["aspect"]) == (min(grey.shape), max(grey.shape) / min(grey.shape))


def test_sharpness_is_measured_at_one_scale(tmp_path: Path) -> None:
    """An image enlarged with smooth interpolation has the sharpness of the original."""
    original = photo(1, (300, SIDE)).filter(ImageFilter.GaussianBlur(1.5))
    original.save(tmp_path / "0.png")
    original.resize((1200, 4 * SIDE), Image.Resampling.BICUBIC).save(tmp_path / "1.png")
    one, four = measure_files([tmp_path / "0.png", tmp_path / "1.png"])
    assert isinstance(one, dict)
    assert isinstance(four, dict)
    assert four["sharpness"] == pytest.approx(one["sharpness"], rel=0.25)
    assert four["side"] == 4 * one["side"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_thresholds_are_robust_outliers(fault: Fault) -> None:
    values = np.random.default_rng(3).lognormal(0, 0.5, 400)
    values[:5] = [1e-3, 1e-3, 1e-3, 1e3, np.nan]
    known = values[np.isfinite(values)]
    known = np.log(known) if fault.ratio else known
    away = 3.5 * stats.median_abs_deviation(known, scale="normal")
    limit = np.median(known) + (away if fault.above else -away)
    assert fault.threshold(values) == pytest.approx(np.exp(limit) if fault.ratio else limit, rel=1e-3)
    if fault.ratio:
        same = fault.threshold(np.append(np.full(100, 8.0), 7.9))
        assert same == pytest.approx(16 if fault.above else 4), "a factor of 2 where all are equal"
    assert fault.threshold(np.full(3, np.nan)) is None


def test_similarity_is_that_of_the_nearest_other_vector(tmp_path: Path) -> None:
    """Vectors without files; removed ones do not count, and of two equal ones each has the other."""
    vectors = crowd(2, 300, 12)
    vectors[7] = vectors[8] = vectors[9]
    gallery = make(tmp_path / "g", vectors)
    gallery.remove(["3", "4"])
    found = inspect_gallery(gallery, {"alone": 1.01, "dark": 0.5})
    (alone,) = (finding for finding in found.findings if finding.fault.name == "alone")
    kept = np.delete(np.arange(300), [3, 4])
    scores = vectors[kept].astype(float) @ vectors[kept].T.astype(float)
    np.fill_diagonal(scores, -1)
    expected = dict(zip(kept.tolist(), scores.max(1).tolist(), strict=True))
    assert {int(item.key): value for item, value in alone.images} == pytest.approx(expected, abs=1e-6)
    assert len(found.unreadable) == 298, "there are no such files"


def test_an_index_makes_no_image_lonely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index visits one of many cells; images that it finds alone are compared with all others."""
    monkeypatch.setattr("retrieval.search.snapshot.Snapshot._is_exact", lambda *asked: asked[2] <= 10)
    vectors = crowd(5, 2000, 12)
    gallery = make(tmp_path / "g", vectors)
    with gallery.store.writing():
        gallery.build_index(IndexSpec("ivf-flat", recall=0.1))
    gallery.remove([str(i) for i in range(1500, 2000)])
    vectors = vectors[:1500]
    scores, rows = gallery.state.nearest(vectors, 2)
    (alone,) = (f for f in inspect_gallery(gallery, {"alone": 0.8}).findings if f.fault.name == "alone")
    true = vectors.astype(float) @ vectors.T.astype(float)
    np.fill_diagonal(true, -1)
    assert (np.where(rows[:, 0] == np.arange(1500), scores[:, 1], scores[:, 0]) < true.max(1) - 0.01).any()
    expected = {i: score for i, score in enumerate(true.max(1).tolist()) if score < 0.8}
    assert {int(item.key): value for item, value in alone.images} == pytest.approx(expected, abs=1e-6)


def test_report_table_and_missing_files(place: Path, tmp_path: Path, model_file: Path) -> None:
    photos = tmp_path / "photos"
    shutil.copytree(place / "photos", photos)
    lookalike_here("index", "build", str(tmp_path / "g"), str(photos), "--model", str(model_file))
    (photos / "7.png").unlink()
    (photos / "8.png").write_text("damaged")
    words = ["check", "quality", str(tmp_path / "g"), "--threshold", "tiny=101", "--limit", "5", "--json"]
    words += ["--list", str(tmp_path / "poor.csv"), "--sheet", str(tmp_path / "poor.html")]
    done = lookalike_here(*words, code=3)
    facts = json.loads(done.stdout)
    assert {Path(one["path"]).name for one in facts["unreadable"]} == {"7.png", "8.png"}
    tiny = facts["faults"]["tiny"]
    assert tiny["threshold"] == 101
    assert len(tiny["images"]) == 33, "all that could be read"
    with (tmp_path / "poor.csv").open(newline="") as file:
        rows = {row["key"]: row for row in csv.DictReader(file)}
    assert len(rows) == 35
    assert rows["7.png"]["faults"].split()[-1] == "missing"
    assert rows["7.png"]["sharpness"] == ""
    assert {"dark", "tiny"} <= set(rows["dark.png"]["faults"].split())
    assert float(rows["tiny.png"]["side"]) == 20
    page = Page(tmp_path / "poor.html")
    shown = sum(min(5, len(fault["images"])) for fault in facts["faults"].values()) + 2
    assert len(page.image_sources) == shown
    assert "tiny: 33, side below 101" in page.text


def test_wrong_usage(place: Path, tmp_path: Path) -> None:
    words = ["check", "quality", str(place / "g"), "--threshold"]
    for wrong, message in (
        ("dark=-1", "-1"),
        ("dim=1", "write blurred, dark,"),
        ("dark", "not a valid float"),
    ):
        assert message in lookalike_here(*words, wrong, code=2).stderr


def test_old_option_writes_the_report_and_the_facts(place: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = ["inspect", str(place / "g"), "--json", "--out"]
    facts = json.loads(lookalike_here(*words, str(tmp_path / "r"), "--dark", "0.2").stdout)
    assert json.loads((tmp_path / "r" / "report.json").read_text()) == facts
    assert facts["faults"]["dark"]["threshold"] == 0.2
    assert (tmp_path / "r" / "report.html").is_file()
    assert "'--out'" in lookalike_here(*words, str(tmp_path / "file"), code=2).stderr
