"""Searches whose picture does not leave the device of the visitor, who has a real browser."""

from __future__ import annotations

import base64
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, Request, expect

from retrieval import Gallery, Preprocess, load_image
from retrieval.model.lite0 import write_model as write_lite0
from retrieval.search.options import SearchOptions
from serve.page.on_device import VERSION, WORKER
from tests.conftest import draw, unzip_shared
from tests.e2e.accessibility import violations
from tests.e2e.firefox import Firefox
from tests.e2e.page_driver import in_a_tab, opened, upload
from tests.e2e.page_gallery import stock
from tests.e2e.page_modules import run
from tests.serve.model import write_model
from tests.serve.serving import SERVE, Server, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]
_EMBED = """
async ([data, region]) => {
  const base = document.querySelector('script[type=module]').src.replace('main.js', '');
  const {embeddedHere} = await import(`${base}device.js`);
  const bytes = Uint8Array.from(atob(data), letter => letter.charCodeAt(0));
  return (await embeddedHere(new Blob([bytes]), region)).vector;
}
"""


@pytest.fixture(scope="module")
def runtime(pytestconfig: pytest.Config) -> Path:
    """The package onnxruntime-web, which npm downloads once; the tests are skipped without it."""
    assert pytestconfig.cache is not None
    folder = pytestconfig.cache.mkdir(f"onnxruntime-web-{VERSION}")
    if not (folder / "package" / "dist").is_dir():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("needs npm to download onnxruntime-web")
        words = [npm, "pack", f"onnxruntime-web@{VERSION}", "--silent", "--pack-destination", str(folder)]
        try:
            subprocess.run(words, capture_output=True, timeout=200, check=True)
        except subprocess.SubprocessError as error:  # refused, or too slow
            pytest.skip(f"npm cannot download onnxruntime-web: {error}")
        packed = folder / f"onnxruntime-web-{VERSION}.tgz"
        with tarfile.open(packed) as file:
            file.extractall(folder, filter="data")
        packed.unlink()
    return folder / "package"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, shop: Path) -> Gallery:
    return stock(tmp_path_factory.mktemp("device"), shop)


@pytest.fixture(scope="module")
def offering(tmp_path_factory: pytest.TempPathFactory, made: Gallery, runtime: Path) -> Iterator[Server]:
    words = [*SERVE, str(made.folder), "--on-device", str(runtime), "--share-pictures", "2"]
    with serving(words, tmp_path_factory.mktemp("scratch"), forked=True) as running:
        yield running


@pytest.fixture
def visit(browser: Browser, offering: Server) -> Iterator[tuple[Page, list[Request]]]:
    """The page in a browser of its own, and all of its requests, those of its worker too."""
    sent: list[Request] = []
    with in_a_tab(browser, offering) as page:
        page.context.on("request", lambda request: sent.append(request))
        yield opened(page, offering), sent
        assert page.foreign == page.broken == []  # type: ignore[attr-defined]
        assert all(request.url.startswith((offering.url, "data:", "blob:")) for request in sent)


def switch(page: Page, on: bool) -> None:
    page.get_by_test_id("device").set_checked(on)


def posted(sent: list[Request]) -> list[tuple[str, Any]]:
    """The path and body of what was sent to the server, apart from its address."""
    return [
        (request.url.rpartition("/v1")[2], request.post_data_buffer)
        for request in sent
        if request.method != "GET"
    ]


def hits(page: Page) -> list[int]:
    expect(page.get_by_test_id("hit").first).to_be_visible()
    return [int(str(card.get_attribute("data-item"))) for card in page.get_by_test_id("hit").all()]


