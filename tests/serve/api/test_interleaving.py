"""`serve --against`: mixed hits, what is recorded of them, and what visitors are found to prefer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from retrieval import Gallery
from retrieval.search.interleaving import team_draft
from retrieval.storage.query_log import QueryLog, read_mixed_searches
from serve.app import create_app
from serve.client import Client, Hits
from serve.core.service import SearchService
from tests.conftest import lookalike_here
from tests.serve.api.test_outcomes import png
from tests.serve.asgi_server import answering
from tests.serve.serving import SERVE, serving


@pytest.fixture(scope="module")
def galleries(
    tmp_path_factory: pytest.TempPathFactory, shop: Path, shop_gallery: Path, second_model_file: Path
) -> tuple[Path, Path]:
    """The shop by two networks; the second lacks an image and has another one."""
    folder = tmp_path_factory.mktemp("compared")
    pictures = shutil.copytree(shop, folder / "shop")
    (pictures / "red" / "0.png").unlink()
    (pictures / "red" / "elsewhere.png").write_bytes(png(900))
    first = shutil.copytree(shop_gallery, folder / "old.gallery")
    second = folder / "new.gallery"
    lookalike_here("index", "build", str(second), str(pictures), "--model", str(second_model_file))
    return first, second


@pytest.fixture
def url(galleries: tuple[Path, Path], tmp_path: Path) -> Iterator[str]:
    first, second = galleries
    service = SearchService(first, query_log=QueryLog(tmp_path / "log"))
    service.interleave(second)
    with answering(create_app(service, page=False)) as url:
        yield url


def keys_of(gallery: Path, image: bytes, k: int, **options: object) -> list[str]:
    found = Gallery(gallery)
    vector = found.embedder.embed([image])
    return [hit.key for hit in found.search_vectors(vector, k, **options)[0]]  # type: ignore[arg-type]


def entries(log: Path) -> list[dict[str, object]]:
    return [
        json.loads(line) for file in sorted(log.glob("*.jsonl")) for line in file.read_text().splitlines()
    ]


def test_hits_are_those_of_a_draft(url: str, galleries: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = map(Gallery, galleries)
    image = png(501)
    with Client(url) as client:
        assert client.gallery().interleaved is True
        found = client.search(image, k=12)
    assert found.interleaved is True
    assert found.query_id is not None
    known = {key for (key,) in ((item.key,) for item in first.items(first.ids_of(range(1, 25))).values())}
    theirs = [key for key in keys_of(galleries[1], image, 12) if key in known]
    ours = keys_of(galleries[0], image, 12)
    assert ours != theirs[:12]
    draft = team_draft([("key", key) for key in ours], [("key", key) for key in theirs], 12, found.query_id)
    assert [hit.key for hit in found] == [key for _, key in draft.order]
    vector = first.embedder.embed([image])[0]
    for hit in found:  # facts and scores are those of the first gallery
        (number,) = first.ids_of([hit.key])
        assert hit.id == number
        assert hit.score == pytest.approx(float(first.vector(number) @ vector), abs=1e-5)
        assert hit.label == first.item(number).label
    (entry,) = entries(tmp_path / "log")
    ids = {key: first.ids_of([key])[0] for _, key in draft.order}
    assert entry["against"] == {
        "gallery": "new.gallery",
        "model": second.fingerprint,
        "first": [ids[key] for kind, key in draft.order if (kind, key) in draft.first],
        "second": [ids[key] for kind, key in draft.order if (kind, key) in draft.second],
    }
    assert [hit[0] for hit in entry["hits"]] == [first.ids_of([key])[0] for key in ours[:10]]  # type: ignore[index, attr-defined]


def test_more_of_the_same_continues_the_list(url: str, tmp_path: Path) -> None:
    body = {"id": 5, "k": 6}
    answer = httpx.post(f"{url}/v1/search", json=body).json()
    more = httpx.post(f"{url}/v1/search", json=body | {"k": 14, "query_id": answer["query_id"]}).json()
    assert answer["interleaved"] is more["interleaved"] is True
    assert [hit["id"] for hit in more["hits"]][:6] == [hit["id"] for hit in answer["hits"]]
    assert len(entries(tmp_path / "log")) == 1
    assert 5 not in [hit["id"] for hit in more["hits"]]


def test_conditions_exclusions_and_parts(url: str) -> None:
    """What both galleries can be asked alike is mixed, and what a search leaves out stays out."""
    with Client(url) as client:
        red = client.search(png(502), k=8, where="label = 'red'")
        assert red.interleaved
        assert {hit.label for hit in red} == {"red"}
        without = client.search(png(502), k=20, exclude=[red[0].key, red[1].id])
        assert without.interleaved
        assert not {red[0].id, red[1].id} & {hit.id for hit in without}
        part = client.search(id=9, k=5, region=(0, 0, 0.5, 0.5))
        assert part.interleaved
        several = client.search(like=[{"id": 3}, {"image": png(503)}], unlike=[{"id": 20}], k=9)
        assert several.interleaved
        assert not {3, 20} & {hit.id for hit in several}
        both = client.search_batch([png(504), png(505)], k=7)
        assert [isinstance(one, Hits) and one.interleaved for one in both] == [True, True]


@pytest.mark.parametrize(
    "query",
    [
        {"vector": [], "k": 5},
        {"id": 3, "k": 1},
        {"id": 3, "k": 5, "order": "label"},
        {"id": 3, "k": 5, "min_score": 0.1},
        {"id": 3, "k": 5, "group_by": "label"},
        {"id": 3, "k": 5, "rerank": "query-expansion"},
        {"id": 3, "k": 5, "where": "id > 4"},
        {"id": 3, "k": 5, "where": "not (label = 'red' or id = 4)"},
    ],
    ids=str,
)
def test_first_gallery_alone_answers_what_only_it_can(
    query: dict[str, object], url: str, galleries: tuple[Path, Path], tmp_path: Path
) -> None:
    if "vector" in query:
        query = query | {"vector": Gallery(galleries[0]).vector(3).tolist()}
    answer = httpx.post(f"{url}/v1/search", json=query).json()
    assert "interleaved" not in answer
    with answering(create_app(SearchService(galleries[0]), page=False)) as alone:
        assert answer["hits"] == httpx.post(f"{alone}/v1/search", json=query).json()["hits"]
    assert "against" not in entries(tmp_path / "log")[0]


def test_image_that_the_second_gallery_lacks(url: str, galleries: tuple[Path, Path]) -> None:
    (number,) = Gallery(galleries[0]).ids_of(["red/0.png"])
    assert "interleaved" not in httpx.post(f"{url}/v1/search", json={"id": number, "k": 5}).json()


def test_who_objects_to_being_recorded_sees_one_gallery(url: str, tmp_path: Path) -> None:
    for name in ("Sec-GPC", "DNT"):
        answer = httpx.post(f"{url}/v1/search", json={"id": 3, "k": 5}, headers={name: "1"}).json()
        assert "interleaved" not in answer
    assert not (tmp_path / "log").exists() or not entries(tmp_path / "log")


def test_second_gallery_that_fails_takes_nothing_with_it(
    galleries: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Visitors get the hits of the first gallery, and the log of the server says why."""
    second = shutil.copytree(galleries[1], tmp_path / "second.gallery")
    service = SearchService(galleries[0], query_log=QueryLog(tmp_path / "log"))
    service.interleave(second)
    with answering(create_app(service, page=False)) as url, Client(url) as client:
        assert client.search(id=3, k=5).interleaved
        shutil.rmtree(second)
        found = client.search(id=3, k=5)
    assert not found.interleaved
    assert [hit.id for hit in found] == [hit.id for hit in Gallery(galleries[0]).search_id(3, 5)]
    assert "second.gallery: not compared" in caplog.text


