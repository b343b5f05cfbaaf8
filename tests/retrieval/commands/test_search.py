"""Tests of `lookalike search` and `lookalike check duplicates`."""

from __future__ import annotations

import json
import os
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from retrieval import Embedder, Gallery
from tests.conftest import draw, lookalike_here
from tests.retrieval.reports.html_page import Page


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory, shop: Path) -> Path:
    """The shop, with one of the red images also among the green ones."""
    folder = tmp_path_factory.mktemp("search") / "photos"
    shutil.copytree(shop, folder)
    shutil.copyfile(folder / "red" / "3.png", folder / "green" / "again.png")
    return folder


@pytest.fixture(scope="module")
def gallery(photos: Path, model_file: Path) -> Path:
    folder = photos.with_name("g")
    lookalike_here("index", "build", str(folder), str(photos), "--model", str(model_file))
    return folder


def answers(*words: str, code: int = 0) -> list[dict[str, Any]]:
    return json.loads(lookalike_here("search", *words, "--json", code=code).stdout)


def keys(answer: dict[str, Any]) -> list[str]:
    return [hit["key"] for hit in answer["hits"]]


def test_every_option_at_once(gallery: Path, photos: Path, tmp_path: Path) -> None:
    query, sheet = photos / "red" / "3.png", tmp_path / "found.html"
    words = ["--where", "label like 'r%' or label = 'green'", "--exclude", "red/3.png", "--min-score", "-1"]
    done = lookalike_here(
        "search", str(gallery), str(query), "-k", "2", *words, "--group-by", "label", "--sheet", str(sheet)
    )
    lines = done.stdout.splitlines()
    assert lines[0] == str(query)
    assert {line.split()[3] for line in lines[1:]} == {"red", "green"}
    assert lines[1].split()[1] == "1.0000", "the copy among the green ones"
    assert "again.png " in lines[1]
    assert lines[1].endswith(" views")
    assert "searched 25 images in" in done.stderr
    page = Page(sheet)
    assert len(page.image_sources) == 3
    assert all(source.startswith("data:image/") for source in page.image_sources)
    assert "1.000 green" in page.text


def test_search_by_item_and_timings(gallery: Path) -> None:
    (by_key,) = answers(str(gallery), "--id", "red/3.png", "-k", "24")
    (number,) = Gallery.open(gallery).ids_of(["red/3.png"])
    (by_number,) = answers(str(gallery), "--id", str(number), "-k", "24")
    assert keys(by_key) == keys(by_number)
    assert keys(by_key)[0] == "green/again.png"
    assert "red/3.png" not in keys(by_key)
    assert len(by_key["hits"]) == 24
    assert (by_key["embed_ms"], by_key["scores"]) == (0, "cosine similarity")
    assert by_key["search_ms"] > 0


def test_together_combines_several_images_into_one_query(
    gallery: Path, photos: Path, model_file: Path
) -> None:
    views = [photos / "red" / "1.png", photos / "blue" / "1.png"]
    (answer,) = answers(str(gallery), *map(str, views), "--together", "-k", "25")
    one_by_one = Embedder(model_file).embed(views).astype(float)
    mean = one_by_one.mean(0) / np.linalg.norm(one_by_one.mean(0))
    (hits,) = Gallery.open(gallery).search_vectors(mean[None].astype(np.float32), 25)
    np.testing.assert_allclose(
        [hit["score"] for hit in answer["hits"]], [hit.score for hit in hits], atol=1e-5
    )
    (without,) = answers(str(gallery), "--id", "red/1.png", "--id", "blue/1.png", "--together", "-k", "25")
    assert sorted([*keys(without), "red/1.png", "blue/1.png"]) == sorted(hit.key for hit in hits)


def test_liked_and_unliked_images_and_items_make_one_query(
    gallery: Path, photos: Path, model_file: Path
) -> None:
    files = [str(photos / "red" / "1.png"), str(photos / "green" / "2.png"), str(photos / "blue" / "1.png")]
    words = [files[0], "--like", files[1], "--unlike", files[2], "--unlike-id", "blue/4.png", "-k", "25"]
    (answer,) = answers(str(gallery), *words)
    assert answer["query"] == f"{files[0]} + {files[1]} - {files[2]} - {photos / 'blue' / '4.png'}"
    one, two, three = Embedder(model_file).embed(files).astype(float)
    stored = Gallery.open(gallery)
    (number,) = stored.ids_of(["blue/4.png"])
    query = 2 * (one + two) / 2 - (three + stored.vector(number)) / 2
    assert "blue/4.png" not in keys(answer)
    ids = [hit["id"] for hit in answer["hits"]]
    scores = np.stack([stored.vector(item) for item in ids]) @ query / np.linalg.norm(query)
    np.testing.assert_allclose([hit["score"] for hit in answer["hits"]], scores, atol=1e-5)
    assert sorted(ids) == sorted({*stored.sample(25)} - {number})
    assert (np.diff(scores) < 1e-6).all()