def test_the_picture_does_not_leave_the_device(
    visit: tuple[Page, list[Request]], made: Gallery, tmp_path: Path
) -> None:
    page, sent = visit
    assert not page.get_by_test_id("device").is_checked()
    assert WORKER not in "".join(request.url for request in sent), "loaded before it is wanted"
    switch(page, True)
    draw(77, (90, 70)).save(tmp_path / "own.jpg", quality=95)
    upload(page, tmp_path / "own.jpg")
    vector = made.embedder.embed([tmp_path / "own.jpg"])
    (wanted,) = made.find(vector, SearchOptions(24))
    assert hits(page) == [hit.id for hit in wanted]
    assert any(request.url.endswith(f"/parts/device/{made.fingerprint}") for request in sent), (
        "requests of workers"
    )
    ((path, body),) = posted(sent)
    found = json.loads(body)
    assert path == "/search"
    assert set(found) == {"k", "like", "unlike", "fingerprint"}
    assert found["fingerprint"] == made.fingerprint
    ((kind, numbers),) = found["like"][0].items()
    assert kind == "vector"
    assert float(vector[0] @ np.array(numbers)) > 0.9999
    expect(page.locator("#search .region-help")).to_contain_text("does not leave your device")
    expect(page.get_by_role("button", name="Find objects")).to_be_hidden()
    page.get_by_test_id("hit").first.locator("[data-act=open]").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page.locator("dialog [data-part=query-image]")).to_be_visible()
    expect(page.locator("dialog [data-part=compare]")).to_be_hidden()
    assert len(posted(sent)) == 1


def test_a_region_and_a_reload_stay_there_too(
    visit: tuple[Page, list[Request]], made: Gallery, shop: Path, offering: Server
) -> None:
    page, sent = visit
    switch(page, True)
    upload(page, shop / "green" / "5.png")
    hits(page)
    page.goto(page.url + "@0.1,0.2,0.7,0.9", wait_until="domcontentloaded")
    whole = load_image(shop / "green" / "5.png")
    part = whole.crop((round(4.8), round(8.0), round(33.6), round(36.0)))
    (wanted,) = made.find(made.embedder.embed([part]), SearchOptions(24))
    assert hits(page) == [hit.id for hit in wanted]
    assert page.get_by_test_id("device").is_checked(), "the browser keeps the choice"
    assert {path for path, _ in posted(sent)} == {"/search"}