def test_products_are_mixed_whole(
    shop: Path, model_file: Path, second_model_file: Path, tmp_path: Path
) -> None:
    """A hit is a product, with the views and the score that the first gallery gives it."""
    table = tmp_path / "shop.csv"
    files = sorted(shop.rglob("*.png"))
    rows = [f"{file.relative_to(shop)},o'{number // 3}" for number, file in enumerate(files)]
    table.write_text("\n".join(["path,sku", *rows]))
    models = {"a": model_file, "b": second_model_file}
    for name, model in models.items():
        words = [str(tmp_path / name), "--metadata", str(table), "--root", str(shop), "--model", str(model)]
        lookalike_here("index", "build", *words, "--product", "sku")
    service = SearchService(tmp_path / "a", query_log=QueryLog(tmp_path / "log"))
    service.interleave(tmp_path / "b")
    image = png(505)
    with answering(create_app(service, page=False)) as url, Client(url) as client:
        found = client.search(image, k=5)
    first, second = Gallery(tmp_path / "a"), Gallery(tmp_path / "b")
    alone = {hit.group: hit for hit in first.search(image, 20)}
    ours, theirs = ([("group", hit.group) for hit in one.search(image, 5)] for one in (first, second))
    assert found.interleaved
    assert found.query_id
    order = team_draft(ours, theirs, 5, found.query_id).order
    assert [("group", hit.group) for hit in found] == order
    for hit in found:
        assert hit.id == alone[hit.group].id
        assert hit.view_count == alone[hit.group].view_count == 3
        assert hit.score == pytest.approx(alone[hit.group].score, abs=1e-5)
    other = tmp_path / "c"
    words = ["--metadata", str(table), "--root", str(shop), "--model", str(model_file)]
    lookalike_here("index", "build", str(other), *words)
    with pytest.raises(Exception, match="its products are by no column"):
        service.interleave(other)


