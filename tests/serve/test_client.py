"""The Python client against a real server."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import ExifTags, Image, ImageCms

from retrieval import Gallery, InputError
from serve.app import create_app
from serve.client import ApiError, Client
from serve.core.service import SearchService
from tests.serve.asgi_server import answering


@pytest.fixture(scope="module")
def client(shop_gallery: Path) -> Iterator[Client]:
    app = create_app(SearchService(shop_gallery), page=False)
    with answering(app) as url, Client(url) as client:
        yield client


@pytest.fixture
def gallery(shop_gallery: Path) -> Gallery:
    return Gallery(shop_gallery)


def test_search_accepts_every_image_source(client: Client, gallery: Gallery, shop: Path) -> None:
    path = shop / "green" / "3.png"
    expected = gallery.search(path, 4, where="label != 'red'")
    for image in (path, str(path), path.read_bytes(), Image.open(path)):
        hits = client.search(image, k=4, where="label != 'red'", min_score=None)
        assert [(hit.id, hit.key, hit.label, hit.metadata) for hit in hits] == [
            (hit.id, hit.key, hit.label, hit.metadata) for hit in expected
        ]
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in expected], abs=1e-6)


def test_items_and_vectors_are_searched(client: Client, gallery: Gallery) -> None:
    expected = [hit.id for hit in gallery.search_id("red/1.png", 5, exclude=[3])]
    assert [hit.id for hit in client.search(id="red/1.png", k=5, exclude=[3])] == expected
    (number,) = gallery.ids_of(["red/1.png"])
    vector = gallery.vector(number)
    for given in (vector, vector.tolist()):
        hits = client.search(vector=given, fingerprint=gallery.fingerprint, k=5, exclude=["red/1.png", 3])
        assert [hit.id for hit in hits] == expected


def test_hits_are_ordered_by_a_column(client: Client, gallery: Gallery, shop: Path) -> None:
    by_label = sorted(gallery.search_id(3, 24), key=lambda hit: str(hit.label), reverse=True)
    assert [hit.id for hit in client.search(id=3, k=9, order="label desc")] == [
        hit.id for hit in by_label[:9]
    ]
    (found,) = client.search_batch([shop / "red" / "1.png"], k=24, order="label")
    assert not isinstance(found, ApiError)
    assert [hit.label for hit in found] == sorted(str(hit.label) for hit in found)


def test_liked_and_unliked_images_are_searched(client: Client, gallery: Gallery, shop: Path) -> None:
    """Two times the mean of the liked vectors minus that of the unliked ones, whatever they are given as."""
    path, (liked, unliked) = shop / "green" / "3.png", gallery.ids_of(["red/1.png", "blue/2.png"])
    image = gallery.embedder.embed([path])[0]
    sum_of_both = image + gallery.vector(liked) - gallery.vector(unliked)
    left_out = [liked, unliked]
    expected = [hit.key for hit in client.search(vector=sum_of_both, k=5, exclude=left_out)]
    found = client.search(
        like=[path, {"vector": gallery.vector(liked)}], unlike=[{"id": "blue/2.png"}], k=5, exclude=left_out
    )
    assert [hit.key for hit in found] == expected
    away = [hit.key for hit in client.search(vector=2 * image - gallery.vector(unliked), exclude=[unliked])]
    assert [hit.key for hit in client.search(path, unlike=[{"id": unliked}])] == away


def test_batch_returns_a_result_per_image(client: Client, shop: Path) -> None:
    images = [shop / "red" / "1.png", b"not an image", shop / "blue" / "2.png"]
    first, second, third = client.search_batch(images, k=2, exclude=[1, 2])
    assert [first, third] == [client.search(images[i], k=2, exclude=[1, 2]) for i in (0, 2)]
    assert isinstance(second, ApiError)
    assert second.code == "unusable-image"
    assert second.more["reason"] == "not-an-image"
    assert [fault["pointer"] for fault in second.more["errors"]] == ["#/queries/1/image"]


def test_one_image_is_a_list_of_it(client: Client, shop: Path) -> None:
    path = shop / "green" / "3.png"
    pixels = np.asarray(Image.open(path))
    asked = ((path, [path]), (str(path), [path]), (path.read_bytes(), [path]), (Image.open(path), [path]))
    for one, listed in (*asked, (pixels, [pixels])):
        assert client.embed(one).vectors[0] == pytest.approx(client.embed(listed).vectors[0], abs=1e-6)
    assert client.search_batch(str(path), k=2) == client.search_batch([path], k=2)
    assert client.search(like=path, k=2) == client.search(like=[path], k=2)
    assert client.search(like={"id": 3}, unlike=str(path), k=2) == client.search(
        like=[{"id": 3}], unlike=[path], k=2
    )
    assert client.facets("label") == client.facets(["label"])
    name = client.gallery().name
    assert client.search(id=3, galleries=name) == client.search(id=3, galleries=[name])
    excluded = {hit.id for hit in client.search(id=3, k=24)} - {
        hit.id for hit in client.search(id=3, k=24, exclude="12")
    }
    assert excluded == {12}  # and not 1 and 2
    for ask in (client.embed, client.search_batch):
        with pytest.raises(InputError, match="no images: give at least one"):
            ask([])


def test_numbers_of_numpy_are_sent(client: Client, gallery: Gallery) -> None:
    given: dict[str, Any] = {"k": np.int64(4), "min_score": np.float32(-0.5), "exclude": np.array([1, 2])}
    hits = client.search(id=np.int64(3), **given)
    assert hits == client.search(id=3, k=4, min_score=-0.5, exclude=[1, 2])
    assert len(hits) == 4
    assert client.search(like=[{"id": np.int32(5)}], k=2) == client.search(like=[{"id": 5}], k=2)
    job = client.start_job("duplicates", min_score=np.float32(0.9))
    assert client.wait(job.id, every=0.05)["total"] >= 0


def test_what_is_no_json_is_refused_before_it_is_sent(client: Client, gallery: Gallery) -> None:
    vector = gallery.vector(1)
    for wrong in (vector * np.nan, [*vector.tolist()[:-1], float("inf")]):
        with pytest.raises(InputError, match="the request is no JSON"):
            client.search(vector=wrong)
    with pytest.raises(
        InputError, match=r"the request is no JSON \(a PosixPath is neither text nor a number"
    ):
        client.start_job("map", limit=Path("x"))
    with pytest.raises(InputError, match="vector: give its numbers"):
        client.search(vector=vector[None])


def test_addresses_and_tokens_that_cannot_be_are_refused(client: Client) -> None:
    url: Any
    for url in ("http://[::1", None):
        with pytest.raises(InputError, match="not the address of a server"):
            Client(url)
    with pytest.raises(InputError, match="token: has a character that is not printable ASCII"):
        Client("http://127.0.0.1:1", "sécret")


def test_the_address_of_the_api_is_taken_as_that_of_its_server(shop_gallery: Path) -> None:
    with answering(create_app(SearchService(shop_gallery), page=False)) as url:
        for address in (url, f"{url}/", f"{url}/v1", f"{url}/v1/"):
            with Client(address) as client:
                assert client.gallery().images == 24


def test_vectors_have_the_models_fingerprint(client: Client, gallery: Gallery, shop: Path) -> None:
    paths = [shop / "red" / "1.png", shop / "blue" / "2.png"]
    embedded = client.embed(paths)
    assert np.array_equal(np.array(embedded.vectors, np.float32), gallery.embedder.embed(paths))
    assert embedded.fingerprint == gallery.fingerprint == client.gallery().fingerprint


def test_images_and_gallery_are_described(client: Client, gallery: Gallery) -> None:
    image = client.image(5)
    assert (image.id, image.key, image.label) == (5, "blue/4.png", "blue")
    assert client.thumbnail(5).startswith(b"RIFF")
    found = client.gallery()
    assert (found.images, found.dim, found.index, found.embeds) == (24, 48, "flat", True)
    (served,) = client.galleries()
    assert (served.name, served.images, served.fingerprint) == (found.name, 24, found.fingerprint)


def test_refusals_raise_api_errors(client: Client) -> None:
    with pytest.raises(ApiError) as refused:
        client.search(id=1, k=0, where="x")
    error = refused.value
    assert (error.code, error.status) == ("invalid-request", 422)
    assert [fault["pointer"] for fault in error.more["errors"]] == ["#/k"]
    assert error.instance.startswith("urn:uuid:")
    assert str(error).startswith("422 invalid-request: #/k")
    with pytest.raises(ApiError) as missing:
        client.image(99)
    assert missing.value.code == "no-such-image"


@pytest.mark.parametrize(
    "given", [{}, {"id": 1, "vector": [1.0]}, {"image": b"x", "id": 1}, {"id": 1, "like": [b"x"]}]
)
def test_exactly_one_kind_of_query_is_required(client: Client, given: dict[str, object]) -> None:
    with pytest.raises(InputError, match="exactly one"):
        client.search(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["1", "P", "LA", "RGBA", "CMYK", "LAB", "F", "I;16"])
def test_pillow_image_gives_the_result_of_its_file(client: Client, mode: str) -> None:
    image, file = _drawn(mode), io.BytesIO()
    image.save(file, "TIFF")
    sent, read = np.array(client.embed([image, file.getvalue()]).vectors)
    assert sent @ read > 0.9999


@pytest.mark.parametrize("mode", ["HSV", "YCbCr", "La", "PA"])
def test_pillow_modes_without_file_format_are_accepted(client: Client, mode: str) -> None:
    image = _drawn("LA" if mode in ("La", "PA") else "RGB")
    same, plain = np.array(client.embed([image.convert(mode), image]).vectors)
    assert same @ plain > 0.999


def test_pillow_image_is_sent_upright(client: Client, shop: Path) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    lying = io.BytesIO()
    Image.open(shop / "green" / "3.png").convert("RGB").save(lying, "JPEG", exif=exif)
    from_file, from_pillow = client.embed([lying.getvalue(), Image.open(lying)]).vectors
    assert from_file == from_pillow


def _drawn(mode: str) -> Image.Image:
    grey = Image.linear_gradient("L").resize((48, 40))
    if mode in ("LA", "I;16"):
        return grey.convert(mode)
    rgb = Image.merge("RGB", (grey, grey.rotate(90), grey.rotate(180)))
    if mode != "LAB":
        return rgb.convert(mode)
    srgb, lab = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    found = ImageCms.profileToProfile(rgb, srgb, lab, outputMode="LAB")
    assert found
    return found


def test_credentials_are_sent_and_proxy_errors_are_parsed() -> None:
    heard: list[str | None] = []

    def proxy(request: httpx.Request) -> httpx.Response:
        """Responses of a proxy."""
        heard.append(request.headers.get("authorization"))
        problem = {"code": "busy", "status": 503, "detail": "wait", "instance": "urn:x"}
        return httpx.Response(503, json=problem, headers={"Retry-After": "7"})

    transport = httpx.MockTransport(proxy)
    with (
        Client("http://lookalike", token="secret\n", transport=transport) as client,  # of a file
        pytest.raises(ApiError) as busy,
    ):
        client.image(1)
    assert (busy.value.code, busy.value.retry_after) == ("busy", 7)
    with (
        Client("http://lookalike", user=("ann", "pass"), transport=transport) as client,
        pytest.raises(ApiError),
    ):
        client.gallery()
    assert heard == ["Bearer secret", "Basic YW5uOnBhc3M="]


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(502, html="<h1>Bad  Gateway</h1>"),
        httpx.Response(502, json={"status": "error"}),
        httpx.Response(502, json={"code": 1, "detail": "x", "status": "error"}),
        httpx.Response(503, json=["sorry"]),
        httpx.Response(302, headers={"Location": "https://login.example"}),
        httpx.Response(200, html="<h1>Sign in</h1>"),
        httpx.Response(200, json={"status": "ok"}),
        httpx.Response(200, json=None),
        httpx.Response(200, json={"hits": 1, "results": [{}], "galleries": [{}]}),
        httpx.Response(200, content=b"\xff\xfe", headers={"Content-Type": "application/json"}),
    ],
)
@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.search(id=1),
        lambda client: client.search_batch([b"x"]),
        lambda client: client.embed([b"x"]),
        lambda client: client.image(1),
        lambda client: client.thumbnail(1),
        lambda client: client.add([b"x"]),
        lambda client: client.remove(1),
        lambda client: client.gallery(),
        lambda client: client.galleries(),
    ],
)
def test_foreign_responses_raise_api_errors(answer: httpx.Response, ask: Callable[[Client], object]) -> None:
    transport = httpx.MockTransport(lambda _: answer)
    with Client("http://lookalike", transport=transport) as client, pytest.raises(ApiError) as lost:
        ask(client)
    error = lost.value
    assert (error.code, error.status) == ("", answer.status_code)
    assert str(error).startswith(f"{answer.status_code}: {answer.reason_phrase}: not a response")
    assert answer.headers.get("content-type", "no type").partition(";")[0] in error.detail
    assert " ".join(answer.text.split())[:20] in error.detail


def test_client_imports_nothing_heavy() -> None:
    code = (
        "import sys, serve.client\n"
        "heavy = ('numpy', 'PIL', 'faiss', 'onnxruntime', 'fastapi', 'gradio', 'torch', 'starlette')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
