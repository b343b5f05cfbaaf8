"""Gradio's API beside the page, called by its own client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from gradio_client import Client, handle_file

from retrieval import Gallery
from tests.serve.serving import SERVE, Server, serving

pytestmark = pytest.mark.slow

EVIL = {"Origin": "https://evil.example", "Host": "search.example.com"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, shop_gallery: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("engine")
    with serving([*SERVE, f"shop={shop_gallery}", f"other={shop_gallery}"], folder, forked=True) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Client:
    downloads = str(tmp_path_factory.mktemp("downloads"))
    return Client(server.url, verbose=False, download_files=downloads, analytics_enabled=False)


def test_gradio_is_loaded_at_the_first_call(tmp_path: Path, shop_gallery: Path) -> None:
    with serving([*SERVE, str(shop_gallery)], tmp_path / "scratch") as server:
        loaded = Path(f"/proc/{server.process.pid}/maps")
        assert "Lookalike: " in httpx.get(server.url, timeout=30).text
        assert "pandas" not in loaded.read_text(), "Gradio imports it"
        config = httpx.get(f"{server.url}/config", timeout=120)
        assert config.json()["mode"] == "server"
        assert "pandas" in loaded.read_text()
        with httpx.stream("GET", f"{server.url}/gradio_api/heartbeat/held", timeout=60):
            assert server.stop()[0] == 0, "open streams are not waited for"


def test_endpoints_have_names(client: Client) -> None:
    named = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    assert set(named) == {"/search", "/search_text", "/evaluate", "/duplicates", "/suspects", "/map"}
    assert "/search_text" in named
    parameters = {one["parameter_name"] for one in named["/search"]["parameters"]}
    assert parameters == {"image", "k", "where", "gallery"}


def test_uploaded_image_is_searched(client: Client, shop: Path, shop_gallery: Path) -> None:
    path = shop / "red" / "2.png"
    found = client.predict(handle_file(str(path)), k=5, api_name="/search")
    expected = Gallery.open(shop_gallery).search(path, k=5)
    assert [hit["id"] for hit in found["hits"]] == [hit.id for hit in expected]
    other = client.predict(
        handle_file(str(path)), k=30, where="label = 'blue'", gallery="other", api_name="/search"
    )
    assert {hit["label"] for hit in other["hits"]} == {"blue"}
    assert other["hits"][0]["thumbnail"].startswith("/v1/galleries/other/")


def test_long_work_waits_in_the_queue(client: Client, shop_gallery: Path, server: Server) -> None:
    found = client.predict(0.95, api_name="/duplicates")
    assert found["total"] == len(Gallery.open(shop_gallery).duplicates(0.95).groups)
    placed = client.predict(api_name="/map")
    assert len(placed["ids"]) == 24
    jobs = httpx.get(f"{server.url}/v1/jobs").json()["jobs"]
    assert [job["kind"] for job in jobs] == ["map", "duplicates"], "the same jobs as those of the API"


@pytest.mark.parametrize(
    ("endpoint", "arguments", "message"),
    [
        ("/search_text", {"text": "red"}, "embeds images only"),
        ("/suspects", {"gallery": "shpo"}, "did you mean 'shop'"),
        ("/duplicates", {"min_score": 0.1}, "greater than or equal to 0.8"),
    ],
)
def test_mistakes_are_explained(
    client: Client, endpoint: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        client.predict(**arguments, api_name=endpoint)


def _join(server: Server, data: list[Any], number: int = 0) -> str:
    """Send an event as the client does, and return all that comes back."""
    session = os.urandom(4).hex()
    body = {"fn_index": number, "session_hash": session, "data": data}
    joined = httpx.post(f"{server.url}/gradio_api/queue/join", json=body, timeout=60)
    if joined.is_error:
        return joined.text
    with httpx.stream(
        "GET", f"{server.url}/gradio_api/queue/data?session_hash={session}", timeout=60
    ) as stream:
        text = ""
        for line in stream.iter_lines():
            text += line
            if "process_completed" in line or "unexpected_error" in line or "close_stream" in line:
                return text
    return text


@pytest.mark.parametrize("path", ["/etc/hostname", "../../etc/hostname", "", "/proc/self/environ"])
def test_no_other_file_of_the_server_is_read(client: Client, server: Server, shop: Path, path: str) -> None:
    before = set(server.scratch.rglob("*"))
    for given in ({"path": path}, {"path": path, "url": "http://127.0.0.1:1/a.png"}):
        said = _join(server, [{**given, "meta": {"_type": "gradio.FileData"}}, 5, "", ""])
        assert '"success":false' in said.replace(" ", "") or "upload the image first" in said
        assert "root:" not in said
    outside = shop / "red" / "1.png"
    assert "upload the image first" in _join(server, [{"path": str(outside)}, 5, "", ""])
    assert not [one for one in set(server.scratch.rglob("*")) - before if one.suffix == ".png"]


def test_malformed_events_are_refused_in_a_line(client: Client, server: Server) -> None:
    for body in ({"fn_index": 10**6, "data": []}, {"fn_index": -1, "data": [1]}, {"fn_index": 0}, ["x"], {}):
        joined = httpx.post(f"{server.url}/gradio_api/queue/join", json=body, timeout=60)
        assert joined.status_code in (200, 400, 422), joined.text
    for image in ({"path": {"a": 1}}, {}, ["x"] * 50, "🙂\n\nTraceback", None, 7):
        assert "upload the image first" in _join(server, [image, 5, "", ""])


def test_foreign_sites_get_no_permission(client: Client, server: Server) -> None:
    for path in ("/config", "/gradio_api/info"):
        answer = httpx.get(f"{server.url}{path}", headers={"Origin": EVIL["Origin"]}, timeout=60)
        assert answer.status_code == 200
        assert "access-control-allow-origin" not in answer.headers
    refused = httpx.post(
        f"{server.url}/gradio_api/queue/join", json={}, headers={"Sec-Fetch-Site": "cross-site"}
    )
    assert refused.status_code == 403


def test_queue_is_bounded(client: Client, server: Server) -> None:
    def join(number: int) -> int:
        body = {"fn_index": 5, "session_hash": f"many-{number}", "data": [20_000, ""]}
        return httpx.post(f"{server.url}/gradio_api/queue/join", json=body, timeout=60).status_code

    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(join, range(100)))
    assert set(statuses) == {200, 503}
    assert httpx.get(f"{server.url}/healthz", timeout=60).status_code == 200


def test_import_of_the_server_does_not_import_gradio() -> None:
    code = "import json, sys, serve.app, serve.gradio.engine; print(json.dumps('gradio' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) is False