def test_unlike_alone_is_refused(gallery: Path) -> None:
    said = lookalike_here("search", str(gallery), "--unlike-id", "1", code=2).stderr
    assert "Missing argument" in said


@pytest.mark.parametrize("rerank", ["query-expansion", "k-reciprocal"])
def test_rerank_changes_the_scores(gallery: Path, photos: Path, rerank: str) -> None:
    query = photos / "blue" / "2.png"
    (answer,) = answers(str(gallery), str(query), "--rerank", rerank, "-k", "5")
    hits = Gallery.open(gallery).search(query, 5, rerank=rerank)
    assert keys(answer) == [hit.key for hit in hits]
    np.testing.assert_allclose(
        [hit["score"] for hit in answer["hits"]], [hit.score for hit in hits], atol=1e-5
    )
    assert answer["scores"] != "cosine similarity"


def test_unreadable_images_are_reported_and_the_others_answered(
    gallery: Path, photos: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff nothing")
    draw(77).save(tmp_path / "fine.png")
    words = [str(gallery), "nowhere.png", str(tmp_path / "fine.png"), str(broken)]
    found = answers(*words, code=3)
    assert [answer["query"] for answer in found if "hits" in answer] == [str(tmp_path / "fine.png")]
    assert {answer["query"]: answer["error"]["reason"] for answer in found if "error" in answer} == {
        "nowhere.png": "missing",
        str(broken): "not-an-image",
    }
    said = lookalike_here("search", *words, code=3)
    assert "nowhere.png: there is no such file" in said.stderr
    assert lookalike_here("search", str(gallery), "nowhere.png", str(broken), code=2).stdout == ""


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--where", "label = 'purple'"], "found 0 of 10: no more images match the condition"),
        (["--min-score", "1"], "of 10: no more images score at least 1"),
        (["--group-by", "label"], "found 3 of 10: no more images have a different label"),
        (["-k", "99"], "found 25 of 99: the gallery has no more images"),
    ],
)
def test_fewer_hits_than_requested_are_explained(
    gallery: Path, photos: Path, words: list[str], why: str
) -> None:
    assert why in lookalike_here("search", str(gallery), str(photos / "red" / "0.png"), *words).stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--where", "labl = 'red'"], "did you mean 'label'"),
        (["--where", "label = red"], "text in single quotes"),
        (["--group-by", "colour"], "no column 'colour'"),
        (["--min-score", "2"], "from -1 to 1"),
        (["--exclude", "nobody"], "no item 'nobody'"),
        (["--id", "nobody"], "no item 'nobody'"),
        (["--rerank", "best"], "--rerank"),
        (["--sheet", "found.png"], "call it found.html"),
        (["--sheet", "/dev/null/found.html"], "it is a file, not a folder"),
        (["-k", "0"], "-k"),
    ],
)
def test_invalid_queries_are_rejected(gallery: Path, photos: Path, words: list[str], message: str) -> None:
    done = lookalike_here("search", str(gallery), str(photos / "red" / "0.png"), *words, code=2)
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not done.stdout