def test_galleries_in_a_database_are_mixed(
    shop: Path, model_file: Path, second_model_file: Path, tmp_path: Path
) -> None:
    pytest.importorskip("qdrant_edge", reason="needs qdrant-edge-py")
    for name, model in (("a", model_file), ("b", second_model_file)):
        words = ["--model", str(model), "--store", f"qdrant://{tmp_path}/store_{name}"]
        lookalike_here("index", "build", str(tmp_path / name), str(shop), *words)
    service = SearchService(tmp_path / "a", query_log=QueryLog(tmp_path / "log"))
    service.interleave(tmp_path / "b")
    with answering(create_app(service, page=False)) as url, Client(url) as client:
        found = client.search(png(506), k=8)
        like = client.search(id=found[0].id, k=8, where="label = 'red'")
    first, second = Gallery.open(tmp_path / "a"), Gallery.open(tmp_path / "b")
    ours, theirs = ([("key", hit.key) for hit in one.search(png(506), 8)] for one in (first, second))
    assert ours != theirs
    assert found.query_id is not None
    assert [("key", hit.key) for hit in found] == team_draft(ours, theirs, 8, found.query_id).order
    assert like.interleaved
    assert {hit.label for hit in like} == {"red"}
    fingerprints = first.fingerprint, second.fingerprint
    assert read_mixed_searches(tmp_path / "log", "a", fingerprints).count == 2


def test_command_says_whom_visitors_prefer(galleries: tuple[Path, Path], tmp_path: Path) -> None:
    """Visitors who open what the second gallery found, and then one who opens what the first one found."""
    first, second = galleries
    log = tmp_path / "log"
    words = [*SERVE, str(first), "--no-page", "--query-log", str(log), "--against", str(second)]
    with serving(words, tmp_path / "scratch") as server, Client(server.url) as client:
        for seed in range(40):
            found = client.search(png(600 + seed), k=8)
            assert found.query_id is not None
            mixed = read_mixed_searches(
                log, first.name, (Gallery(first).fingerprint, Gallery(second).fingerprint)
            )
            assert mixed.count == seed + 1
            against = entries(log)[-1]["against"]
            team = against["first" if seed % 8 == 0 else "second"]  # type: ignore[index]
            if team:
                client.record_outcome(found.query_id, team[0], "opened")
    printed = lookalike_here("compare", str(first), str(second), "--log", str(log)).stdout
    found = json.loads(lookalike_here("compare", str(first), str(second), "--log", str(log), "--json").stdout)
    assert found["searches"] == 40
    assert found["certain"] is True
    assert found["low"] > 0.5
    assert f"visitors prefer {second}" in printed
    wrong = lookalike_here("compare", str(second), str(first), "--log", str(log), code=2)
    assert wrong.returncode == 2
    assert "no search was mixed of" in wrong.stderr
    assert "there are 40 of old.gallery" in wrong.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--against", "{second}"], "add --query-log FOLDER"),
        (["--against", "{second}", "--query-log", "log", "{second}"], "give one gallery"),
        (["--against", "{other}", "--query-log", "log"], "it has 0 of 24 images"),
        (["--against", "missing", "--query-log", "log"], "missing"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    words: list[str], reason: str, galleries: tuple[Path, Path], tmp_path: Path, model_file: Path
) -> None:
    first, second = galleries
    other = tmp_path / "other.gallery"
    Gallery.create(other, model_file)
    given = [word.format(second=second, other=other) for word in words]
    done = lookalike_here("serve", str(first), "--port", "0", *given, cwd=tmp_path, code=2)
    assert done.returncode == 2
    assert reason in done.stderr


def test_vectors_of_the_second_gallery_stay_there(url: str, galleries: tuple[Path, Path]) -> None:
    """The log has the vector of the first model alone, and a link of the page as well."""
    answer = httpx.post(f"{url}/v1/embed", content=png(1), headers={"Content-Type": "image/png"}).json()
    assert np.array(answer["vectors"]).shape == (1, Gallery(galleries[0]).manifest.dim)
