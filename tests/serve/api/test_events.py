"""Events of a gallery, read from the connection as they come."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from retrieval import Gallery
from serve.app import create_app
from serve.config import Settings
from serve.core import feed
from serve.core.permissions import Permissions
from serve.core.service import SearchService
from serve.http.stack import protect
from tests.conftest import wait_until
from tests.serve.asgi_server import listening, send_raw
from tests.serve.serving import SERVE, serving


class Stream:
    """An open event stream."""

    def __init__(self, port: int, path: str = "/v1/events", method: str = "GET") -> None:
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Accept-Encoding: gzip", "", ""]
        self.connection = send_raw(port, "\r\n".join(lines).encode())
        self.connection.settimeout(15)
        self._file = self.connection.makefile("rb")
        self.head = b"".join(iter(self._file.readline, b"\r\n")).decode().lower()
        self.status = int(self.head.split()[1])

    def block(self) -> dict[str, str]:
        """Return the fields of the next block; a comment has an empty name."""
        found: dict[str, str] = {}
        while True:
            self._file.readline()  # size of the chunk
            text = self._file.readline().rstrip(b"\r\n").decode()
            while text:
                name, _, value = text.partition(":")
                found[name] = value.strip()
                text = self._file.readline().rstrip(b"\r\n").decode()
            if found.keys() - {"retry"}:
                self._file.readline()  # end of the chunk
                return found

    def event(self) -> dict[str, object]:
        found = self.block()
        assert found["event"] == "gallery"
        data = json.loads(found["data"])
        assert found["id"] == data["generation"]
        return data  # type: ignore[no-any-return]

    def close(self) -> None:
        self._file.close()
        self.connection.close()


@pytest.fixture
def folder(tmp_path: Path, shop_gallery: Path) -> Path:
    return shutil.copytree(shop_gallery, tmp_path / "g")


@pytest.fixture
def port(folder: Path) -> Iterator[int]:
    """A server behind its middleware, with the limits on streams."""
    service = SearchService(folder, name="g", permissions=Permissions(changes=True))
    settings = Settings(galleries={"g": folder}, page=False)
    app = protect(create_app(service, page=False), settings, service.telemetry)
    with listening(app, lifespan="on") as port:
        yield port


def test_changes_are_told_as_they_happen(port: int, folder: Path) -> None:
    url = f"http://127.0.0.1:{port}"
    with closing(Stream(port)) as one, closing(Stream(port, "/v1/galleries/g/events")) as other:
        for stream in (one, other):
            assert stream.status == 200
            assert "content-type: text/event-stream" in stream.head
            assert "cache-control: no-store" in stream.head
            assert "content-encoding" not in stream.head
        first = one.event()
        assert first == other.event()
        assert (first["images"], first["indexing"]) == (24, None)
        assert httpx.patch(f"{url}/v1/items/1", json={"label": "new"}).status_code == 200
        changed = one.event()
        assert changed == other.event()
        assert (changed["images"], changed["generation"] != first["generation"]) == (24, True)
        Gallery(folder).remove([2])  # by another process, as far as the server can tell
        removed = one.event()
        assert removed["images"] == 23
        assert removed == other.event()
    with closing(Stream(port)) as again:
        assert again.event() == removed


def test_rebuilt_gallery_has_another_uuid(port: int, folder: Path) -> None:
    url = f"http://127.0.0.1:{port}/v1/gallery"
    with closing(Stream(port)) as stream:
        assert stream.event()["uuid"] == httpx.get(url).json()["uuid"]
        rebuilt = Gallery.create(folder.with_name("new"), folder / "model" / "model.onnx")
        folder.rename(folder.with_name("gone"))
        rebuilt.folder.rename(folder)
        assert stream.event()["uuid"] == rebuilt.manifest.uuid


def test_open_stream_is_kept_open_by_comments(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "_SECONDS", 0.05)
    monkeypatch.setattr(feed, "_BEAT_SECONDS", 0.2)
    with closing(Stream(port)) as stream:
        stream.event()
        start = time.monotonic()
        for _ in range(3):
            assert stream.block() == {"": "nothing new"}
        assert time.monotonic() - start > 0.5


def test_streams_of_a_client_are_limited_until_it_closes_some(port: int) -> None:
    streams = [Stream(port) for _ in range(64)]
    with closing(Stream(port)) as refused:
        assert refused.status == 503
        assert "application/problem+json" in refused.head
        assert "retry-after" in refused.head
    for stream in streams:
        stream.close()

    def is_free() -> bool:
        with closing(Stream(port)) as stream:
            return stream.status == 200

    wait_until(is_free, 20)


def test_other_methods_open_no_stream(port: int) -> None:
    for method in ("HEAD", "POST"):
        with closing(Stream(port, method=method)) as stream:
            assert stream.status == 405


def test_gallery_that_is_away_ends_no_stream(
    port: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "_SECONDS", 0.05)
    monkeypatch.setattr(feed, "_BEAT_SECONDS", 0.2)
    with closing(Stream(port)) as stream:
        stream.event()
        folder.rename(folder.parent / "away")
        assert stream.block() == {"": "nothing new"}
        assert httpx.get(f"http://127.0.0.1:{port}/v1/events").status_code == 503
        (folder.parent / "away").rename(folder)
        httpx.patch(f"http://127.0.0.1:{port}/v1/items/1", json={"label": "back"})
        while "event" not in (found := stream.block()):
            pass
        assert json.loads(found["data"])["images"] == 24


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the server is stopped by a signal")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_streams_end_when_the_server_stops(tmp_path: Path, folder: Path, workers: str) -> None:
    command = [*SERVE, str(folder), "--no-page", "--workers", workers]
    with serving(command, tmp_path / "scratch", forked=workers == "1") as server:
        with closing(Stream(httpx.URL(server.url).port or 0)) as stream:
            stream.event()
            start = time.monotonic()
            code, output = server.stop()
            assert time.monotonic() - start < 20
            rest = b""
            while part := stream.connection.recv(1000):
                rest += part
            assert rest.endswith(b"0\r\n\r\n")  # the end of the answer, not a broken connection
        assert (code, "Traceback" in output) == (0, False)