def test_a_link_has_the_vector_and_the_picture_is_not_shared(
    browser: Browser, offering: Server, made: Gallery, shop: Path
) -> None:
    sent: list[Request] = []
    with in_a_tab(browser, offering, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.context.on("request", lambda request: sent.append(request))
        opened(page, offering)
        switch(page, True)
        upload(page, shop / "green" / "5.png")
        hits(page)
        page.get_by_role("button", name="Copy link").click()
        expect(page.get_by_test_id("status")).to_contain_text("without your picture")
        assert f"#0={made.fingerprint[:16]}." in page.evaluate("navigator.clipboard.readText()")
        switch(page, False)
        page.get_by_role("button", name="Copy link").click()
        page.get_by_role("group", name="Copy link").wait_for()
        switch(page, True)
        page.get_by_role("button", name="Share and copy").click()
        expect(page.get_by_test_id("status")).to_contain_text("it is not shared")
    assert {path for path, _ in posted(sent)} == {"/search"}


def test_without_the_switch_the_server_embeds(visit: tuple[Page, list[Request]], shop: Path) -> None:
    page, sent = visit
    upload(page, shop / "green" / "5.png")
    hits(page)
    assert [path for path, _ in posted(sent)] == ["/embed", "/search"]
    expect(page.get_by_role("button", name="Find objects")).to_be_visible()
    expect(page.locator("#search .region-help")).not_to_contain_text("device")
    assert WORKER not in "".join(request.url for request in sent)


def test_what_the_browser_cannot_read_is_not_sent(
    visit: tuple[Page, list[Request]], shop: Path, tmp_path: Path
) -> None:
    page, sent = visit
    switch(page, True)
    status = page.get_by_test_id("status")
    load_image(shop / "red" / "5.png").convert("CMYK").save(tmp_path / "print.jpg")
    upload(page, tmp_path / "print.jpg")
    expect(status).to_contain_text("colours of print")
    load_image(shop / "red" / "5.png").save(tmp_path / "scan.tif")
    upload(page, tmp_path / "scan.tif")
    expect(status).to_contain_text("stays on your device")
    exif = Image.Exif()
    exif[0x112] = 6
    load_image(shop / "red" / "5.png").save(tmp_path / "turned.webp", exif=exif)
    upload(page, tmp_path / "turned.webp")
    expect(status).to_contain_text("cannot decode this kind")
    assert posted(sent) == []
    upload(page, shop / "red" / "5.png")
    hits(page)
    assert [path for path, _ in posted(sent)] == ["/search"]


def test_a_gallery_with_a_new_model_is_searched_with_that(
    browser: Browser, runtime: Path, shop: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "g"
    Gallery.create(folder, write_model(tmp_path / "old.onnx", "old")).add([shop])
    words = [*SERVE, str(folder), "--on-device", str(runtime)]
    with serving(words, tmp_path / "scratch", forked=True) as server, in_a_tab(browser, server) as page:
        sent: list[Request] = []
        page.context.on("request", lambda request: sent.append(request))
        opened(page, server)
        switch(page, True)
        upload(page, shop / "red" / "5.png")
        hits(page)
        new = Gallery.create(tmp_path / "made", write_model(tmp_path / "new.onnx", "new"))
        new.add([shop])
        folder.rename(tmp_path / "away")
        new.folder.rename(folder)
        with page.expect_response(lambda answer: answer.url.endswith("/search") and answer.ok) as answered:
            upload(page, shop / "blue" / "5.png")
        assert answered.value.json()["fingerprint"] == new.fingerprint
        assert {path for path, _ in posted(sent)} == {"/search"}


def test_the_switch_is_accessible(visit: tuple[Page, list[Request]], shop: Path) -> None:
    page, _ = visit
    assert violations(page) == []
    switch(page, True)
    upload(page, shop / "red" / "5.png")
    hits(page)
    assert violations(page) == []
    page.set_viewport_size({"width": 320, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_firefox_finds_what_the_server_finds(
    offering: Server, made: Gallery, shop: Path, tmp_path: Path
) -> None:
    program = shutil.which("firefox-esr") or shutil.which("firefox")
    if program is None:
        pytest.skip("needs Firefox on the PATH")
    picture = shop / "green" / "5.png"
    firefox = Firefox(program, tmp_path / "profile")
    try:
        firefox.open(offering.url)
        firefox.click("[data-testid=device]")
        firefox.choose("#search [data-part=choose]", [picture])
        firefox.expect("document.querySelectorAll('#results .hits li').length", 24)
        shown = "[...document.querySelectorAll('[data-testid=hit]')].map(one => one.dataset.item).join()"
        (wanted,) = made.find(made.embedder.embed([picture]), SearchOptions(24))
        firefox.expect(shown, ",".join(str(hit.id) for hit in wanted))
        requests = "performance.getEntriesByType('resource').map(one => one.name)"
        assert firefox.evaluate(f"{requests}.filter(name => name.includes('/v1/search')).length") == 1
        assert firefox.evaluate(f"{requests}.filter(name => name.includes('/v1/embed')).length") == 0
        firefox.expect(
            "document.querySelector('.region-help').textContent.includes('does not leave your device')"
        )
    finally:
        firefox.close()


# ---- pixels and vectors


_PREPROCESSED = """
const [pixels, width, height, preprocess] = a;
const data = Uint8Array.from(atob(pixels), letter => letter.charCodeAt(0));
const found = m.preprocessed({width, height, data}, preprocess);
return btoa(Array.from(found, byte => String.fromCharCode(byte)).join(''));
"""


@pytest.mark.parametrize("fit", ["crop", "squeeze", "pad"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_pixels_are_scaled_as_by_the_server(tab: Page, fit: str, interpolation: str) -> None:
    random = np.random.default_rng(0)
    for width, height, size, resize in (
        (97, 61, 32, 40),
        (61, 240, 48, None),
        (20, 31, 32, 33),
        (500, 333, 64, 73),
    ):
        pixels = random.integers(0, 256, (height, width, 3), np.uint8)
        preprocess = Preprocess(size=size, resize=resize, fit=fit, interpolation=interpolation)
        packed = base64.b64encode(pixels.tobytes()).decode()
        text = run(tab, "pixels", _PREPROCESSED, packed, width, height, preprocess.to_dict())
        found = np.frombuffer(base64.b64decode(text), np.uint8).reshape(size, size, 3)
        assert np.array_equal(found, preprocess(pixels)), (width, height, size, resize)


_DECODED = """
const [file, side] = a;
const bytes = Uint8Array.from(atob(file), letter => letter.charCodeAt(0));
const {width, height, data} = await m.decoded(new Blob([bytes]), side);
return [width, height, btoa(Array.from(data, byte => String.fromCharCode(byte)).join(''))];
"""


def decoded(tab: Page, image: Image.Image, side: int, **how: Any) -> tuple[np.ndarray, bytes]:
    """The pixels of an encoded image as the browser decodes it, and its file."""
    file = io.BytesIO()
    image.save(file, **how)
    width, height, text = run(tab, "pixels", _DECODED, base64.b64encode(file.getvalue()).decode(), side)
    pixels = np.frombuffer(base64.b64decode(text), np.uint8).reshape(height, width, 3)
    return pixels.astype(int), file.getvalue()


def smooth(width: int, height: int) -> Image.Image:
    """Colours without sharp edges."""
    coarse = np.random.default_rng(3).integers(0, 256, (height // 40 + 2, width // 40 + 2, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def test_pictures_are_decoded_as_by_the_server(tab: Page) -> None:
    image = smooth(203, 141)
    clear = image.convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize(image.size))
    for picture in (image, image.convert("L"), image.convert("LA"), clear, image.quantize(32)):
        found, file = decoded(tab, picture, 100, format="PNG")
        assert np.abs(found - np.asarray(load_image(file)).astype(int)).max() <= 1, picture.mode
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x112] = orientation
        found, file = decoded(tab, image, 100, format="JPEG", exif=exif, quality=92, subsampling=0)
        wanted = np.asarray(load_image(file)).astype(int)
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() <= 1, orientation


@pytest.mark.parametrize(("side", "divisor"), [(300, 1), (150, 2), (75, 4), (30, 8)])
def test_large_jpegs_are_reduced_as_by_the_server(tab: Page, side: int, divisor: int) -> None:
    found, file = decoded(tab, smooth(1003, 641), side, format="JPEG", quality=95, subsampling=0)
    wanted = np.asarray(load_image(file, side=side)).astype(int)
    assert found.shape == wanted.shape == (-(-641 // divisor), -(-1003 // divisor), 3)
    assert np.abs(found - wanted).mean() < 0.6
    assert np.abs(found[:-1, :-1] - wanted[:-1, :-1]).max() <= 3


def test_photographs_have_the_vectors_of_the_server(browser: Browser, runtime: Path, tmp_path: Path) -> None:
    """EfficientNet-Lite0 on photographs: as they are, and enlarged to 3,000 pixels."""
    unpacked = sorted(unzip_shared("birds305_224.zip", tmp_path / "birds").glob("*/1.jpg"))
    photos = [file.read_bytes() for file in unpacked[:12]]
    large = []
    for photo in photos[:4]:
        file = io.BytesIO()
        load_image(photo).resize((3000, 2250), Image.Resampling.LANCZOS).save(file, "JPEG", quality=90)
        large.append(file.getvalue())
    write_lite0(tmp_path / "lite0.onnx")
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, photo in enumerate(photos):
        (folder / f"{number}.jpg").write_bytes(photo)
    gallery = Gallery.create(tmp_path / "g", tmp_path / "lite0.onnx")
    gallery.add([folder])
    words = [*SERVE, str(gallery.folder), "--on-device", str(runtime)]
    with serving(words, tmp_path / "scratch", forked=True) as server, in_a_tab(browser, server) as page:
        opened(page, server)
        for files, least in ((photos, 0.99999), (large, 0.999)):
            wanted = gallery.embedder.embed(files)
            texts = [base64.b64encode(file).decode() for file in files]
            found = np.array([page.evaluate(_EMBED, [text, None]) for text in texts], np.float32)
            assert (found * wanted).sum(1).min() > least
            for one, other in zip(
                gallery.find(found, SearchOptions(1)), gallery.find(wanted, SearchOptions(1)), strict=True
            ):
                assert one[0].id == other[0].id