def test_names_that_are_not_utf8_are_shown_alike(gallery: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    draw(3).save(folder / "fine.png")
    try:
        (folder / os.fsdecode(b"latin\xe9.png")).write_bytes(b"")
    except OSError:
        pytest.skip("the file system has only names in UTF-8")
    shutil.copytree(gallery, copy := tmp_path / "g")
    added = lookalike_here("index", "add", str(copy), str(folder), code=3)
    shown = rf"{folder}/latin\xe9.png: "
    assert f"{shown}its name is not valid UTF-8: rename it" in added.stdout + added.stderr
    sought = lookalike_here("search", str(copy), os.fsdecode(bytes(folder) + b"/latin\xe9.png"), code=2)
    assert f"{shown}the file is empty" in sought.stderr


def test_control_characters_never_reach_the_terminal(tmp_path: Path, model_file: Path) -> None:
    label, name = "evil\x1b[31m\u202e\r", "two\nlines\x9b.png"
    folder = tmp_path / "photos" / label
    folder.mkdir(parents=True)
    draw(1).save(folder / name)
    draw(1).save(folder / "copy.png")
    (folder / "bad\x07.png").write_bytes(b"no image")
    made = tmp_path / "g\x1b[2J"
    words = ["index", "build", str(made), str(tmp_path / "photos"), "--model", str(model_file)]
    query = str(folder / name)
    built = lookalike_here(*words, code=3)
    Gallery(made).add([folder / "copy.png"], metadata=[{"note": "\x1b]0;title\x07"}])
    said = [
        built,
        lookalike_here("index", "info", str(made)),
        lookalike_here("index", "verify", str(made)),
        lookalike_here("index", "sync", str(made), str(tmp_path / "photos"), code=3),
        lookalike_here("check", "duplicates", str(made)),
        searched := lookalike_here("search", str(made), query, str(folder / "bad\x07.png"), code=3),
        lookalike_here("search", str(made), query, "--where", "label = '\x1b' and nothing = 1", code=2),
        lookalike_here("search", str(made), query, "--where", "label = \x1b", code=2),
        lookalike_here("search", str(made), query, "--exclude", "\x1b\n", code=2),
        lookalike_here("index", "remove", str(made), "\x1b\u2066", code=2),
        lookalike_here("search", str(made), "--\x1b]0;x\x07", code=2),
        lookalike_here("search", f"{made}\n", query, "--debug", code=2),
        lookalike_here("index", "remove", str(made), f"{label}/{name}"),
    ]
    for done in said:
        shown = (done.stdout + done.stderr).replace("\n", "")
        assert not [c for c in shown if unicodedata.category(c) == "Cc" or c in "\u202e\u2066"], done
    assert len(searched.stdout.splitlines()) == 3, "a line for the query and one for each hit"
    assert r"evil\x1b[31m\u202e\r/two\nlines\x9b.png" in searched.stdout
    (answer,) = answers(str(made), str(folder / "copy.png"))
    assert answer["hits"][0]["label"] == label
    assert answer["query"] == str(folder / "copy.png")


def test_empty_gallery_hints_at_index_add(tmp_path: Path, model_file: Path, photos: Path) -> None:
    Gallery.create(tmp_path / "empty", model_file)
    done = lookalike_here("search", str(tmp_path / "empty"), str(photos / "red" / "0.png"), code=2)
    assert "the gallery is empty" in done.stderr
    assert (
        "no near-duplicates among 0 images"
        in lookalike_here("check", "duplicates", str(tmp_path / "empty")).stdout
    )


def test_duplicates_across_labels(gallery: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "twice.html"
    shown = lookalike_here(
        "check", "duplicates", str(gallery), "--min-score", "0.999999", "--sheet", str(sheet)
    ).stdout
    assert shown.startswith("groups of near-duplicates: 1, with 2 of 25 images; across labels: 1")
    assert "2 images, identical files, ACROSS LABELS: green, red" in shown
    assert len(Page(sheet).image_sources) == 2
    report = json.loads(
        lookalike_here("check", "duplicates", str(gallery), "--min-score", "0.999999", "--json").stdout
    )
    (group,) = report["groups"]
    assert {member["key"] for member in group["members"]} == {"red/3.png", "green/again.png"}
    assert (group["identical"], group["labels"]) == (True, ["green", "red"])
    assert group["lowest"] == pytest.approx(1, abs=1e-5)
    assert (
        "from -1 to 1"
        in lookalike_here("check", "duplicates", str(gallery), "--min-score", "3", code=2).stderr
    )


def test_overview_says_what_the_checks_say(gallery: Path) -> None:
    shown = lookalike_here("check", str(gallery)).stdout
    for name in ("duplicates", "suspects"):
        assert lookalike_here("check", name, str(gallery)).stdout.splitlines()[0] in shown
    facts = json.loads(lookalike_here("check", str(gallery), "--json").stdout)
    groups = json.loads(lookalike_here("check", "duplicates", str(gallery), "--json").stdout)["groups"]
    assert (facts["duplicates"]["groups"], facts["decisions"], facts["images"]) == (len(groups), 0, 25)
    assert "not a gallery" in lookalike_here("check", f"{gallery}.none", code=2).stderr


def test_objects_of_a_picture_are_found_with_their_boxes(gallery: Path, photos: Path, tmp_path: Path) -> None:
    room, broken, sheet = tmp_path / "room.png", tmp_path / "broken.png", tmp_path / "found.html"
    picture = Image.new("RGB", (600, 400), "white")
    picture.paste(Image.open(photos / "red" / "3.png").convert("RGB").resize((160, 160)), (400, 200))
    picture.save(room)
    broken.write_bytes(b"no image")
    words = (str(gallery), str(room), str(broken), "--objects", "-k", "3")
    answer, unreadable = answers(*words, code=3)
    assert unreadable["query"] == str(broken)
    assert answer["scores"].startswith("mean whitened cosine")
    assert len(answer["hits"]) == 3
    for hit in answer["hits"]:
        left, top, right, bottom = hit["box"]
        assert 0 <= left < right <= 1
        assert 0 <= top < bottom <= 1
    done = lookalike_here("search", *words, "--sheet", str(sheet), code=3)
    shown = ",".join(f"{100 * value:.0f}%" for value in answer["hits"][0]["box"])
    assert shown in done.stdout.splitlines()[1]
    assert f"at {shown}" in Page(sheet).text
    for wrong in (["--together"], ["--id", "1"], ["--text", "red"], ["--like", str(room)]):
        refused = lookalike_here("search", str(gallery), str(room), "--objects", *wrong, code=2)
        assert "--objects takes IMAGEs alone" in refused.stderr
    refused = lookalike_here(
        "search", str(gallery), str(room), "--objects", "--rerank", "k-reciprocal", code=2
    )
    assert "not with a search for objects" in refused.stderr
