"""Two people who change the same thing: `If-Match`, by requests written by hand."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from retrieval import Gallery
from serve.client import ApiError, Client


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, shop_gallery: Path) -> Path:
    return shutil.copytree(shop_gallery, tmp_path_factory.mktemp("preconditions") / "g")


def _tag(http: httpx.Client, path: str) -> str:
    return http.get(path).headers["etag"]


def _refused(answer: httpx.Response) -> str:
    assert (answer.status_code, answer.json()["code"]) == (412, "changed")
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json()["detail"])


def test_change_of_what_somebody_else_changed_is_refused(http: httpx.Client) -> None:
    read = _tag(http, "/v1/items/1")
    first = http.patch("/v1/items/1", json={"label": "first"}, headers={"If-Match": read})
    assert first.status_code == 200
    second = http.patch("/v1/items/1", json={"label": "second"}, headers={"If-Match": read})
    assert "image 1 was changed in the meantime (its label is 'first' now)" in _refused(second)
    assert "image 1" in _refused(http.delete("/v1/items/1", headers={"If-Match": read}))
    assert http.get("/v1/items/1").json()["label"] == "first"
    assert first.headers["etag"] == _tag(http, "/v1/items/1")  # good for the next change
    again = http.patch("/v1/items/1", json={"label": None}, headers={"If-Match": first.headers["etag"]})
    assert again.status_code == 200


def test_labels_of_several_change_only_where_nobody_else_changed_them(
    http: httpx.Client, client: Client, folder: Path
) -> None:
    read = [client.image(number) for number in (10, 11, 12, 13)]
    client.update(11, label="theirs")
    client.remove(12)
    answer = client.relabel([(one, "mine") for one in read[:3]] + [(read[3], read[3].label)])
    (labelled,) = answer.labelled
    assert labelled.id == 10
    assert [(one.id, one.label) for one in answer.changed] == [(11, "theirs")]
    assert answer.missing == [12]
    stored = Gallery(folder).items([10, 11, 12, 13])
    assert {number: item.label for number, item in stored.items()} == {
        10: "mine",
        11: "theirs",
        13: read[3].label,
    }
    assert client.decisions(limit=1)[0].n == labelled.decision  # none for a label that stays
    client.undo_decision(labelled.decision)
    assert client.image(10).label == read[0].label
    client.relabel([(client.image(10), None)])
    assert client.image(10).label is None
    for body in (
        {"images": []},
        {"images": [{"id": 10, "label": "x"}]},  # without the label that was read
        {"images": [{"id": 10, "old": None, "label": "x"}] * 2},
        {"images": [{"id": 10, "old": None, "label": "x" * 1001}]},
    ):
        assert http.post("/v1/items:label", content=json.dumps(body)).status_code == 422
    assert client.image(10).label is None


def test_several_decisions_are_undone_where_nobody_else_was_first(client: Client, folder: Path) -> None:
    read = [client.image(number) for number in (14, 15, 16, 17)]
    made = [one.decision for one in client.relabel([(one, "mine") for one in read]).labelled]
    (twice,) = client.relabel([(client.image(14), "mine again")]).labelled
    client.update(15, label="theirs")
    client.undo_decision(made[2])
    client.remove(17)
    answer = client.undo_decisions([*made, twice.decision])
    assert sorted(answer.undone) == sorted([made[0], made[1], made[3], twice.decision])
    assert answer.already == [made[2]]
    assert [(one.decision, one.label) for one in answer.left] == [(made[1], "theirs")]
    labels = [item.label for item in Gallery(folder).items([14, 15, 16]).values()]
    assert labels == [read[0].label, "theirs", read[2].label]
    with pytest.raises(ApiError) as error:
        client.undo_decisions([made[1], 10**6])
    assert error.value.code == "no-such-decision"


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ("{tag}", 200),
        ('"other", {tag}', 200),
        ("*", 200),
        ('{open}-gzip"', 200),
        ("W/{tag}", 412),  # If-Match compares strongly
        ('"other"', 412),
        ("nonsense", 412),
        ("", 412),
    ],
)
def test_condition_is_compared_as_in_rfc_9110(http: httpx.Client, condition: str, status: int) -> None:
    tag = _tag(http, "/v1/items/2")
    header = condition.format(tag=tag, open=tag[:-1])
    before = http.get("/v1/items/2").json()["metadata"].get("n", 0)
    answer = http.patch("/v1/items/2", json={"metadata": {"n": before + 1}}, headers={"If-Match": header})
    assert answer.status_code == status
    assert http.get("/v1/items/2").json()["metadata"].get("n", 0) == before + (status == 200)


def test_unknown_image_is_not_found_whatever_the_condition(http: httpx.Client) -> None:
    for condition in ("*", '"x"'):
        assert (
            http.patch("/v1/items/999", json={"label": "x"}, headers={"If-Match": condition}).status_code
            == 404
        )
        assert http.delete("/v1/items/999", headers={"If-Match": condition}).status_code == 404


def test_one_of_many_who_change_at_once_succeeds(http: httpx.Client) -> None:
    tag = _tag(http, "/v1/items/3")

    def change(number: int) -> int:
        body = {"label": f"of {number}"}
        return http.patch("/v1/items/3", json=body, headers={"If-Match": tag}).status_code

    with ThreadPoolExecutor(8) as pool:
        statuses = sorted(pool.map(change, range(8)))
    assert statuses == [200, *[412] * 7]


def test_change_by_another_process_is_seen(http: httpx.Client, folder: Path) -> None:
    tag = _tag(http, "/v1/items/4")
    editor = Gallery(folder).editor()
    with editor.writing():
        editor.relabel(editor.stored_items([4]), ["theirs"])
    assert "'theirs'" in _refused(http.patch("/v1/items/4", json={"label": "x"}, headers={"If-Match": tag}))
    assert http.delete("/v1/items/4", headers={"If-Match": _tag(http, "/v1/items/4")}).status_code == 204


def test_decisions_are_about_what_was_seen(http: httpx.Client) -> None:
    tag = _tag(http, "/v1/items/5")
    assert http.patch("/v1/items/5", json={"label": "other"}).status_code == 200
    stale = http.post("/v1/decisions", json={"action": "keep", "id": 5, "etag": tag})
    assert "'other'" in _refused(stale)
    assert [fault["pointer"] for fault in stale.json()["errors"]] == ["#/etag"]
    now = {"action": "keep", "id": 5, "etag": _tag(http, "/v1/items/5")}
    assert http.post("/v1/decisions", json=now).status_code == 204
    newest = http.get("/v1/decisions").json()["decisions"][0]
    address = f"/v1/decisions/{newest['n']}"
    assert http.get(address).json() == newest
    tag = _tag(http, address)
    assert http.get(address, headers={"If-None-Match": tag}).status_code == 304
    assert http.delete(address, headers={"If-Match": tag}).status_code == 204
    assert "undone" in _refused(http.delete(address, headers={"If-Match": tag}))
    assert http.delete(address).status_code == 204  # undoing again has no further effect
    assert http.get("/v1/decisions/999").json()["code"] == "no-such-decision"
