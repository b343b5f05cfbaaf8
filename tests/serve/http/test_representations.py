"""Entity tags, 304 and gzip, by requests written by hand."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from retrieval import Gallery
from serve.app import create_app
from serve.core.permissions import Permissions
from serve.core.service import SearchService
from serve.http.representations import matches
from tests.conftest import draw
from tests.serve.asgi_server import listening, receive_all, send_raw

TAGGED = [
    *("/v1/openapi.json", "/v1/docs", "/v1/gallery", "/v1/galleries", "/v1/items?limit=24", "/v1/items/1"),
    *("/v1/items/by-key?key=red/1.png", "/v1/facets", "/v1/examples", "/v1/images/1", "/v1/decisions"),
]


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory, shop_gallery: Path) -> Iterator[int]:
    folder = shutil.copytree(shop_gallery, tmp_path_factory.mktemp("represented") / "g")
    app = create_app(SearchService(folder, permissions=Permissions(changes=True)), page=False)
    with listening(app, lifespan="on") as port:
        yield port


class Answer:
    """An answer as it came over the connection."""

    def __init__(self, port: int, method: str, path: str, body: str, **headers: str) -> None:
        given = {"Host": "x", "Connection": "close", **headers}
        if body:
            given |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in given.items()]
        request = "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", body])
        head, _, self.body = receive_all(send_raw(port, request.encode())).partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        self.status = int(status.split()[1])
        self.headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}


def ask(port: int, path: str, method: str = "GET", body: str = "", **headers: str) -> Answer:
    return Answer(port, method, path, body, **headers)


@pytest.mark.parametrize("path", TAGGED)
def test_unchanged_answer_is_not_sent_again(port: int, path: str) -> None:
    first = ask(port, path)
    tag = first.headers["etag"]
    assert (first.status, tag[0], tag[-1]) == (200, '"', '"')
    assert first.headers["cache-control"] == "private, no-cache"
    for condition in (tag, f'"other", {tag}', f"W/{tag}", "*", f'{tag[:-1]}-gzip"'):
        for method in ("GET", "HEAD"):
            again = ask(port, path, method, If_None_Match=condition)
            assert (again.status, again.body) == (304, b"")
            assert again.headers["vary"].split(", ")[-1] == "Accept-Encoding"
            assert again.headers["cache-control"] == "private, no-cache"
            assert not {"content-type", "content-length", "content-encoding"} & {*again.headers}
            assert again.headers["etag"] == (tag if "gzip" not in condition else condition)
    for condition in ('"other"', tag.strip('"'), ""):
        again = ask(port, path, If_None_Match=condition)
        assert (again.status, again.body) == (200, first.body)


def test_tag_of_an_item_changes_with_its_facts_only(port: int) -> None:
    before, other = ask(port, "/v1/items/1").headers["etag"], ask(port, "/v1/items/2").headers["etag"]
    listed = ask(port, "/v1/items").headers["etag"]
    assert ask(port, "/v1/items/2", "PATCH", '{"metadata": {"price": 3}}').status == 200
    assert ask(port, "/v1/items/1").headers["etag"] == before
    changed = ask(port, "/v1/items/2").headers["etag"]
    assert changed != other
    assert ask(port, "/v1/items").headers["etag"] != listed
    assert ask(port, "/v1/items/2", "PATCH", '{"metadata": {"price": null}}').status == 200
    assert ask(port, "/v1/items/2").headers["etag"] == other


@pytest.mark.parametrize("path", ["/v1/openapi.json", "/v1/docs", "/v1/items?limit=24"])
def test_text_is_compressed_for_those_who_ask(port: int, path: str) -> None:
    plain, packed = ask(port, path), ask(port, path, Accept_Encoding="br, gzip;q=0.5")
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 3
    assert int(packed.headers["content-length"]) == len(packed.body)
    assert plain.headers["vary"] == packed.headers["vary"]
    assert packed.headers["vary"].split(", ") == [*(["Accept"] if "items" in path else []), "Accept-Encoding"]
    assert packed.headers["etag"] == plain.headers["etag"][:-1] + '-gzip"'  # strong tags differ by bytes
    head = ask(port, path, "HEAD", Accept_Encoding="gzip")
    assert head.body == b""
    for name in ("content-encoding", "content-length", "etag", "vary"):
        assert head.headers[name] == packed.headers[name]
    for refusal in ("gzip;q=0", "br, gzip; q=0.0", "identity"):
        assert ask(port, path, Accept_Encoding=refusal).body == plain.body


def test_hits_are_compressed(port: int) -> None:
    query = json.dumps({"id": 1, "k": 23})
    plain = ask(port, "/v1/search", "POST", query)
    packed = ask(port, "/v1/search", "POST", query, Accept_Encoding="gzip")
    assert gzip.decompress(packed.body) == plain.body
    assert "etag" not in packed.headers  # of a POST
    problem = ask(port, "/v1/search", "POST", json.dumps({"vector": ["a"] * 20}), Accept_Encoding="gzip")
    assert problem.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(problem.body))["status"] == problem.status == 422


@pytest.mark.parametrize("path", ["/v1/items/1/thumbnail", "/v1/items/1/picture", "/healthz", "/v1/items/1"])
def test_pictures_and_small_answers_are_not_compressed(port: int, path: str) -> None:
    plain, asked = ask(port, path), ask(port, path, Accept_Encoding="gzip")
    assert "content-encoding" not in asked.headers
    assert (asked.body, asked.headers.get("etag")) == (plain.body, plain.headers.get("etag"))


@pytest.mark.parametrize("kind", ["thumbnail", "picture"])
def test_pictures_of_the_present_gallery_are_kept(port: int, kind: str) -> None:
    address = json.loads(ask(port, "/v1/items/1").body)["thumbnail"].replace("thumbnail", kind)
    found = ask(port, address)
    assert found.headers["cache-control"] == "private, max-age=31536000, immutable"
    for other in (address.partition("?")[0], f"{address}0", f"/v1/items/1/{kind}?v="):
        again = ask(port, other)
        assert (again.body, again.headers["cache-control"]) == (found.body, "private, no-cache")
        assert ask(port, other, If_None_Match=f'"x", W/{found.headers["etag"]}').status == 304


def test_replaced_file_has_another_address(tmp_path: Path, model_file: Path) -> None:
    """An id stays with the key of its file: the address must tell them apart, since browsers keep it."""
    file = tmp_path / "images" / "one.png"
    file.parent.mkdir()
    draw(1).save(file)
    gallery = Gallery.create(tmp_path / "g", model_file)
    gallery.add([file.parent])
    with listening(create_app(SearchService(tmp_path / "g"), page=False), lifespan="on") as port:
        first = json.loads(ask(port, "/v1/items/1").body)["thumbnail"]
        before = ask(port, first)
        draw(2).save(file)
        gallery.add([file.parent])
        second = json.loads(ask(port, "/v1/items/1").body)["thumbnail"]
        hits = json.loads(ask(port, "/v1/search", "POST", json.dumps({"vector": [1.0] * 48})).body)["hits"]
        assert [hit["thumbnail"] for hit in hits] == [second]
        assert second != first
        after = ask(port, second)
        assert (after.body != before.body, "immutable" in after.headers["cache-control"]) == (True, True)
        old = ask(port, first)
        assert (old.body, old.headers["cache-control"]) == (after.body, "private, no-cache")


def test_answers_that_must_not_be_stored_have_no_tag(port: int) -> None:
    for path in ("/healthz", "/readyz", "/metrics", "/v1/nowhere", "/v1/jobs/x"):
        assert "etag" not in ask(port, path, If_None_Match="*").headers


@pytest.mark.parametrize(
    ("condition", "etag", "strongly", "weakly"),
    [
        ('"a"', '"a"', True, True),
        ('"b", "a"', '"a"', True, True),
        ('"b" , W/"a"', '"a"', False, True),
        ('"a"', 'W/"a"', False, True),
        ('"a,b"', '"b"', False, False),
        ('"A"', '"a"', False, False),
        ("a", '"a"', False, False),
        ("", '"a"', False, False),
        (" * ", 'W/"a"', True, True),
    ],
)
def test_tags_are_compared_as_in_rfc_9110(condition: str, etag: str, strongly: bool, weakly: bool) -> None:
    assert matches(condition, etag) == strongly
    assert matches(condition, etag, weakly=True) == weakly
