"""`/v1/embeddings` with the client of OpenAI, compared with the model itself."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import onnx
import openai
import pytest
from PIL import Image

from retrieval import Embedder, Gallery
from serve.app import create_app
from serve.config import Credentials, Settings
from serve.core.permissions import Permissions
from serve.core.service import SearchService
from serve.http.stack import protect
from tests.serve.asgi_server import answering, listening

TOKEN = "correct-horse-battery-staple"
CUT = 16


def _png(color: str = "orange", side: int = 20) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), color).save(buffer, "PNG")
    return buffer.getvalue()


def _data_url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


@pytest.fixture(scope="module")
def nested_model(tmp_path_factory: pytest.TempPathFactory, model_file: Path) -> Path:
    """The model of images, with Matryoshka dimensions in its metadata."""
    model = onnx.load(model_file)
    for entry in model.metadata_props:
        if entry.key == "lookalike.embedding":
            entry.value = json.dumps(json.loads(entry.value) | {"matryoshka": [CUT, 48]})
    file = tmp_path_factory.mktemp("nested") / "model.onnx"
    onnx.save(model, file)
    return file


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory, nested_model: Path, pair_file: Path, shop: Path
) -> Iterator[dict[str, str]]:
    """URLs of a server of images alone, and of one of images and texts, which fetches URLs."""
    folder = tmp_path_factory.mktemp("galleries")
    Gallery.create(folder / "images", nested_model).add([shop / "red"])
    Gallery.create(folder / "pair", str(pair_file)).add([shop / "red"])
    images = SearchService(folder / "images")
    pair = SearchService(folder / "pair", permissions=Permissions(urls=True))
    settings = Settings(
        galleries={"images": folder / "images"},
        page=False,
        credentials=Credentials(tokens=(hashlib.sha256(TOKEN.encode()).digest(),)),
    )
    guarded = protect(create_app(images, page=False), settings, images.telemetry)
    with (
        listening(guarded) as port,
        answering(create_app(pair, images, page=False)) as url,
    ):
        yield {"images": f"http://127.0.0.1:{port}", "pair": url}


def _client(url: str, path: str = "/v1", key: str = TOKEN) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}{path}", api_key=key, timeout=30)


@pytest.fixture(scope="module")
def images(servers: dict[str, str]) -> Iterator[openai.OpenAI]:
    with _client(servers["images"]) as client:
        yield client


@pytest.fixture(scope="module")
def pair(servers: dict[str, str]) -> Iterator[openai.OpenAI]:
    with _client(servers["pair"]) as client:
        yield client


def _vectors(answer: openai.types.CreateEmbeddingResponse) -> np.ndarray:
    assert [one.index for one in answer.data] == list(range(len(answer.data)))
    return np.array([one.embedding for one in answer.data])


def test_images_in_both_encodings(images: openai.OpenAI, nested_model: Path) -> None:
    """The client asks for Base64 by default, and decodes it."""
    files = [_png(), _png("teal", 60)]
    expected = Embedder(nested_model).embed(files)
    inputs = [_data_url(files[0]), base64.b64encode(files[1]).decode()]
    for options in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        answer = images.embeddings.create(model="text-embedding-3-small", input=inputs, **options)
        if options.get("encoding_format") == "base64":
            texts = [one.embedding for one in answer.data]
            found = np.array([np.frombuffer(base64.b64decode(text), "<f4") for text in texts])
        else:
            found = _vectors(answer)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert answer.model == Embedder(nested_model).fingerprint
        assert (answer.object, answer.usage.total_tokens) == ("list", 0)


def test_dimensions_are_those_of_the_model(images: openai.OpenAI, nested_model: Path) -> None:
    whole = Embedder(nested_model).embed(_png())[0]
    answer = images.embeddings.create(model="m", input=_data_url(_png()), dimensions=CUT)
    np.testing.assert_allclose(_vectors(answer)[0], whole[:CUT] / np.linalg.norm(whole[:CUT]), atol=1e-6)
    assert len(images.embeddings.create(model="m", input=_data_url(_png()), dimensions=48).data[0].embedding)
    with pytest.raises(openai.UnprocessableEntityError, match="use 16 or 48") as caught:
        images.embeddings.create(model="m", input=_data_url(_png()), dimensions=20)
    assert caught.value.param == "#/dimensions"


def test_texts_and_images_together(pair: openai.OpenAI, pair_file: Path) -> None:
    texts = ["a photo of red", "UDINESE", "data"]  # the second is valid Base64
    answer = pair.embeddings.create(model="m", input=[texts[0], _data_url(_png()), *texts[1:]])
    model = Embedder(pair_file)
    expected = np.stack([model.embed_texts(texts)[0], model.embed(_png())[0], *model.embed_texts(texts[1:])])
    np.testing.assert_allclose(_vectors(answer), expected, atol=1e-6)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 6  # one for each word


def test_urls_are_fetched_where_that_is_allowed(
    servers: dict[str, str],
    pair: openai.OpenAI,
    images: openai.OpenAI,
    pair_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fetch(url: str) -> bytes:
        return {"https://a.example/1": _png(), "https://a.example/2": _png("teal")}[url]

    monkeypatch.setattr("serve.core.service.fetch_image", fetch)
    answer = pair.embeddings.create(model="m", input=["https://a.example/2", "red", "https://a.example/1"])
    model = Embedder(pair_file)
    expected = [model.embed(_png("teal"))[0], model.embed_texts(["red"])[0], model.embed(_png())[0]]
    np.testing.assert_allclose(_vectors(answer), expected, atol=1e-6)
    with pytest.raises(openai.UnprocessableEntityError, match="at most 8 URLs"):
        pair.embeddings.create(model="m", input=["https://a.example/1"] * 9)
    monkeypatch.setattr("serve.api.embeddings.MAX_BYTES", 100)
    with pytest.raises(openai.UnprocessableEntityError, match="together: send fewer") as caught:
        pair.embeddings.create(model="m", input=["https://a.example/1"] * 8)
    assert caught.value.code == "not-fetched"
    with pytest.raises(openai.PermissionDeniedError) as refused:
        images.embeddings.create(model="m", input="https://a.example/1")
    assert refused.value.code == "urls-not-allowed"


def test_gallery_by_its_own_address(servers: dict[str, str], nested_model: Path) -> None:
    with _client(servers["pair"], "/v1/galleries/images") as client:
        answer = client.embeddings.create(model="m", input=_data_url(_png()))
    np.testing.assert_allclose(_vectors(answer), Embedder(nested_model).embed(_png()), atol=1e-6)


@pytest.mark.parametrize(
    ("options", "error", "code", "message"),
    [
        ({"input": "red"}, openai.ConflictError, "no-text-encoder", "send data URLs"),
        ({"input": _data_url(b"x" * 20)}, openai.UnprocessableEntityError, "unusable-image", "input 0: "),
        ({"input": "data:image/png,x"}, openai.UnprocessableEntityError, "invalid-request", "has no Base64"),
        (
            {"input": base64.b64encode(_png()).decode() + "!"},
            openai.UnprocessableEntityError,
            "invalid-request",
            "not Base64",
        ),
        (
            {"input": [[1, 2]]},
            openai.UnprocessableEntityError,
            "invalid-request",
            "check_embedding_ctx_length",
        ),
        ({"input": []}, openai.UnprocessableEntityError, "invalid-request", "at least 1"),
        ({"input": ["red"] * 65}, openai.UnprocessableEntityError, "invalid-request", "at most 64"),
        ({"input": "a " * 501}, openai.UnprocessableEntityError, "invalid-request", "at most 1000"),
        ({"input": _data_url(_png()), "model": "0" * 64}, openai.ConflictError, "model-mismatch", "again"),
    ],
    ids=["text", "image", "data-url", "base64", "tokens", "none", "many", "long", "fingerprint"],
)
def test_errors_are_raised_by_the_client_at_once(
    images: openai.OpenAI,
    options: dict[str, object],
    error: type[openai.APIStatusError],
    code: str,
    message: str,
) -> None:
    with pytest.raises(error, match=message) as caught:
        images.embeddings.create(**{"model": "m", **options})
    assert caught.value.code == code
    assert caught.value.type == "invalid_request_error"
    assert caught.value.response.headers["content-type"] == "application/problem+json"
    assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"
    problem = caught.value.response.json()
    assert problem["error"]["message"] == problem["detail"]


def test_wrong_key_and_other_routes(servers: dict[str, str]) -> None:
    with (
        _client(servers["images"], key="wrong") as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        client.embeddings.create(model="m", input="red")
    assert (caught.value.code, caught.value.type) == ("sign-in", "authentication_error")
    other = httpx.post(f"{servers['images']}/v1/embed", json={}, headers={"Authorization": f"Bearer {TOKEN}"})
    assert "error" not in other.json()


def test_models_are_listed_for_openais_client(servers: dict[str, str]) -> None:
    with openai.OpenAI(base_url=f"{servers['images']}/v1", api_key=TOKEN) as client:
        (found,) = client.models.list().data
        fingerprint = client.embeddings.create(model=found.id, input=[_data_url(_png())]).model
        assert found.id == fingerprint
        assert (found.object, found.owned_by) == ("model", "lookalike")
        assert 1_600_000_000 < found.created < 2**33
        assert client.models.retrieve(found.id) == found
        with pytest.raises(openai.NotFoundError) as unknown:
            client.models.retrieve("meta/other")
        assert unknown.value.code == "no-such-model"
        assert "another model" in unknown.value.message


def test_gallery_without_a_model_lists_none(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.eye(3, dtype=np.float32))
    Gallery.import_vectors(tmp_path / "g", tmp_path / "v.npy", name="other")
    app = create_app(SearchService(tmp_path / "g"), page=False)
    with answering(app) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        assert client.models.list().data == []
