"""Components of Gradio to embed, as an application of their own and as a part, called by its client."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from gradio_client import Client, handle_file

import lookalike
from retrieval import Gallery
from retrieval.evaluation.report import Report, kept_reports

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, shop_gallery: Path) -> Gallery:
    """A copy of the shop without a report."""
    target = tmp_path_factory.mktemp("blocks") / "shop.gallery"
    return Gallery.open(shutil.copytree(shop_gallery, target))


@pytest.fixture(scope="module", params=["alone", "embedded"])
def client(
    request: pytest.FixtureRequest, gallery: Gallery, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    import gradio as gr

    if request.param == "alone":
        app = lookalike.blocks(gallery.folder)
    else:
        with gr.Blocks(analytics_enabled=False) as app, gr.Tab("Look"):
            lookalike.blocks(gallery).render()
    folder = str(tmp_path_factory.mktemp("downloads"))
    _, url, _ = app.launch(prevent_thread_lock=True, quiet=True, server_port=None)
    yield Client(url, verbose=False, download_files=folder, analytics_enabled=False)
    app.close()


def test_image_is_searched(client: Client, gallery: Gallery, shop: Path) -> None:
    path = shop / "green" / "3.png"
    shown, said = client.predict(handle_file(str(path)), 5, "", api_name="/search")
    hits = gallery.search(path, k=5)
    assert [one["caption"] for one in shown] == [f"{hit.score:.2f} · {hit.label}" for hit in hits]
    assert said == "5 hits"
    shown, _ = client.predict(handle_file(str(path)), 30, "label = 'red'", api_name="/search")
    assert {one["caption"].rpartition(" ")[2] for one in shown} == {"red"}


def test_mistakes_are_said_in_a_line(client: Client, shop: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    shown, said = client.predict(handle_file(str(tmp_path / "broken.png")), 5, "", api_name="/search")
    assert shown == []
    assert "image" in said
    path = handle_file(str(shop / "green" / "3.png"))
    shown, said = client.predict(path, 5, "pric > 3", api_name="/search")
    assert shown == []
    assert "pric" in said


def test_gallery_is_evaluated(client: Client, gallery: Gallery) -> None:
    drawn = client.predict(api_name="/evaluate")
    (folder,) = kept_reports(gallery.folder)
    recall = Report.load(folder).headline.values["recall_at_1"]
    assert f"{100 * recall:.1f}" in drawn
    assert "<svg" in drawn
