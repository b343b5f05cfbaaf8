"""What notebooks show: pictures, escaped text, bounded in number and size, whatever the files are."""

from __future__ import annotations

import base64
import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from retrieval import Embedder, Gallery, Hit, Hits, Item
from retrieval.evaluation.comparison import Contender, compare_reports
from retrieval.evaluation.gallery import evaluate_gallery
from retrieval.images import remote
from tests.conftest import draw, draw_classes
from tests.retrieval.filling import small_gallery
from tests.retrieval.reports.html_page import Page

EVIL = "<script>alert(1)</script>'\"&"


@pytest.fixture
def gallery(tmp_path: Path) -> Gallery:
    """Three classes of eight images, one of them with a name that is HTML."""
    (tmp_path / "images").mkdir()
    made = small_gallery(tmp_path / "galleries")
    made.add([draw_classes(tmp_path / "images", 3, 8)])
    return made


def html(thing: object) -> Page:
    shown = thing._repr_html_()  # type: ignore[attr-defined]
    assert shown is not None
    return Page(shown)


def test_hits_are_shown_best_first_with_their_pictures(gallery: Gallery) -> None:
    hits = gallery.search(draw(2, hue=1), k=5)
    page = html(hits)
    assert len(page.image_sources) == 5
    assert [f"{hit.score:.3f}" in page.text for hit in hits] == [True] * 5
    first = Image.open(io.BytesIO(base64.b64decode(page.image_sources[0].partition(",")[2])))
    scaled = draw(2, hue=1).resize(first.size, Image.Resampling.NEAREST)
    assert np.abs(np.asarray(first, float) - np.asarray(scaled, float)).mean() < 8
    assert html(hits[0]).image_sources == page.image_sources[:1]


def test_names_and_labels_are_escaped_and_cut(tmp_path: Path) -> None:
    file = tmp_path / "<img src=x onerror=alert(1)>.png"
    draw(1).save(file)
    page = html(
        Hits([Hit(1, str(file), EVIL), Hit(2, str(file), "long" * 10**6), Hit(3, "", None, key=EVIL)])
    )
    assert not page.all("script")
    assert len(page.all("img")) == 3
    assert all(
        attributes.keys() <= {"src", "alt", "title", "width", "height"} for attributes in page.all("img")
    )
    assert EVIL in page.text.replace("\u200b", "")
    assert len(page.text) < 10_000


def test_number_and_size_are_bounded(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    hits = Hits([Hit(n, str(tmp_path / "noise.png"), f"class {n}") for n in range(5000)])
    shown = hits._repr_html_()
    assert shown is not None
    assert len(Page(shown).image_sources) == 24
    assert "and 4,976 more" in Page(shown).text
    assert len(shown) < 500_000


def test_unreadable_and_remote_files_are_grey_tiles_and_nothing_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "read", lambda *_: pytest.fail("fetched"))
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    draw(1).save(tmp_path / "good.png")
    names = ["s3://shop/a.png", "https://shop.example/a.png", "", "\0", "x" * 5000, str(tmp_path)]
    names += [str(tmp_path / name) for name in ("gone.png", "broken.png", "good.png")]
    sources = html(Hits([Hit(n, name, "a") for n, name in enumerate(names)])).image_sources
    assert [source.partition(";")[0] for source in sources] == ["data:image/svg+xml"] * 8 + [
        "data:image/webp"
    ]
    assert html(Item(1, "s3://shop/a.png", None)).image_sources == sources[:1]


def test_gallery_shows_a_sample_and_its_columns(gallery: Gallery) -> None:
    page = html(gallery)
    assert len(page.image_sources) == 12
    assert gallery.folder.name in page.text
    assert "and 12 more" in page.text
    shutil.rmtree(gallery.folder)
    assert str(gallery.folder) in repr(gallery)


def test_empty_gallery_and_no_hits_are_shown(tmp_path: Path) -> None:
    made = small_gallery(tmp_path)
    assert not html(made).image_sources
    assert "no hits" in html(made.search_vectors(np.eye(1, 48, dtype=np.float32))[0]).text


def test_model_shows_its_sizes(gallery: Gallery) -> None:
    page = html(Embedder(gallery.folder / "model" / "model.onnx"))
    assert "48" in page.text
    assert "32 \N{MULTIPLICATION SIGN} 32" in page.text


def test_report_and_comparison_show_numbers_and_hard_queries(gallery: Gallery) -> None:
    report = evaluate_gallery(gallery)
    page = html(report)
    recall = f"{100 * report.headline.known['recall_at_1']:.1f}"
    assert f"{recall} %" in page.text
    assert f"Recall@1 {recall}" in repr(report)
    assert len(repr(report)) < 200
    assert len(page.image_sources) == sum(1 + len(hard.neighbours) for hard in report.findings.hardest[:3])
    assert not page.all("svg")  # figures need Matplotlib
    comparison = compare_reports([Contender("a", (report,)), Contender(EVIL, (report,))])
    assert not html(comparison).all("script")
    assert recall in html(comparison).text
    assert len(repr(comparison)) < 200


def test_pages_name_no_other_host(gallery: Gallery) -> None:
    for thing in (gallery, gallery.search(draw(1)), evaluate_gallery(gallery), gallery.embedder):
        page = html(thing)
        assert all(source.startswith("data:") for source in page.image_sources)
        assert not {name for _, attributes in page.tags for name in attributes} & {
            "href",
            "srcset",
            "onerror",
        }
        assert "://" not in page.text
        assert "url(" not in page.text
