"""Decisions through the API: logged with each change, listed, undone, and carried out by later runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest

from retrieval import Gallery
from retrieval.storage.decisions import DecisionLog
from serve.app import create_app
from serve.client import Added, ApiError, Client
from serve.core.service import SearchService
from tests.serve.asgi_server import answering


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, shop_gallery: Path) -> Path:
    return shutil.copytree(shop_gallery, tmp_path_factory.mktemp("decisions") / "g")


def test_changes_are_logged_and_undone(client: Client, folder: Path) -> None:
    label = client.image(1).label
    client.update(1, label="other")
    client.keep(2)
    client.remove(3)
    (count,) = {client.remove_where("id = 4").selected}
    client.remove_where("id = 4", count)
    client.update(1, metadata={"price": 3})  # no decision
    found = client.decisions()
    keys = {item.id: item.key for item in Gallery(folder).stored_items([1, 2, 3, 4])}
    assert [(one.action, one.key) for one in found] == [
        ("remove", keys[4]),
        ("remove", keys[3]),
        ("keep", keys[2]),
        ("label", keys[1]),
    ]
    assert (found[-1].old, found[-1].new) == (label, "other")
    assert [one.n for one in client.decisions(limit=2, before=found[0].n)] == [found[1].n, found[2].n]
    client.undo_decision(found[-1].n)
    assert client.image(1).label == label
    assert client.image(1).metadata["price"] == 3
    client.undo_decision(found[-1].n)
    assert client.decisions()[-1].undone
    assert [one.key for one in DecisionLog(folder).in_effect()] == [keys[2], keys[3], keys[4]]


def test_uploads_are_told_from_files_of_a_folder(client: Client, folder: Path) -> None:
    """The file of an upload is deleted with it, so that no run brings it back; that of a folder stays."""
    source = Path(Gallery(folder).item(5).path)
    (added,) = client.add([source.read_bytes() + b"\0"])
    assert isinstance(added, Added)
    stored = Path(Gallery(folder).item(added.id).path)
    client.remove(added.id)
    client.remove(5)
    assert [one.has_source for one in client.decisions(limit=2)] == [True, False]
    assert (source.exists(), stored.exists()) == (True, False)


def test_refusals(client: Client, http: httpx.Client) -> None:
    before = client.decisions()
    for call, code in (
        (lambda: client.undo_decision(999), "no-such-decision"),
        (lambda: client.keep(999), "no-such-image"),
        (lambda: client.update(1, metadata={"id": 3}), "invalid-request"),
        (lambda: client.remove(999), "no-such-image"),
    ):
        with pytest.raises(ApiError) as error:
            call()
        assert error.value.code == code
    assert http.post("/v1/decisions", json={"action": "remove", "id": 1}).status_code == 422
    assert [one for one in client.decisions() if not one.undone] == [one for one in before if not one.undone]


def test_decisions_need_permission(folder: Path) -> None:
    with answering(create_app(SearchService(folder), page=False)) as url, httpx.Client(base_url=url) as http:
        for answer in (
            http.get("/v1/decisions"),
            http.post("/v1/decisions", json={"action": "keep", "id": 1}),
            http.delete("/v1/decisions/1"),
        ):
            assert (answer.status_code, answer.json()["code"]) == (403, "changes-not-allowed")
